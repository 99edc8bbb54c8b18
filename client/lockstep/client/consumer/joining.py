"""Joining a group: the common part of the starts of push and pull consumers."""

import asyncio
from collections.abc import Iterable

from lockstep.client.instance import Instance
from lockstep.client.topics import create_topic
from lockstep.protocol.errors import BrokerError, RemoteProtocolError, RouteNotReadyError, SubscriptionConflictError, TransportError
from lockstep.protocol.names import retry_topic
from lockstep.runtime.logs.log import get_logger

log = get_logger("client.consumer")

CONFLICT_PAUSE_MS = 250
"""Pause between two attempts to join a group whose other members may be gone and in their grace."""
CONFLICT_EXTRA_MS = 1_000
"""Time after the grace for which attempts continue: a broker ends the membership of an ended session at its next tick."""


async def join(instance: Instance, group: str) -> None:
    """Send HEART_BEAT to all brokers. Repeat it after a conflict with members that are all in their grace, until that is over."""
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
    """Return False if the topic does not exist, or the nameserver knows no broker yet. It is requested again every second."""
    try:
        return await instance.watch.route(topic) is not None
    except RouteNotReadyError:
        return False


async def find_topics(instance: Instance, group: str, topics: Iterable[str]) -> None:
    """Request the routes of the group's topics. If one does not exist, link every broker, so that the broker that creates it knows that
    the group subscribes to it."""
    missing = [topic for topic in topics if not await is_routed(instance, topic)]
    for topic in missing:
        log.warning("topic.missing", group=group, topic=topic, then="consumption begins when the topic exists, at its first message")
    if missing:
        await instance.link_all()


async def ready_retries(instance: Instance, group: str) -> None:
    """Ensure that the topic of the group's retries exists, or will be created with the first message that is sent back."""
    topic = retry_topic(group)
    try:
        if not await is_routed(instance, topic):
            await create_topic(instance, topic, 1)
    except (TransportError, BrokerError, RemoteProtocolError) as error:
        log.warning("topic.missing", group=group, topic=topic, error=str(error), then="a broker creates it when a message is sent back")
