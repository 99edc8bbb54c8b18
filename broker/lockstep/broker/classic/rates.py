"""Rates of the broker's sends and pulls over the last 10 s, 60 s and 600 s, for RocketMQ's tools. RocketMQ: StoreStatsService.

Totals are sampled every 10 s, and the rates are differences of samples. Prometheus computes such rates by itself.
"""

from collections import deque
from dataclasses import astuple, dataclass

SAMPLE_MS = 10_000
PERIODS_MS = (10_000, 60_000, 600_000)
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts since the broker's start."""

    put: int = 0
    """Messages stored."""
    transferred: int = 0
    """Messages returned to consumers."""
    found: int = 0
    """Pulls that were answered with messages."""
    missed: int = 0
    """Pulls that were answered without messages."""


class Rates:
    """Samples of totals, at most 600 s old. Pure: times are given."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, Totals]] = deque([(0, Totals())])
        """(monotonic ms, totals), the oldest first. There is always one."""
        self._day = 0
        self.this_morning = Totals()
        """The totals at the beginning of this day (UTC), or of the process if it began later."""
        self.yesterday_morning = Totals()

    @property
    def newest(self) -> Totals:
        """Return the totals of the last sample."""
        return self._samples[-1][1]

    def begin(self, now_ms: int, wall_ms: int) -> None:
        """Begin to count."""
        self._samples = deque([(now_ms, Totals())])
        self._day = wall_ms // DAY_MS

    def add(self, now_ms: int, wall_ms: int, totals: Totals) -> None:
        """Add a sample."""
        day = wall_ms // DAY_MS
        if day > self._day:
            self.yesterday_morning = self.this_morning if day == self._day + 1 else self.newest
            self._day, self.this_morning = day, self.newest
        self._samples.append((now_ms, totals))
        while len(self._samples) > 2 and self._samples[1][0] <= now_ms - PERIODS_MS[-1]:
            self._samples.popleft()

    def per_s(self) -> tuple[tuple[float, ...], ...]:
        """Return, for each field of Totals, the rates of the three periods, or of the time since the start if that is shorter."""
        newest_ms, newest = self._samples[-1]
        rows = []
        for period_ms in PERIODS_MS:
            old_enough = [sample for sample in self._samples if sample[0] <= newest_ms - period_ms + SAMPLE_MS // 2]
            began_ms, before = old_enough[-1] if old_enough else self._samples[0]
            passed_s = (newest_ms - began_ms) / 1000
            rows.append(
                [(end - begin) / passed_s if passed_s else 0.0 for begin, end in zip(astuple(before), astuple(newest), strict=True)]
            )
        return tuple(zip(*rows, strict=True))
