"""With `start_in_background`, producers and consumers start without the servers, and `health()` tells what they wait for."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from lockstep.client import (
    ConfigError,
    ConsumeFromWhere,
    ConsumerState,
    Message,
    MessageExt,
    OrderlyContext,
    Outcome,
    Producer,
    ProducerState,
    PullConsumer,
    PushConsumer,
    SendTimeoutError,
    StateError,
    SubscriptionConflictError,
    TransportError,
)
from lockstep.testing import TestCluster, simulate

FIRST = ConsumeFromWhere.FIRST_OFFSET


@pytest.mark.parametrize("way", ["send", "keyed", "delayed", "post", "batch", "oneway", "request"])
def test_first_send_without_a_nameserver_fails_at_its_deadline_as_not_stored(way: str) -> None:
    async def sending(producer: Producer) -> object:
        message = Message("orders", b"x", sharding_key="k" if way == "keyed" else None)
        if way == "post":
            return await producer.post(message, timeout_ms=2_000)
        if way == "request":
            return await producer.request(message, timeout_ms=2_000)
        if way == "batch":
            return await producer.send_batch([message], timeout_ms=2_000)
        if way == "oneway":
            return await producer.send_oneway(message)
        return await producer.send(message, timeout_ms=2_000, delay_level=1 if way == "delayed" else None)

    async def main() -> None:
        async with TestCluster(brokers=1) as cluster:
            await cluster.kill("nameserver-1")
            loop = asyncio.get_running_loop()
            async with Producer("shop", nameserver=cluster.nameserver, start_in_background=True) as producer:
                begun = loop.time()
                with pytest.raises(SendTimeoutError, match=r"no.*the message is not stored") as failed:
                    await sending(producer)
                assert failed.value.outcome is Outcome.NOT_STORED
                assert loop.time() - begun == pytest.approx(3 if way == "oneway" else 2, abs=0.1)
                assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)

    simulate(main)


def test_first_send_without_a_registered_broker_fails_at_its_deadline_as_not_stored() -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster:
            for name in ("nameserver-1", "broker-a"):
                await cluster.kill(name)
            await cluster.restart("nameserver-1")
            async with Producer("shop", nameserver=cluster.nameserver) as producer:
                with pytest.raises(SendTimeoutError, match=r"knows no broker yet.*the message is not stored"):
                    await producer.send(Message("orders", b"x"))

    simulate(main)


def test_producer_sends_when_the_nameserver_is_there_and_its_health_tells() -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster:
            await cluster.create_topic("orders", 1)
            await cluster.kill("nameserver-1")
            producer = Producer("shop", nameserver=cluster.nameserver, start_in_background=True)
            assert producer.health().state is ProducerState.NEW
            await producer.start()
            await cluster.advance(seconds=5)
            health = producer.health()
            assert (health.state, health.alive, health.ok) == (ProducerState.STARTING, True, False)
            assert health.awaited is not None
            assert "no nameserver can be reached" in health.awaited
            with pytest.raises(StateError, match="starting already"):
                await producer.start()
            sending = asyncio.ensure_future(producer.send(Message("orders", b"x", sharding_key="k")))
            await cluster.advance(seconds=5)
            await cluster.restart("nameserver-1")
            assert (await sending).queue_offset == 0
            await cluster.advance(seconds=2)
            health = producer.health()
            assert (health.state, health.awaited, health.ok, health.down_brokers) == (ProducerState.RUNNING, None, True, ())
            await cluster.kill("broker-a")
            await cluster.advance(seconds=2)
            health = producer.health()
            assert (health.alive, health.ok, health.down_brokers) == (True, False, ("broker-a",))
            await producer.close()
            assert (producer.health().state, producer.health().alive) == (ProducerState.CLOSED, False)

    simulate(main)


def test_producer_is_closed_while_it_waits_for_a_nameserver() -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster:
            await cluster.kill("nameserver-1")
            producer = Producer("shop", nameserver=cluster.nameserver, start_in_background=True)
            await producer.start()
            sending = asyncio.ensure_future(producer.send(Message("orders", b"x")))
            await cluster.advance(seconds=1)
            await producer.close()
            with pytest.raises(StateError, match="producer shop is closed"):
                await sending
            patient = Producer("shop", nameserver=cluster.nameserver, start_timeout_ms=60_000)
            starting = asyncio.ensure_future(patient.start())
            await cluster.advance(seconds=2)
            await patient.close()
            with pytest.raises(StateError, match="closed while it was started"):
                await starting
            await cluster.restart("nameserver-1")
            for again in (producer, patient):
                await again.start()
                await again.close()

    simulate(main)


@pytest.mark.parametrize(("limit_ms", "least_s"), [(0, 0), (5_000, 5)])
def test_start_of_a_producer_without_a_nameserver_fails_at_its_limit(limit_ms: int, least_s: int) -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster:
            await cluster.kill("nameserver-1")
            producer = Producer("shop", nameserver=cluster.nameserver, start_timeout_ms=limit_ms)
            loop = asyncio.get_running_loop()
            begun = loop.time()
            with pytest.raises(TransportError, match="no nameserver"):
                await producer.start()
            assert loop.time() - begun == pytest.approx(least_s, abs=0.1)
            assert repr(producer) == "<Producer shop new>"

    simulate(main)


def test_patient_producer_starts_when_the_nameserver_is_there() -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster:
            await cluster.kill("nameserver-1")
            producer = Producer("shop", nameserver=cluster.nameserver, start_timeout_ms=60_000)
            starting = asyncio.ensure_future(producer.start())
            await cluster.advance(seconds=20)
            with pytest.raises(StateError, match="not started"):
                await producer.send(Message("orders", b"x"))
            assert not starting.done()
            await cluster.restart("nameserver-1")
            await starting
            assert producer.health().ok
            await producer.close()

    simulate(main)


def test_consumer_starts_in_the_background_and_consumes() -> None:
    seen: list[bytes] = []

    async def listener(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        seen.extend(message.body for message in messages)

    async def main() -> None:
        async with TestCluster(brokers=1) as cluster:
            await cluster.create_topic("orders", 1)
            async with Producer("shop", nameserver=cluster.nameserver) as producer:
                await producer.send(Message("orders", b"early"))
            await cluster.kill("nameserver-1")
            consumer = PushConsumer("billing", nameserver=cluster.nameserver, consume_from_where=FIRST, start_in_background=True)
            consumer.subscribe("orders").orderly(listener)
            async with consumer:
                await cluster.advance(seconds=20)
                health = consumer.health()
                assert (health.state, health.alive, health.ok) == (ConsumerState.STARTING, True, False)
                assert health.awaited is not None
                assert "no nameserver can be reached" in health.awaited
                await cluster.restart("nameserver-1")
                await cluster.until(lambda: seen == [b"early"], "the message")
                assert (consumer.health().state, consumer.health().awaited) == (ConsumerState.RUNNING, None)
            assert consumer.state is ConsumerState.STOPPED

    simulate(main)


@pytest.mark.parametrize("after_s", [0, 0.5, 5])
def test_consumer_is_stopped_while_it_starts_in_the_background(after_s: float) -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster:
            await cluster.create_topic("orders", 1)
            await cluster.kill("nameserver-1")
            consumer = PullConsumer("billing", nameserver=cluster.nameserver, start_in_background=True).subscribe("orders")
            await consumer.start()
            if after_s:
                await cluster.advance(seconds=after_s)
            await consumer.stop()
            await consumer.wait_closed()
            assert (consumer.state, consumer.health().awaited) == (ConsumerState.STOPPED, None)
            await cluster.restart("nameserver-1")
            await consumer.start()
            await cluster.until(lambda: consumer.state is ConsumerState.RUNNING, "the start")
            await consumer.stop()

    simulate(main)


def test_start_in_the_background_that_is_refused_ends_the_consumer_as_failed() -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster:
            await cluster.create_topic("orders", 1)
            async with PullConsumer("billing", nameserver=cluster.nameserver).subscribe("orders"):
                other = PullConsumer("billing", nameserver=cluster.nameserver, start_in_background=True).subscribe("orders", "paid")
                await other.start()
                with pytest.raises(SubscriptionConflictError):
                    await other.wait_closed()
                assert (other.state, other.health().alive) == (ConsumerState.FAILED, False)
                assert "SubscriptionConflictError" in (other.health().failure or "")
                await other.stop()

    simulate(main)


async def test_mistakes_of_a_program_are_raised_by_the_start_itself() -> None:
    nothing: Any = PushConsumer("billing", start_in_background=True)
    with pytest.raises(StateError, match="no listener"):
        await nothing.start()
    nothing.orderly(lambda messages, context: None)
    with pytest.raises(ConfigError, match="subscribes to nothing"):
        await nothing.start()


def test_poll_waits_for_a_start_in_the_background() -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster:
            await cluster.create_topic("orders", 1)
            async with Producer("shop", nameserver=cluster.nameserver) as producer:
                for body in (b"1", b"2"):
                    await producer.send(Message("orders", body))
            await cluster.kill("nameserver-1")
            consumer = PullConsumer(
                "reports", nameserver=cluster.nameserver, consume_from_where=FIRST, start_in_background=True, poll_count=1
            ).subscribe("orders")
            async with consumer:
                assert await consumer.poll(2_000) == []
                with pytest.raises(StateError, match="reports is starting: no nameserver can be reached"):
                    await consumer.commit()
                polling = asyncio.ensure_future(consumer.poll(60_000))
                await cluster.advance(seconds=5)
                assert not polling.done()
                await cluster.restart("nameserver-1")
                assert [message.body for message in await polling] == [b"1"]
                assert (await anext(consumer)).body == b"2"

    simulate(main)


@pytest.mark.parametrize("stops_s", [(0.0, 0.05), (0.0, 1.02), (1.01,)], ids=["at once", "after an attempt", "while an attempt is undone"])
def test_stops_of_a_start_in_the_background_leave_nothing_behind(stops_s: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop during the cleanup of an attempt, or of another stop, waits for its end."""
    release = PushConsumer._release_instance

    async def slow(self: PushConsumer, instance: Any) -> None:
        await asyncio.sleep(0.2)
        await release(self, instance)

    monkeypatch.setattr(PushConsumer, "_release_instance", slow)

    async def main() -> None:
        async with TestCluster(brokers=1) as cluster:
            await cluster.kill("nameserver-1")
            consumer = PushConsumer("billing", nameserver=cluster.nameserver, start_in_background=True).subscribe("orders")
            consumer.concurrently(lambda messages, context: None)
            before = asyncio.all_tasks()
            await consumer.start()
            instance: Any = None

            async def stop(after_s: float) -> None:
                nonlocal instance
                await asyncio.sleep(after_s)
                instance = instance or consumer._instance
                await consumer.stop()

            await asyncio.gather(*map(stop, stops_s))
            assert consumer.state is ConsumerState.STOPPED
            assert instance is None or instance.closing
            await asyncio.sleep(1)
            assert {task.get_name() for task in asyncio.all_tasks() - before} == set()

    simulate(main)
