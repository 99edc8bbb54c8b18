"""Snapshots are completed, the scrub rests between its passes, and idle groups are forgotten."""

import asyncio
from dataclasses import replace

import pytest

from lockstep.broker.groups.tables.activity_table import DAY_MS
from lockstep.broker.maintenance import RETENTION_MS, SCRUB_FIRST_MS, SCRUB_REST_MS, SNAPSHOT_CHECK_MS, StoreMaintenance
from lockstep.broker.tables.sequence_table import SequenceTable
from support.broker_fakes import FakeHost
from support.clocks import LoopClock
from support.coordination_kit import CONFIG, TOPIC, Bench
from support.loops import FrozenLoop

SLEPT_MS = 86_400_000


class Store:
    def __init__(self) -> None:
        self.due = False
        self.written: list[object] = []
        self.gate: asyncio.Event | None = None

    def upkeep(self) -> None:
        pass

    def snapshot_due(self, now_ms: int) -> bool:
        return self.due

    async def write_snapshot(self, plain: object) -> None:
        if self.gate is not None:
            await self.gate.wait()
        self.written.append(plain)


class State:
    def take_snapshot(self) -> str:
        return "tables"


@pytest.mark.frozen_clock
async def test_snapshot_is_written_when_due_and_completed_before_the_broker_stops(frozen: FrozenLoop) -> None:
    store = Store()
    keeper = StoreMaintenance(FakeHost(LoopClock(slept_ms=SLEPT_MS)), store, State())  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as group:
        group.create_task(keeper.keep_snapshots())
        await frozen.advance(5 * SNAPSHOT_CHECK_MS / 1_000)
        assert store.written == []
        store.due, store.gate = True, asyncio.Event()
        await frozen.advance(SNAPSHOT_CHECK_MS / 1_000)
        keeper.stop()
        store.gate.set()
    assert store.written == ["tables"]


class Scrubber:
    def __init__(self) -> None:
        self.bytes_per_s = 1
        self.run_count = 0

    async def run(self, stopping: asyncio.Event) -> None:
        self.run_count += 1


@pytest.mark.frozen_clock
async def test_scrub_rests_between_passes_and_begins_soon_after_it_is_turned_on(frozen: FrozenLoop) -> None:
    store, scrubber = Store(), Scrubber()
    store.scrubber = scrubber  # type: ignore[attr-defined]
    keeper = StoreMaintenance(FakeHost(LoopClock(slept_ms=SLEPT_MS)), store, State())  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as group:
        group.create_task(keeper.keep_scrubbed())
        await frozen.advance((SCRUB_FIRST_MS + SCRUB_REST_MS - 1) / 1_000)
        assert scrubber.run_count == 1
        scrubber.bytes_per_s = 0
        await frozen.advance(1 / 1_000)
        scrubber.bytes_per_s, before = 1, scrubber.run_count
        await frozen.advance(SCRUB_FIRST_MS / 1_000)
        assert scrubber.run_count == before + 1
        keeper.stop()


@pytest.mark.frozen_clock
async def test_idle_groups_are_forgotten_in_the_next_round_after_their_limit_is_changed(frozen: FrozenLoop) -> None:
    on = Bench(config=replace(CONFIG, group_idle_days=30))
    on.c.legacy.update_offset(99, ("idle", TOPIC, 0), 5, on.now_ms)
    for _ in range(2):
        on.c.set_day((on.c.state.activity.today + 1) * DAY_MS)
    keeper = StoreMaintenance(FakeHost(LoopClock(slept_ms=SLEPT_MS)), Aged(on), Tables(on))  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as group:
        group.create_task(keeper.keep_retention())
        await frozen.advance(RETENTION_MS / 1_000)
        assert on.c.status.groups() == ("idle",)
        on.c.state.config = replace(CONFIG, group_idle_days=2)
        await frozen.advance(RETENTION_MS / 1_000)
        assert on.c.status.groups() == ()
        keeper.stop()


class Aged:
    """A store from which nothing has to be removed, on the day of the tables."""

    def __init__(self, on: Bench) -> None:
        self._on = on

    def safe_now_ms(self) -> int:
        return self._on.c.state.activity.today * DAY_MS

    async def retention(self, now_ms: int, before_removal: object = None) -> list[tuple[str, int, int]]:
        return []

    def disk_status(self) -> None:
        pass


class Tables:
    def __init__(self, on: Bench) -> None:
        self.coordination = on.c
        self.sequences = SequenceTable()
