"""What is known to be damaged: stretches of the log without good records, and the queue offsets whose messages are lost with them.

    lockstep/damage    {"format": 1, "state_from": position, "log": [[begin, end, reason], …], "queues": [[topic, queue id, first, end], …]}

A stretch stays in its file, so that a copy of the right bytes can be put back; every scan passes over it. A lost offset has an entry in its
consume queue whose size is LOST_SIZE: whoever reads there is told of the gap.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lockstep.broker.store.append import ENTRY
from lockstep.broker.store.errors import StoreCorruptError

FORMAT = 1
LOST_SIZE = -1


def lost_entry(position: int) -> bytes:
    """The consume-queue entry of a message that was lost at or behind a log position."""
    return ENTRY.pack(position, LOST_SIZE, 0)


@dataclass(frozen=True, slots=True)
class KnownDamage:
    """The damage of the log that was on record at one time."""

    stretches: dict[int, int]
    state_from: int

    @classmethod
    def of(cls, table: "DamageTable") -> "KnownDamage":
        return cls(dict(table.stretches), table.state_from)

    def new_in(self, table: "DamageTable") -> list[int]:
        """Return where the damaged ranges begin that the table has in addition, in log order."""
        return [begin for begin, end in sorted(table.stretches.items()) if self.stretches.get(begin) != end]


class DamageTable:
    """Pure: stretches by position, lost offsets by queue."""

    def __init__(self) -> None:
        self.stretches: dict[int, int] = {}
        """Begin → end."""
        self.reasons: dict[int, str] = {}
        self._lost: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self.state_from = 0
        """What the state was before this log position has been given up."""
        self.changed = False
        """Since the last `encode`."""

    @property
    def byte_count(self) -> int:
        return self.byte_count_of(self.stretches)

    def byte_count_of(self, begins: Iterable[int]) -> int:
        """Bytes of the stretches that begin there, each counted once."""
        return sum(end - begin for begin, end in _joined(sorted((begin, self.stretches[begin]) for begin in begins)))

    @property
    def message_count(self) -> int:
        """Messages that consumers can't be given, of those that retention has not removed since."""
        return sum(end - first for ranges in self._lost.values() for first, end in ranges)

    def lost(self) -> list[tuple[str, int, int, int]]:
        """(topic, queue id, first offset, end) of each range."""
        return [(topic, queue_id, first, end) for (topic, queue_id), ranges in self._lost.items() for first, end in ranges]

    def add_stretch(self, begin: int, end: int, reason: str) -> None:
        """[begin, end) of the log holds no good record."""
        if end <= begin or self.stretches.get(begin, begin) >= end:
            return
        self.stretches[begin] = end
        self.reasons[begin] = reason
        self.changed = True

    def add_lost(self, topic: str, queue_id: int, first: int, end: int) -> int:
        """Counts offsets in; how many of them are new."""
        if end <= first:
            return 0
        before = self.message_count
        ranges = sorted([*self._lost.get((topic, queue_id), []), (first, end)])
        self._lost[topic, queue_id] = _joined(ranges)
        added = self.message_count - before
        self.changed = self.changed or added > 0
        return added

    def give_up_state(self, position: int) -> None:
        """No snapshot holds what the state was before `position`, and the operator goes on without it."""
        self.changed = self.changed or position != self.state_from
        self.state_from = position

    def is_lost(self, topic: str, queue_id: int, first: int, end: int) -> bool:
        """Whether all these offsets are on record as lost."""
        return any(low <= first and end <= high for low, high in self._lost.get((topic, queue_id), ()))

    def behind(self, topic: str, queue_id: int, offset: int) -> int:
        """The first offset from `offset` on that is not on record as lost."""
        return next((end for first, end in self._lost.get((topic, queue_id), ()) if first <= offset < end), offset)

    def unknown(self, topic: str, queue_id: int, first: int, end: int) -> list[tuple[int, int]]:
        """The parts of [first, end) that are not on record as lost."""
        left = []
        for low, high in self._lost.get((topic, queue_id), ()):
            if first < low:
                left.append((first, min(low, end)))
            first = max(first, high)
            if first >= end:
                break
        return [(low, high) for low, high in [*left, (first, end)] if low < high]

    def found_again(self, topic: str, queue_id: int, first: int, end: int) -> None:
        """These offsets have been read: they are not lost any more."""
        ranges = self._lost.get((topic, queue_id))
        if not ranges or not any(low < end and first < high for low, high in ranges):
            return
        left = [part for low, high in ranges for part in ((low, min(high, first)), (max(low, end), high)) if part[0] < part[1]]
        self._lost[topic, queue_id] = left
        self.changed = True

    def trim_log(self, log_start: int) -> None:
        """Forgets the damage below `log_start`; a stretch that reaches above begins there from now on."""
        for begin in [begin for begin in self.stretches if begin < log_start]:
            self.add_stretch(log_start, self.stretches.pop(begin), self.reasons.pop(begin, ""))
            self.changed = True

    def trim(self, log_start: int, minimum: Callable[[str, int], int]) -> None:
        """Forgets what retention has removed. `minimum` gives the first offset of a queue."""
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
        """The file's bytes."""
        self.changed = False
        log = [[begin, end, self.reasons.get(begin, "")] for begin, end in sorted(self.stretches.items())]
        queues = [list(row) for row in self.lost()]
        return json.dumps({"format": FORMAT, "state_from": self.state_from, "log": log, "queues": queues}, indent=1).encode()

    def restore(self, data: bytes, path: str) -> None:
        """Into an empty table. StoreCorruptError when the bytes are not what `encode` makes."""
        try:
            found = json.loads(data)
            if found["format"] != FORMAT:
                raise ValueError(f"format {found['format']}")
            self.state_from = int(found["state_from"])
            for begin, end, reason in found["log"]:
                self.add_stretch(int(begin), int(end), str(reason))
            for topic, queue_id, first, end in found["queues"]:
                self.add_lost(str(topic), int(queue_id), int(first), int(end))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            why = f"{path} is damaged ({error}): it lists damage that was found before"
            raise StoreCorruptError(
                f"{why}. Restore it, or remove it and start with --cut-corrupt: damage is then looked for again"
            ) from error
        self.changed = False


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted ranges, those that touch made one."""
    joined: list[tuple[int, int]] = []
    for first, end in ranges:
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return joined
