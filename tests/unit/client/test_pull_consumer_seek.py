"""PullConsumer: seek."""

import asyncio

import pytest

from lockstep.client import (
    BrokerError,
    LocalProtocolError,
    MessageQueue,
    PullConsumer,
    StaleEpochError,
)
from lockstep.runtime.host import Host
from lockstep.testing import simulate
from support.pulling import GROUP, QUEUE, TOPIC, drained, numbers, world


def test_seek_moves_the_position_and_discards_fetched_messages() -> None:
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


def test_offset_at_returns_the_offset_of_a_time() -> None:
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
def test_commit_after_seeking_backward_resets_the_group_with_a_new_generation(auto_commit: bool) -> None:
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


def test_commit_after_seeking_backward_is_not_rejected_as_stale() -> None:
    async def main() -> None:
        async with world() as w:
            await w.send(0, 10)
            async with w.subscribed(auto_commit=False, poll_count=5) as consumer:
                assert await drained(consumer) == list(range(10))
                await consumer.commit()
                await consumer.seek(QUEUE, 3)
                assert numbers(await consumer.poll()) == [3, 4, 5, 6, 7]
                await consumer.commit()
                assert numbers(await consumer.poll()) == [8, 9]
                await consumer.commit()
                assert await w.committed() == [10]

    simulate(main)


def test_seek_backward_does_not_undo_a_reset_not_yet_seen() -> None:
    """The fetch buffer is full, so that no pull reports the reset before the commit does."""

    async def main() -> None:
        async with world() as w:
            await w.send(0, 10)
            async with w.subscribed(auto_commit=False) as consumer:
                assert await drained(consumer) == list(range(10))
                await consumer.commit()
            async with w.subscribed(auto_commit=False, queue_count_max=2, poll_count=1) as consumer:
                await w.cluster.advance(seconds=1)
                await consumer.seek(QUEUE, 6)
                assert numbers(await consumer.poll()) == [6]
                await w.cluster.advance(seconds=2)
                await w.reset(2)
                with pytest.raises(StaleEpochError, match="at 7: the progress was reset"):
                    await consumer.commit()
                assert await drained(consumer) == [2, 3, 4, 5, 6, 7, 8, 9]

    simulate(main)


def test_seek_before_the_start_offset_is_known_is_applied() -> None:
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
def test_refused_backward_commit_does_not_block_polls(auto_commit: bool) -> None:
    async def main() -> None:
        async with world() as w:
            await w.send(0, 10)
            async with w.subscribed(auto_commit=auto_commit) as consumer:
                await drained(consumer)
                await consumer.commit()
                consumer._polls.seek(QUEUE, -5)  # as if retention had just removed those messages
                if not auto_commit:
                    with pytest.raises(BrokerError, match="expected 0 to 10"):
                        await consumer.commit()
                assert await drained(consumer) == list(range(10))

    simulate(main)


def test_seek_and_pause_of_an_unassigned_queue_are_forgotten() -> None:
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
def test_seek_outside_the_queues_range_is_rejected(offset: int) -> None:
    async def main() -> None:
        async with world() as w:
            await w.send(0, 10)
            async with w.subscribed() as consumer:
                await w.cluster.advance(seconds=1)
                with pytest.raises(LocalProtocolError, match=r"it holds 0 to 10"):
                    await consumer.seek(QUEUE, offset)
                await consumer.seek(QUEUE, 10)

    simulate(main)


def test_seek_and_pause_are_forgotten_when_the_queue_moves_to_another_member() -> None:
    async def main() -> None:
        async with world(queues=2) as w, w.subscribed() as one:
            await w.cluster.advance(seconds=1)
            one.pause()
            for queue in one.assignment():
                one._polls.seeks[queue] = 2  # as if the broker had not reported the start yet
            async with w.subscribed() as two:
                await w.cluster.advance(seconds=3)
                (kept,), (moved,) = one.assignment(), two.assignment()
            await w.cluster.advance(seconds=3)
            assert one.assignment() == (kept, moved) or one.assignment() == (moved, kept)
            assert one._polls.seeks == {kept: 2}
            for queue in (kept, moved):
                await w.send(0, 3, queue=queue)
            assert await drained(one) == [0, 1, 2], "of the queue that moved"

    simulate(main)


def test_pause_is_forgotten_when_the_queue_moves_while_draining() -> None:
    async def main() -> None:
        async with world(queues=2) as w, w.subscribed(auto_commit=False, poll_count=1) as one:
            await w.cluster.advance(seconds=1)
            for queue in one.assignment():
                await w.send(0, 3, queue=queue)
            assert [numbers(await one.poll()) for _ in range(2)] == [[0], [0]]
            one.pause()  # the polled messages are not done: the queue drains for 30 s
            async with w.subscribed() as two:
                await w.cluster.advance(seconds=3)
                (moved,) = two.assignment()
                assert await drained(two) == [0, 1, 2]
                await two.commit()
            await w.cluster.advance(seconds=3)
            assert moved in one.assignment()
            assert await drained(one) == [1, 2], "of the queue that moved, which it still had on the shelf"

    simulate(main)


async def polled_to(end: int, consumer: PullConsumer, *queues: MessageQueue) -> None:
    while {consumer.position(queue) for queue in queues} != {end}:
        await consumer.poll()


def test_commit_refused_while_another_queue_seeks_backward_raises() -> None:
    """The refused queue is granted again before the other one has been released: its buffered messages are polled again."""

    async def main() -> None:
        other = MessageQueue(TOPIC, "broker-b", 0)
        async with world(brokers=2) as w:
            for queue in (QUEUE, other):
                await w.send(0, 4, queue=queue)
            async with w.subscribed(auto_commit=False, poll_count=4) as consumer:
                for end in (4, 8):
                    await polled_to(end, consumer, QUEUE, other)
                    if end == 4:
                        await consumer.commit()
                        for queue in (QUEUE, other):
                            await w.send(4, 8, queue=queue)
                await w.cluster.advance(seconds=2)
                await consumer.seek(other, 1)
                await w.cluster.pause("broker-b")
                await w.cluster.cut_power("broker-a")
                committing = asyncio.ensure_future(consumer.commit())
                await w.cluster.restart("broker-a")
                await w.cluster.advance(seconds=2)
                assert consumer.position(QUEUE) == 4, "given anew: a power cut may have taken commits"
                await w.cluster.resume("broker-b")
                with pytest.raises(StaleEpochError, match=f"commit of {QUEUE} at 8"):
                    await committing
                assert sorted(await drained(consumer)) == sorted([*range(4, 8), *range(1, 8)])

    simulate(main)


def test_queue_unassigned_during_a_backward_commit_is_not_reset() -> None:
    async def main() -> None:
        other = MessageQueue(TOPIC, "broker-b", 0)
        async with world(brokers=2) as w:
            for queue in (other, QUEUE):
                await w.send(0, 4, queue=queue)
            consumer = w.consumer(auto_commit=False, poll_count=4)
            await consumer.assign([other, QUEUE])
            async with consumer:
                await polled_to(4, consumer, QUEUE, other)
                await consumer.commit()
                for queue in (other, QUEUE):
                    await consumer.seek(queue, 1)
                assert [runner.worker.queue for runner in consumer._polls._moved] == [other, QUEUE]
                await w.cluster.pause("broker-b")
                committing = asyncio.ensure_future(consumer.commit())
                await w.cluster.advance(seconds=0.5)
                await consumer.assign([other])
                await w.cluster.advance(seconds=0.5)
                await w.cluster.resume("broker-b")
                with pytest.raises(StaleEpochError, match=f"commit of {QUEUE} at 1"):
                    await committing
                await w.cluster.advance(seconds=1)
                assert sorted(await w.committed()) == [1, 4]  # type: ignore[type-var]

    simulate(main)
