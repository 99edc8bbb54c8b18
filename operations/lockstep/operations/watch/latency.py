"""The course of the append latency of each broker over the last hour. Pure."""

from collections.abc import Mapping, Sequence

from lockstep.operations.watch.series import TICKS

COLUMN_TICKS = 6
"""Ticks of one column: half a minute at 5 s."""
COLUMNS = TICKS // COLUMN_TICKS
Column = Sequence[int]
"""A count for each bucket of the histogram."""


class LatencyHistory:
    """The counts of each column. Ticks are numbered as those of the series."""

    def __init__(self) -> None:
        self._columns: dict[str, dict[int, list[int]]] = {}
        """Broker → number of the column → its counts. Columns without counts have no entry."""
        self._last = -1

    def add(self, tick: int, counts: Mapping[str, Sequence[int]]) -> None:
        """Add what brokers have counted since the tick before, as far as it is known. Ticks do not fall."""
        self._last = column = tick // COLUMN_TICKS
        for broker, found in counts.items():
            kept = self._columns.setdefault(broker, {})
            kept[column] = [one + other for one, other in zip(kept.get(column, [0] * len(found)), found, strict=True)]
        for broker, kept in list(self._columns.items()):
            for old in [number for number in kept if number <= column - COLUMNS]:
                del kept[old]
            if not kept:
                del self._columns[broker]

    def of(self, broker: str) -> list[Column | None]:
        """Return the columns of the last hour, the oldest first; None for one of which nothing is known. Fewer, if there were fewer."""
        kept = self._columns.get(broker, {})
        return [kept.get(number) for number in range(max(0, self._last + 1 - COLUMNS), self._last + 1)]
