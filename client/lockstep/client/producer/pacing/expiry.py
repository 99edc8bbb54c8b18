"""A timer for many deadlines. Those that have come go before everything else that ends sends."""

import asyncio
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Protocol

from lockstep.client.producer.pacing.ends import Ends
from lockstep.runtime.clock import Clock
from lockstep.runtime.limits import DEFAULT_LIMITS
from lockstep.runtime.timer import Timer

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

    __slots__ = ("_alarm", "_clock", "_compact_at", "_ends", "_expiring", "_heap", "_loop", "_number")

    def __init__(self, clock: Clock, ends: Ends) -> None:
        self._clock = clock
        self._ends = ends
        self._expiring = False
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
        self._expiring = True
        self._ends.add(self._expire_due(), first=True)

    def _expire_due(self) -> Iterator[None]:
        try:
            while self._heap and self._heap[0][0] <= self._clock.monotonic_ms():
                waiting = heappop(self._heap)[2]
                if not waiting.done():
                    waiting.expire()
                    yield
        finally:
            self._expiring = False
            self._arm()

    def _arm(self) -> None:
        if self._heap and not self._expiring:
            due = self._loop.time() + max(0, self._heap[0][0] - self._clock.monotonic_ms()) / 1000
            if not self._alarm.armed or due < self._alarm.due:
                self._alarm.set(due)
