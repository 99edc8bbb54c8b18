"""Turns of the event loop: a callback that stays scheduled after errors, and a budget of work that tasks share in one turn."""

import asyncio
from collections.abc import Callable

from lockstep.protocol.object_text import text_of
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited

log = get_logger("runtime.turn")

RETRY_MS = 100
"""The time until the work is retried after an error, so that a persistent error does not keep the loop busy."""


class Turn:
    """Work for the next turn of the loop: `schedule` schedules it once, however often it is called.

    An Exception from the work is logged as `turn.failed` with its traceback and passed to `failed`. That function decides what follows: it
    responds to the requests that the work had taken, schedules the work again (`retry`), or ends the process.
    """

    __slots__ = ("_failed", "_handle", "_loop", "_name", "_work")

    def __init__(self, name: str, work: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        self._name = name
        self._work = work
        self._failed = failed
        self._handle: asyncio.Handle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop in which it was scheduled first. Python 3.11 makes a system call each time that it is asked for the running loop."""

    def schedule(self) -> None:
        """Schedule the work for the next turn, unless it is scheduled."""
        if self._handle is None:
            loop = self._loop
            if loop is None:
                loop = self._loop = asyncio.get_running_loop()
            self._handle = loop.call_soon(self._run)

    def run_scheduled(self) -> None:
        """Do the work now instead of in the next turn, if it is scheduled."""
        if self._handle is not None:
            self._handle.cancel()
            self._run()

    def schedule_after(self, delay_ms: int) -> None:
        """Schedule the work after a delay, instead of its earlier time."""
        self.cancel()
        self._handle = asyncio.get_running_loop().call_later(delay_ms / 1000, self._run)

    def retry(self) -> None:
        """Schedule the work after RETRY_MS, unless it is scheduled."""
        if self._handle is None:
            self.schedule_after(RETRY_MS)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    @property
    def is_scheduled(self) -> bool:
        return self._handle is not None

    def _run(self) -> None:
        self._handle = None
        try:
            self._work()
        except Exception as error:
            log_limited(log, "error", "turn.failed", turn=self._name, error=text_of(error), exc_info=error)
            self._failed(error)


class TurnBudget:
    """The number of items of work that all tasks together may do in one turn of the loop. The task that has waited longest is next."""

    __slots__ = ("_count_max", "_left", "_passed", "_turn", "_waiting")

    def __init__(self, count_max: int) -> None:
        self._count_max = self._left = count_max
        self._turn = Turn("budget", self._renew, lambda error: self._turn.retry())
        self._waiting: list[asyncio.Future[None]] = []
        """Tasks that have not had a turn since they began to wait."""
        self._passed: list[asyncio.Future[None]] = []
        """Those for which nothing was left in an earlier turn: they come first."""

    async def take(self, count: int = 1) -> None:
        """Wait until this turn has room for work, and take `count` items of it. Call it before the work."""
        queue = self._waiting
        while self._left <= 0:
            turn = asyncio.get_running_loop().create_future()
            queue.append(turn)
            await turn
            queue = self._passed
        self._left -= count
        self._turn.schedule()

    def _renew(self) -> None:
        self._left = self._count_max
        waiting = self._passed + self._waiting
        self._passed, self._waiting = [], []
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)
