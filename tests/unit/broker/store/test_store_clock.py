"""Store times when the wall clock jumps: stamps, the search by time, age, pending delays, a restart."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.broker.store import Store
from lockstep.broker.store.log.clock_steps import ClockStep
from lockstep.broker.store.log.store_clock import ClockReading, StoreClock, stamps_of
from lockstep.protocol.messages.record import RecordView, encode_record, split_records
from lockstep.protocol.names import SCHEDULE_TOPIC
from lockstep.runtime.host import Host
from lockstep.runtime.steady_clock import TRUST_MS
from lockstep.testing.simulation.disk import SimFiles
from support.clocks import SetClock
from support.store_kit import STARTED_MS, append, confirmed, host_of, open_store

HOUR_MS = 3_600_000
BODY = b"x" * 900
"""Four records fill a segment of 4 KiB."""


def machine(files: SimFiles) -> tuple[Host, SetClock]:
    clock = SetClock(STARTED_MS)
    host = host_of(files)
    object.__setattr__(host, "clock", clock)
    return host, clock


def advance_until_trusted(store: Store, clock: SetClock) -> None:
    """Advance the time until the wall clock is trusted."""
    for _ in range(TRUST_MS // 1_000 + 1):
        store.follow_clock()
        clock.now_ms += 1_000


async def stamps(store: Store, queue_id: int = 0) -> list[int]:
    await confirmed(store)
    end = store.bounds("orders", queue_id)[1]
    result = await store.read_or_wait("orders", queue_id, 0, end, 1 << 20)
    return [RecordView(bytes(part)).store_ms for part in result.parts for part in records(part)]


def records(part: bytes | memoryview) -> list[bytes]:
    return [bytes(part[begin:end]) for begin, end in split_records(bytes(part))]


async def test_timestamps_do_not_follow_a_wall_clock_ahead_for_seconds() -> None:
    files = SimFiles()
    host, clock = machine(files)
    store = await open_store(files, host=host)
    began = clock.now_ms
    for ahead_ms in (0, HOUR_MS, HOUR_MS, 0):
        clock.ahead_ms = ahead_ms
        append(store, b"x")
        clock.now_ms += 1_250
    assert await stamps(store) == [began, began + 1_250, began + 2_500, began + 3_750]
    await store.close()


async def test_timestamps_follow_a_clock_set_back_and_the_step_survives_a_restart() -> None:
    files = SimFiles()
    host, clock = machine(files)
    clock.ahead_ms = HOUR_MS
    store = await open_store(files, host=host)
    append(store, b"wrong")
    wrong = clock.wall_ms()
    clock.ahead_ms = 0
    advance_until_trusted(store, clock)
    append(store, b"right")
    right = clock.now_ms
    assert await stamps(store) == [wrong, right]
    (step,) = store._state.stamps.steps
    assert (step.by_ms, step.after_ms) == (-HOUR_MS, right - 1_000)
    assert store.stored_ms(0, wrong) == wrong - HOUR_MS
    for kept in ("the log alone", "a snapshot"):
        if kept == "a snapshot":
            await store.write_snapshot([])
        await store.close(clean=False)
        store = await open_store(files, host=host)
        assert store._state.stamps.steps == [step]
        assert store.stored_ms(0, wrong) == wrong - HOUR_MS
        assert store.now_ms() == clock.now_ms
    await store.close()


async def test_start_with_a_clock_behind_the_log_continues_from_the_log() -> None:
    files = SimFiles()
    host, clock = machine(files)
    store = await open_store(files, host=host)
    append(store, b"x")
    stamped = clock.now_ms
    await store.close()
    clock.ahead_ms = -50 * 365 * 24 * HOUR_MS
    store = await open_store(files, host=host)
    append(store, b"y")
    assert await stamps(store) == [stamped, stamped]
    clock.ahead_ms = 0
    append(store, b"z")
    assert await stamps(store) == [stamped] * 3
    assert store._state.stamps.steps == []
    await store.close()


async def test_search_by_time_skips_no_message_wherever_the_clock_was_set_back() -> None:
    """Binary search alone would end after the jump back, or before it, by chance."""
    files = SimFiles()
    host, clock = machine(files)
    store = await open_store(files, host=host)
    for _ in range(20):
        append(store, b"before")
        clock.now_ms += 1_000
    store = await restarted_ahead(files, host, store, clock)
    for _ in range(5):
        append(store, b"ahead")
        clock.now_ms += 1_000
    clock.ahead_ms = 0
    advance_until_trusted(store, clock)
    for _ in range(20):
        append(store, b"behind")
        clock.now_ms += 60_000
    assert [step.by_ms < 0 for step in store._state.stamps.steps] == [True]
    found = await stamps(store)
    for requested in sorted({stamp + more for stamp in found for more in (-1, 0, 1)}):
        expected = next((index for index, stamp in enumerate(found) if stamp >= requested), len(found))
        assert await store.offset_by_time("orders", 0, requested) == expected
    await store.close()


async def restarted_ahead(files: SimFiles, host: Host, store: Store, clock: SetClock) -> Store:
    """Restart while the wall clock is an hour ahead: it is trusted, since there is nothing to compare it with."""
    await store.close()
    clock.ahead_ms = HOUR_MS
    return await open_store(files, host=host)


async def create_aged_store(files: SimFiles, host: Host, clock: SetClock, **sizes: int) -> Store:
    store = await open_store(files, host=host, segment_bytes=4096, retention_ms=72 * HOUR_MS)
    for _ in range(3):
        for _ in range(4):
            append(store, BODY)
        clock.now_ms += HOUR_MS
    append(store, b"last")
    for name in ("one", "two"):
        await store.write_snapshot([name])
        append(store, b"more")
        await confirmed(store)
    return store


async def test_wall_clock_a_year_ahead_for_seconds_removes_nothing() -> None:
    files = SimFiles()
    host, clock = machine(files)
    store = await create_aged_store(files, host, clock)
    store.now_ms()
    clock.ahead_ms = 365 * 24 * HOUR_MS
    for _ in range(10):
        assert await store.retention(store.safe_now_ms()) == []
        clock.now_ms += 10_000
    clock.ahead_ms = 0
    assert await store.retention(store.safe_now_ms()) == []
    clock.now_ms += 70 * HOUR_MS
    assert await store.retention(store.safe_now_ms()) == [("orders", 0, 4)], "what is old goes as ever"
    await store.close()


async def test_records_stamped_by_a_slow_clock_do_not_remove_older_segments() -> None:
    """The record that follows a segment has a stamp of last year."""
    files = SimFiles()
    host, clock = machine(files)
    store = await open_store(files, host=host, segment_bytes=4096, retention_ms=72 * HOUR_MS)
    for _ in range(4):
        append(store, BODY)
    clock.ahead_ms = -365 * 24 * HOUR_MS
    advance_until_trusted(store, clock)
    for _ in range(8):
        append(store, BODY)
    assert [step.by_ms < 0 for step in store._state.stamps.steps] == [True]
    clock.ahead_ms = 0
    advance_until_trusted(store, clock)
    for name in ("one", "two"):
        append(store, BODY)
        await confirmed(store)
        await store.write_snapshot([name])
    assert [moved[2] for moved in await store.retention(store.safe_now_ms())] == []
    await store.close()


async def test_delay_entry_has_the_due_time_by_its_timestamp_also_after_a_rebuild() -> None:
    files = SimFiles()
    host, clock = machine(files)
    store = await open_store(files, host=host)
    clock.ahead_ms = HOUR_MS
    record = encode_record(SCHEDULE_TOPIC.encode(), 1, b"x", b"", born_ms=1)
    stamped = store.append_frame(SCHEDULE_TOPIC, 1, record, 1, born_host=bytes(8), trusted=True).store_timestamp
    await confirmed(store)
    assert stamped == clock.now_ms

    def due(of: Store) -> int:
        queue = of._queues.get((SCHEDULE_TOPIC, 1))
        assert queue is not None
        entry = queue.memory_entry(0)
        assert entry is not None
        return entry[2]

    assert due(store) == stamped + 5_000
    await store.close(clean=False)
    again = await open_store(files, host=host)
    assert due(again) == stamped + 5_000
    await again.close()


@settings(max_examples=100)
@given(st.lists(st.integers(0, 1_000), max_size=30), st.integers(0, 1_000))
def test_search_finds_the_first_message_at_or_after_the_time_for_any_timestamps(found: list[int], requested: int) -> None:
    """As `Query.offset_by_time` goes over the ranges between steps."""

    async def main() -> None:
        files = SimFiles()
        store = await open_store(files, host=host_of(files))
        kept = store._state.stamps
        base = host_of(files).clock.wall_ms()
        original = kept.now_ms

        def now_ms() -> int:
            stamp = base + next(coming, 2_000)
            kept.record_stamp(store._log.end, stamp)
            return stamp

        coming = iter(found)
        kept.now_ms = now_ms  # type: ignore[method-assign]
        for _ in found:
            append(store, b"x")
        kept.now_ms = original  # type: ignore[method-assign]
        await confirmed(store)
        expected = next((index for index, stamp in enumerate(found) if stamp >= requested), len(found))
        assert await store.offset_by_time("orders", 0, base + requested) == expected
        await store.close(clean=False)

    asyncio.run(main())


def test_timestamp_taken_ahead_is_corrected_by_the_step_and_others_are_unchanged() -> None:
    kept = StoreClock()
    for position, stamp in [(0, 100), (10, 3_700), (20, 3_701), (30, 102), (40, 200)]:
        kept.record_stamp(position, stamp)
    assert kept.steps == [ClockStep(30, 102 - 3_701, 102, 30)]
    assert [kept.true_ms(*place) for place in [(0, 100), (10, 3_700), (20, 3_701), (30, 102), (40, 200)]] == [100, 101, 102, 102, 200]
    kept.forget_before(30)
    assert kept.steps == []


@pytest.mark.parametrize("steps", [[], [ClockStep(30, -3_599, 102, 10)]])
@pytest.mark.parametrize("reading", [None, ClockReading("boot-1", 7, 9, 10)])
def test_snapshot_restores_the_store_clock(steps: list[ClockStep], reading: ClockReading | None) -> None:
    plain = StoreClock(5, steps, reading).plain()
    again = stamps_of(5, plain)
    assert (again.newest_ms, again.steps, again.plain()) == (5, steps, plain)
