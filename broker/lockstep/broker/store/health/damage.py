"""Known damage: ranges of the log without good records, and the queue offsets whose messages are lost with them.

    lockstep/damage    {"format": 1, "state_from": position, "log": [[begin, end, reason], …], "queues": [[topic, queue id, first, end], …]}

A damaged range remains in its file, so that a copy of the right bytes can be put back; every scan skips it. The entry of a lost offset in
its consume queue has the size LOST_SIZE, so that readers report the gap.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lockstep.broker.store.errors import StoreCorruptError
from lockstep.broker.store.log.append import ENTRY

FORMAT = 1
LOST_SIZE = -1


def lost_entry(position: int) -> bytes:
    """Return the consume-queue entry of a message that was lost at or after a log position."""
    return ENTRY.pack(position, LOST_SIZE, 0)


@dataclass(frozen=True, slots=True)
class KnownDamage:
    """The damage of the log that was recorded at one time."""

    ranges: dict[int, int]
    state_from: int

    @classmethod
    def of(cls, table: "DamageTable") -> "KnownDamage":
        return cls(dict(table.ranges), table.state_from)

    def new_in(self, table: "DamageTable") -> list[int]:
        """Return where the damaged ranges begin that the table has in addition, in log order."""
        return [begin for begin, end in sorted(table.ranges.items()) if self.ranges.get(begin) != end]


class DamageTable:
    """A table of damaged ranges by position and of lost offsets by queue. Pure."""

    def __init__(self) -> None:
        self.ranges: dict[int, int] = {}
        """Begin → end."""
        self.reasons: dict[int, str] = {}
        self._lost: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self.state_from = 0
        """The state before this log position has been given up."""
        self.changed = False
        """Whether the table has changed since the last `encode`."""

    @property
    def byte_count(self) -> int:
        return self.byte_count_of(self.ranges)

    def byte_count_of(self, begins: Iterable[int]) -> int:
        """Return the number of bytes of the ranges with these begins, each counted once."""
        return sum(end - begin for begin, end in _joined(sorted((begin, self.ranges[begin]) for begin in begins)))

    @property
    def message_count(self) -> int:
        """Return the number of lost messages that retention has not removed since."""
        return sum(end - first for ranges in self._lost.values() for first, end in ranges)

    def lost(self) -> list[tuple[str, int, int, int]]:
        """Return (topic, queue id, first offset, end) of each range of lost offsets."""
        return [(topic, queue_id, first, end) for (topic, queue_id), ranges in self._lost.items() for first, end in ranges]

    def add_range(self, begin: int, end: int, reason: str) -> None:
        """Record that [begin, end) of the log contains no good record."""
        if end <= begin or self.ranges.get(begin, begin) >= end:
            return
        self.ranges[begin] = end
        self.reasons[begin] = reason
        self.changed = True

    def add_lost(self, topic: str, queue_id: int, first: int, end: int) -> int:
        """Add lost offsets. Return how many of them are new."""
        if end <= first:
            return 0
        before = self.message_count
        ranges = sorted([*self._lost.get((topic, queue_id), []), (first, end)])
        self._lost[topic, queue_id] = _joined(ranges)
        added = self.message_count - before
        self.changed = self.changed or added > 0
        return added

    def give_up_state(self, position: int) -> None:
        """Record that no snapshot has the state before `position`, and that the operator continues without it."""
        self.changed = self.changed or position != self.state_from
        self.state_from = position

    def is_lost(self, topic: str, queue_id: int, first: int, end: int) -> bool:
        """Return whether all these offsets are recorded as lost."""
        return any(low <= first and end <= high for low, high in self._lost.get((topic, queue_id), ()))

    def first_not_lost(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the first offset from `offset` on that is not recorded as lost."""
        return next((end for first, end in self._lost.get((topic, queue_id), ()) if first <= offset < end), offset)

    def not_lost_ranges(self, topic: str, queue_id: int, first: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of [first, end) that are not recorded as lost."""
        left = []
        for low, high in self._lost.get((topic, queue_id), ()):
            if first < low:
                left.append((first, min(low, end)))
            first = max(first, high)
            if first >= end:
                break
        return [(low, high) for low, high in [*left, (first, end)] if low < high]

    def remove_lost(self, topic: str, queue_id: int, first: int, end: int) -> None:
        """Remove offsets that have been read from the lost ones."""
        ranges = self._lost.get((topic, queue_id))
        if not ranges or not any(low < end and first < high for low, high in ranges):
            return
        left = [part for low, high in ranges for part in ((low, min(high, first)), (max(low, end), high)) if part[0] < part[1]]
        self._lost[topic, queue_id] = left
        self.changed = True

    def trim_log(self, log_start: int) -> None:
        """Remove the damage below `log_start`. A range that extends above begins there from now on."""
        for begin in [begin for begin in self.ranges if begin < log_start]:
            self.add_range(log_start, self.ranges.pop(begin), self.reasons.pop(begin, ""))
            self.changed = True

    def trim(self, log_start: int, minimum: Callable[[str, int], int]) -> None:
        """Remove the damage that retention has removed. `minimum` returns the first offset of a queue."""
        self.trim_log(log_start)
        for key, ranges in list(self._lost.items()):
            low = minimum(*key)
            left = [(max(first, low), end) for first, end in ranges if end > low]
            if left != ranges:
                self.changed = True
                self._lost[key] = left
            if not left:
                del self._lost[key]

    def encode(self) -> bytes:
        """Return the file's bytes."""
        self.changed = False
        log = [[begin, end, self.reasons.get(begin, "")] for begin, end in sorted(self.ranges.items())]
        queues = [list(row) for row in self.lost()]
        return json.dumps({"format": FORMAT, "state_from": self.state_from, "log": log, "queues": queues}, indent=1).encode()

    def restore(self, data: bytes, path: str) -> None:
        """Fill an empty table. Raises StoreCorruptError if `encode` has not made the bytes."""
        try:
            found = json.loads(data)
            if found["format"] != FORMAT:
                raise ValueError(f"format {found['format']}")
            self.state_from = int(found["state_from"])
            for begin, end, reason in found["log"]:
                self.add_range(int(begin), int(end), str(reason))
            for topic, queue_id, first, end in found["queues"]:
                self.add_lost(str(topic), int(queue_id), int(first), int(end))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            why = f"{path} is damaged ({error}): it lists damage that was found before"
            raise StoreCorruptError(
                f"{why}. Restore it, or remove it and start with --cut-corrupt: damage is then looked for again"
            ) from error
        self.changed = False


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges sorted, adjacent ones joined."""
    joined: list[tuple[int, int]] = []
    for first, end in ranges:
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return joined
