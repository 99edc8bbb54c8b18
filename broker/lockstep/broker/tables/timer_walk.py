"""Pending timers in the order in which they are due, from a place on: for the pages of a list. Pure.

The table keeps no order within a bucket, so the first timers after the place are selected, SELECT_COUNT at a time. A bucket of a million
is looked through for each selection, in pieces. Timers that are stored again meanwhile (room_carry.py) are not left out.
"""

import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass

from lockstep.broker.tables.timer_table import OFFSET_BITS, PIECE_COUNT, BucketPiece, Noted, PendingTimer, TimerTable
from lockstep.protocol.errors import LocalProtocolError

SELECT_COUNT = 2_000
"""The largest number of timers that are selected at once."""
BUCKET_COST = 16
"""What looking at a bucket costs, in timers of it."""

_OFFSET = (1 << OFFSET_BITS) - 1
_PLACE = re.compile(r"-?\d{1,18}(,-?\d{1,18})+", re.ASCII)
_Found = tuple[int, int, int]
"""(due ms by the setting of the clock when the walk began, offset, era)."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place between two timers in the order of their due times. In each era it stays between the same two when the clock is set."""

    eras: tuple[tuple[int, int, int], ...] = ()
    """(era, ms by its stamps, offset) of each era that had timers: where the next page begins there. None at the beginning."""

    def begin(self, era: int, shift_ms: Callable[[int], int]) -> tuple[int, int]:
        """Return after which (due ms by the present setting of the clock, offset) timers of this era are to be found."""
        for known, ms, offset in self.eras:
            if known == era:
                return ms + shift_ms(era), offset
        # Timers of any other may have been stored again in this one.
        return min(((ms + shift_ms(known), offset) for known, ms, offset in self.eras), default=(-1, -1))

    def __str__(self) -> str:
        return ",".join(str(number) for each in self.eras for number in each)

    @classmethod
    def parse(cls, text: str) -> "Place":
        """Return the place that `str` has made a text of. Raise LocalProtocolError for any other text."""
        numbers = list(map(int, text.split(","))) if _PLACE.fullmatch(text) else []
        if not numbers or len(numbers) % 3:
            raise LocalProtocolError(f"cursor {text[:40]!r}: expected the cursor of the response before")
        return cls(tuple(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)))


class TimerWalk:
    """Iterates over the pending timers after a place as they are due, with None wherever other tasks may run.

    A timer that was removed before it would be yielded is not.
    """

    def __init__(self, table: TimerTable, after: Place, count: int) -> None:
        """`count`: how many timers will probably be taken."""
        self._table = table
        self._count = min(count, SELECT_COUNT)
        self._after = after
        self._shifts: dict[int, int] = {}
        self._begins: dict[int, tuple[int, int]] = {}
        for era in table.eras:
            self._shift_of(era)
        self._last = -1, -1
        """(due ms, offset) of the last timer that was yielded."""

    def place_after(self, timer: PendingTimer) -> Place:
        """Return the place after a timer that was yielded."""
        place = self.due_ms(timer), timer.offset
        begins = {era: max(place, self._begins[era]) for era in sorted(self._shifts)}
        return Place(tuple((era, due_ms - self._shifts[era], offset) for era, (due_ms, offset) in begins.items()))

    def due_ms(self, timer: PendingTimer) -> int:
        """Return when the timer is due, by the setting of the clock when the walk began."""
        return timer.due_ms + self._shift_of(timer.era)

    def _shift_of(self, era: int) -> int:
        if era not in self._shifts:
            self._shifts[era] = self._table.shift_ms(era)
            self._begins[era] = self._after.begin(era, self._table.shift_ms)
        return self._shifts[era]

    def __iter__(self) -> "Generator[PendingTimer | None]":
        noted = Noted()
        self._table.readers.append(noted)
        try:
            more = True
            while more:
                selected = yield from self._select(noted)
                more = len(selected) >= self._count
                end = selected[-1] if more else (sys.maxsize, 0, 0)
                at = 0
                while True:
                    self._insert(noted, selected, at, end)
                    if at == len(selected):
                        break
                    due_ms, offset, era = selected[at]
                    at += 1
                    if offset not in noted.removed:
                        self._last = due_ms, offset
                        yield PendingTimer(era, due_ms - self._shifts[era], offset)
        finally:
            self._table.readers.remove(noted)

    def _insert(self, noted: Noted, selected: list[_Found], at: int, end: _Found) -> None:
        """Put timers that were stored again meanwhile where they belong among those that are not yielded yet."""
        for found in map(self._found, noted.carried):
            place = bisect_left(selected, found, at)
            if self._is_after(found) and found < end and selected[place : place + 1] != [found]:
                selected.insert(place, found)
        noted.carried.clear()

    def _found(self, timer: PendingTimer) -> _Found:
        return self.due_ms(timer), timer.offset, timer.era

    def _is_after(self, found: _Found) -> bool:
        due_ms, offset, era = found
        return (due_ms, offset) > self._begin(era)

    def _begin(self, era: int) -> tuple[int, int]:
        """Return after which (due ms, offset) timers of this era are to be found."""
        self._shift_of(era)
        return max(self._last, self._begins[era])

    def _select(self, noted: Noted) -> Generator[None, None, list[_Found]]:
        """Return the first timers that are pending, in order."""
        noted.removed.clear()
        noted.carried.clear()
        first, cost = _First(self._count), 0
        for era in self._table.eras:
            shift, begin = self._shift_of(era), self._begin(era)
            for piece in self._table.buckets_from(era, begin[0] - shift):
                if first.is_before(piece.begin_ms + shift):
                    break
                first.add_piece(piece, era, shift, begin)
                cost += len(piece.timers) + BUCKET_COST
                if cost >= PIECE_COUNT:
                    cost = 0
                    yield
            for due_ms, offsets in self._table.slots_from(era, begin[0] - shift):
                if first.is_before(due_ms + shift):
                    break
                first.add((due_ms + shift, offset, era) for offset in offsets if (due_ms + shift, offset) > begin)
                cost += len(offsets)
                if cost >= PIECE_COUNT or not offsets:
                    cost = 0
                    yield
        taken = self._table.taken()
        for at in range(0, len(taken), PIECE_COUNT):
            first.add(filter(self._is_after, map(self._found, taken[at : at + PIECE_COUNT])))
            yield
        yield
        return first.in_order()


class _First:
    """The first `count` of all that are added."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._found: list[_Found] = []
        self._end: _Found | None = None
        """The last of the first ones, if there are `count`."""

    def is_before(self, due_ms: int) -> bool:
        """Return whether they are complete: those that are due at this time or later are not among them."""
        if self._end is None and len(self._found) >= self._count:
            self._cut()
        return self._end is not None and self._end[0] < due_ms

    def add(self, found: Iterable[_Found]) -> None:
        end = self._end
        self._found += found if end is None else (each for each in found if each < end)
        if len(self._found) >= 2 * self._count:
            self._cut()

    def add_piece(self, piece: BucketPiece, era: int, shift: int, begin: tuple[int, int]) -> None:
        """Add the timers of a bucket after this (due ms, offset)."""
        bucket_ms, named, gone = piece.begin_ms + shift, piece.named, piece.gone
        low = (begin[0] - bucket_ms << OFFSET_BITS) + begin[1]
        high = sys.maxsize << OFFSET_BITS if self._end is None else (self._end[0] - bucket_ms << OFFSET_BITS) + self._end[1]
        found = [each for each in piece.timers if low < each < high and each not in named and each & _OFFSET not in gone]
        self.add((bucket_ms + (each >> OFFSET_BITS), each & _OFFSET, era) for each in found)

    def in_order(self) -> list[_Found]:
        self._cut()
        return self._found

    def _cut(self) -> None:
        # A timer that went from its bucket to its slot meanwhile was added twice.
        self._found = sorted(set(self._found))[: self._count]
        if len(self._found) == self._count:
            self._end = self._found[-1]
