"""The pull consumer against a whole cluster under a virtual clock: what polls give, what is committed, what is refused."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from lockstep.admin.client import AdminClient
from lockstep.client import (
    BrokerError,
    ConcurrentlyContext,
    ConfigError,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    LocalProtocolError,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    StaleEpoch,
    StateError,
    SubscriptionConflict,
    TopicNotExist,
)
from lockstep.protocol.bodies import QueueOffset, ResetBody
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster, simulate

GROUP, TOPIC = "reports", "orders"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)


class World:
    """A cluster with topic `orders`, and a producer."""

    def __init__(self, cluster: TestCluster, producer: Producer) -> None:
        self.cluster = cluster
        self.producer = producer

    async def send(self, first: int, end: int, topic: str = TOPIC, **how: Any) -> None:
        for number in range(first, end):
            await self.producer.send(Message(topic, b"%d" % number, tags=how.pop("tags", None)), **how)

    def consumer(self, **settings: Any) -> PullConsumer:
        return PullConsumer(GROUP, nameserver=self.cluster.nameserver, **settings)

    def subscribed(self, **settings: Any) -> PullConsumer:
        return self.consumer(**settings).subscribe(TOPIC)

    async def committed(self) -> list[int | None]:
        report = await self.cluster.group_status(GROUP)
        return [] if report is None else [line.committed_offset for line in report.queues]

    async def reset(self, offset: int) -> None:
        admin = AdminClient(Host.current(), self.cluster.nameserver)
        await admin.reset((await admin.brokers())[0], ResetBody(GROUP, TOPIC, (QueueOffset(0, offset),)))


@asynccontextmanager
async def world(queues: int = 1, brokers: int = 1) -> AsyncIterator[World]:
    async with TestCluster(brokers=brokers) as cluster:
        await cluster.create_topic(TOPIC, queues=queues)
        async with Producer("shop", nameserver=cluster.nameserver) as producer:
            yield World(cluster, producer)


def numbers(messages: list[MessageExt]) -> list[int]:
    return [int(message.body) for message in messages]


async def drained(consumer: PullConsumer) -> list[int]:
    """Everything that comes within 2 s of the last."""
    found: list[int] = []
    while batch := await consumer.poll(2_000):
        found += numbers(batch)
    return found


# ---------------------------------------------------------------------------------------------------------------------- polls


def test_polls_give_one_queue_at_a_time_in_its_order_and_every_queue_its_turn() -> None:
    async def main() -> None:
        async with world(queues=3) as w:
            for number in range(60):
                await w.producer.send(Message(TOPIC, b"%d" % number), selector=lambda queues, _, n: queues[n % 3], arg=number)
            async with w.subscribed(poll_count=5) as consumer:
                await w.cluster.advance(seconds=2)
                batches = [await consumer.poll() for _ in range(12)]
                assert await consumer.poll(10) == []
            assert all(len(batch) == 5 and len({message.queue_id for message in batch}) == 1 for batch in batches)
            assert [batch[0].queue_id for batch in batches[:6]] == [batch[0].queue_id for batch in batches[:3]] * 2
            for queue_id in range(3):
                of_queue = [number for batch in batches for number in numbers(batch) if batch[0].queue_id == queue_id]
                assert of_queue == list(range(queue_id, 60, 3))

    simulate(main)


@pytest.mark.parametrize("timeout_ms", [0, 1, 250, 5_000])
def test_a_poll_that_finds_nothing_waits_as_long_as_it_was_told(timeout_ms: int) -> None:
    async def main() -> None:
        async with world() as w, w.subscribed() as consumer:
            await w.cluster.advance(seconds=1)
            began = asyncio.get_running_loop().time()
            assert await consumer.poll(timeout_ms) == []
            assert timeout_ms <= (asyncio.get_running_loop().time() - began) * 1000 < timeout_ms + 5

    simulate(main)


def test_a_poll_that_waits_gets_what_comes() -> None:
    async def main() -> None:
        async with world() as w, w.subscribed() as consumer:
            poll = asyncio.ensure_future(consumer.poll(60_000))
            await w.cluster.advance(seconds=3)
            await w.send(0, 1)
            assert numbers(await poll) == [0]

    simulate(main)


def test_one_message_after_the_other_until_it_is_stopped() -> None:
    async def main() -> None:
        async with world() as w:
            await w.send(0, 5)
            consumer, found = w.subscribed(), []

            async def consume() -> None:
                async for message in consumer:
                    found.append(int(message.body))
                    if len(found) == 5:
                        asyncio.get_running_loop().call_later(1, lambda: stops.append(asyncio.ensure_future(consumer.stop())))

            stops: list[asyncio.Future[None]] = []
            async with consumer:
                await consume()
            await stops[0]
            assert found == list(range(5))
            async with w.subscribed() as again:
                assert await drained(again) == [], "what came before the last was asked for is committed; it too: one more was asked for"

    simulate(main)


def test_the_last_message_of_a_loop_that_breaks_off_comes_again_unless_it_is_committed() -> None:
    async def main() -> None:
        async with world() as w:
            await w.send(0, 5)
            for commit, begins in ((False, 0), (True, 2)):
                async with w.subscribed() as consumer:
                    first = None
                    async for message in consumer:
                        first = int(message.body) if first is None else first
                        if int(message.body) == begins + 2 - commit * 1:
                            if commit:
                                await consumer.commit()
                            break
                assert first == begins
            async with w.subscribed() as consumer:
                assert await drained(consumer) == [4]

    simulate(main)


def test_tags_are_filtered_and_progress_moves_over_the_others() -> None:
    async def main() -> None:
        async with world() as w:
            for number in range(10):
                await w.producer.send(Message(TOPIC, b"%d" % number, tags="paid" if number % 2 else "made"))
            await w.producer.send(Message(TOPIC, b"10", tags="made"))
            async with w.consumer().subscribe(TOPIC, "paid") as consumer:
                assert await drained(consumer) == [1, 3, 5, 7, 9]
                await consumer.commit()
                assert await w.committed() == [11]

    simulate(main)


def test_what_is_filtered_behind_a_message_that_is_not_done_commits_nothing() -> None:
    async def main() -> None:
        async with world() as w:
            await w.producer.send(Message(TOPIC, b"0", tags="paid"))
            async with w.consumer(auto_commit=False).subscribe(TOPIC, "paid") as consumer:
                assert numbers(await consumer.poll()) == [0]
                for _ in range(3):
                    await w.producer.send(Message(TOPIC, b"x", tags="made"))
                await w.cluster.advance(seconds=20)
                assert (await w.committed(), consumer.position(QUEUE)) == ([0], 4)
                await consumer.commit()
                assert await w.committed() == [4]

    simulate(main)


def test_what_is_not_polled_is_not_fetched_beyond_the_limit() -> None:
    async def main() -> None:
        async with world() as w:
            await w.send(0, 300)
            async with w.subscribed(queue_count_max=20, poll_count=7) as consumer:
                await w.cluster.advance(seconds=5)
                (health,) = consumer.health().queues
                assert 10 < health.fetched_count <= 20
                assert await drained(consumer) == list(range(300))

    simulate(main)


def test_without_commits_nothing_stands_still() -> None:
    async def main() -> None:
        async with world() as w:
            await w.send(0, 300)
            async with w.subscribed(auto_commit=False, queue_count_max=20) as consumer:
                assert await drained(consumer) == list(range(300))
                assert await w.committed() == [0]

    simulate(main)


# -------------------------------------------------------------------------------------------------------------------- commits


def test_with_auto_commit_a_poll_commits_what_the_polls_before_it_gave() -> None:
    async def main() -> None:
        async with world() as w:
            await w.send(0, 9)
            async with w.subscribed(poll_count=3) as consumer:
                for done in (0, 3, 6):
                    assert numbers(await consumer.poll()) == list(range(done, done + 3))
                    await w.cluster.advance(seconds=1)
                    assert await w.committed() == [done]
            assert await w.committed() == [6], "the last poll's may not be done: stopping does not say so"

    simulate(main)


def test_without_it_commit_does_and_returns_when_the_broker_has_it() -> None:
    async def main() -> None:
        async with world() as w:
            await w.send(0, 9)
            async with w.subscribed(auto_commit=False, poll_count=3) as consumer:
                await consumer.poll()
                await consumer.poll()
                await w.cluster.advance(seconds=5)
                assert await w.committed() == [0]
                await consumer.commit()
                assert (await w.committed(), consumer.committed(QUEUE), consumer.position(QUEUE)) == ([6], 6, 6)
                await consumer.poll()
            async with w.subscribed() as again:
                assert await drained(again) == [6, 7, 8]

    simulate(main)


def test_a_killed_member_loses_nothing_and_repeats_what_was_not_committed() -> None:
    async def main() -> None:
        async with world(queues=4) as w:
            seen: list[int] = []

            async def work() -> None:
                async with w.subscribed(poll_count=4) as consumer:
                    while True:
                        for message in await consumer.poll():
                            await asyncio.sleep(0.02)
                            seen.append(int(message.body))

            await w.cluster.start("one", work)
            await w.cluster.start("two", work)
            for number in range(200):
                await w.send(number, number + 1)
                await w.cluster.advance(seconds=0.03)
                if number in (60, 120):
                    await w.cluster.kill("one")
                    await w.cluster.restart("one")
                if number == 90:
                    await w.cluster.kill("broker-a")
                    await w.cluster.restart("broker-a")
            await w.cluster.advance(seconds=15)
            assert set(seen) == set(range(200)), "nothing is lost"
            assert len(seen) <= 200 + 100, "and little is repeated"

    simulate(main)


def test_a_reset_reaches_a_member_that_runs_and_refuses_the_commit_of_before() -> None:
    async def main() -> None:
        async with world() as w:
            await w.send(0, 10)
            async with w.subscribed(auto_commit=False) as consumer:
                assert await drained(consumer) == list(range(10))
                await w.reset(4)
                with pytest.raises(StaleEpoch, match="its progress was set anew"):
                    await consumer.commit()
                assert await w.committed() == [4]
                assert await drained(consumer) == [4, 5, 6, 7, 8, 9]
                await consumer.commit()
                assert await w.committed() == [10]

    simulate(main)


def test_a_commit_that_is_on_its_way_when_the_group_was_reset_is_refused() -> None:
    """The shelf is full, so that no pull tells of the reset before the commit does."""

    async def main() -> None:
        async with world() as w:
            await w.send(0, 10)
            async with w.subscribed(auto_commit=False, queue_count_max=2, poll_count=1) as consumer:
                assert numbers(await consumer.poll()) == [0]
                await w.cluster.advance(seconds=2)
                await w.reset(5)
                await w.cluster.advance(seconds=2)
                with pytest.raises(StaleEpoch, match=r"commit of orders@broker-a:0 at 1: its progress was set anew"):
                    await consumer.commit()
                assert await drained(consumer) == [5, 6, 7, 8, 9]

    simulate(main)


# ----------------------------------------------------------------------------------------------------------------------- seek


def test_seek_goes_where_it_is_told_and_drops_what_was_fetched() -> None:
    async def main() -> None:
        async with world() as w:
            await w.send(0, 20)
            async with w.subscribed(auto_commit=False, poll_count=2) as consumer:
                assert numbers(await consumer.poll()) == [0, 1]
                await consumer.seek(QUEUE, 15)
                assert consumer.position(QUEUE) == 15
                assert await drained(consumer) == [15, 16, 17, 18, 19]
                await consumer.seek_to_begin(QUEUE)
                assert numbers(await consumer.poll()) == [0, 1]
                await consumer.seek_to_end(QUEUE)
                assert await consumer.poll(500) == []
                await w.send(20, 21)
                assert numbers(await consumer.poll()) == [20]
                assert await w.committed() == [0], "only commit() takes the group along"

    simulate(main)


def test_seek_by_time() -> None:
    async def main() -> None:
        async with world() as w:
            await w.send(0, 5)
            await w.cluster.advance(seconds=60)
            at_ms = Host.current().clock.wall_ms() - 30_000
            await w.send(5, 7)
            async with w.subscribed() as consumer:
                await w.cluster.advance(seconds=1)
                await consumer.seek(QUEUE, await consumer.offset_at(QUEUE, at_ms))
                assert await drained(consumer) == [5, 6]

    simulate(main)


@pytest.mark.parametrize("auto_commit", [True, False])
def test_going_back_and_committing_takes_the_group_back_under_a_new_generation(auto_commit: bool) -> None:
    async def main() -> None:
        async with world() as w:
            await w.send(0, 10)
            async with w.subscribed(auto_commit=auto_commit, poll_count=5) as consumer:
                assert await drained(consumer) == list(range(10))
                await consumer.commit()
                before = await w.cluster.group_status(GROUP)
                await consumer.seek(QUEUE, 3)
                assert numbers(await consumer.poll()) == [3, 4, 5, 6, 7]
                if not auto_commit:
                    assert await w.committed() == [10]
                    await consumer.commit()
                await w.cluster.advance(seconds=1)
                assert await w.committed() == [3 if auto_commit else 8]
                after = await w.cluster.group_status(GROUP)
                assert before is not None
                assert after is not None
                assert int(after.queues[0].generation or 0) > int(before.queues[0].generation or 0)
                assert await drained(consumer) == [8, 9], "each once: what was handed out behind the seek does not come again"
            async with w.subscribed() as again:
                assert await drained(again) == ([] if auto_commit else [8, 9])

    simulate(main)


def test_a_seek_before_the_broker_has_told_where_to_begin_counts() -> None:
    async def main() -> None:
        async with world() as w:
            await w.send(0, 10)
            consumer = w.consumer()
            await consumer.assign([QUEUE])
            async with consumer:
                await consumer.seek(QUEUE, 7)
                assert consumer.position(QUEUE) == 7
                assert await drained(consumer) == [7, 8, 9]

    simulate(main)


@pytest.mark.parametrize("auto_commit", [True, False])
def test_going_back_where_the_broker_refuses_it_holds_up_no_poll(auto_commit: bool) -> None:
    async def main() -> None:
        async with world() as w:
            await w.send(0, 10)
            async with w.subscribed(auto_commit=auto_commit) as consumer:
                await drained(consumer)
                await consumer.commit()
                consumer._shelf.seek(QUEUE, -5)  # as if retention had taken what was there a moment ago
                if not auto_commit:
                    with pytest.raises(BrokerError, match="expected 0 to 10"):
                        await consumer.commit()
                assert await drained(consumer) == list(range(10))

    simulate(main)


def test_what_was_asked_of_a_queue_is_forgotten_with_it() -> None:
    async def main() -> None:
        async with world() as w:
            await w.send(0, 3)
            consumer = w.consumer()
            await consumer.assign([QUEUE])
            async with consumer:
                await consumer.seek(QUEUE, 2)
                consumer.pause(QUEUE)
                await consumer.assign([])
                await consumer.assign([QUEUE])
                assert await drained(consumer) == [0, 1, 2]

    simulate(main)


@pytest.mark.parametrize("offset", [-1, 11, 1 << 40])
def test_a_seek_beyond_what_the_queue_holds_is_refused(offset: int) -> None:
    async def main() -> None:
        async with world() as w:
            await w.send(0, 10)
            async with w.subscribed() as consumer:
                await w.cluster.advance(seconds=1)
                with pytest.raises(LocalProtocolError, match=r"it holds 0 to 10"):
                    await consumer.seek(QUEUE, offset)
                await consumer.seek(QUEUE, 10)

    simulate(main)


# ------------------------------------------------------------------------------------------------------- subscribe and assign


def test_members_share_the_queues_and_take_over_what_one_leaves() -> None:
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


def test_a_commit_counts_also_when_its_queue_was_given_away_meanwhile() -> None:
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


def test_a_commit_that_comes_after_the_drain_limit_is_refused_by_name() -> None:
    async def main() -> None:
        async with world(queues=2) as w:
            await w.send(0, 10, queue=QUEUE)
            await w.send(0, 10, queue=replace(QUEUE, queue_id=1))
            async with w.subscribed(auto_commit=False) as one:
                await drained(one)
                async with w.subscribed(auto_commit=False) as two:
                    await w.cluster.advance(seconds=60)
                    (gone,) = two.assignment()
                    with pytest.raises(StaleEpoch, match=f"commit of {gone} at 10: .* another member's now"):
                        await one.commit()
                    await one.commit()
                    assert sorted(await w.committed()) == [0, 10]  # type: ignore[type-var]
                    assert len(await drained(two)) == 10

    simulate(main)


def test_queues_by_hand_are_had_until_others_are_assigned() -> None:
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


def test_by_hand_and_by_subscription_are_two_contracts() -> None:
    async def main() -> None:
        async with world() as w:
            async with w.subscribed():
                by_hand = w.consumer()
                await by_hand.assign([QUEUE])
                with pytest.raises(SubscriptionConflict, match="allocate: by_broker here, by_hand asked for"):
                    await by_hand.start()
                async with w.consumer() as later:
                    with pytest.raises(SubscriptionConflict, match="allocate: by_broker here, by_hand asked for"):
                        await later.assign([QUEUE])
            push = PushConsumer(GROUP, nameserver=w.cluster.nameserver)
            push.subscribe(TOPIC)

            @push.concurrently
            async def listen(_: object, __: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

            async with push:
                with pytest.raises(SubscriptionConflict, match="consume_type: CONSUME_PASSIVELY here, CONSUME_ACTIVELY asked for"):
                    await w.subscribed().start()

    simulate(main)


@pytest.mark.parametrize(("where", "expected"), [(ConsumeFromWhere.FIRST_OFFSET, [0, 1]), (ConsumeFromWhere.LAST_OFFSET, [1])])
@pytest.mark.parametrize("by_hand", [True, False])
def test_a_new_group_begins_where_its_policy_says(where: ConsumeFromWhere, expected: list[int], by_hand: bool) -> None:
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


def test_paused_queues_are_passed_over_until_they_are_resumed() -> None:
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


# ------------------------------------------------------------------------------------------------------------------ wrong use


WRONG: list[tuple[str, type[Exception], Callable[[PullConsumer], Awaitable[object]]]] = [
    ("reports is new: start it first", StateError, lambda consumer: consumer.poll()),
    ("reports is new: start it first", StateError, lambda consumer: consumer.__anext__()),
    ("reports is new: start it first", StateError, lambda consumer: consumer.commit()),
    ("reports is new: start it first", StateError, lambda consumer: consumer.seek(QUEUE, 0)),
    ("reports is new: start it first", StateError, lambda consumer: consumer.seek_to_end(QUEUE)),
    ("reports is new: start it first", StateError, lambda consumer: consumer.queues(TOPIC)),
]


@pytest.mark.parametrize(("words", "error", "call"), WRONG)
async def test_before_the_start_it_says_what_to_do(words: str, error: type[Exception], call: Callable[[PullConsumer], Any]) -> None:
    with pytest.raises(error, match=words):
        await call(PullConsumer(GROUP).subscribe(TOPIC))


async def test_subscribe_and_assign_do_not_mix() -> None:
    with pytest.raises(StateError, match="reports subscribes to orders: a consumer subscribes or is assigned, not both"):
        await PullConsumer(GROUP).subscribe(TOPIC).assign([QUEUE])
    consumer = PullConsumer(GROUP)
    await consumer.assign([QUEUE])
    with pytest.raises(StateError, match="was assigned queues by hand: a consumer subscribes or is assigned, not both"):
        consumer.subscribe(TOPIC)


def test_while_it_runs_wrong_use_is_told() -> None:
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
                with pytest.raises(StateError, match="stand from the start"):
                    consumer.subscribe("more")
                with pytest.raises(TopicNotExist, match="no topic other"):
                    await consumer.queues("other")
            with pytest.raises(StateError, match="reports is stopped: make a new consumer"):
                await consumer.poll()
            by_hand = w.consumer()
            await by_hand.assign([other])
            with pytest.raises(LocalProtocolError, match="is no queue of orders that can be read"):
                await by_hand.start()

    simulate(main)


def test_a_member_that_is_refused_later_is_told_by_its_poll() -> None:
    async def main() -> None:
        async with world() as w, w.subscribed() as consumer:
            poll = asyncio.ensure_future(consumer.poll(600_000))
            await w.cluster.advance(seconds=1)
            consumer._die(RuntimeError("as told"))
            with pytest.raises(RuntimeError, match="as told"):
                await poll
            with pytest.raises(RuntimeError, match="as told"):
                await consumer.poll()

    simulate(main)


@pytest.mark.parametrize(
    "wrong",
    [{"poll_count": 0}, {"poll_timeout_ms": -1}, {"auto_commit": 1}, {"queue_count_max": 0}, {"allocate": "moon"}, {"pull_bytes": 1 << 30}],
)
def test_settings_out_of_range_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        PullConsumer(GROUP, **wrong)
