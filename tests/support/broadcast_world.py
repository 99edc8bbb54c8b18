"""Members of a broadcasting group in a simulated cluster, and the messages that each received."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from lockstep.client import (
    ConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    MessageModel,
    OrderlyContext,
    Producer,
    PushConsumer,
    QueueAssigned,
)
from lockstep.testing import TestCluster

GROUP, TOPIC = "prices", "orders"
DONE, LATER = ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ConsumeConcurrentlyStatus.RECONSUME_LATER


class World:
    """A cluster with topic `orders`, a producer, and members by name; `seen` is (member, body) in the order of the calls."""

    def __init__(self, cluster: TestCluster, producer: Producer) -> None:
        self.cluster = cluster
        self.producer = producer
        self.seen: list[tuple[str, bytes]] = []
        self.epochs: list[int | None] = []

    async def send(self, *bodies: bytes, topic: str = TOPIC, sharding_key: str | None = None, **how: Any) -> None:
        for body in bodies:
            await self.producer.send(Message(topic, body, sharding_key=sharding_key), **how)

    def of(self, name: str) -> list[bytes]:
        return [body for member, body in self.seen if member == name]

    def member(self, name: str, judge: Callable[[MessageExt], Any] = lambda message: DONE, **settings: Any) -> PushConsumer:
        made = self.bare(name, **settings)

        @made.concurrently
        async def listen(messages: Sequence[MessageExt], context: ConcurrentlyContext) -> Any:
            self.seen += [(name, message.body) for message in messages]
            return judge(messages[0])

        return made

    def ordered(self, name: str, judge: Callable[[MessageExt], Any] = lambda message: None, **settings: Any) -> PushConsumer:
        made = self.bare(name, **settings)

        @made.orderly
        async def listen(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
            self.seen += [(name, message.body) for message in messages]
            judge(messages[0])
            return ConsumeOrderlyStatus.SUCCESS

        return made

    def bare(self, name: str, **settings: Any) -> PushConsumer:
        made = PushConsumer(
            GROUP, nameserver=self.cluster.nameserver, message_model=MessageModel.BROADCASTING, instance_name=name, **settings
        )
        made.subscribe(TOPIC)
        made.on_event(lambda event: self.epochs.append(event.epoch) if isinstance(event, QueueAssigned) else None)
        return made


@asynccontextmanager
async def world(queues: int = 2, brokers: int = 1, **settings: Any) -> AsyncIterator[World]:
    async with TestCluster(brokers=brokers, **settings) as cluster:
        await cluster.create_topic(TOPIC, queues=queues)
        async with Producer("shop", nameserver=cluster.nameserver) as producer:
            yield World(cluster, producer)


def bodies(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]
