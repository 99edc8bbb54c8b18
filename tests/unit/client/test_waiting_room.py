"""A send that can't be sent before its deadline, because too many wait, is refused when it is called; any other may wait."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict

import pytest

from lockstep.client import BatchSendError, LockstepError, Outcome, Producer, SendError, TooManySendsError
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.pacing.ends import Ends
from lockstep.client.producer.pacing.expiry import Expiry
from lockstep.client.producer.pacing.waiting_room import PERIOD_MS, WaitingRoom
from support.clocks import SetClock
from support.fake_broker import fake_cluster, respond_later
from support.loops import until
from support.producing import message, one_queue, producing, stop_and_wait_for_link_down

pytestmark = pytest.mark.simulated

SMALL = ProducerConfig(send_timeout_ms=5_000, keyed_send_timeout_ms=20_000, in_flight_count_max=10, waiting_count_max=20)


class Room:
    """A waiting room for 10 messages with 1,000 bytes, and its clock."""

    def __init__(self) -> None:
        self.clock = SetClock(0)
        self.expiry = Expiry(self.clock, Ends(self.clock))
        self.room = WaitingRoom(10, 1_000)
        self.room.begin(self.expiry, self.clock.monotonic_ms)

    def pass_ms(self, ms: int) -> None:
        self.clock.now_ms += ms
        self.expiry._expire()


async def test_any_number_may_wait_until_sends_have_waited_for_a_period() -> None:
    bench = Room()
    for _ in range(500):
        assert bench.room.has_place(1, 10, 3_000)
        bench.room.enter(1, 10)
    bench.pass_ms(PERIOD_MS - 1)
    assert bench.room.has_place(1, 10, 3_000)
    bench.pass_ms(1)
    assert not bench.room.has_place(1, 10, 3_000)


@pytest.mark.parametrize(("count", "byte_count"), [(9, 1), (1, 999)])
async def test_as_many_may_wait_as_the_setting_allows_while_nothing_is_stored(count: int, byte_count: int) -> None:
    bench = Room()
    bench.room.enter(count, byte_count)
    bench.pass_ms(PERIOD_MS)
    assert bench.room.has_place(1, 1, 30_000)
    assert not bench.room.has_place(2, 1 if count > 1 else 2, 30_000)
    assert not bench.room.has_place(1, 1_000, 30_000)


async def test_as_many_may_wait_as_are_stored_before_the_deadline_at_the_last_rate() -> None:
    bench = Room()
    bench.room.enter(200, 200)
    bench.room.record_stored(100, 5_000)
    bench.pass_ms(2 * PERIOD_MS)  # late: 50 messages/s
    assert bench.room.stored_per_s == 50
    assert [bench.room.has_place(1, 1, timeout_ms) for timeout_ms in (4_000, 4_019, 4_020)] == [False, False, True]
    bench.pass_ms(PERIOD_MS)
    assert not bench.room.has_place(1, 1, 1_000_000), "nothing was stored in the last period"


async def test_number_is_not_limited_if_no_send_waited_for_a_moment_of_the_period() -> None:
    """A program that sends 100,000 messages at once must not have them refused because it waited for a moment a second earlier."""
    bench = Room()
    bench.room.enter(1, 1)
    bench.room.leave(1, 1)
    bench.pass_ms(PERIOD_MS - 1)
    bench.room.enter(500, 500)
    bench.pass_ms(1)
    assert bench.room.has_place(1, 1, 3_000)
    bench.pass_ms(PERIOD_MS)
    assert not bench.room.has_place(1, 1, 3_000)
    bench.room.leave(500, 500)
    bench.room.enter(11, 11)
    assert bench.room.has_place(1, 1, 3_000)


async def test_send_that_would_wait_alone_may_wait_however_large_it_is() -> None:
    bench = Room()
    bench.room.enter(1, 1)
    bench.pass_ms(PERIOD_MS)
    bench.room.leave(1, 1)
    assert bench.room.has_place(100, 100_000, 1_000)


@pytest.mark.parametrize("sharding_key", [None, "k"])
async def test_sends_above_the_limit_are_refused_at_once_while_the_broker_is_down_and_the_others_are_stored_when_it_is_back(
    sharding_key: str | None,
) -> None:
    loop = asyncio.get_running_loop()
    async with one_queue(SMALL) as (broker, producer):
        port = int(broker.address.rpartition(":")[2])
        await stop_and_wait_for_link_down(broker, producer)
        waiting = [asyncio.ensure_future(producer.send(message(f"{n:02}", sharding_key=sharding_key))) for n in range(30)]
        await until(lambda: producer._limit.waiting.limited)
        begun = loop.time()
        for _ in range(100):
            with pytest.raises(TooManySendsError) as refused:
                await producer.send(message("more", sharding_key=sharding_key))
            assert refused.value.outcome is Outcome.NOT_STORED
        assert loop.time() == begun
        waits = f"20 messages with {8_020 if sharding_key else 7_720} bytes wait to be sent, and brokers store 0/s"
        assert str(refused.value) == (
            f"topic t: refused at once: {waits}, too few for this one within its {20_000 if sharding_key else 5_000} ms"
            " (send less, or raise waiting_count_max and waiting_bytes_max); the message is not stored"
        )
        assert (producer.in_flight_count, producer._limit.waiting.count) == (10, 20)
        await broker.start(port)
        assert {(await sent).status.name for sent in waiting} == {"SEND_OK"}
        assert sorted(map(int, broker.stored[1:])) == list(range(30))
        assert (producer._limit.waiting.count, producer._limit.waiting.byte_count) == (0, 0)


async def refused_ways(producer: Producer) -> list[type[BaseException]]:
    ended = await asyncio.gather(
        producer.send(message()),
        producer.post(message()),
        producer.send_batch([message()] * 2),
        producer.send(message(), delay_level=3),
        return_exceptions=True,
    )
    errors = [error.results[0] if isinstance(error, BatchSendError) else error for error in ended]
    return [type(error) for error in errors]


async def test_every_kind_of_send_is_refused() -> None:
    async with one_queue(SMALL) as (broker, producer):
        await stop_and_wait_for_link_down(broker, producer)
        waiting = [asyncio.ensure_future(producer.send(message(sharding_key="k"))) for _ in range(30)]
        await until(lambda: producer._limit.waiting.limited)
        assert await refused_ways(producer) == [TooManySendsError] * 4
        for sent in waiting:
            sent.cancel()
        await asyncio.wait(waiting)


async def test_sends_that_wait_for_a_route_are_limited_too() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster, SMALL) as producer:
        cluster.ready = False
        waiting = [asyncio.ensure_future(producer.send(message())) for _ in range(20)]
        await until(lambda: producer._limit.waiting.limited)
        with pytest.raises(TooManySendsError):
            await producer.send(message())
        cluster.ready = True
        assert {(await sent).status.name for sent in waiting} == {"SEND_OK"}
        assert producer._limit.waiting.count == 0


async def test_ended_waiters_for_a_route_are_not_kept() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster, SMALL) as producer:
        cluster.ready = False
        lasting = asyncio.ensure_future(producer.send(message()))
        short = [asyncio.ensure_future(producer.send(message(), timeout_ms=50)) for _ in range(200)]
        await asyncio.wait(short)
        assert all(isinstance(sent.exception(), LockstepError) for sent in short)
        await until(lambda: len(producer._topics._opening["t"].waiters) == 1)
        cluster.ready = True
        await lasting


async def test_none_of_many_sends_that_are_called_at_once_is_refused_by_a_broker_that_stores_them_in_time() -> None:
    async with one_queue(SMALL) as (broker, producer):
        results = await asyncio.gather(*[producer.send(message(str(n))) for n in range(3_000)])
        assert len(results) == 3_000
        assert len(broker.stored) == 3_001


async def test_no_more_wait_than_a_slow_broker_stores_before_their_deadline() -> None:
    """It stores 10 messages each 100 ms, and 30 are called: sends have 4 s, so 400 may wait."""
    config = ProducerConfig(**{**asdict(SMALL), "send_timeout_ms": 4_000})
    ends: Counter[str] = Counter()
    waited = [0]

    async def one(producer: Producer) -> None:
        try:
            await producer.send(message())
            ends["stored"] += 1
        except SendError as error:
            ends[type(error).__name__] += 1

    async with one_queue(config) as (broker, producer):
        held: list[Callable[[], None]] = []
        broker.script.extend([respond_later(held)] * 10_000)
        sending = []
        for _ in range(100):
            sending += [asyncio.ensure_future(one(producer)) for _ in range(30)]
            await asyncio.sleep(0.1)
            waited.append(producer._limit.waiting.count)
            held.pop()()
        broker.script.clear()
        for respond in held:
            respond()
        await asyncio.gather(*sending)
    assert 350 <= max(waited) <= 400
    assert ends.total() == 3_000
    assert ends["TooManySendsError"] > 10 * ends["SendTimeoutError"], "those that may wait are stored in time, but for some at the bound"
