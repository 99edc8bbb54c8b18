"""Pending timers: messages that wait for any delay or until a time of day, by when they are due. RocketMQ: TimerWheel, TimerLog.

The table is a function of the log: a record in the room of timers adds a timer, and the copy that ends its wait removes it, or a change of
the journal (a recall, a message that can't be delivered). A snapshot has all pending timers, so that a start reads the log from there.

A timer has 8 bytes. It is in the bucket of its time, 65,536 ms each; shortly before a bucket is due it is split into slots of 1 ms, a part
in each turn of the loop, so that a million timers of one second neither are sorted nor stop the loop.

Times are those of the stamps. The wheel of an *era* of the store's clock (StoreClock.era) is moved as a whole when the clock is set, by
`shift(era)`; a time of day is in a wheel of its own, which is never moved.
"""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from heapq import heappop, heappush, nsmallest
from typing import NamedTuple

from lockstep.broker.journal import Change, Journal
from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.broker.tables.carried_offsets import CarriedOffsets
from lockstep.broker.tables.packed_numbers import ROW_COUNT, from_bytes, pieces, to_bytes
from lockstep.protocol.messages.rooms import ABSOLUTE, CARRIED, DUE_SHIFT, due_of_code

ENDED, RECALLED = "timer.ended", "timer.recalled"
"""The kinds of this table's journal changes, with (due code, offset): a timer can't be delivered, or its sender has taken it back."""
KINDS = frozenset({ENDED, RECALLED})
BUCKET_BITS = 16
OFFSET_BITS = 48
SPLIT_COUNT = 10_000
"""Timers of a bucket that are moved into slots at once: some milliseconds."""
SPLIT_AHEAD_MS = 15_000
"""How long before its first timer is due a bucket is split: a million timers take less than that."""
TIMES_OF_DAY = -1
"""The era of the wheel of absolute times."""
RECALLED_KEPT_MS = 86_400_000
"""How long a recall is known after the timer would have been due: it may be repeated, and the clock may be set."""
COMPACT_COUNT = 1_024
"""Removed timers of one bucket from which on it is compacted when they are more than half of it."""
PIECE_COUNT = 4_096
"""Timers, or their times, that are copied at once for who reads them in order."""
KEY_COUNT = 1_000
"""Buckets and slots that are looked up at once for who reads them in order."""

_IN_BUCKET = (1 << BUCKET_BITS) - 1
_OFFSET = (1 << OFFSET_BITS) - 1
_NOTHING: frozenset[int] = frozenset()
_EMPTY = array("Q")


class PendingTimer(NamedTuple):
    """A pending timer."""

    era: int
    due_ms: int
    """By the stamps of its era, or the time of day."""
    offset: int
    """Its offset in the room."""

    @property
    def code(self) -> int:
        """Return its due code, without CARRIED."""
        return self.due_ms << DUE_SHIFT | (ABSOLUTE if self.era == TIMES_OF_DAY else 0)


class BucketPiece(NamedTuple):
    """A copy of some timers of a bucket, in no order."""

    begin_ms: int
    """The time of the bucket, by the stamps of its era."""
    timers: "array[int]"
    """(time within the bucket << OFFSET_BITS | offset) of each."""
    named: AbstractSet[int]
    gone: AbstractSet[int]
    """Which of them are pending no longer: as they are in `timers`, and by their offsets."""


@dataclass(slots=True, eq=False)
class Noted:
    """What becomes of timers while somebody reads them one after another."""

    removed: set[int] = field(default_factory=set)
    """Offsets of timers that are pending no longer."""
    carried: list[PendingTimer] = field(default_factory=list)
    """Timers that were stored again."""


class _Wheel:
    """The timers of one era. `gone` is that of the table: the key of a bucket → offsets in such buckets that were removed."""

    __slots__ = ("buckets", "gone", "keys", "slots", "times")

    def __init__(self, gone: dict[int, set[int]]) -> None:
        self.gone = gone
        self.buckets: dict[int, array[int]] = {}
        """Time >> BUCKET_BITS → (time within the bucket << OFFSET_BITS | offset) of each timer."""
        self.keys: list[int] = []
        """A heap of the keys of `buckets`, and of some that are there no longer."""
        self.slots: dict[int, array[int]] = {}
        """Time → offsets, of the buckets that were split."""
        self.times: list[int] = []
        """A heap of the keys of `slots`, and of some that are there no longer."""

    def add(self, due_ms: int, offset: int) -> None:
        slot = self.slots.get(due_ms)
        if slot is not None:
            slot.append(offset)
        else:
            self.add_packed(due_ms >> BUCKET_BITS, array("Q", [_packed(due_ms, offset)]))

    def add_packed(self, key: int, timers: "array[int]") -> None:
        """Add timers of one bucket."""
        bucket = self.buckets.get(key)
        if bucket is None:
            self.buckets[key] = timers
            heappush(self.keys, key)
        else:
            bucket += timers

    def holds(self, due_ms: int, offset: int) -> bool:
        if offset in self.slots.get(due_ms, ()):
            return True
        key = due_ms >> BUCKET_BITS
        return _packed(due_ms, offset) in self.buckets.get(key, ()) and offset not in self.gone.get(key, ())

    def remove_split(self, due_ms: int, offset: int) -> bool:
        """Remove a timer from its slot. Return False if it is in none."""
        slot = self.slots.get(due_ms)
        if slot is None or offset not in slot:
            return False
        slot.remove(offset)
        if not slot:
            del self.slots[due_ms]
        return True

    def split(self, until_ms: int, count: int) -> int:
        """Move at most `count` timers of buckets that begin up to this time into slots. Return how many more it could have moved."""
        while self.keys and self.keys[0] << BUCKET_BITS <= until_ms and count:
            key = self.keys[0]
            bucket = self.buckets.get(key)
            if not bucket:
                self.buckets.pop(key, None)
                heappop(self.keys)
                continue
            moved, gone, base = bucket[-count:], self.gone.get(key, ()), key << BUCKET_BITS
            del bucket[-count:]
            count -= len(moved)
            for packed in moved:
                due_ms, offset = base + (packed >> OFFSET_BITS), packed & _OFFSET
                if offset in gone:
                    continue
                slot = self.slots.get(due_ms)
                if slot is None:
                    slot = self.slots[due_ms] = array("Q")
                    heappush(self.times, due_ms)
                slot.append(offset)
        return count

    def take(self, until_ms: int, count: int) -> Iterator[tuple[int, int]]:
        """Remove and yield (time, offset) of at most `count` timers of slots that are due up to this time, by their times."""
        while count and self.times and self.times[0] <= until_ms:
            due_ms = self.times[0]
            slot = self.slots.get(due_ms)
            if slot is None:
                heappop(self.times)
                continue
            taken = slot[-count:]  # from its end, which does not move the others
            del slot[-count:]
            if not slot:
                del self.slots[due_ms]
                heappop(self.times)
            count -= len(taken)
            for offset in taken:
                yield due_ms, offset

    def next_ms(self) -> int | None:
        """Return the time of the first timer, or of the beginning of its bucket. None if the wheel is empty."""
        while self.times and self.times[0] not in self.slots:
            heappop(self.times)
        while self.keys and not self.buckets.get(self.keys[0]):
            self.buckets.pop(heappop(self.keys), None)
        first = [self.times[0]] if self.times else []
        return min([*first, self.keys[0] << BUCKET_BITS] if self.keys else first, default=None)

    def last_ms(self) -> int | None:
        """Return the time of the last timer, also of one that was removed, or the end of its bucket. None if the wheel is empty."""
        ends = [(key + 1 << BUCKET_BITS) - 1 for key, bucket in self.buckets.items() if bucket]
        return max([*ends, *self.slots], default=None)

    def copies(self) -> "Iterator[tuple[int, array[int], Callable[[int], bool], int]]":
        """Yield copies in pieces: (key of a bucket, timers, whether the one with an offset is left out, what completes a packed timer)."""
        for key, bucket in self.buckets.items():
            gone = frozenset(self.gone.get(key, ()))
            for piece in pieces(bucket, ROW_COUNT):
                yield key, piece, gone.__contains__, 0
        for due_ms, slot in self.slots.items():
            for piece in pieces(slot, ROW_COUNT):
                yield due_ms >> BUCKET_BITS, piece, _NOTHING.__contains__, _packed(due_ms, 0)


def _packed(due_ms: int, offset: int) -> int:
    return (due_ms & _IN_BUCKET) << OFFSET_BITS | offset


class TimerTable:
    """The pending timers of one broker. A timer that was taken stays pending until it is removed."""

    def __init__(self, journal: Journal, shift: Callable[[int], int]) -> None:
        """`shift` returns by how many ms the stamps of an era are moved by the later settings of the clock."""
        self._journal = journal
        self._shift = shift
        self._wheels: dict[int, _Wheel] = {}
        self._gone: dict[int, set[int]] = {}
        self._named: dict[int, set[int]] = {}
        """The key of a bucket → packed timers that were removed and may be in such buckets. `_settle` finds out: a start may read the end
        of a timer that it has not read, or one that its snapshot already has."""
        self._taken: dict[int, PendingTimer] = {}
        """By offset."""
        self._recalled: dict[int, array[int]] = {}
        """The key of a bucket → packed timers that were recalled."""
        self._count = 0
        self.carried = CarriedOffsets()
        """Where timers are that were stored again."""
        self.watched: set[int] = set()
        """Offsets of pending timers, set by who wants to know which of them are removed: those are taken out."""
        self.readers: list[Noted] = []
        """One for each who reads the timers in order."""

    @property
    def count_max(self) -> int:
        """Return a number that is not lower than that of the pending timers, without looking for those that were removed."""
        return self._count

    def __len__(self) -> int:
        self._settle_all()
        return self._count

    # -- changes ---------------------------------------------------------------------------------

    def add(self, offset: int, code: int, era: int) -> None:
        """Add the timer of a record, which is due by this code and was stamped in this era."""
        self._count += 1
        era, due_ms = TIMES_OF_DAY if code & ABSOLUTE else era, due_of_code(code)
        self._wheel(era).add(due_ms, offset)
        if code & CARRIED:
            for reader in self.readers:
                reader.carried.append(PendingTimer(era, due_ms, offset))

    def _wheel(self, era: int) -> _Wheel:
        wheel = self._wheels.get(era)
        if wheel is None:
            wheel = self._wheels[era] = _Wheel(self._gone)
        return wheel

    def end(self, offset: int, code: int) -> None:
        """Record that a pending timer can't be delivered."""
        self._journal.record((ENDED, code, offset), self.apply)

    def recall(self, offset: int, code: int) -> None:
        """Record that a pending timer will not be delivered. Once more changes nothing."""
        if not self.was_recalled(offset, code):
            self._journal.record((RECALLED, code, offset), self.apply)

    def was_recalled(self, offset: int, code: int) -> bool:
        """Return whether the timer was recalled. It is known for a day after the timer would have been due."""
        due_ms = due_of_code(code)
        return _packed(due_ms, offset) in self._recalled.get(due_ms >> BUCKET_BITS, ())

    def apply(self, change: Change) -> None:
        """Apply one change, made now or read from the log."""
        kind, code, offset = change
        self.remove(offset, code)
        if kind == RECALLED:
            due_ms = due_of_code(code)
            self._recalled.setdefault(due_ms >> BUCKET_BITS, array("Q")).append(_packed(due_ms, offset))

    def remove(self, offset: int, code: int) -> None:
        """Remove a pending timer: the log has the copy that ends its wait, or a change that does."""
        due_ms = due_of_code(code)
        self.watched.discard(offset)
        for reader in self.readers:
            reader.removed.add(offset)
        if self._taken.pop(offset, None) or any(wheel.remove_split(due_ms, offset) for wheel in self._wheels.values()):
            self._count -= 1
            return
        key = due_ms >> BUCKET_BITS
        if size := sum(map(len, self._buckets(key))):
            named = self._named.setdefault(key, set())
            named.add(_packed(due_ms, offset))
            if len(named) >= COMPACT_COUNT and 2 * len(named) > size:
                self._settle(key)

    def _buckets(self, key: int) -> "list[array[int]]":
        return [wheel.buckets[key] for wheel in self._wheels.values() if wheel.buckets.get(key)]

    def _settle(self, key: int) -> None:
        """Count those of the named timers that are in buckets with this key as gone."""
        named, buckets, gone = self._named.pop(key, set()), self._buckets(key), self._gone.setdefault(key, set())
        found = {packed & _OFFSET for bucket in buckets for packed in named.intersection(bucket)} - gone
        self._count -= len(found)
        gone |= found
        if len(gone) >= COMPACT_COUNT and 2 * len(gone) > sum(map(len, buckets)):
            # Who reads a bucket in order goes on with the old array and the old set.
            for wheel in self._wheels.values():
                if bucket := wheel.buckets.get(key):
                    wheel.buckets[key] = array("Q", [each for each in bucket if each & _OFFSET not in gone])
            gone = set()
        if not gone:
            del self._gone[key]

    def _settle_all(self) -> None:
        for key in list(self._named):
            self._settle(key)

    # -- delivery --------------------------------------------------------------------------------

    def holds(self, offset: int, code: int) -> bool:
        """Return whether the timer with this offset and due code is pending."""
        return self.find(offset, code) is not None

    def find(self, offset: int, code: int) -> PendingTimer | None:
        """Return the pending timer with this offset and due code, or None."""
        due_ms = due_of_code(code)
        if (taken := self._taken.get(offset)) is not None:
            return taken if taken.due_ms == due_ms else None
        self._settle(due_ms >> BUCKET_BITS)
        eras = (era for era, wheel in self._wheels.items() if wheel.holds(due_ms, offset))
        return next((PendingTimer(era, due_ms, offset) for era in eras), None)

    def offsets_at(self, due_ms: int, count_max: int) -> list[int]:
        """Return the offsets of at most so many timers, pending or recalled, that are due at this time by their code."""
        key, within = due_ms >> BUCKET_BITS, due_ms & _IN_BUCKET
        found = [timer.offset for timer in self._taken.values() if timer.due_ms == due_ms]
        found += [offset for wheel in self._wheels.values() for offset in wheel.slots.get(due_ms, ())]
        found += [packed & _OFFSET for packed in self._recalled.get(key, ()) if packed >> OFFSET_BITS == within]
        self._settle(key)
        gone = self._gone.get(key, ())
        for bucket in self._buckets(key):
            if len(found) >= count_max:
                break
            found += [packed & _OFFSET for packed in bucket if packed >> OFFSET_BITS == within and packed & _OFFSET not in gone]
        return found[:count_max]

    def below(self, end: int) -> "Iterator[list[PendingTimer]]":
        """Yield the timers with an offset below `end`, in parts. The table may change between them; later timers are not among them.

        A timer that goes from its bucket to its slot, or is taken, meanwhile is in a part at least once.
        """
        for era, wheel in list(self._wheels.items()):
            for key in list(wheel.buckets):
                self._settle(key)
                gone, base = self._gone.get(key, ()), key << BUCKET_BITS
                found = [each for each in wheel.buckets.get(key, ()) if each & _OFFSET < end]
                yield [PendingTimer(era, base + (each >> OFFSET_BITS), each & _OFFSET) for each in found if each & _OFFSET not in gone]
            yield [PendingTimer(era, due_ms, offset) for due_ms, slot in wheel.slots.items() for offset in slot if offset < end]
        yield [timer for timer in self._taken.values() if timer.offset < end]

    def present_ms(self, timer: PendingTimer) -> int:
        """Return when a timer is due by the present setting of the clock, of a time of day that time."""
        return timer.due_ms if timer.era == TIMES_OF_DAY else timer.due_ms + self._shift(timer.era)

    def is_taken(self, offset: int) -> bool:
        """Return whether a timer was taken and has not been removed since."""
        return offset in self._taken

    def take(self, now_ms: int, wall_ms: int, count: int) -> list[PendingTimer]:
        """Return at most `count` timers that are due: by the store's clock, those of a time of day by the wall clock as well.

        They are pending until `remove`, and are not returned again.
        """
        found: list[PendingTimer] = []
        for era, wheel in self._wheels.items():
            until_ms = self._until(era, now_ms, wall_ms)
            self._split(wheel, until_ms, SPLIT_COUNT)
            found += [PendingTimer(era, *each) for each in wheel.take(until_ms, count - len(found))]
        self._taken.update((timer.offset, timer) for timer in found)
        for era in [era for era, wheel in self._wheels.items() if wheel.next_ms() is None]:
            del self._wheels[era]
        return found

    def prepare(self, now_ms: int, wall_ms: int) -> bool:
        """Split some of the buckets that will be due soon. Return whether there may be more of them."""
        left = SPLIT_COUNT
        for key in [key for key in self._recalled if (key << BUCKET_BITS) + RECALLED_KEPT_MS < min(now_ms, wall_ms)]:
            del self._recalled[key]
        for era, wheel in self._wheels.items():
            left = self._split(wheel, self._until(era, now_ms, wall_ms) + SPLIT_AHEAD_MS, left)
        return not left

    def _split(self, wheel: _Wheel, until_ms: int, count: int) -> int:
        for key in [key for key in self._named if key << BUCKET_BITS <= until_ms]:
            self._settle(key)
        left = wheel.split(until_ms, count)
        for key in [key for key in self._gone if key << BUCKET_BITS <= until_ms]:
            if not any(each.buckets.get(key) for each in self._wheels.values()):
                del self._gone[key]
        return left

    def next_ms(self, now_ms: int, wall_ms: int) -> int | None:
        """Return in how many ms a timer is due, or the bucket of one begins. None if the wheels are empty."""
        waits = []
        for era, wheel in self._wheels.items():
            if (first_ms := wheel.next_ms()) is not None:
                waits.append(first_ms - self._until(era, now_ms, wall_ms))
        return min(waits, default=None)

    def last_ms(self, now_ms: int, wall_ms: int) -> int | None:
        """Return in how many ms all timers are due at the latest: the bucket of the last one ends then. None if the wheels are empty."""
        waits = [0] if self._taken else []
        for era, wheel in self._wheels.items():
            if (last_ms := wheel.last_ms()) is not None:
                waits.append(last_ms - self._until(era, now_ms, wall_ms))
        return max(waits, default=None)

    def due_counts(self, now_ms: int, wall_ms: int, within_ms: Iterable[int]) -> tuple[int, ...]:
        """Return how many timers are due within each of these times and not within the one before it, and how many later.

        A large bucket that a time divides counts with its first timer: its others may be due 65 s later.
        """
        limits = list(within_ms)
        counts = [0] * (len(limits) + 1)
        counts[0] = len(self._taken)
        gone = dict(self._gone)
        for era, wheel in self._wheels.items():
            until_ms = self._until(era, now_ms, wall_ms)
            for due_ms, slot in wheel.slots.items():
                counts[bisect_left(limits, due_ms - until_ms)] += len(slot)
            for key, bucket in wheel.buckets.items():
                begin_ms, removed = (key << BUCKET_BITS) - until_ms, gone.pop(key, ())
                first = bisect_left(limits, begin_ms)
                if first == bisect_left(limits, begin_ms + _IN_BUCKET) or len(bucket) > SPLIT_COUNT:
                    counts[first] += len(bucket) - len(removed)
                else:
                    for each in bucket:
                        if each & _OFFSET not in removed:
                            counts[bisect_left(limits, begin_ms + (each >> OFFSET_BITS))] += 1
        return tuple(counts)

    def _until(self, era: int, now_ms: int, wall_ms: int) -> int:
        """Return up to which time the timers of a wheel are due."""
        return min(now_ms, wall_ms) if era == TIMES_OF_DAY else now_ms - self._shift(era)

    # -- in order (timer_walk.py) ----------------------------------------------------------------

    # A timer goes from its bucket to its slot and is then taken, also between two parts of what these methods yield. Who reads an era's
    # buckets, then its slots, and last those that were taken, finds each that is pending meanwhile at least once.

    @property
    def eras(self) -> list[int]:
        """Return the eras of pending timers, the newest last."""
        return sorted({*self._wheels, *(timer.era for timer in self._taken.values())})

    def shift_ms(self, era: int) -> int:
        """Return by how many ms the times of an era are moved by the later settings of the clock."""
        return 0 if era == TIMES_OF_DAY else self._shift(era)

    def buckets_from(self, era: int, from_ms: int) -> "Iterator[BucketPiece]":
        """Yield the buckets of an era that end after this time, in their order."""
        wheel, first = self._wheels.get(era), from_ms >> BUCKET_BITS
        while wheel is not None and (keys := nsmallest(KEY_COUNT, [key for key in wheel.buckets if key >= first])):
            for key in keys:
                left_out = self._named.get(key, _NOTHING), self._gone.get(key, _NOTHING)
                for timers in pieces(wheel.buckets.get(key, _EMPTY), PIECE_COUNT):
                    yield BucketPiece(key << BUCKET_BITS, timers, *left_out)
            first = keys[-1] + 1

    def slots_from(self, era: int, from_ms: int) -> "Iterator[tuple[int, array[int]]]":
        """Yield (time, offsets) of the slots of an era from this time on, in their order; slots without offsets in between."""
        wheel = self._wheels.get(era)
        while wheel is not None:
            times: list[int] = []
            every = list(wheel.slots)
            for at in range(0, len(every), PIECE_COUNT):
                end_ms = times[-1] if len(times) == KEY_COUNT else sys.maxsize
                times += [each for each in every[at : at + PIECE_COUNT] if from_ms <= each < end_ms]
                times = nsmallest(KEY_COUNT, times)
                yield from_ms, _EMPTY
            if not times:
                return
            for due_ms in times:
                for offsets in pieces(wheel.slots.get(due_ms, _EMPTY)[:], PIECE_COUNT):
                    yield due_ms, offsets
            from_ms = times[-1] + 1

    def taken(self) -> list[PendingTimer]:
        """Return the timers that were taken, in no order."""
        return list(self._taken.values())

    # -- the snapshot ----------------------------------------------------------------------------

    def snapshot(self) -> SnapshotRows:
        """Return rows of [era, key of a bucket, packed timers]: little-endian numbers of 64 bits."""
        self._settle_all()
        copies = [(era, *row) for era, wheel in self._wheels.items() for row in wheel.copies()]
        taken = list(self._taken.values())

        def rows() -> Iterator[list[object]]:
            for era, key, timers, is_gone, place in copies:
                yield [era, key, to_bytes(array("Q", [place | each for each in timers if not is_gone(each & _OFFSET)]))]
            for era, due_ms, offset in taken:
                yield [era, due_ms >> BUCKET_BITS, to_bytes(array("Q", [_packed(due_ms, offset)]))]

        return SnapshotRows(len(copies) + len(taken), rows)

    def recalled(self) -> SnapshotRows:
        """Return rows of [key of a bucket, packed timers] of those that were recalled."""
        copies = [(key, array("Q", timers)) for key, timers in self._recalled.items()]
        return SnapshotRows(len(copies), lambda: ([key, to_bytes(timers)] for key, timers in copies))

    def restore(
        self,
        plain: Iterable[tuple[int, int, bytes]],
        recalled: Iterable[tuple[int, bytes]] = (),
        carried: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        for era, key, packed in plain:
            timers = from_bytes(packed)
            self._count += len(timers)
            self._wheel(era).add_packed(key, timers)
        self._recalled = {key: from_bytes(packed) for key, packed in recalled}
        self.carried.restore(carried)
