"""A consumer starts before its nameservers, if it is told to wait for them."""

import asyncio
from collections.abc import Sequence

import pytest

from lockstep.client import ConsumeOrderlyStatus, Message, MessageExt, OrderlyContext, Producer, PullConsumer, PushConsumer
from lockstep.client.consumer.health import ConsumerState
from lockstep.protocol.errors import TransportError
from lockstep.testing import TestCluster, simulate


def test_consumer_waits_for_its_nameserver_and_then_consumes() -> None:
    seen: list[bytes] = []

    async def listener(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
        seen.extend(message.body for message in messages)
        return ConsumeOrderlyStatus.SUCCESS

    async def main() -> None:
        async with TestCluster() as cluster:
            await cluster.create_topic("orders", 1)
            async with Producer("p", nameserver=cluster.nameserver) as producer:
                await producer.send(Message("orders", b"early"))
            await cluster.kill("nameserver-1")
            consumer = PushConsumer("billing", nameserver=cluster.nameserver, start_timeout_ms=60_000).subscribe("orders")
            consumer.orderly(listener)
            starting = asyncio.ensure_future(consumer.start())
            await cluster.advance(seconds=20)
            assert (starting.done(), consumer.state) == (False, ConsumerState.STARTING)
            await cluster.restart("nameserver-1")
            await cluster.until(lambda: seen == [b"early"], "the message")
            assert await starting is consumer
            await consumer.stop()

    simulate(main)


@pytest.mark.parametrize(("limit_ms", "least_s"), [(0, 0), (5_000, 5)])
def test_start_without_a_nameserver_fails_at_its_limit_and_may_be_repeated(limit_ms: int, least_s: int) -> None:
    async def main() -> None:
        async with TestCluster() as cluster:
            await cluster.kill("nameserver-1")
            consumer = PullConsumer("billing", nameserver=cluster.nameserver, start_timeout_ms=limit_ms).subscribe("orders")
            loop = asyncio.get_running_loop()
            began = loop.time()
            with pytest.raises(TransportError, match="no nameserver"):
                await consumer.start()
            assert loop.time() - began >= least_s
            assert consumer.state is ConsumerState.NEW
            await cluster.restart("nameserver-1")
            await cluster.advance(seconds=5)
            await consumer.start()
            await consumer.stop()

    simulate(main)


def test_cancelled_wait_for_a_nameserver_leaves_the_consumer_new() -> None:
    async def main() -> None:
        async with TestCluster() as cluster:
            await cluster.kill("nameserver-1")
            consumer = PullConsumer("billing", nameserver=cluster.nameserver, start_timeout_ms=60_000).subscribe("orders")
            starting = asyncio.ensure_future(consumer.start())
            await cluster.advance(seconds=10)
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            assert consumer.state is ConsumerState.NEW
            await consumer.stop()

    simulate(main)
