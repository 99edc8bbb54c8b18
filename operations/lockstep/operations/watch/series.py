"""The course of many figures over the last hour, in a limited memory. Pure.

A figure that is not known at a moment is a gap (None), never 0.
"""

from array import array
from collections.abc import Iterable
from math import isnan, nan

TICKS = 720
"""Values of one series: an hour at 5 s."""
SERIES_MAX = 4_000
"""About 12 MB."""


class Series:
    """Named series with one value at each tick. Ticks are numbered from 0 and equally far apart."""

    def __init__(self, ticks: int = TICKS, series_max: int = SERIES_MAX) -> None:
        self._ticks = ticks
        self._series_max = series_max
        self._values: dict[str, array[float]] = {}
        """Name → the values of the last ticks: that of tick t is at t modulo `_ticks`."""
        self._written: dict[str, int] = {}
        """Name → the tick of its last value."""
        self.tick = -1
        """The last tick."""

    def add(self, tick: int, values: Iterable[tuple[str, float | None]]) -> None:
        """Add the values of a tick, the most important first. Above the limit of series new names are not kept.

        `tick` is above the last one; ticks that are left out are gaps.
        """
        assert tick > self.tick, "ticks rise"
        self.tick = tick
        for name in [name for name, written in self._written.items() if tick - written >= self._ticks]:
            del self._values[name], self._written[name]
        for name, value in values:
            kept = self._values.get(name)
            if kept is None:
                if len(self._values) >= self._series_max:
                    continue
                kept = self._values[name] = array("f", [nan]) * self._ticks
            else:
                for missed in range(self._written[name] + 1, tick):
                    kept[missed % self._ticks] = nan
            kept[tick % self._ticks] = nan if value is None else value
            self._written[name] = tick

    def last(self, name: str, count: int = TICKS) -> list[float | None]:
        """Return the values of the last `count` ticks, the oldest first. There are fewer if there were fewer ticks."""
        first = max(0, self.tick + 1 - min(count, self._ticks))
        kept, written = self._values.get(name), self._written.get(name, -1)
        if kept is None:
            return [None] * (self.tick + 1 - first)
        found = [kept[tick % self._ticks] if tick <= written else nan for tick in range(first, self.tick + 1)]
        return [None if isnan(value) else value for value in found]

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __len__(self) -> int:
        return len(self._values)
