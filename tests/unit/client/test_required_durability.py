"""The guarantees of `require`, and the messages that remain after a power cut."""

import asyncio
from collections.abc import Sequence

import pytest

from lockstep.client import ConsumeOrderlyStatus, Message, MessageExt, OrderlyContext, Producer, PushConsumer, SendStatus
from lockstep.client.producer.config import Require
from lockstep.testing import TestCluster, simulate


@pytest.mark.parametrize("delay_level", [None, 1])
@pytest.mark.parametrize(
    ("flush", "require", "survive"),
    [
        ("async", "durable", True),
        ("async", "stored", False),
        ("async", "written", False),
        ("sync", "durable", True),
        ("sync", "stored", True),
        ("sync", "written", False),
    ],
)
def test_acknowledged_message_survives_a_power_cut_if_require_and_flush_guarantee_it(
    flush: str, require: Require, survive: bool, delay_level: int | None
) -> None:
    found: list[bytes] = []

    async def consume(cluster: TestCluster) -> None:
        consumer = PushConsumer("billing", nameserver=cluster.nameserver)
        consumer.subscribe("orders")

        @consumer.orderly
        async def take(messages: Sequence[MessageExt], _: OrderlyContext) -> ConsumeOrderlyStatus:
            found.extend(message.body for message in messages)
            return ConsumeOrderlyStatus.SUCCESS

        async with consumer:
            await cluster.advance(seconds=15)

    async def main() -> None:
        async with TestCluster(brokers=1, flush=flush) as cluster:
            await cluster.create_topic("orders", queues=1)
            async with Producer("shop", nameserver=cluster.nameserver) as producer:
                await producer.send(Message("orders", b"warm-up"), require="durable")
                cluster.slow_disk("broker-a", seconds=1)
                await producer.send(Message("orders", b"its sync is under way"), require="written")
                messages = [Message("orders", b"%d" % number) for number in range(3)]
                sends = [producer.send(message, require=require, delay_level=delay_level) for message in messages]
                for result in await asyncio.gather(*sends):
                    assert result.status is SendStatus.SEND_OK
                await cluster.cut_power("broker-a")
            cluster.slow_disk("broker-a", seconds=0)
            await cluster.restart("broker-a")
            await consume(cluster)

    simulate(main)
    assert b"warm-up" in found
    assert (b"2" in found) is survive, "the last one"
    assert not survive or {b"0", b"1"} < set(found)
