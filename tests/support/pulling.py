"""Helpers for tests of PullConsumer in a simulated cluster."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from lockstep.client import (
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
)
from lockstep.operations.admin_client import AdminClient
from lockstep.protocol.bodies import QueueOffset, ResetBody
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster

GROUP, TOPIC = "reports", "orders"


QUEUE = MessageQueue(TOPIC, "broker-a", 0)


class World:
    """A cluster with topic `orders`, and a producer."""

    def __init__(self, cluster: TestCluster, producer: Producer) -> None:
        self.cluster = cluster
        self.producer = producer

    async def send(self, first: int, end: int, topic: str = TOPIC, **how: Any) -> None:
        for number in range(first, end):
            await self.producer.send(Message(topic, b"%d" % number, tags=how.pop("tags", None)), **how)

    def consumer(self, **settings: Any) -> PullConsumer:
        return PullConsumer(GROUP, nameserver=self.cluster.nameserver, **settings)

    def subscribed(self, **settings: Any) -> PullConsumer:
        return self.consumer(**settings).subscribe(TOPIC)

    async def committed(self) -> list[int | None]:
        report = await self.cluster.group_status(GROUP)
        return [] if report is None else [line.committed_offset for line in report.queues]

    async def reset(self, offset: int) -> None:
        admin = AdminClient(Host.current(), self.cluster.nameserver)
        await admin.reset((await admin.brokers())[0], ResetBody(GROUP, TOPIC, (QueueOffset(0, offset),)))


@asynccontextmanager
async def world(queues: int = 1, brokers: int = 1) -> AsyncIterator[World]:
    async with TestCluster(brokers=brokers) as cluster:
        await cluster.create_topic(TOPIC, queues=queues)
        async with Producer("shop", nameserver=cluster.nameserver) as producer:
            yield World(cluster, producer)


def numbers(messages: list[MessageExt]) -> list[int]:
    return [int(message.body) for message in messages]


async def drained(consumer: PullConsumer) -> list[int]:
    """Poll until no message arrives for 2 s. Return all message numbers."""
    found: list[int] = []
    while batch := await consumer.poll(2_000):
        found += numbers(batch)
    return found
