"""A callback that is scheduled at most once at a time and can be scheduled again after an error."""

import asyncio

import pytest

from lockstep.runtime.turn import RETRY_MS, Turn, TurnBudget
from support.loops import FrozenLoop


class Work:
    def __init__(self) -> None:
        self.calls = 0
        self.error: Exception | None = None
        self.failures: list[Exception] = []
        self.turn = Turn("work", self, self.failures.append)

    def __call__(self) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error


async def test_scheduled_callback_runs_once_per_turn() -> None:
    work = Work()
    for _ in range(3):
        work.turn.schedule()
    await asyncio.sleep(0)
    assert (work.calls, work.turn.is_scheduled) == (1, False)
    work.turn.schedule()
    await asyncio.sleep(0)
    assert work.calls == 2


async def test_error_of_a_callback_is_reported_and_it_can_be_scheduled_again(caplog: pytest.LogCaptureFixture) -> None:
    work = Work()
    work.error = KeyError("missing")
    work.turn.schedule()
    await asyncio.sleep(0)
    assert work.failures == [work.error]
    assert "turn.failed" in caplog.text
    work.error = None
    work.turn.schedule()
    await asyncio.sleep(0)
    assert work.calls == 2


@pytest.mark.frozen_clock
async def test_retry_runs_the_callback_after_a_pause_unless_it_is_scheduled_earlier(frozen: FrozenLoop) -> None:
    work = Work()
    work.turn.retry()
    await frozen.advance(RETRY_MS / 1_000 - 0.001)
    assert work.calls == 0
    await frozen.advance(0.001)
    assert work.calls == 1
    work.turn.schedule_after(50)
    work.turn.schedule_after(20)
    work.turn.retry()
    await frozen.advance(0.02)
    assert work.calls == 2
    work.turn.schedule_after(20)
    work.turn.cancel()
    await frozen.advance(1)
    assert work.calls == 2


async def test_tasks_share_the_budget_of_a_turn_without_starvation() -> None:
    budget, turns, done = TurnBudget(10), [list[int]()], [0, 0, 0]

    async def work(task: int) -> None:
        for _ in range(25):
            await budget.take()
            turns[-1].append(task)
            done[task] += 1

    tasks = [asyncio.ensure_future(work(number)) for number in range(3)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        turns.append([])
    assert max(len(each) for each in turns) == 10
    assert done == [25] * 3
    order = [task for each in turns for task in dict.fromkeys(each)]
    assert order[:6] == [0, 0, 1, 2, 0, 1]
