"""require="durable": what was answered survives a power cut, whatever the broker's flush."""

from collections.abc import Sequence

import pytest

from lockstep.client import ConsumeOrderlyStatus, Message, MessageExt, OrderlyContext, Producer, PushConsumer, SendStatus
from lockstep.client.producer.config import Require
from lockstep.testing import TestCluster, simulate


@pytest.mark.parametrize(
    ("require", "delay_level", "survive"), [("durable", None, True), ("stored", None, False), ("durable", 1, True), ("stored", 1, False)]
)
def test_under_async_flush_a_power_cut_takes_only_what_was_not_asked_to_be_durable(
    require: Require, delay_level: int | None, survive: bool
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
        async with TestCluster(brokers=1, flush="async") as cluster:
            await cluster.create_topic("orders", queues=1)
            async with Producer("shop", nameserver=cluster.nameserver) as producer:
                await producer.send(Message("orders", b"warm-up"), require="durable")
                for number in range(3):
                    message = Message("orders", b"%d" % number)
                    result = await producer.send(message, require=require, delay_level=delay_level)
                    assert result.status is SendStatus.SEND_OK
                await cluster.cut_power("broker-a")
            await cluster.restart("broker-a")
            await consume(cluster)

    simulate(main)
    assert sorted(found) == ([b"0", b"1", b"2", b"warm-up"] if survive else [b"warm-up"])
