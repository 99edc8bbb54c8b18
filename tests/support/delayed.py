"""Messages that wait, and the consumer that gets them."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from lockstep.client import (
    Client,
    ConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    MessageExt,
    Producer,
    PushConsumer,
)
from lockstep.operations.admin_client import AdminClient
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.send import SendMessageHeader
from lockstep.protocol.responses import checked
from lockstep.runtime.connections.dial import call
from lockstep.runtime.host import Host
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
    """Send messages of each delay level into the brokers' queues of the levels, to one broker after the other, as RocketMQ's clients do."""
    host = Host.current()
    brokers = await AdminClient(host, cluster.nameserver).brokers()
    for level, count in counts.items():
        for number in range(count):
            fields = to_plain(SendMessageHeader("reminders", topic, 0, properties=at_level(level)))
            address = brokers[number % len(brokers)].address
            checked(await call(host, address, RequestCode.SEND_MESSAGE, fields, b"%d" % number, timeout_ms=3_000))


def at_level(level: int) -> str:
    """Return the properties of a SEND_MESSAGE whose message waits in the broker's queue of a delay level."""
    return f"DELAY\x01{level}"
