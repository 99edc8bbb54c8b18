"""A timer that takes a suspended process into account."""

import asyncio
from collections.abc import Callable


class Timer:
    """Calls back at a time of the loop's clock, with one due time at a time.

    A timer that fires late shows that this process (or its machine) was suspended or blocked. Data that peers sent in that time is unread
    in the sockets, and a loop runs its timers before it reads. So a late timer waits once more, `late_ms`, before it calls back.
    """

    __slots__ = ("_callback", "_handle", "_late_s", "_loop", "_postponed", "due")

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None], late_ms: int) -> None:
        self._loop = loop
        self._callback = callback
        self._late_s = late_ms / 1000
        self._handle: asyncio.TimerHandle | None = None
        self._postponed = False
        self.due = 0.0
        """When it fires, in loop time; valid while it is armed."""

    @property
    def armed(self) -> bool:
        return self._handle is not None

    def set(self, due: float) -> None:
        """Fire at `due` (loop time), instead of an earlier set time."""
        self.cancel()
        self.due = due
        self._handle = self._loop.call_at(due, self._fire)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        now = self._loop.time()
        if now - self.due > self._late_s and not self._postponed:
            self._postponed = True
            self._handle = self._loop.call_at(now + self._late_s, self._fire)
            return
        self._postponed = False
        self._handle = None
        self._callback()
