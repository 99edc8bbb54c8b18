"""Listeners that record their calls, and consumers that are stopped with the test."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from lockstep.client import ConsumeOrderlyStatus, ConsumerEvent, OrderlyContext, PushConsumer
from lockstep.protocol.messages.message import MessageExt
from support.fake_broker import FakeBroker, FakeCluster, frozen_cluster
from support.frozen_loop import advance, settle

S = ConsumeOrderlyStatus
G = "billing"


class Handled:
    """A listener that records its calls and returns the given results."""

    def __init__(self, responses: Sequence[Any] = (), *, blocked: bool = False) -> None:
        self.calls: list[tuple[int, list[bytes], OrderlyContext]] = []
        self.responses = list(responses)
        self.gate = asyncio.Event() if blocked else None
        """While it is set and not open, calls wait in the listener."""

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, bodies, _ in self.calls for body in bodies]

    async def __call__(self, messages: Sequence[MessageExt], context: OrderlyContext) -> S:
        self.calls.append((context.queue.queue_id, [message.body for message in messages], context))
        if self.gate is not None:
            await self.gate.wait()
        response = self.responses.pop(0) if self.responses else S.SUCCESS
        if isinstance(response, BaseException):
            raise response
        if callable(response):
            response = response(context)
        return response


@asynccontextmanager
async def consuming(
    cluster: FakeCluster, handled: Callable[..., Any], *, expression: str = "*", **options: Any
) -> AsyncIterator[PushConsumer]:
    consumer = PushConsumer(G, client=cluster.client, **options)
    for topic in cluster.layouts:
        consumer.subscribe(topic, expression)
    consumer.orderly(handled)
    await consumer.start()
    await settle()
    try:
        yield consumer
    finally:
        stop = asyncio.ensure_future(consumer.stop())
        while not stop.done():
            await advance(0.05)


@asynccontextmanager
async def one_broker(
    *bodies: bytes,
    prepare: Callable[[FakeBroker], object] | None = None,
    listener: Callable[..., Any] | None = None,
    responses: Sequence[Any] = (),
    blocked: bool = False,
    **options: Any,
) -> AsyncIterator[tuple[FakeBroker, Handled, PushConsumer]]:
    """Run a broker with these messages in the first of its two queues, and then a consumer with a new Handled or another listener."""
    handled = Handled(responses, blocked=blocked)
    async with frozen_cluster() as cluster:
        broker = cluster["a"]
        broker.store("orders", 0, bodies)
        if prepare is not None:
            prepare(broker)
        async with consuming(cluster, listener or handled, **options) as consumer:
            yield broker, handled, consumer


def new_consumer(cluster: FakeCluster, listener: Callable[..., Any], topic: str = "orders") -> PushConsumer:
    """Return a consumer with a client of its own, which is not started."""
    consumer = PushConsumer(G, nameserver=cluster.nameserver, host=cluster.host).subscribe(topic)
    consumer.orderly(listener)
    return consumer


def events(consumer: PushConsumer) -> list[ConsumerEvent]:
    reported: list[ConsumerEvent] = []
    consumer.on_event(reported.append)
    return reported


async def stopped(consumer: PushConsumer) -> None:
    stop = asyncio.ensure_future(consumer.stop())
    while not stop.done():
        await advance(0.05)
    await stop
