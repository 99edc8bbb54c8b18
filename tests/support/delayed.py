"""Messages that wait, and the consumer that gets them."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from lockstep.client import (
    Client,
    ConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
)
from lockstep.testing import TestCluster

Seen = list[tuple[float, MessageExt]]
"""When messages were received, by the clock of the loop."""


@asynccontextmanager
async def listening(cluster: TestCluster) -> AsyncIterator[tuple[Producer, Seen]]:
    """Yield a producer, and what a consumer receives of topic orders."""
    await cluster.create_topic("orders", queues=2)
    client = Client(cluster.nameserver)
    consumer = PushConsumer("billing", client=client)
    consumer.subscribe("orders")
    seen: Seen = []

    @consumer.concurrently
    async def listen(messages: Sequence[MessageExt], _: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        seen.extend((now(), message) for message in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    async with consumer, Producer("shop", client=client) as producer:
        yield producer, seen


def now() -> float:
    return asyncio.get_running_loop().time()


async def send_delayed(cluster: TestCluster, topic: str, counts: Mapping[int, int]) -> None:
    """Send messages of each delay level, to one broker after the other."""
    async with Producer("reminders", nameserver=cluster.nameserver) as producer:
        for level, count in counts.items():
            for number in range(count):
                queue = MessageQueue(topic, cluster.brokers[number % len(cluster.brokers)], 0)
                await producer.send(Message(topic, b"%d" % number), queue=queue, delay_level=level)
