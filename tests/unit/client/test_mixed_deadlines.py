"""Sends with different deadlines in one frame: each ends at its own deadline, and the frame continues for the others."""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable

import pytest

from lockstep.client import BatchSendError, Outcome, PrecedingSendError, Producer, QueueUnavailableError, SendResult, SendTimeoutError
from lockstep.client.errors import SendError
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.machines.routing import number_of_key
from lockstep.client.producer.pacing.turn_share import SHARE_US_MIN
from lockstep.protocol.errors import ServiceNotAvailableError
from lockstep.testing.simulation.loop import SimLoop
from support.clocks import WorkClock
from support.fake_broker import FakeBroker, fake_cluster, ignore, refuse, respond_later
from support.loops import turns, until
from support.producing import held_send, ignored, keyed, message, one_queue, producing, send

pytestmark = pytest.mark.simulated

SLOW = ProducerConfig(send_timeout_ms=20_000, keyed_send_timeout_ms=20_000, attempt_timeout_ms=5_000)


async def outcome(sending: "asyncio.Future[SendResult]") -> tuple[type[BaseException], Outcome]:
    with pytest.raises(SendError) as raised:
        await sending
    return raised.type, raised.value.outcome


Row = tuple[str, str | None, int | None]


async def in_one_frame(broker: FakeBroker, producer: Producer, *rows: Row) -> list["asyncio.Future[SendResult]"]:
    """Send `rows` while a frame is in flight, so that they leave in one frame. Return their futures."""
    script, broker.script = broker.script, deque()
    first, respond = await held_send(broker, producer, "ahead", rows[0][1] and "ahead")
    broker.script = script
    sending = [send(producer, *row) for row in rows]
    await turns(2)
    seen = len(broker.sends)
    respond()
    await first
    await until(lambda: len(broker.sends) > seen)
    assert broker.sends[-1].bodies == [row[0].encode() for row in rows]
    return sending


@pytest.mark.parametrize("key", [None, "k"])
async def test_expiry_of_one_send_does_not_abort_the_frame_of_the_others(key: str | None) -> None:
    async with one_queue(SLOW) as (broker, producer):
        held: list[Callable[[], None]] = []
        broker.script.extend([respond_later(held), *[ignore] * 9])
        late, other = await in_one_frame(broker, producer, ("late", key, 300), ("other", key and "j", None))
        assert await outcome(late) == (SendTimeoutError if key is None else QueueUnavailableError, Outcome.UNKNOWN)
        assert not other.done()
        assert producer.in_flight_count == 2, "both are in the frame that is in flight"
        held[0]()
        assert (await other).queue_offset == 3
        assert producer.in_flight_count == 0
        assert broker.stored == [b"first", b"ahead", b"late", b"other"]
        broker.script.clear()
        assert (await send(producer, "next", key)).queue_offset == 4


async def test_keyed_send_that_expires_in_flight_fails_later_sends_of_its_key() -> None:
    async with one_queue(SLOW) as (broker, producer):
        held: list[Callable[[], None]] = []
        broker.script.append(respond_later(held))
        rows = [("before", "k", None), ("late", "k", 300), ("behind", "k", None), ("other", "j", None)]
        before, late, behind, other = await in_one_frame(broker, producer, *rows)
        waits, waits_too = send(producer, "waits", "k"), send(producer, "waits too", "j")
        assert await outcome(late) == (QueueUnavailableError, Outcome.UNKNOWN)
        assert await outcome(behind) == (QueueUnavailableError, Outcome.UNKNOWN)
        assert await outcome(waits) == (PrecedingSendError, Outcome.NOT_STORED)
        again = send(producer, "again", "k")
        held[0]()
        assert [(await sent).queue_offset for sent in (before, other, waits_too, again)] == [2, 5, 6, 7]
        assert b"waits" not in broker.stored


async def test_send_that_expires_after_a_refusal_is_not_stored_by_the_retry_of_its_frame() -> None:
    async with one_queue(SLOW) as (broker, producer):
        broker.script.extend([refuse(ServiceNotAvailableError("full"))] * 5)
        late, other = await in_one_frame(broker, producer, ("late", "k", 300), ("other", "j", None))
        failure = await outcome(late)
        assert failure == (QueueUnavailableError, Outcome.NOT_STORED)
        assert (await other).queue_offset == 2
        assert broker.stored == [b"first", b"ahead", b"other"]


async def test_failure_of_a_key_does_not_fail_sends_that_are_called_after_it() -> None:
    """The frame of the failed send is refused afterwards and queued again, and then another of its sends expires."""
    async with one_queue(SLOW) as (broker, producer):
        held: list[Callable[[], None]] = []
        busy = refuse(ServiceNotAvailableError("full"))
        broker.script.append(respond_later(held, busy))
        rows = [("late", "k", 300), ("later", "j", 600), ("other", "i", None)]
        late, later, other = await in_one_frame(broker, producer, *rows)
        assert await outcome(late) == (QueueUnavailableError, Outcome.UNKNOWN)
        again = send(producer, "again", "k")
        broker.script.extend([busy] * 99)
        held[0]()
        assert await outcome(later) == (QueueUnavailableError, Outcome.NOT_STORED)
        broker.script.clear()
        assert [(await sent).queue_offset for sent in (other, again)] == [2, 3]


async def test_frame_moves_to_another_broker_after_half_the_time_of_its_latest_deadline() -> None:
    """Otherwise a send with a short deadline could cause others to be stored twice."""
    config = ProducerConfig(send_timeout_ms=8_000, attempt_timeout_ms=500)
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster, producing(cluster, config) as producer:
        await asyncio.gather(*[producer.send(message()) for _ in range(4)])
        broker = cluster.brokers["a"]
        held: list[Callable[[], None]] = []
        broker.script.extend([respond_later(held), *[ignore] * 9])
        sending = [send(producer, str(n), None, 300 if n < 2 else None) for n in range(4)]
        ended = await asyncio.gather(*sending[:2], return_exceptions=True)
        assert sorted(type(end).__name__ for end in ended) == ["SendResult", "SendTimeoutError"], "one went to each broker"
        await asyncio.sleep(3)
        assert (producer.possible_duplicates, len(held)) == (0, 1)
        held[0]()
        assert all([(await sent).status for sent in sending[2:]])


async def test_frame_ends_once_all_of_its_sends_have_ended() -> None:
    async with one_queue(SLOW) as (broker, producer):
        broker.script.append(ignore)
        ending = await in_one_frame(broker, producer, ("late", "k", 300), ("behind", "k", None))
        assert [await outcome(sending) for sending in ending] == [(QueueUnavailableError, Outcome.UNKNOWN)] * 2
        await until(lambda: producer.in_flight_count == 0)
        assert (await send(producer, "next", "k")).status


async def test_sends_after_a_failed_one_fail_in_order_as_turns_have_time() -> None:
    async with one_queue(SLOW) as (broker, producer):
        late = await ignored(broker, send(producer, "late", "k", 1_000))
        behind = [send(producer, "behind", "k") for _ in range(3_000)]
        assert producer._shell is not None
        producer._shell._ends._now_us = WorkClock(100).monotonic_us
        assert await outcome(late) == (QueueUnavailableError, Outcome.UNKNOWN)
        ended = [sum(sending.done() for sending in behind)]
        while ended[-1] < len(behind):
            await turns(1)
            ended.append(sum(sending.done() for sending in behind))
            assert all(sending.done() for sending in behind[: ended[-1]])
        assert max(after - before for before, after in itertools.pairwise(ended)) <= SHARE_US_MIN // 100
        assert {await outcome(sending) for sending in behind} == {(PrecedingSendError, Outcome.NOT_STORED)}


@pytest.mark.parametrize("attempt_timeout_ms", [1_000, 5_000])
async def test_last_pending_send_of_a_frame_ends_at_its_own_deadline(attempt_timeout_ms: int) -> None:
    loop = asyncio.get_running_loop()
    async with one_queue(ProducerConfig(attempt_timeout_ms=attempt_timeout_ms)) as (broker, producer):
        broker.script.extend([ignore] * 99)
        begun = loop.time()
        late, behind, last = await in_one_frame(broker, producer, ("A", "k", 200), ("B", "k", None), ("C", "j", 300))
        for sending in (late, behind, last):
            assert await outcome(sending) == (QueueUnavailableError, Outcome.UNKNOWN)
        assert loop.time() - begun < 0.4


async def test_failed_part_of_a_batch_is_not_completed_again_by_the_response_of_its_frame() -> None:
    keys = {number_of_key(key, 2): key for key in map(str, range(20))}
    async with fake_cluster("a", topics={"t": 2}) as cluster, producing(cluster, SLOW) as producer:
        broker = cluster.brokers["a"]
        await asyncio.gather(*[producer.send(message(sharding_key=key)) for key in keys.values()])
        first, respond = await held_send(broker, producer, "ahead", keys[0])
        held: list[Callable[[], None]] = []
        broker.script.extend([respond_later(held), respond_later(held)])
        late = send(producer, "late", keys[0], 300)
        await turns(2)
        batch = asyncio.ensure_future(producer.send_batch(keyed(["behind", "other"], [keys[0], keys[1]])))
        await until(lambda: len(held) == 1)
        respond()
        await first
        await until(lambda: len(held) == 2)
        assert await outcome(late) == (QueueUnavailableError, Outcome.UNKNOWN)
        held[1]()  # the frame of which one send and one part of the batch have failed
        await turns(10)
        assert not batch.done(), "its other part is unanswered"
        held[0]()
        with pytest.raises(BatchSendError) as raised:
            await batch
        behind, other = raised.value.results
        assert isinstance(behind, QueueUnavailableError)
        assert (behind.outcome, isinstance(other, SendResult)) == (Outcome.UNKNOWN, True)


async def test_send_called_before_an_earlier_failure_is_raised_fails_with_it() -> None:
    """Thousands of simultaneous failures in another queue do not delay that failure."""
    keys = {number_of_key(key, 2): key for key in map(str, range(20))}
    async with fake_cluster("a", topics={"t": 2}) as cluster, producing(cluster, SLOW) as producer:
        broker = cluster.brokers["a"]
        await asyncio.gather(*[producer.send(message(sharding_key=key)) for key in keys.values()])
        broker.script.extend([ignore] * 99)
        seen = len(broker.sends)
        crowd_head, head = (send(producer, "head", keys[number], 1_000) for number in (0, 1))
        await until(lambda: len(broker.sends) == seen + 2)
        crowd = [send(producer, "crowd", keys[0]) for _ in range(3_000)]
        behind = []
        await asyncio.wait([crowd_head])
        while not head.done():
            behind.append(send(producer, "behind", keys[1]))
            await asyncio.sleep(0)
        broker.script.clear()
        assert await outcome(head) == (QueueUnavailableError, Outcome.UNKNOWN)
        assert await outcome(crowd_head) == (QueueUnavailableError, Outcome.UNKNOWN)
        assert {await outcome(sending) for sending in crowd + behind} == {(PrecedingSendError, Outcome.NOT_STORED)}


@pytest.mark.parametrize("timeout_ms", [400, 1_000, 2_000])
async def test_unkeyed_sends_avoid_a_hanging_broker_with_any_deadline(timeout_ms: int) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    loop.network.late_chance = 0.0  # a lost segment comes up to 3.2 s late
    config = ProducerConfig(send_timeout_ms=timeout_ms)
    async with fake_cluster("a", "b", topics={"t": 2}) as cluster, producing(cluster, config) as producer:
        await asyncio.gather(*[producer.send(message()) for _ in range(8)])
        cluster.brokers["a"].otherwise = ignore
        sending = []
        for number in range(600):
            sending.append(send(producer, str(number)))
            await asyncio.sleep(0.02)
        assert {type(end) for end in await asyncio.gather(*sending, return_exceptions=True)} == {SendResult}


async def test_close_ends_while_many_sends_fail_after_an_expired_one() -> None:
    config = ProducerConfig(in_flight_count_max=1, attempt_timeout_ms=5_000)
    async with one_queue(config) as (broker, producer):
        broker.script.extend([ignore] * 100)
        late = send(producer, "late", "k", 1_000)
        await turns(2)
        behind = [send(producer, "behind", "k") for _ in range(3_000)]
        await turns(2)
        async with asyncio.timeout(60):
            await producer.close()
        assert await outcome(late) == (QueueUnavailableError, Outcome.UNKNOWN)
        assert {await outcome(sending) for sending in behind} == {(PrecedingSendError, Outcome.NOT_STORED)}
