"""Helpers for tests that move queues: consumers whose messages the test collects, and what the brokers hold."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from lockstep.client import ConsumeFromWhere, MessageExt, OrderlyContext, PushConsumer
from lockstep.operations.admin_client import AdminClient
from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.topics.queue import TopicLayout
from lockstep.testing import TestCluster


async def layout_of(admin: AdminClient, topic: str) -> TopicLayout:
    return (await admin.route(topic)).layout


async def broker_named(admin: AdminClient, name: str) -> BrokerAddress:
    return next(broker for broker in await admin.brokers() if broker.name == name)


async def until_unregistered(admin: AdminClient, name: str) -> None:
    """Return when the nameserver has noticed that the broker is gone."""
    async with asyncio.timeout(300):
        while True:
            if not (await broker_named(admin, name)).registered:
                return
            await asyncio.sleep(1)


async def stored(admin: AdminClient, topic: str, name: str) -> list[tuple[int, int]]:
    """Return the first and the next offset of each queue of the topic at one broker."""
    return [(each.min_offset, each.max_offset) for each in await admin.offsets(await broker_named(admin, name), topic)]


def ordered_worker(
    cluster: TestCluster,
    group: str,
    topic: str,
    bodies: list[bytes],
    where: ConsumeFromWhere = ConsumeFromWhere.FIRST_OFFSET,
    call_s: float = 0.0,
) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return a program for `TestCluster.start`: a member of an ordered group, which appends each message to `bodies` after `call_s`."""

    async def worker() -> None:
        consumer = PushConsumer(group, nameserver=cluster.nameserver, consume_from_where=where)
        consumer.subscribe(topic)

        async def handle(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
            await asyncio.sleep(call_s)
            bodies.extend(bytes(message.body) for message in messages)

        consumer.orderly(handle)
        async with consumer:
            await consumer.wait_closed()

    return worker


def consuming(cluster: TestCluster, group: str, version: int, *topics: str) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return a program for `TestCluster.start`: a member of an ordered group, whose contract of this version names the topics."""

    async def worker() -> None:
        consumer = PushConsumer(
            group, nameserver=cluster.nameserver, contract_version=version, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
        )
        for topic in topics:
            consumer.subscribe(topic)

        async def handle(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
            await asyncio.sleep(0)

        consumer.orderly(handle)
        async with consumer:
            await consumer.wait_closed()

    return worker
