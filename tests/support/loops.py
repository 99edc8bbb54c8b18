"""Event loops for tests, and checks for leaks in them."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any

from support.processes import LIMIT_S

Factory = Callable[[], asyncio.AbstractEventLoop]

LOOPS: dict[str, Factory] = {"asyncio": asyncio.new_event_loop}
try:
    import uvloop

    LOOPS["uvloop"] = uvloop.new_event_loop
except ImportError:
    pass

TURNS_TO_SETTLE = 20
"""The number of loop turns after which unfinished tasks and open transports count as leaked."""


class FrozenLoop(asyncio.SelectorEventLoop):
    """asyncio's loop with a clock that only the test advances. It is for rules about time, without I/O to other processes and threads."""

    now = 1000.0

    def time(self) -> float:
        return self.now

    async def advance(self, seconds: float) -> None:
        """Advance time. Every timer fires when it is due, after pending callbacks."""
        await turns(4)
        target = round(self.now + seconds, 6)
        while due := [handle.when() for handle in self._scheduled if not handle.cancelled() and handle.when() <= target]:  # type: ignore[attr-defined]
            self.now = max(self.now, min(due))
            await turns(4)
        self.now = target
        await turns(4)

    def _run_once(self) -> None:
        waits = not self._ready and not any(handle.when() <= self.now for handle in self._scheduled)  # type: ignore[attr-defined]
        if waits and not self._stopping and len(self._selector.get_map()) <= 1:  # type: ignore[attr-defined]
            raise RuntimeError("the clock is frozen and nothing is left to do: the test awaits what only advance() can bring")
        super()._run_once()  # type: ignore[misc]

    def stall(self, seconds: float) -> None:
        """Suspend the process: time has passed and nothing has run."""
        self.now += seconds


class LoopWatch:
    """Collects a loop's unhandled errors and the tasks that existed before the test."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._before = set(map(id, asyncio.all_tasks(loop)))
        self.errors: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: self.errors.append(context))

    async def check(self) -> None:
        """Fail the test if there is an unhandled error or a leaked task."""
        await turns(TURNS_TO_SETTLE)
        gc.collect(1)
        leaked = [task for task in asyncio.all_tasks(self._loop) if id(task) not in self._before and task is not asyncio.current_task()]
        names = sorted(repr(task) for task in leaked)
        assert not names, "tasks outlive the test: " + "; ".join(names)
        assert not self.errors, "unhandled in the loop: " + "; ".join(
            f"{error['message']}: {error.get('exception')!r}" for error in self.errors
        )


async def turns(count: int) -> None:
    """Let the loop run `count` turns."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool], what: str = "condition", *, timeout_s: float = LIMIT_S) -> None:
    """Wait until real I/O makes `condition` true (polled each turn, then each millisecond). Fail the test after `timeout_s`."""
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    turn = 0
    while not condition():
        assert loop.time() < end, f"never true: {what}"
        await asyncio.sleep(0.001 if turn > 100 else 0)
        turn += 1
