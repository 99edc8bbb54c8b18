"""Joining a group: what a push and a pull consumer do alike at their start."""

import asyncio

from lockstep.client.instance import Instance
from lockstep.client.topics import create_topic
from lockstep.protocol.errors import BrokerError, RemoteProtocolError, RouteNotReadyError, SubscriptionConflictError, TransportError
from lockstep.protocol.names import retry_topic
from lockstep.runtime.log import get_logger

log = get_logger("client.consumer")

CONFLICT_PAUSE_MS = 250
"""Between two quiet tries to join a group whose other members may be gone and in their grace."""
CONFLICT_EXTRA_MS = 1_000
"""Beyond the grace: a broker frees an ended session's membership with its next tick."""


async def join(instance: Instance, group: str) -> None:
    """HEART_BEAT everywhere. A conflict with members who are all in their grace is tried again quietly until that is over."""
    clock = instance.host.clock
    began_ms = clock.boot_ms()
    while True:
        try:
            await instance.join(group)
            return
        except SubscriptionConflictError as conflict:
            grace_ms = max([link.grace_ms for link in instance.links()], default=0)
            if not conflict.temporary or clock.boot_ms() - began_ms >= grace_ms + CONFLICT_EXTRA_MS:
                raise
            log.debug("group.join_refused", group=group, remark=conflict.remark)
            await asyncio.sleep(CONFLICT_PAUSE_MS / 1000)


async def is_routed(instance: Instance, topic: str) -> bool:
    """False: there is no such topic, or the nameserver has not heard of any broker since it started. Asked again every second."""
    try:
        return await instance.watch.route(topic) is not None
    except RouteNotReadyError:
        return False


async def ready_retries(instance: Instance, group: str) -> None:
    """The topic of the group's retries is there, or will be with the first message that is sent back."""
    topic = retry_topic(group)
    try:
        if not await is_routed(instance, topic):
            await create_topic(instance, topic, 1)
    except (TransportError, BrokerError, RemoteProtocolError) as error:
        log.warning("topic.missing", group=group, topic=topic, error=str(error), then="a broker makes it when a message is sent back")
