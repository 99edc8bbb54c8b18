"""The in-flight limit: waiters are admitted in arrival order, none waits past its deadline, and a cancelled waiter leaks no slot."""

import asyncio
import itertools

from lockstep.client.errors import PrecedingSendError
from lockstep.client.producer.machines.routing import QUEUE_WIDE
from lockstep.client.producer.pacing.ends import Ends
from lockstep.client.producer.pacing.expiry import Expiry
from lockstep.client.producer.pacing.flow_control import InFlightLimit
from lockstep.client.producer.pacing.turn_share import SHARE_US_MIN
from lockstep.client.producer.pacing.waiting_room import WaitingRoom
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.runtime.clock import Clock
from support.clocks import SetClock, WorkClock
from support.counting import Steps
from support.loops import turns

PER_TURN = SHARE_US_MIN // 100
"""The number of sends that end in a loop turn if the end of each takes 100 µs."""
QUEUE = MessageQueue("t", "a", 0)
OTHER = MessageQueue("u", "a", 0)


def make_limit(count_max: int, clock: Clock | None = None) -> InFlightLimit:
    clock = SetClock(0) if clock is None else clock
    gate = InFlightLimit(count_max, 100, WaitingRoom(100_000, 100_000))
    ends = Ends(clock)
    expiry = Expiry(clock, ends)
    gate.begin(expiry, ends)
    gate.waiting.begin(expiry, clock.monotonic_ms)
    return gate


async def enter(
    gate: InFlightLimit, name: str, order: list[str], *keys: str, deadline_ms: int = 1_000, queue: MessageQueue = QUEUE
) -> None:
    await gate.enter(1, 1, [(queue, keys)], deadline_ms, lambda: TimeoutError(name), lambda: True)
    order.append(name)


def refuse(gate: InFlightLimit, *keys: str) -> None:
    assert gate._ends is not None
    gate._ends.add(gate.refuse_later(QUEUE, keys))


async def test_in_flight_limit_is_reached_at_its_count_or_its_bytes() -> None:
    gate = make_limit(2)
    gate.add(1, 10)
    assert not gate.must_wait
    gate.add(1, 10)
    assert gate.must_wait
    gate.release(1, 10)
    assert not gate.must_wait
    gate.add(1, 90)
    assert gate.must_wait
    gate.release(1, 90)
    gate.release(1, 10)
    assert (gate.count, gate.byte_count, gate.must_wait) == (0, 0, False)


async def test_waiters_are_admitted_in_arrival_order() -> None:
    gate = make_limit(1)
    gate.add(1, 1)
    order: list[str] = []
    async with asyncio.TaskGroup() as group:
        for name in ("a", "b", "c"):
            group.create_task(enter(gate, name, order))
        await turns(2)
        assert order == []
        for left in (["a"], ["a", "b"], ["a", "b", "c"]):
            gate.release(1, 1)
            assert gate.must_wait, "one who comes now stands behind the one that was let in"
            await turns(2)
            assert order == left
    gate.release(1, 1)
    assert (gate.count, gate.must_wait) == (0, False)


async def test_cancelled_waiter_releases_its_slot_to_the_next() -> None:
    gate = make_limit(1)
    gate.add(1, 1)
    order: list[str] = []
    async with asyncio.TaskGroup() as group:
        first = group.create_task(enter(gate, "a", order))
        group.create_task(enter(gate, "b", order))
        await turns(2)
        gate.release(1, 1)
        first.cancel()
        await turns(4)
        assert order == ["b"]
    gate.release(1, 1)
    assert (gate.count, gate.byte_count, gate.must_wait) == (0, 0, False)


async def outcomes(*sends: "asyncio.Future[None]") -> list[type[BaseException] | None]:
    return [None if error is None else type(error) for error in await asyncio.gather(*sends, return_exceptions=True)]


async def test_waiters_for_a_failed_key_are_refused_and_others_remain() -> None:
    gate = make_limit(1)
    gate.add(1, 1)
    order: list[str] = []
    rows = [("bad", QUEUE), ("good", QUEUE), ("bad", OTHER), ("bad", QUEUE)]
    sends = [asyncio.ensure_future(enter(gate, f"{n}", order, key, queue=queue)) for n, (key, queue) in enumerate(rows)]
    await turns(2)
    refuse(gate, "bad")
    for _ in range(2):
        gate.release(1, 1)
        await turns(3)
    assert await outcomes(*sends) == [PrecedingSendError, None, None, PrecedingSendError]
    assert order == ["1", "2"]
    assert gate.count == 1


async def test_key_failure_applies_across_queues_and_queue_wide_failure_to_one_queue_only() -> None:
    gate = make_limit(1)
    gate.add(1, 1)
    order: list[str] = []
    before, after = MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)
    rows = [("k", before), (QUEUE_WIDE, before), (QUEUE_WIDE, after)]
    sends = [asyncio.ensure_future(enter(gate, str(n), order, key, queue=queue)) for n, (key, queue) in enumerate(rows)]
    await turns(2)
    assert gate._ends is not None
    gate._ends.add(gate.refuse_later(after, ["k", QUEUE_WIDE]))
    gate.release(1, 1)
    await turns(3)
    assert await outcomes(*sends) == [PrecedingSendError, None, PrecedingSendError]


async def test_idle_waits_until_refused_waiters_have_failed() -> None:
    gate = make_limit(1)
    gate.add(1, 1)
    sends = [asyncio.ensure_future(enter(gate, "", [], "k")) for _ in range(500)]
    await turns(2)
    idle = asyncio.ensure_future(gate.idle())
    refuse(gate, "k")
    gate.release(1, 1)
    await turns(2 + 3)
    assert idle.done()
    assert set(await outcomes(*sends)) == {PrecedingSendError}


async def test_new_send_is_ordered_after_admitted_waiters_that_have_not_run() -> None:
    gate = make_limit(2)
    gate.add(1, 1)
    gate.add(1, 1)
    order: list[str] = []
    first = asyncio.ensure_future(enter(gate, "first", order, "k"))
    await turns(2)

    async def comes() -> None:
        gate.release(1, 1)  # the first one is admitted
        gate.release(1, 1)
        await enter(gate, "second", order, "k")

    await asyncio.gather(comes(), first)
    assert order == ["first", "second"]


async def test_refusing_a_waiter_with_several_keys_refuses_later_waiters_of_each_key_but_no_earlier_one() -> None:
    gate = make_limit(1)
    gate.add(1, 1)
    order: list[str] = []
    rows = [("b",), ("a", "b"), ("b", "c"), ("d",), ("c",)]
    sends = [asyncio.ensure_future(enter(gate, str(n), order, *keys)) for n, keys in enumerate(rows)]
    await turns(2)
    refuse(gate, "a")
    for _ in range(2):
        gate.release(1, 1)
        await turns(3)
    assert await outcomes(*sends) == [None, PrecedingSendError, PrecedingSendError, None, PrecedingSendError]
    assert order == ["0", "3"]


async def test_expired_waiter_fails_later_waiters_of_its_key_and_releases_no_slot() -> None:
    clock = SetClock(0)
    gate = make_limit(1, clock)
    gate.add(1, 1)
    order: list[str] = []
    rows = [("before", "k", 300), ("late", "k", 100), ("behind", "k", 300), ("other", "j", 300)]
    sends = [asyncio.ensure_future(enter(gate, name, order, key, deadline_ms=end_ms)) for name, key, end_ms in rows]
    await turns(2)
    assert gate._expiry is not None
    clock.now_ms = 99
    gate._expiry._expire()
    await turns(2)
    assert not any(send.done() for send in sends)
    clock.now_ms = 100
    gate._expiry._expire()
    await turns(2)
    assert [send.done() for send in sends] == [False, True, True, False]
    assert gate.count == 1
    for _ in range(2):
        gate.release(1, 1)
        await turns(3)
    assert await outcomes(*sends) == [None, TimeoutError, PrecedingSendError, None]
    assert order == ["before", "other"]


async def test_expired_waiters_fail_in_deadline_order_and_a_turn_ends_as_many_as_it_has_time_for() -> None:
    clock = WorkClock(100)
    gate = make_limit(1, clock)
    gate.add(1, 1)
    count = 4 * PER_TURN
    sends = [asyncio.ensure_future(enter(gate, "", [], deadline_ms=1 + n % 2)) for n in range(count)]
    await turns(1)
    waiters = list(gate._waiters.values())
    clock.now_ms = 5
    assert gate._expiry is not None
    gate._expiry._expire()
    ended = [sum(waiter.done() for waiter in waiters)]
    while ended[-1] < count:
        await turns(1)
        ended.append(sum(waiter.done() for waiter in waiters))
        early, late = (sum(waiter.done() for waiter in waiters[parity::2]) for parity in (0, 1))
        assert late == 0 or early == len(waiters[::2])
    assert all(0 < after - before <= PER_TURN for before, after in itertools.pairwise([0, *ended]))
    assert set(await outcomes(*sends)) == {TimeoutError}
    assert not gate._waiters
    gate.release(1, 1)
    assert not gate.must_wait


async def test_finished_waiters_are_not_kept_until_their_deadline() -> None:
    gate = make_limit(1)
    for _ in range(5_000):
        gate.add(1, 1)
        waiting = asyncio.ensure_future(enter(gate, "", []))
        await turns(1)
        gate.release(1, 1)
        await waiting
        gate.release(1, 1)
    assert gate._expiry is not None
    assert len(gate._expiry._heap) <= 512


async def test_idle_waits_for_sends_in_flight() -> None:
    gate = make_limit(4)
    await gate.idle()
    gate.add(2, 2)
    waiting = asyncio.ensure_future(gate.idle())
    gate.release(1, 1)
    await turns(2)
    assert not waiting.done()
    gate.release(1, 1)
    await waiting


async def test_admitted_waiter_that_has_not_run_is_refused_if_an_earlier_send_of_its_key_fails() -> None:
    """A loop turn passes between admission and run, and a frame can fail in it."""
    gate = make_limit(1)
    gate.add(1, 1)
    order: list[str] = []
    rows = ["k", "k", "j"]
    sends = [asyncio.ensure_future(enter(gate, str(n), order, key)) for n, key in enumerate(rows)]
    await turns(2)
    gate.release(1, 1)  # the first one is admitted
    refuse(gate, "k")
    await turns(4)
    assert all(send.done() for send in sends)
    assert await outcomes(*sends) == [PrecedingSendError, PrecedingSendError, None]
    assert order == ["2"]
    gate.release(1, 1)
    assert (gate.count, gate.byte_count, gate.must_wait, gate._by_place) == (0, 0, False, {})


async def test_waiters_for_a_failed_key_fail_in_order_as_turns_have_time_and_none_is_admitted() -> None:
    gate = make_limit(1, WorkClock(100))
    gate.add(1, 1)
    count = 3 * PER_TURN
    order: list[str] = []
    sends = [asyncio.ensure_future(enter(gate, "behind", order, "k")) for _ in range(count)]
    sends.append(asyncio.ensure_future(enter(gate, "other", order, "j")))
    await turns(1)
    waiters = list(gate._waiters.values())
    with Steps("/producer/pacing/flow_control.py") as spent:
        ending = gate.refuse_later(QUEUE, ["k"])
    assert spent.count < 20, "the work of the turn in which the key fails does not grow with the waiters"
    later = asyncio.ensure_future(enter(gate, "later", order, "k"))
    gate.release(1, 1)
    assert gate._ends is not None
    gate._ends.add(ending)
    ended = []
    while not waiters[-1].done():
        ended.append(sum(waiter.done() for waiter in waiters))
        assert all(waiter.done() for waiter in waiters[: ended[-1]])
        await turns(1)
    assert all(0 < after - before <= PER_TURN for before, after in itertools.pairwise([0, *ended]))
    await turns(3)
    gate.release(1, 1)
    assert await outcomes(*sends, later) == [PrecedingSendError] * count + [None, None]
    assert order == ["other", "later"], "a send of the key that came after the failure is admitted"


async def test_admitted_send_without_time_for_a_response_expires_with_later_sends_of_its_key() -> None:
    gate = make_limit(1)
    gate.add(1, 1)
    order: list[str] = []
    late = asyncio.ensure_future(gate.enter(1, 1, [(QUEUE, ["k"])], 1_000, lambda: TimeoutError("late"), lambda: False))
    sends = [late, *[asyncio.ensure_future(enter(gate, key, order, key)) for key in ("k", "j")]]
    await turns(2)
    gate.release(1, 1)
    await turns(4)
    assert await outcomes(*sends) == [TimeoutError, PrecedingSendError, None]
    assert (order, gate.count) == (["j"], 1)
