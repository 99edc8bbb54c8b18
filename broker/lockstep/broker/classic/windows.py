"""How much each topic and group has counted in the last minute, hour and day, for RocketMQ's tools. RocketMQ: BrokerStatsManager.

A window is a number of steps. The counts of a step are kept only for keys that counted in it.

| window | steps                    |
|--------|--------------------------|
| minute | 6 of 10 s                |
| hour   | 6 of 10 min, one unended |
| day    | 24 of 1 h, one unended   |
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

STEP_S = 10
WINDOWS = {"statsMinute": (1, 6), "statsHour": (60, 6), "statsDay": (360, 24)}
"""The name of a window in a response → the length of its steps in steps of STEP_S, and their number."""


@dataclass(frozen=True, slots=True)
class WindowCount:
    sum: int
    tps: float


class Windows:
    """The windows of one kind of count, by key. Pure: `add` is called every STEP_S."""

    def __init__(self) -> None:
        self._totals: Mapping[str, int] = {}
        self._steps: dict[str, deque[dict[str, int]]] = {name: deque(maxlen=count) for name, (_, count) in WINDOWS.items()}
        self._number = 0
        """How often `add` was called."""

    def begin(self, totals: Mapping[str, int]) -> None:
        """Begin to count: these totals are from before."""
        self._totals = totals

    def add(self, totals: Mapping[str, int]) -> None:
        """Add the difference to the last totals. Keys that are missing now are forgotten, but for their counts in the windows."""
        more = {key: count for key, total in totals.items() if (count := total - self._totals.get(key, 0)) > 0}
        self._totals = totals
        for name, (length, _) in WINDOWS.items():
            steps = self._steps[name]
            if self._number % length == 0:
                steps.append({})
            newest = steps[-1]
            for key, count in more.items():
                newest[key] = newest.get(key, 0) + count
        self._number += 1

    def read(self, key: str) -> dict[str, WindowCount] | None:
        """Return the count of the key in each window, or None if the key has no total."""
        if key not in self._totals:
            return None
        counts = {}
        for name, (length, _) in WINDOWS.items():
            steps = self._steps[name]
            found = sum(step.get(key, 0) for step in steps)
            passed = (len(steps) - 1) * length + (self._number - 1) % length + 1 if steps else 0
            counts[name] = WindowCount(found, found / (passed * STEP_S) if passed else 0.0)
        return counts
