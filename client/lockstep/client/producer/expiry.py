"""A timer for many deadlines. Each loop turn handles a limited number of them, however many are due at once."""

import asyncio
from heapq import heapify, heappop, heappush
from typing import Protocol

from lockstep.runtime.clock import Clock
from lockstep.runtime.limits import DEFAULT_LIMITS
from lockstep.runtime.timer import Timer

EXPIRED_PER_TURN = 256
COMPACT_MIN = 256
"""From this number of entries on, those that have ended are removed each time that the number has doubled."""


class Expiring(Protocol):
    """Waits for something until a deadline at most."""

    def done(self) -> bool:
        """Return whether it has ended before its deadline."""
        ...

    def expire(self) -> None:
        """End it, because its deadline has come."""
        ...


class Expiry:
    """A heap of deadlines and one timer. Adding and ending an entry take log n steps."""

    __slots__ = ("_alarm", "_clock", "_compact_at", "_heap", "_loop", "_number")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._alarm = Timer(self._loop, self._expire, DEFAULT_LIMITS.late_ms)
        self._heap: list[tuple[int, int, Expiring]] = []
        self._number = 0
        self._compact_at = COMPACT_MIN

    def add(self, deadline_ms: int, waiting: Expiring) -> None:
        """Call `expire` at the deadline (monotonic ms) unless it is done by then."""
        if len(self._heap) >= self._compact_at:
            self._heap = [entry for entry in self._heap if not entry[2].done()]
            heapify(self._heap)
            self._compact_at = max(COMPACT_MIN, 2 * len(self._heap))
        self._number += 1
        heappush(self._heap, (deadline_ms, self._number, waiting))
        self._arm()

    def close(self) -> None:
        """Stop the timer."""
        self._heap.clear()
        self._alarm.cancel()

    def _expire(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for _ in range(EXPIRED_PER_TURN):
            if not self._heap or self._heap[0][0] > now_ms:
                break
            waiting = heappop(self._heap)[2]
            if not waiting.done():
                waiting.expire()
        self._arm()

    def _arm(self) -> None:
        if self._heap:
            due = self._loop.time() + max(0, self._heap[0][0] - self._clock.monotonic_ms()) / 1000
            if not self._alarm.armed or due < self._alarm.due:
                self._alarm.set(due)
