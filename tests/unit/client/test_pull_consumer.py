"""PullConsumer in a simulated cluster: polls, commits and rejected commits."""

import asyncio

import pytest

from lockstep.client import (
    Message,
    StaleEpochError,
)
from lockstep.testing import simulate
from support.pulling import QUEUE, TOPIC, drained, numbers, world

# ------------------------------------------------------------------------------------------------------------------------------------ polls


def test_poll_returns_messages_of_one_queue_in_order_and_serves_queues_round_robin() -> None:
    async def main() -> None:
        async with world(queues=3) as w:
            for number in range(60):
                await w.producer.send(Message(TOPIC, b"%d" % number), selector=lambda queues, message: queues[int(message.body) % 3])
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
def test_empty_poll_waits_for_its_timeout(timeout_ms: int) -> None:
    async def main() -> None:
        async with world() as w, w.subscribed() as consumer:
            await w.cluster.advance(seconds=1)
            began = asyncio.get_running_loop().time()
            assert await consumer.poll(timeout_ms) == []
            assert timeout_ms <= (asyncio.get_running_loop().time() - began) * 1000 < timeout_ms + 5

    simulate(main)


def test_waiting_poll_returns_a_message_that_arrives() -> None:
    async def main() -> None:
        async with world() as w, w.subscribed() as consumer:
            poll = asyncio.ensure_future(consumer.poll(60_000))
            await w.cluster.advance(seconds=3)
            await w.send(0, 1)
            assert numbers(await poll) == [0]

    simulate(main)


def test_async_iteration_yields_messages_until_stop_and_commits_them() -> None:
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


def test_last_message_before_a_break_is_redelivered_unless_committed() -> None:
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


def test_tag_filter_skips_messages_and_progress_passes_them() -> None:
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


def test_filtered_messages_of_a_waiting_poll_are_committed() -> None:
    """The poll waits for as long as no message matches. Nobody must have to send one to bring the lag to zero."""

    async def main() -> None:
        async with world() as w, w.consumer().subscribe(TOPIC, "paid") as consumer:
            waiting = asyncio.ensure_future(anext(aiter(consumer)))
            for _ in range(3):
                await w.producer.send(Message(TOPIC, b"x", tags="made"))
            await w.cluster.advance(seconds=40)
            assert (await w.committed(), waiting.done()) == ([3], False)
            await w.producer.send(Message(TOPIC, b"0", tags="paid"))
            assert (await waiting).body == b"0"

    simulate(main)


def test_filtered_messages_after_an_unfinished_one_are_not_committed() -> None:
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


def test_unpolled_messages_are_fetched_up_to_queue_count_max() -> None:
    async def main() -> None:
        async with world() as w:
            await w.send(0, 300)
            async with w.subscribed(queue_count_max=20, poll_count=7) as consumer:
                await w.cluster.advance(seconds=5)
                (health,) = consumer.health().queues
                assert 10 < health.fetched_count <= 20
                assert await drained(consumer) == list(range(300))

    simulate(main)


def test_polling_continues_without_commits() -> None:
    async def main() -> None:
        async with world() as w:
            await w.send(0, 300)
            async with w.subscribed(auto_commit=False, queue_count_max=20) as consumer:
                assert await drained(consumer) == list(range(300))
                assert await w.committed() == [0]

    simulate(main)


# ---------------------------------------------------------------------------------------------------------------------------------- commits


def test_auto_commit_commits_at_each_poll_the_messages_of_earlier_polls() -> None:
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


def test_manual_commit_returns_when_the_broker_has_the_offset() -> None:
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


def test_killed_pull_consumer_loses_no_message_and_repeats_only_uncommitted_ones() -> None:
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


def test_reset_applies_to_a_running_pull_consumer_and_rejects_earlier_commits() -> None:
    async def main() -> None:
        async with world() as w:
            await w.send(0, 10)
            async with w.subscribed(auto_commit=False) as consumer:
                assert await drained(consumer) == list(range(10))
                await w.reset(4)
                with pytest.raises(StaleEpochError, match="the progress was reset"):
                    await consumer.commit()
                assert await w.committed() == [4]
                assert await drained(consumer) == [4, 5, 6, 7, 8, 9]
                await consumer.commit()
                assert await w.committed() == [10]

    simulate(main)


def test_commit_in_the_loop_turn_in_which_the_grant_ended_is_rejected() -> None:
    async def main() -> None:
        async with world() as w:
            await w.send(0, 10)
            async with w.subscribed(auto_commit=False, poll_count=5) as consumer:
                assert numbers(await consumer.poll()) == [0, 1, 2, 3, 4]
                assert consumer._membership is not None
                worker = consumer._membership.worker(QUEUE)
                assert worker is not None
                assert worker.grant is not None
                worker.handle_stale(worker.grant, by="PULL")
                with pytest.raises(StaleEpochError, match="at 5"):
                    await consumer.commit()
                await consumer.commit()
                assert await drained(consumer) == list(range(10))

    simulate(main)


def test_commit_in_flight_during_a_reset_is_rejected() -> None:
    """The fetch buffer is full, so that no pull reports the reset before the commit does."""

    async def main() -> None:
        async with world() as w:
            await w.send(0, 10)
            async with w.subscribed(auto_commit=False, queue_count_max=2, poll_count=1) as consumer:
                assert numbers(await consumer.poll()) == [0]
                await w.cluster.advance(seconds=2)
                await w.reset(5)
                await w.cluster.advance(seconds=2)
                with pytest.raises(StaleEpochError, match=r"commit of orders@broker-a:0 at 1: the progress was reset"):
                    await consumer.commit()
                assert await drained(consumer) == [5, 6, 7, 8, 9]

    simulate(main)
