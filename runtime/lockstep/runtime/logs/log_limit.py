"""Limit events that a peer can cause: at most 10 per second of each name are logged, then one line with the number of dropped ones."""

import asyncio
from collections.abc import Callable
from typing import Any, Literal
from weakref import WeakKeyDictionary

from lockstep.runtime.logs.log import Logger, get_logger

log = get_logger("runtime.log")

EVENTS_MAX = 10
"""The maximum number of events of one name in one period."""
PERIOD_MS = 1_000


class EventLimit:
    """Counts events by name. A period begins with the first event of a name."""

    __slots__ = ("_events_max", "_period_ms", "_periods")

    def __init__(self, events_max: int = EVENTS_MAX, period_ms: int = PERIOD_MS) -> None:
        self._events_max = events_max
        self._period_ms = period_ms
        self._periods: dict[str, tuple[int, int]] = {}
        """Name → (begin of its period, events since then), ordered by the begin."""

    def allows(self, event: str, now_ms: int) -> bool:
        """Return whether this event is one of the first of its period. Call `pop_ended` before: it reports the period that this event
        may end."""
        began_ms, count = self._periods.get(event, (now_ms, 0))
        self._periods[event] = began_ms, count + 1
        return count < self._events_max

    def pop_ended(self, now_ms: int) -> list[tuple[str, int]]:
        """Forget the periods that are over. Return (name, dropped events) of those with dropped events."""
        over = [event for event, (began_ms, _) in self._periods.items() if now_ms >= began_ms + self._period_ms]
        counts = [(event, self._periods.pop(event)[1] - self._events_max) for event in over]
        return [(event, count) for event, count in counts if count > 0]

    def due_ms(self) -> int | None:
        """Return when the first period with a dropped event ends, or None if no event was dropped."""
        ends = [began_ms + self._period_ms for began_ms, count in self._periods.values() if count > self._events_max]
        return min(ends, default=None)


class LoopEventLimit:
    """An EventLimit with the clock of the running loop."""

    __slots__ = ("_armed", "_left_out", "_limit")

    def __init__(self, left_out: Callable[[str, int], None]) -> None:
        """`left_out` is called with the name and the number of events that were dropped, when their period is over."""
        self._left_out = left_out
        self._limit = EventLimit()
        self._armed = False

    def allows(self, event: str) -> bool:
        """Return whether this event is one of the first of its name in its period."""
        now_ms = self._report()
        allowed = self._limit.allows(event, now_ms)
        if not allowed and not self._armed:
            self._arm()
        return allowed

    def _report(self) -> int:
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        for event, count in self._limit.pop_ended(now_ms):
            self._left_out(event, count)
        return now_ms

    def _arm(self) -> None:
        due_ms = self._limit.due_ms()
        self._armed = due_ms is not None
        if due_ms is not None:
            asyncio.get_running_loop().call_at((due_ms + 1) / 1000, self._expired)

    def _expired(self) -> None:
        self._report()
        self._arm()


def _log_left_out(event: str, count: int) -> None:
    log.warning("events.left_out", left_out=event, count=count, period_ms=PERIOD_MS)


_logs: "WeakKeyDictionary[asyncio.AbstractEventLoop, LoopEventLimit]" = WeakKeyDictionary()


def log_limited(logger: Logger, level: Literal["info", "warning", "error"], event: str, **facts: Any) -> None:
    """Log the event, unless 10 of its name were logged on the running loop within a second. Without a running loop none is dropped."""
    if _passes(event):
        getattr(logger, level)(event, **facts)


def _passes(event: str) -> bool:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return True
    limit = _logs.get(loop)
    if limit is None:
        limit = _logs[loop] = LoopEventLimit(_log_left_out)
    return limit.allows(event)
