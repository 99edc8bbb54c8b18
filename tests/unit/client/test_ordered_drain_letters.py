"""A queue whose drain limit passes while its dead letters are written is consumed again."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from lockstep.client import ConsumeOrderlyStatus, Message, MessageExt, MessageQueue, OrderedRetry, OrderlyContext, Producer, PushConsumer
from lockstep.client.broker_link import BrokerLink
from lockstep.protocol.codes import RequestCode
from lockstep.testing import TestCluster, simulate

QUEUES = [MessageQueue("orders", "broker-a", queue_id) for queue_id in range(2)]


def test_queue_is_consumed_again_if_its_drain_limit_passes_while_a_dead_letter_is_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No call runs meanwhile: neither the log nor `health` says for how long one has run."""
    requested, response = asyncio.Event(), asyncio.Event()
    call = BrokerLink.call

    async def slow(self: BrokerLink, code: RequestCode, *facts: Any, **how: Any) -> Any:
        if code == RequestCode.DEAD_LETTER:
            requested.set()
            await response.wait()
        return await call(self, code, *facts, **how)

    monkeypatch.setattr(BrokerLink, "call", slow)

    async def main() -> None:
        done: list[bytes] = []

        def member(cluster: TestCluster) -> PushConsumer:
            consumer = PushConsumer(
                "billing", nameserver=cluster.nameserver, drain_timeout_ms=500, retry=OrderedRetry(max_attempts=1, on_exhausted="dlq")
            ).subscribe("orders")

            @consumer.orderly
            async def listen(messages: Sequence[MessageExt], _: OrderlyContext) -> ConsumeOrderlyStatus:
                if messages[0].body == b"poison" and not response.is_set():
                    raise ValueError("no such order")
                done.extend(message.body for message in messages)
                return ConsumeOrderlyStatus.SUCCESS

            return consumer

        async with TestCluster(brokers=1) as cluster:
            await cluster.create_topic("orders", queues=2)
            async with Producer("shop", nameserver=cluster.nameserver) as producer, member(cluster) as first:
                await cluster.advance(seconds=1)
                for queue in QUEUES:
                    await producer.send(Message("orders", b"poison"), queue=queue)
                await requested.wait()
                assert [queue.running_ms for queue in first.health().queues] == [None, None]
                async with member(cluster):
                    await cluster.advance(seconds=3)
                response.set()
                await cluster.advance(seconds=10)
                for queue_id in range(2):
                    await producer.send(Message("orders", b"%d" % queue_id), selector=lambda queues, message: queues[int(message.body)])
                await cluster.advance(seconds=10)
            assert {b"0", b"1"} <= set(done)

    simulate(main)
    given_up = [record.getMessage() for record in caplog.records if "call.given_up" in record.getMessage()]
    assert given_up
    assert not any("started_ms_ago" in each for each in given_up)
