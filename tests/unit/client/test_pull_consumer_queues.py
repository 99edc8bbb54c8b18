"""PullConsumer: subscribe, assign, and their misuse."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from lockstep.client import (
    ConcurrentlyContext,
    ConfigError,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    LocalProtocolError,
    Message,
    MessageQueue,
    PullConsumer,
    PushConsumer,
    StaleEpochError,
    StateError,
    SubscriptionConflictError,
    TopicNotExistError,
)
from lockstep.testing import simulate
from support.pulling import GROUP, QUEUE, TOPIC, drained, numbers, world

# --------------------------------------------------------------------------------------------------------------------- subscribe and assign


def test_pull_consumers_divide_the_queues_and_take_over_those_of_a_stopped_member() -> None:
    async def main() -> None:
        async with world(queues=6) as w, w.subscribed() as one:
            async with w.subscribed() as two:
                await w.cluster.advance(seconds=3)
                assert len(one.assignment()) == len(two.assignment()) == 3
                assert not set(one.assignment()) & set(two.assignment())
                await w.send(0, 12)
                both = await drained(one) + await drained(two)
                await asyncio.gather(one.commit(), two.commit())
            await w.cluster.advance(seconds=3)
            assert len(one.assignment()) == 6
            await w.send(12, 24)
            assert sorted(both) == list(range(12))
            assert sorted(await drained(one)) == list(range(12, 24)), "nothing that the other has committed comes again"

    simulate(main)


def test_commit_during_the_drain_of_a_moved_queue_is_accepted() -> None:
    async def main() -> None:
        async with world(queues=2) as w:
            await w.send(0, 10, queue=QUEUE)
            await w.send(0, 10, queue=replace(QUEUE, queue_id=1))
            async with w.subscribed(auto_commit=False) as one:
                found = await drained(one)
                assert len(found) == 20
                async with w.subscribed(auto_commit=False) as two:
                    await w.cluster.advance(seconds=3)
                    assert len(one.assignment()) == len(two.assignment()) == 1
                    await one.commit()
                    assert sorted(await w.committed()) == [10, 10]  # type: ignore[type-var]

    simulate(main)


def test_commit_after_the_drain_limit_is_rejected_with_the_queue_named() -> None:
    async def main() -> None:
        async with world(queues=2) as w:
            await w.send(0, 10, queue=QUEUE)
            await w.send(0, 10, queue=replace(QUEUE, queue_id=1))
            async with w.subscribed(auto_commit=False) as one:
                await drained(one)
                async with w.subscribed(auto_commit=False) as two:
                    await w.cluster.advance(seconds=60)
                    (gone,) = two.assignment()
                    with pytest.raises(StaleEpochError, match=f"commit of {gone} at 10: .* another member's now"):
                        await one.commit()
                    await one.commit()
                    assert sorted(await w.committed()) == [0, 10]  # type: ignore[type-var]
                    assert len(await drained(two)) == 10

    simulate(main)


def test_assigned_queues_are_consumed_until_others_are_assigned() -> None:
    async def main() -> None:
        async with world(queues=4) as w:
            async with w.consumer() as consumer, w.consumer() as other:
                queues = await consumer.queues(TOPIC)
                assert len(queues) == 4
                await consumer.assign(queues[:1])
                await other.assign(queues[:1])
                for number in range(8):
                    await w.producer.send(Message(TOPIC, b"%d" % number), queue=queues[number % 4])
                assert await drained(consumer) == [0, 4]
                assert await drained(other) in ([0, 4], []), "nobody deals: each has what it was given, from where the group is"
                await consumer.assign(queues[2:])
                assert sorted(await drained(consumer)) == [2, 3, 6, 7]
                assert consumer.assignment() == queues[2:]
                await consumer.commit()
            again = w.consumer()
            await again.assign(queues)
            async with again:
                assert await drained(again) == [1, 5], "progress is the group's"

    simulate(main)


def test_message_of_a_topic_no_longer_assigned_is_ignored() -> None:
    async def main() -> None:
        async with world() as w, w.consumer(auto_commit=False) as consumer:
            await consumer.assign([QUEUE])
            await w.send(0, 1)
            assert numbers(await consumer.poll()) == [0]
            await consumer.assign([])
            await w.send(1, 2)
            assert await consumer.poll(1_000) == [], "it drains: what was polled is not done, and its pull waits at the broker"
            await consumer.assign([QUEUE])
            assert await drained(consumer) == [1]

    simulate(main)


def test_assign_and_subscribe_conflict_within_a_group() -> None:
    async def main() -> None:
        async with world() as w:
            async with w.subscribed():
                by_hand = w.consumer()
                await by_hand.assign([QUEUE])
                with pytest.raises(SubscriptionConflictError, match="allocate: by_broker here, by_hand asked for"):
                    await by_hand.start()
                async with w.consumer() as later:
                    with pytest.raises(SubscriptionConflictError, match="allocate: by_broker here, by_hand asked for"):
                        await later.assign([QUEUE])
            push = PushConsumer(GROUP, nameserver=w.cluster.nameserver)
            push.subscribe(TOPIC)

            @push.concurrently
            async def listen(_: object, __: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

            async with push:
                with pytest.raises(SubscriptionConflictError, match="consume_type: CONSUME_PASSIVELY here, CONSUME_ACTIVELY asked for"):
                    await w.subscribed().start()

    simulate(main)


@pytest.mark.parametrize(("where", "expected"), [(ConsumeFromWhere.FIRST_OFFSET, [0, 1]), (ConsumeFromWhere.LAST_OFFSET, [1])])
@pytest.mark.parametrize("by_hand", [True, False])
def test_new_pull_group_starts_at_consume_from_where(where: ConsumeFromWhere, expected: list[int], by_hand: bool) -> None:
    async def main() -> None:
        async with world() as w:
            await w.send(0, 1)
            consumer = w.consumer(consume_from_where=where)
            if by_hand:
                await consumer.assign([QUEUE])
            else:
                consumer.subscribe(TOPIC)
            async with consumer:
                await w.cluster.advance(seconds=1)
                await w.send(1, 2)
                assert await drained(consumer) == expected

    simulate(main)


def test_poll_skips_paused_queues_until_resume() -> None:
    async def main() -> None:
        async with world(queues=2) as w, w.subscribed() as consumer:
            await w.cluster.advance(seconds=1)
            one, two = consumer.assignment()
            consumer.pause(one)
            await w.producer.send(Message(TOPIC, b"1"), queue=one)
            await w.producer.send(Message(TOPIC, b"2"), queue=two)
            assert await drained(consumer) == [2]
            consumer.pause()
            await w.producer.send(Message(TOPIC, b"3"), queue=two)
            assert await drained(consumer) == []
            consumer.resume(one)
            assert await drained(consumer) == [1]
            poll = asyncio.ensure_future(consumer.poll(60_000))
            await w.cluster.advance(seconds=1)
            consumer.resume()
            assert numbers(await poll) == [3]

    simulate(main)


WRONG: list[tuple[str, type[Exception], Callable[[PullConsumer], Awaitable[object]]]] = [
    ("reports is new: start it first", StateError, lambda consumer: consumer.poll()),
    ("reports is new: start it first", StateError, lambda consumer: consumer.__anext__()),
    ("reports is new: start it first", StateError, lambda consumer: consumer.commit()),
    ("reports is new: start it first", StateError, lambda consumer: consumer.seek(QUEUE, 0)),
    ("reports is new: start it first", StateError, lambda consumer: consumer.seek_to_end(QUEUE)),
    ("reports is new: start it first", StateError, lambda consumer: consumer.queues(TOPIC)),
]


# -------------------------------------------------------------------------------------------------------------------------------- misuse


@pytest.mark.parametrize(("words", "error", "call"), WRONG)
async def test_calls_before_start_raise_with_the_next_step(words: str, error: type[Exception], call: Callable[[PullConsumer], Any]) -> None:
    with pytest.raises(error, match=words):
        await call(PullConsumer(GROUP).subscribe(TOPIC))


async def test_subscribe_and_assign_are_mutually_exclusive() -> None:
    with pytest.raises(StateError, match="reports subscribes to orders: a consumer subscribes or is assigned, not both"):
        await PullConsumer(GROUP).subscribe(TOPIC).assign([QUEUE])
    consumer = PullConsumer(GROUP)
    await consumer.assign([QUEUE])
    with pytest.raises(StateError, match="was assigned queues by hand: a consumer subscribes or is assigned, not both"):
        consumer.subscribe(TOPIC)


def test_misuse_of_a_running_pull_consumer_raises() -> None:
    async def main() -> None:
        async with world() as w:
            other = MessageQueue(TOPIC, "broker-a", 1)
            async with w.subscribed() as consumer:
                await w.cluster.advance(seconds=1)
                for call in (consumer.seek(other, 0), consumer.seek_to_begin(other), consumer.offset_at(other, 0)):
                    with pytest.raises(StateError, match=r"orders@broker-a:1 is not assigned.*its queues are orders@broker-a:0"):
                        await call
                for plain in (consumer.pause, consumer.position, consumer.committed):
                    with pytest.raises(StateError, match="is not assigned"):
                        plain(other)
                poll = asyncio.ensure_future(consumer.poll(1_000))
                await asyncio.sleep(0)
                with pytest.raises(StateError, match="is being polled already"):
                    await consumer.poll()
                assert await poll == []
                with pytest.raises(StateError, match="can't change while the consumer runs"):
                    consumer.subscribe("more")
                with pytest.raises(TopicNotExistError, match="no topic other"):
                    await consumer.queues("other")
            with pytest.raises(StateError, match="reports is stopped: start it again"):
                await consumer.poll()
            by_hand = w.consumer()
            await by_hand.assign([other])
            with pytest.raises(LocalProtocolError, match="is not a readable queue of orders"):
                await by_hand.start()

    simulate(main)


def test_poll_raises_the_error_that_ended_the_consumer() -> None:
    async def main() -> None:
        async with world() as w, w.subscribed() as consumer:
            poll = asyncio.ensure_future(consumer.poll(600_000))
            await w.cluster.advance(seconds=1)
            consumer._fail(RuntimeError("as configured"))
            with pytest.raises(RuntimeError, match="as configured"):
                await poll
            with pytest.raises(RuntimeError, match="as configured"):
                await consumer.poll()

    simulate(main)


@pytest.mark.parametrize(
    "wrong",
    [{"poll_count": 0}, {"poll_timeout_ms": -1}, {"auto_commit": 1}, {"queue_count_max": 0}, {"allocate": "moon"}, {"pull_bytes": 1 << 30}],
)
def test_error_for_an_invalid_consumer_setting_names_it(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        PullConsumer(GROUP, **wrong)
