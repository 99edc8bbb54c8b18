"""OrderedRetry(on_exhausted="dlq"): a failing batch is dead-lettered once, and the rest of its queue is consumed in order."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from lockstep.client import (
    Backoff,
    ConfigError,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    ConsumerEvent,
    LocalProtocolError,
    Message,
    MessageDeadLettered,
    MessageExt,
    OrderedRetry,
    OrderlyContext,
    Producer,
    PushConsumer,
)
from lockstep.testing import TestCluster, simulate

GROUP = "billing"
S = ConsumeOrderlyStatus
RETRY = OrderedRetry(max_attempts=3, backoff=Backoff(first_ms=100), on_exhausted="dlq")


async def dead_letters(cluster: TestCluster) -> list[MessageExt]:
    found: list[MessageExt] = []
    reader = PushConsumer("morgue", nameserver=cluster.nameserver)
    reader.subscribe(f"%DLQ%{GROUP}")

    @reader.concurrently
    async def read(messages: Sequence[MessageExt], _: object) -> ConsumeConcurrentlyStatus:
        found.extend(messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    async with reader:
        await cluster.advance(seconds=5)
    return found


async def sent(cluster: TestCluster, *bodies: bytes) -> None:
    await cluster.create_topic("orders", queues=1)
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        for body in bodies:
            await producer.send(Message("orders", body, tags="t", keys=["k"], sharding_key="one"))


def consumer_of(cluster: TestCluster, seen: list[tuple[bytes, int]], **settings: Any) -> PushConsumer:
    made = PushConsumer(GROUP, nameserver=cluster.nameserver, **{"retry": RETRY, **settings})
    made.subscribe("orders")

    @made.orderly
    async def listen(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
        seen.append((messages[0].body, context.attempt))
        if any(message.body == b"poison" for message in messages):
            raise ValueError("can't be read")
        return S.SUCCESS

    return made


def test_ordered_message_is_dead_lettered_after_its_last_attempt_and_its_queue_continues(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with TestCluster() as cluster:
            await sent(cluster, b"0", b"poison", b"2")
            seen: list[tuple[bytes, int]] = []
            consumer, reported = consumer_of(cluster, seen), list[ConsumerEvent]()
            consumer.on_event(reported.append)
            async with consumer:
                await cluster.advance(seconds=10)
            (left,) = (event for event in reported if isinstance(event, MessageDeadLettered))
            assert (left.queue.topic, left.offset, left.attempts, left.error) == ("orders", 1, 3, "ValueError: can't be read")
            assert seen == [(b"0", 0), (b"poison", 0), (b"poison", 1), (b"poison", 2), (b"2", 0)]
            (letter,) = await dead_letters(cluster)
            assert (letter.body, letter.tags, letter.keys, letter.sharding_key) == (b"poison", "t", ("k",), "one")
            assert letter.properties["RETRY_TOPIC"] == "orders"
            assert letter.all_properties["__LS_REASON"] == "ValueError: can't be read"
            async with consumer_of(cluster, seen):
                await cluster.advance(seconds=5)
            assert len(seen) == 5, "progress is behind it"

    simulate(main)
    (logged,) = (record for record in caplog.records if record.msg == "message.dead_lettered %s")
    assert logged.exc_info is not None
    assert isinstance(logged.exc_info[1], ValueError), "with the error of the last attempt"


def test_suspend_counts_as_an_attempt() -> None:
    async def main() -> None:
        async with TestCluster() as cluster:
            await sent(cluster, b"0", b"1")
            calls: list[tuple[bytes, int]] = []
            consumer = PushConsumer(GROUP, nameserver=cluster.nameserver, retry=RETRY, suspend_current_queue_time_ms=50)
            consumer.subscribe("orders")

            @consumer.orderly
            async def listen(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
                calls.append((messages[0].body, context.attempt))
                return S.SUSPEND_CURRENT_QUEUE_A_MOMENT if messages[0].body == b"0" else S.SUCCESS

            async with consumer:
                await cluster.advance(seconds=5)
            assert calls == [(b"0", 0), (b"0", 1), (b"0", 2), (b"1", 0)]
            assert [letter.body for letter in await dead_letters(cluster)] == [b"0"]

    simulate(main)


def test_ordered_batch_is_dead_lettered_as_a_whole() -> None:
    async def main() -> None:
        async with TestCluster() as cluster:
            await sent(cluster, b"0", b"poison", b"2", b"3")
            seen: list[tuple[bytes, int]] = []
            async with consumer_of(cluster, seen, batch_count=4):
                await cluster.advance(seconds=10)
            assert seen == [(b"0", 0), (b"0", 1), (b"0", 2)]
            assert [letter.body for letter in await dead_letters(cluster)] == [b"0", b"poison", b"2", b"3"]

    simulate(main)


def test_attempts_survive_a_move_of_the_queue() -> None:
    async def main() -> None:
        async with TestCluster() as cluster:
            await sent(cluster, b"poison", b"1")
            seen: list[tuple[bytes, int]] = []
            slow = OrderedRetry(max_attempts=3, backoff=Backoff(first_ms=5_000, factor=1, max_ms=5_000), on_exhausted="dlq")
            async with consumer_of(cluster, seen, retry=slow):
                await cluster.advance(seconds=7)
            async with consumer_of(cluster, seen, retry=slow):
                await cluster.advance(seconds=7)
            assert seen == [(b"poison", 0), (b"poison", 1), (b"poison", 2), (b"1", 0)]
            assert [letter.body for letter in await dead_letters(cluster)] == [b"poison"]

    simulate(main)


def test_dead_lettering_with_manual_commit_does_not_commit_earlier_messages() -> None:
    async def main() -> None:
        async with TestCluster() as cluster:
            await sent(cluster, b"0", b"poison", b"2")

            def program(seen: list[bytes], last: ConsumeOrderlyStatus) -> PushConsumer:
                consumer = PushConsumer(GROUP, nameserver=cluster.nameserver, retry=RETRY)
                consumer.subscribe("orders")

                @consumer.orderly
                async def listen(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
                    context.auto_commit = False
                    seen.append(messages[0].body)
                    if messages[0].body == b"poison":
                        raise ValueError
                    return last if messages[0].body == b"2" else S.SUCCESS

                return consumer

            first: list[bytes] = []
            async with program(first, S.SUCCESS):
                await cluster.advance(seconds=5)
            assert first == [b"0", b"poison", b"poison", b"poison", b"2"]
            again: list[bytes] = []
            async with program(again, S.COMMIT):
                await cluster.advance(seconds=5)
            assert again[0] == b"0", "nothing was committed"
            third: list[bytes] = []
            async with program(third, S.COMMIT):
                await cluster.advance(seconds=5)
            assert third == []

    simulate(main)


def test_dead_letter_is_written_after_a_broker_restart_and_no_message_is_lost() -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster:
            await sent(cluster, b"poison", b"1")
            seen: list[tuple[bytes, int]] = []
            consumer = consumer_of(cluster, seen, retry=OrderedRetry(max_attempts=1, backoff=Backoff(first_ms=100), on_exhausted="dlq"))
            original = consumer._listener
            assert original is not None
            waits = asyncio.Event()

            async def slow(messages: Sequence[MessageExt], context: OrderlyContext) -> Any:
                waits.set()
                await asyncio.sleep(0.3)
                return await original(messages, context)  # type: ignore[misc, arg-type]

            consumer._listener = slow
            async with consumer:
                await waits.wait()
                await cluster.kill("broker-a")
                await cluster.restart("broker-a")
                await cluster.advance(seconds=20)
            assert (b"1", 0) in seen
            assert [letter.body for letter in await dead_letters(cluster)] == [b"poison"]

    simulate(main)


def test_dlq_retry_policy_requires_max_attempts() -> None:
    with pytest.raises(ConfigError, match="needs max_attempts"):
        OrderedRetry(on_exhausted="dlq")
    with pytest.raises(ConfigError, match="needs max_attempts"):
        OrderedRetry(on_exhausted="park")
    with pytest.raises(ConfigError, match='expected "block", "dlq" or "park"'):
        OrderedRetry(max_attempts=2, on_exhausted="skip")  # type: ignore[arg-type]


@pytest.mark.parametrize("listener", ["orderly", "concurrently"])
def test_group_name_too_long_for_its_retry_or_dlq_topic_is_rejected(listener: str) -> None:
    async def listen(messages: Sequence[MessageExt], _: object) -> None: ...

    longest = {"orderly": 122, "concurrently": 120}[listener]
    getattr(PushConsumer("g" * longest, retry=RETRY), listener)(listen)
    with pytest.raises(LocalProtocolError, match=f"at most {longest}"):
        getattr(PushConsumer("g" * (longest + 1), retry=RETRY), listener)(listen)
    PushConsumer("g" * 255).orderly(listen)  # waits for ever, gives nothing up
