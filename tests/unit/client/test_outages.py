"""A broker that is not connected is reported: once with the reason, every 30 s with what waits for it, and when it is back."""

import asyncio
import logging
from collections.abc import Sequence

import pytest

from lockstep.client import Client, Message, MessageExt, MessageQueue, OrderlyContext, Producer, PushConsumer
from lockstep.client.outages import REPORT_AFTER_MS, REPORT_EVERY_MS, Outages
from lockstep.testing import TestCluster
from support.fake_broker import fake_cluster, make_layout
from support.instance_kit import instance_of


def test_outage_is_due_after_a_second_and_then_every_30_s() -> None:
    outages = Outages()
    outages.begin("a", 500)
    outages.begin("a", 900)
    assert outages
    assert outages.due(500 + REPORT_AFTER_MS - 1) == []
    assert outages.due(500 + REPORT_AFTER_MS) == [("a", REPORT_AFTER_MS)]
    reported_ms = 500 + REPORT_AFTER_MS
    assert outages.due(reported_ms + REPORT_EVERY_MS - 1) == []
    outages.begin("b", reported_ms)
    assert outages.due(reported_ms + REPORT_EVERY_MS) == [("a", REPORT_AFTER_MS + REPORT_EVERY_MS), ("b", REPORT_EVERY_MS)]
    assert outages.end("a", reported_ms + REPORT_EVERY_MS + 1) == REPORT_AFTER_MS + REPORT_EVERY_MS + 1
    assert outages.end("a", reported_ms + REPORT_EVERY_MS + 2) is None
    assert outages.end("b", reported_ms + REPORT_EVERY_MS + 2) == REPORT_EVERY_MS + 2
    assert not outages


def test_outage_that_ends_before_it_is_reported_is_not_reported_at_its_end() -> None:
    outages = Outages()
    outages.begin("a", 0)
    assert outages.end("a", REPORT_AFTER_MS) is None
    outages.begin("a", 5_000)
    assert outages.due(5_000) == [], "a new outage has a second of its own"


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[tuple[str, str]]:
    """Return (level, text) of the records of an event."""
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.getMessage().startswith(event)]


async def test_dead_broker_is_reported_with_what_waits_for_it(lockstep_cluster: TestCluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lockstep")
    await lockstep_cluster.create_topic("orders", queues=2)
    client = Client(lockstep_cluster.nameserver)
    consumer = PushConsumer("billing", client=client).subscribe("orders")

    @consumer.orderly
    async def handle(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        """Handle them."""

    queue = MessageQueue("orders", "broker-b", 0)
    async with Producer("shop", client=client) as producer, consumer:
        await producer.send(Message("orders", b"1"), queue=queue)
        await lockstep_cluster.kill("broker-b")
        sends = [asyncio.create_task(producer.send(Message("orders", b"2"), queue=queue, timeout_ms=90_000)) for _ in range(3)]
        await lockstep_cluster.advance(seconds=3)
        (first,) = logged(caplog, "broker.down")
        assert first[0] == "WARNING"
        for fact in ("broker-b", "refused", "queues_waiting=2", "sends_waiting=3"):
            assert fact in first[1], first
        await lockstep_cluster.advance(seconds=65)
        assert len(logged(caplog, "broker.down")) == 3, "every 30 s"
        await lockstep_cluster.restart("broker-b")
        await asyncio.gather(*sends)
        back = logged(caplog, "broker.connected")[-1]
        assert back[0] == "INFO"
        assert "down_ms=6" in back[1]
        await lockstep_cluster.advance(seconds=65)
        assert len(logged(caplog, "broker.down")) == 3


async def test_connection_that_is_replaced_at_once_is_not_reported(lockstep_cluster: TestCluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lockstep")
    await lockstep_cluster.create_topic("orders", queues=2)
    async with Producer("shop", nameserver=lockstep_cluster.nameserver) as producer:
        await producer.send(Message("orders", b"1"))
        lockstep_cluster.reset_connections("test", "broker-b")
        await lockstep_cluster.advance(seconds=40)
    assert logged(caplog, "broker.disconnected")
    assert logged(caplog, "broker.down") == []
    assert "down_ms" not in logged(caplog, "broker.connected")[-1][1]


@pytest.mark.simulated
async def test_broker_without_an_address_is_reported_until_no_layout_names_it(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, instance_of(cluster) as instance:
        cluster.put(make_layout("t", "a", "gone", counter=2))
        assert await instance.watch.route("t", refresh=True) is not None
        await asyncio.sleep(3)
        (first,) = logged(caplog, "broker.down")
        assert first[0] == "WARNING"
        assert "broker=gone" in first[1]
        assert "no nameserver knows its address" in first[1]
        cluster.put(make_layout("t", "a", counter=3))
        assert await instance.watch.route("t", refresh=True) is not None
        await asyncio.sleep(65)
        assert len(logged(caplog, "broker.down")) == 1
        assert not instance._outages
