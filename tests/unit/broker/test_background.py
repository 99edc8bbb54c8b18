"""A broker's background work: effects reach their connections, leases end when due, snapshots are completed."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from lockstep.broker.background import (
    FREE_QUEUES_MAX,
    NOTICES_UNSENT_BYTES_MAX,
    RETENTION_MS,
    SCRUB_FIRST_MS,
    SCRUB_REST_MS,
    SNAPSHOT_CHECK_MS,
    EffectRunner,
    LeaseTimer,
    StoreMaintenance,
)
from lockstep.broker.groups.effects import CloseConnection, Effect, Notify, PushQueueFree, StalePulls
from lockstep.broker.groups.tables.activity_table import DAY_MS
from lockstep.broker.tables.sequence_table import SequenceTable
from lockstep.protocol.bodies import FreeQueue, ListVersion, QueueFreeBody
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import MSGPACK
from support.broker_fakes import FakeHost
from support.clocks import LoopClock
from support.coordination_kit import CONFIG, TOPIC, Bench
from support.loops import FrozenLoop, LoopWatch


class Endpoint:
    def __init__(self) -> None:
        self.peer = "p"
        self.codec = MSGPACK
        self.unsent_bytes = 0
        self.sent: list[tuple[int, object, bytes]] = []
        self.aborted: str | None = None

    def oneway(self, code: int, fields: object = None, body: bytes = b"") -> None:
        self.sent.append((code, fields, body))

    def abort(self, reason: str) -> None:
        self.aborted = reason


class Coordination:
    def __init__(self) -> None:
        self.on_effects: Callable[[], None] | None = None
        self.effects: list[Effect] = []
        self.ticks: list[int] = []
        self.due_in_ms = 1_000

    def drain(self, count_max: int | None = None, *, notices: bool = True) -> list[Effect]:
        drained, self.effects = self.effects, []
        return drained

    def tick(self, now_ms: int) -> int:
        self.ticks.append(now_ms)
        return now_ms + self.due_in_ms


class Pulls:
    def __init__(self) -> None:
        self.reported: list[StalePulls] = []

    def stale(self, effect: StalePulls) -> None:
        self.reported.append(effect)


async def test_effects_reach_their_connections_and_closed_connections_are_skipped() -> None:
    coordination, pulls, one, two = Coordination(), Pulls(), Endpoint(), Endpoint()
    EffectRunner(coordination, {1: one, 2: two}, pulls)  # type: ignore[arg-type, dict-item]
    stale = StalePulls("g", "t", 0, 7)
    free = (FreeQueue("g", "t", 0),)
    coordination.effects = [
        Notify("g", (1, 9), ListVersion(3, 4)),
        PushQueueFree(2, free),
        PushQueueFree(9, free),
        CloseConnection(2, "why"),
        CloseConnection(9, "why"),
        stale,
    ]
    assert coordination.on_effects is not None
    coordination.on_effects()
    assert not one.sent, "in a turn of its own, after the state record"
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert one.sent == [(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g", "listTerm": 3, "listCounter": 4}, b"")]
    ((code, _, body),) = two.sent
    assert (code, decode_body(QueueFreeBody, body), two.aborted) == (RequestCode.QUEUE_FREE, QueueFreeBody(free), "why")
    assert pulls.reported == [stale]


async def test_failing_effect_is_logged_and_the_others_are_executed(caplog: pytest.LogCaptureFixture) -> None:
    coordination, pulls, one = Coordination(), Pulls(), Endpoint()
    EffectRunner(coordination, {1: one}, pulls)  # type: ignore[arg-type, dict-item]
    stale = StalePulls("g", "t", 0, 7)
    coordination.effects = [Notify("g", (1,), None), stale, CloseConnection(1, "over")]  # type: ignore[arg-type]
    assert coordination.on_effects is not None
    coordination.on_effects()
    await asyncio.sleep(0)
    assert pulls.reported == [stale]
    assert one.aborted == "over"
    assert [record.getMessage().split()[0] for record in caplog.records if record.exc_info] == ["effect.failed"]


async def test_connection_that_never_reads_its_notices_is_closed() -> None:
    coordination, deaf, other = Coordination(), Endpoint(), Endpoint()
    effects = EffectRunner(coordination, {1: deaf, 2: other}, Pulls())  # type: ignore[arg-type, dict-item]
    for unsent in (NOTICES_UNSENT_BYTES_MAX, NOTICES_UNSENT_BYTES_MAX + 1):
        deaf.unsent_bytes = unsent
        coordination.effects = [Notify("g", (1, 2), ListVersion(3, 4))]
        effects.run_slice()
        effects.run_slice()
    assert (len(deaf.sent), deaf.aborted) == (1, "it reads too slowly: 16777217 bytes are unsent")
    assert (len(other.sent), other.aborted) == (2, None)


async def test_free_queues_beyond_one_frame_are_sent_in_several() -> None:
    coordination, one = Coordination(), Endpoint()
    effects = EffectRunner(coordination, {1: one}, Pulls())  # type: ignore[arg-type, dict-item]
    free = tuple(FreeQueue("g", "t", queue_id) for queue_id in range(2 * FREE_QUEUES_MAX + 1))
    coordination.effects = [PushQueueFree(1, free)]
    effects.run_slice()
    reported = [decode_body(QueueFreeBody, body).queues for _, _, body in one.sent]
    assert [len(queues) for queues in reported] == [FREE_QUEUES_MAX, FREE_QUEUES_MAX, 1]
    assert sum(reported, ()) == free


SLEPT_MS = 86_400_000


@pytest.mark.frozen_clock
async def test_lease_timer_ticks_when_a_lease_is_due(frozen: FrozenLoop) -> None:
    coordination = Coordination()
    leases = LeaseTimer(FakeHost(LoopClock(slept_ms=SLEPT_MS)), coordination)  # type: ignore[arg-type]
    leases.start()
    began = coordination.ticks[0]
    assert began == LoopClock(slept_ms=SLEPT_MS).boot_ms(), "the machine's sleep counts"
    for due_in_ms in (1_000, 250, 1_000):
        coordination.due_in_ms = due_in_ms
        await frozen.advance(1)
    leases.stop()
    await frozen.advance(5)
    assert [tick - began for tick in coordination.ticks] == [0, 1_000, 2_000, 2_250]


@pytest.mark.frozen_clock
async def test_lease_timer_continues_after_a_failing_tick(frozen: FrozenLoop, loop_watch: LoopWatch) -> None:
    coordination = Coordination()
    leases = LeaseTimer(FakeHost(LoopClock(slept_ms=SLEPT_MS)), coordination)  # type: ignore[arg-type]
    leases.start()
    tick, coordination.tick = coordination.tick, fail  # type: ignore[method-assign]
    await frozen.advance(1)
    coordination.tick = tick  # type: ignore[method-assign]
    await frozen.advance(1)
    leases.stop()
    assert len(coordination.ticks) == 2
    assert len(loop_watch.errors) == 1
    loop_watch.errors.clear()


def fail(now_ms: int) -> int:
    raise RuntimeError(f"at {now_ms}")


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

    async def run(self, stopping: Callable[[], bool]) -> None:
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
