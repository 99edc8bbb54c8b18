"""Where timers are that were stored again: the first offset of each, which its recall handle names, and the present one."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.broker.tables.packed_numbers import ROW_COUNT, from_bytes, pieces, to_bytes


class CarriedOffsets:
    """16 bytes a timer: runs of rising first offsets. Timers are stored again in the order of their offsets, so that there are few runs."""

    def __init__(self) -> None:
        self._runs: list[tuple[array[int], array[int]]] = []
        """(first offsets, present offsets)."""

    def add(self, first: int, present: int) -> None:
        """Note that the timer that was stored at `first` is at `present` now."""
        if not self._runs or self._runs[-1][0][-1] >= first:
            self._runs.append((array("Q"), array("Q")))
        firsts, presents = self._runs[-1]
        firsts.append(first)
        presents.append(present)

    def find(self, first: int) -> int:
        """Return where the timer that was stored at `first` is now."""
        for firsts, presents in reversed(self._runs):
            at = bisect_left(firsts, first)
            if at < len(firsts) and firsts[at] == first:
                return presents[at]
        return first

    def items(self) -> Iterator[tuple[int, int]]:
        """Yield the first and the present offset of each."""
        for firsts, presents in self._runs:
            yield from zip(firsts, presents, strict=True)

    def forget_below(self, minimum: int) -> None:
        """Forget runs of which nothing is left: all their timers were below this offset, and have ended or were stored again."""
        self._runs = [run for run in self._runs if run[1][-1] >= minimum]

    def snapshot(self) -> SnapshotRows:
        """Return rows of [packed first offsets, packed present offsets]."""
        rows = [row for run in self._runs for row in zip(*(pieces(numbers, ROW_COUNT) for numbers in run), strict=True)]
        return SnapshotRows(len(rows), lambda: (list(map(to_bytes, row)) for row in rows))

    def restore(self, plain: Iterable[tuple[bytes, bytes]]) -> None:
        for firsts, presents in plain:
            for first, present in zip(from_bytes(firsts), from_bytes(presents), strict=True):
                self.add(first, present)
