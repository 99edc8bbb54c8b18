"""A timer that is fair to a process that stood still."""

import asyncio
from collections.abc import Callable


class Timer:
    """Calls back at a time of the loop's clock, one due time at a time.

    A timer that fires late says that this process (or its machine) stood still. What peers sent meanwhile lies unread in the sockets, and a
    loop runs its timers before it reads. So a late alarm waits once more, `late_ms`, before it is believed.
    """

    __slots__ = ("_callback", "_handle", "_late_s", "_loop", "_spared", "due")

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None], late_ms: int) -> None:
        self._loop = loop
        self._callback = callback
        self._late_s = late_ms / 1000
        self._handle: asyncio.TimerHandle | None = None
        self._spared = False
        self.due = 0.0
        """When it rings, in loop time; of meaning while it is armed."""

    @property
    def armed(self) -> bool:
        return self._handle is not None

    def set(self, due: float) -> None:
        """Rings at `due` (loop time), and no longer at an earlier set time."""
        self.cancel()
        self.due = due
        self._handle = self._loop.call_at(due, self._fire)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        now = self._loop.time()
        if now - self.due > self._late_s and not self._spared:
            self._spared = True
            self._handle = self._loop.call_at(now + self._late_s, self._fire)
            return
        self._spared = False
        self._handle = None
        self._callback()
