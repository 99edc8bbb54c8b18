"""Steps of the clock: their number is bounded, omitted steps make records later and never earlier, lookups stay short."""

import asyncio
from itertools import accumulate

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.broker.store.log import clock_steps as module
from lockstep.broker.store.log.clock_steps import STEPS_MAX, ClockStep, ClockSteps
from lockstep.broker.store.log.store_clock import ClockReading, StoreClock, stamps_of
from lockstep.broker.store.queues.query import Query
from lockstep.broker.store.start.snapshot import encode_parts
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import append, confirmed, host_of, open_store

SET_MS = st.integers(-2_000, 2_000) | st.integers(-3_600_000, 3_600_000)


def exact_ms(steps: list[ClockStep], position: int, stamp_ms: int) -> int:
    """Return the time of the stamp by all steps of the one boot."""
    return stamp_ms + sum(step.by_ms for step in steps if step.position > position)


def one_boot(set_ms: list[int]) -> list[ClockStep]:
    return [
        ClockStep(10 * at + 10, by_ms, 5_000_000 + shown, 0)
        for at, (by_ms, shown) in enumerate(zip(set_ms, accumulate(set_ms), strict=True))
    ]


@settings(max_examples=200)
@given(st.lists(SET_MS, max_size=40), st.integers(3, 8))
@example([-300, 300] * 5, 3)
@example([300] * 20, 3)
def test_omitted_steps_make_a_record_late_by_at_most_late_ms_and_never_early(set_ms: list[int], count_max: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "STEPS_MAX", count_max)
        steps, kept = one_boot(set_ms), ClockSteps(one_boot(set_ms))
        assert len(kept.kept) <= count_max
        for position in range(0, 10 * len(steps) + 20, 5):
            said_ms = next((step.late_ms for step in kept.kept if step.position > position), 0)
            late_ms = kept.true_ms(position, 7) - exact_ms(steps, position, 7)
            assert 0 <= late_ms <= said_ms
        if len(steps) <= count_max:
            assert kept.kept == steps


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 2), SET_MS), max_size=40), st.integers(3, 8))
def test_step_count_is_bounded_over_boots_and_the_newest_step_is_exact(found: list[tuple[int, int]], count_max: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "STEPS_MAX", count_max)
        kept, since = ClockSteps(), 0
        for at, (boots, by_ms) in enumerate(found):
            since = 10 * at + 5 if boots == 2 else since
            kept.add_step(ClockStep(10 * at + 10, by_ms, 5_000, since))
            assert len(kept.kept) <= count_max
            assert kept.true_ms(10 * at + 10, 7) == 7
            assert kept.true_ms(10 * at + 9, 7) >= 7 + by_ms


@settings(max_examples=200)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 2_000)), max_size=40), st.integers(0, 400))
def test_no_record_is_early_if_each_boot_set_the_clock_forward_only(found: list[tuple[bool, int]], position: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "STEPS_MAX", 4)
        since, steps = 0, list[ClockStep]()
        for at, (boots, by_ms) in enumerate(found):
            since = 10 * at + 5 if boots else since
            steps.append(ClockStep(10 * at + 10, by_ms, 5_000, since))
        assert ClockSteps(steps).true_ms(position, 7) >= exact_ms(steps, position, 7)


def test_lateness_after_5000_steps_is_small_compared_with_their_sum() -> None:
    kept = ClockSteps(one_boot([300] * 5_000))
    assert len(kept.kept) == STEPS_MAX
    assert max(step.late_ms for step in kept.kept) <= 4 * 300 * 5_000 // STEPS_MAX


def test_clock_jump_that_was_undone_moves_no_record_of_earlier_boots() -> None:
    kept = ClockSteps([ClockStep(20, 3_600_000, 3_700_000, 10), ClockStep(30, -3_600_000, 100_500, 10)])
    assert [kept.true_ms(position, 50) for position in (0, 10, 20, 30)] == [50, 50, 50 - 3_600_000, 50]


def test_true_time_lookup_table_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise 100 due messages would read the whole list 100 times."""
    kept = ClockSteps(one_boot([300] * STEPS_MAX))
    made = 0
    look_up = ClockSteps._look_up

    def counted(self: ClockSteps) -> None:
        nonlocal made
        made += 1
        look_up(self)

    monkeypatch.setattr(ClockSteps, "_look_up", counted)
    for position in range(100):
        kept.true_ms(10 * position, 7)
    assert made == 1
    assert len(kept._boots) == 1, "what is walked: once for each boot"


async def test_search_by_time_binary_searches_between_backward_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimFiles()
    store = await open_store(files, host=host_of(files))
    for _ in range(64):
        append(store, b"x")
    await confirmed(store)
    stamps = store._state.stamps
    for at in range(5_000):
        stamps.clock_record_written(at, "boot", at, stamps.newest_ms + 300, 300)
    stamps.clock_record_written(5_001, "boot", 5_001, stamps.newest_ms - 300, -300)
    reads = 0
    entry_of = Query._entry

    async def counted(self: Query, *place: object) -> object:
        nonlocal reads
        reads += 1
        return await entry_of(self, *place)  # type: ignore[arg-type]

    monkeypatch.setattr(Query, "_entry", counted)
    assert await store.offset_by_time("orders", 0, 1 << 60) == 64
    assert reads <= 2 * 8, "a range takes log n for its end, and one more"
    await store.close(clean=False)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 1_000), max_size=30), st.integers(0, 1_000))
@example([273, 271, 270, 2, 0, 1, 0], 273)
def test_search_by_time_skips_no_message_when_steps_were_omitted(found: list[int], requested: int) -> None:
    async def main() -> None:
        files = SimFiles()
        store = await open_store(files, host=host_of(files))
        kept, coming, base = store._state.stamps, iter(found), host_of(files).clock.wall_ms()

        def now_ms() -> int:
            stamp = base + next(coming)
            kept.record_stamp(store._log.end, stamp)
            return stamp

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "STEPS_MAX", 3)
            patch.setattr(kept, "now_ms", now_ms)
            for _ in found:
                append(store, b"x")
        await confirmed(store)
        assert len(kept.steps) <= 3
        first = next((index for index, stamp in enumerate(found) if stamp >= requested), len(found))
        responded = await store.offset_by_time("orders", 0, base + requested)
        assert responded <= first
        depth = max((stamp_range.fall_ms for stamp_range in kept.rising_ranges()), default=0)
        assert responded == first or found[responded] >= requested - depth
        await store.close(clean=False)

    asyncio.run(main())


def test_snapshot_packs_clock_steps_as_rows_and_restores_them() -> None:
    stamps = StoreClock(5, one_boot([300, -299] * 1_000), ClockReading("boot", 1, 2, 0))
    plain = stamps.plain()
    assert isinstance(plain["steps"], SnapshotRows)
    assert max(map(len, encode_parts(1, 1, 1, 1, [], [], plain, None, 0))) < 100
    assert stamps_of(5, plain).steps == stamps.steps
    assert len(stamps.steps) == STEPS_MAX
