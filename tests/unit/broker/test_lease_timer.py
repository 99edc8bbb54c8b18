"""The lease timer ticks when a lease is due, and goes on after an error."""

import pytest

from lockstep.broker.groups.lease_timer import LeaseTimer
from support.broker_fakes import FakeHost
from support.clocks import LoopClock
from support.loops import FrozenLoop, LoopWatch


class Coordination:
    def __init__(self) -> None:
        self.ticks: list[int] = []
        self.extended: list[int] = []
        self.kept: list[int] = []
        self.due_in_ms = 1_000

    def extend_start_grace(self, now_ms: int) -> None:
        self.extended.append(now_ms)

    def keep_sessions(self, now_ms: int) -> None:
        self.kept.append(now_ms)

    def tick(self, now_ms: int) -> int:
        self.ticks.append(now_ms)
        return now_ms + self.due_in_ms


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


@pytest.mark.frozen_clock
async def test_grace_of_a_start_is_extended_before_a_tick_while_clients_shake_hands(frozen: FrozenLoop) -> None:
    coordination, half_open = Coordination(), [2, 1, 0, 0]
    leases = LeaseTimer(FakeHost(LoopClock()), coordination, lambda: half_open.pop(0) > 0)  # type: ignore[arg-type]
    leases.start()
    await frozen.advance(3)
    leases.stop()
    assert len(coordination.ticks) == 4
    assert coordination.extended == coordination.ticks[:2]


@pytest.mark.frozen_clock
async def test_sessions_are_kept_before_a_tick_while_the_broker_is_suspended(frozen: FrozenLoop) -> None:
    coordination, suspended = Coordination(), [False, True, True, False]
    leases = LeaseTimer(FakeHost(LoopClock()), coordination, is_suspended=lambda: suspended.pop(0))  # type: ignore[arg-type]
    leases.start()
    await frozen.advance(3)
    leases.stop()
    assert coordination.kept == coordination.ticks[1:3]


def fail(now_ms: int) -> int:
    raise RuntimeError(f"at {now_ms}")
