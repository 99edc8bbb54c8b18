"""A late timer waits once more, so that unread data is handled first."""

import pytest

from lockstep.runtime.timer import Timer
from support.loops import FrozenLoop, turns

pytestmark = pytest.mark.frozen_clock


async def test_timer_fires_once_when_due(frozen: FrozenLoop) -> None:
    rung: list[float] = []
    alarm = Timer(frozen, lambda: rung.append(frozen.now), 100)
    alarm.set(frozen.now + 5)
    assert alarm.armed
    await frozen.advance(4.999)
    assert rung == []
    await frozen.advance(10)
    assert rung == [1005.0]
    assert not alarm.armed


async def test_setting_a_timer_again_replaces_its_time(frozen: FrozenLoop) -> None:
    rung: list[float] = []
    alarm = Timer(frozen, lambda: rung.append(frozen.now), 100)
    alarm.set(frozen.now + 5)
    alarm.set(frozen.now + 9)
    await frozen.advance(20)
    assert rung == [1009.0]


async def test_cancelled_timer_does_not_fire(frozen: FrozenLoop) -> None:
    rung: list[float] = []
    alarm = Timer(frozen, lambda: rung.append(frozen.now), 100)
    alarm.set(frozen.now + 5)
    alarm.cancel()
    alarm.cancel()
    await frozen.advance(20)
    assert rung == []


@pytest.mark.parametrize(("late_s", "rings_at_once"), [(0.1, True), (0.101, False), (3600, False)])
async def test_late_timer_waits_once_more(frozen: FrozenLoop, late_s: float, rings_at_once: bool) -> None:
    frozen.now = 0.0
    rung: list[float] = []
    alarm = Timer(frozen, lambda: rung.append(frozen.now), 100)
    alarm.set(0.0)
    frozen.stall(late_s)
    await turns(3)
    assert bool(rung) == rings_at_once
    await frozen.advance(0.1)
    assert len(rung) == 1, "it is believed the second time"


async def test_late_timer_can_be_cancelled_while_it_waits_again(frozen: FrozenLoop) -> None:
    rung: list[float] = []
    alarm = Timer(frozen, lambda: rung.append(frozen.now), 100)
    alarm.set(frozen.now + 1)
    frozen.stall(60)
    await turns(3)
    assert alarm.armed
    alarm.cancel()
    await frozen.advance(60)
    assert rung == []
