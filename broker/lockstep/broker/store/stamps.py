"""Store times: what the next record is stamped with, and what the stamps of older records mean after the clock was set back.

Stamps rise with the log, except where the clock of the broker was found to be ahead and was set back (runtime/steady.py). Such a fall is in
the log itself: a record with a lower stamp than the one before it. What was stored before the fall with a later stamp was stored by the
wrong clock; it is read as so much earlier.
"""

from collections.abc import Iterable
from typing import NamedTuple

from lockstep.runtime.clock import Clock
from lockstep.runtime.steady import SteadyClock


class Fall(NamedTuple):
    """Records from `position` on have stamps from `after_ms` on; the newest before it had `before_ms`."""

    position: int
    before_ms: int
    after_ms: int


class Stamps:
    """Newest stamp and falls of one log. Recovery calls `seen` for each record, then `start`; a running store `now_ms`."""

    def __init__(self, newest_ms: int = 0, falls: Iterable[Iterable[int]] = ()) -> None:
        self.newest_ms = newest_ms
        self.falls = [Fall(*fall) for fall in falls]
        """In the order of the log."""
        self._steady: SteadyClock | None = None

    def seen(self, position: int, stamp_ms: int) -> None:
        """The next record of the log has this stamp."""
        if stamp_ms < self.newest_ms:
            self.falls.append(Fall(position, self.newest_ms, stamp_ms))
        self.newest_ms = stamp_ms

    def start(self, clock: Clock) -> None:
        """The log is read: stamps go on from its newest one."""
        self._steady = SteadyClock(clock, self.newest_ms)

    def now_ms(self, end: int) -> int:
        """The stamp of a record that is written now at `end`, the log's end."""
        assert self._steady is not None, "the store has recovered"
        now_ms = self._steady.now_ms()
        if now_ms < self.newest_ms:
            self.seen(end, now_ms)
        return now_ms

    def true_ms(self, position: int, stamp_ms: int) -> int:
        """When the record at `position` was stored, by the clock as it was set since."""
        for fall in self.falls:
            if fall.position > position and stamp_ms > fall.after_ms:
                stamp_ms -= fall.before_ms - fall.after_ms
        return stamp_ms

    def forget(self, start: int) -> None:
        """The log begins at `start`: falls before it concern no record."""
        self.falls = [fall for fall in self.falls if fall.position > start]

    def plain(self) -> list[list[int]]:
        return [list(fall) for fall in self.falls]
