"""A cluster of many queues and groups, made by requests to its brokers."""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence

from lockstep.client.topics import first_layout
from lockstep.operations.admin_client import AdminClient
from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.headers.offsets import UpdateConsumerOffsetHeader
from lockstep.runtime.host import Host

AT_ONCE = 50
"""Requests that are sent at once."""


def topic_name(number: int) -> str:
    return f"topic-{number:04}"


async def make_topics(nameserver: str, count: int, queues: int) -> None:
    """Create topics with `queues` queues on each broker."""
    admin = AdminClient(Host.current(), nameserver)
    async with admin.keep_connections():
        brokers = await admin.brokers()
        layouts = [first_layout(topic_name(number), [broker.name for broker in brokers], queues, 1) for number in range(count)]
        await _in_parts([admin.put_layout(broker, layout) for layout in layouts for broker in brokers])


async def commit(nameserver: str, progress: Iterable[tuple[str, str, int]]) -> None:
    """Give groups progress: of each (group, topic, queue id), offset 0 at every broker."""
    admin = AdminClient(Host.current(), nameserver)
    async with admin.keep_connections():
        brokers = await admin.brokers()
        await _in_parts([_commit(admin, broker, *each) for each in progress for broker in brokers])


async def _commit(admin: AdminClient, broker: BrokerAddress, group: str, topic: str, queue_id: int) -> None:
    await admin.request(broker, RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader(group, topic, queue_id, 0))


async def _in_parts(requests: Sequence[Awaitable[object]]) -> None:
    for first in range(0, len(requests), AT_ONCE):
        await asyncio.gather(*requests[first : first + AT_ONCE])
