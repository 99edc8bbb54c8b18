"""Members in the situations that `lockstep why` explains, and what it says of them."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from lockstep.client import Message, MessageExt, OrderlyContext, Producer, PushConsumer
from lockstep.client.consumer.subscription import Expression
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.explain.why import Cause, Explanation
from lockstep.operations.explain.why_query import diagnose
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster

GROUP, TOPIC = "billing", "orders"
Listener = Callable[[Sequence[MessageExt], OrderlyContext], Any]


async def hang(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
    """A listener that never ends."""
    await asyncio.Event().wait()


async def accept(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
    """A listener that takes everything at once."""


@dataclass
class Member:
    """A consumer, as a worker of a cluster."""

    cluster: TestCluster
    listener: Listener = accept
    settings: dict[str, Any] = field(default_factory=dict)
    topic: str = TOPIC
    expression: Expression = "*"
    concurrent: bool = False
    consumer: PushConsumer | None = None

    async def run(self) -> None:
        self.consumer = consumer = PushConsumer(GROUP, nameserver=self.cluster.nameserver, **self.settings)
        consumer.subscribe(self.topic, self.expression)
        (consumer.concurrently if self.concurrent else consumer.orderly)(self.listener)  # type: ignore[type-var]
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(consumer)
            await consumer.wait_closed()

    @property
    def started(self) -> PushConsumer:
        assert self.consumer is not None
        return self.consumer


async def send(cluster: TestCluster, count: int, *, topic: str = TOPIC, keys: int = 1, tags: str | None = None) -> list[str]:
    """Send messages with the keys k0, k1, … in turn. Return their offset message ids."""
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        batch = [Message(topic, b"%d" % n, sharding_key=f"k{n % keys}", tags=tags) for n in range(count)]
        return [result.offset_message_id for result in await producer.send_batch(batch)]


async def explanations(cluster: TestCluster, topic: str = TOPIC) -> tuple[Explanation, ...]:
    """Return what is explained of the group's queues of a topic."""
    admin = AdminClient(Host.current(), cluster.nameserver)
    found = await diagnose(admin, GROUP, lambda line: line.topic == topic)
    return found.explanations


async def cause(cluster: TestCluster) -> Cause:
    """Return the cause that explains the only queue of the topic."""
    (found,) = await explanations(cluster)
    assert found.because is not None, found
    return found.because
