"""Writing consume-queue entries again from the log: of queues whose files are missing or disagree with it.

A start does so for whole queues; a running store for the entries between two that are right (repair.py). What the log no longer has of the
range is written as lost (damage.py).
"""

from dataclasses import dataclass, field

from lockstep.broker.store.append import ENTRY, ENTRY_BYTES, due_of
from lockstep.broker.store.consume_queue import ConsumeQueue, QueueFiles
from lockstep.broker.store.damage import lost_entry
from lockstep.broker.store.scan import DamagedRange, StoredRecord
from lockstep.protocol.sequence import FrameSequence

WRITE_BYTES = 64_000
"""Entries of one queue that are written at once."""
WAITING_BYTES_MAX = 64 << 20
"""Entries of all queues that wait to be written."""
FILL_COUNT_MAX = 3_200
"""Entries of lost messages made at once."""


def entry_of(record: StoredRecord) -> bytes:
    """The record's consume-queue entry."""
    due_ms = due_of(record.topic, record.queue_id, record.store_ms)
    return ENTRY.pack(record.position, record.size, record.tag if due_ms is None else due_ms)


@dataclass(slots=True)
class _Range:
    """Entries [next, end) of one queue are still to come."""

    queue: ConsumeQueue
    next: int
    end: int
    waiting: bytearray = field(default_factory=bytearray)
    """Entries up to `next` that are not written yet."""
    fills: bool = False
    """What is missing next gets entries of lost messages. Otherwise retention has removed it."""


class EntryRebuild:
    """A ScanSink that fills ranges of queues, and moves the minimum of a queue whose first entries are gone with the log's beginning."""

    def __init__(self, files: QueueFiles, *, whole: bool) -> None:
        self._files = files
        self._next: dict[tuple[str, int], int] | None = {} if whole else None
        """Of a scan from the log's beginning: queue → next offset. A scan of a part does not know what comes first."""
        self._ranges: dict[tuple[str, int], _Range] = {}
        self._waiting_bytes = 0
        """Of all ranges."""
        self._lost_at: int | None = None
        """Where the last stretch began."""
        self.stretches: list[DamagedRange] = []
        self.lost: list[tuple[str, int, int, int]] = []
        """(topic, queue id, first, end) of entries that the log no longer has."""
        self.count = 0
        """Entries written that name a record."""

    def add(self, queue: ConsumeQueue, first: int, end: int, *, keeps_first: bool = False) -> None:
        """Entries [first, end) are to be written. `keeps_first`: the queue goes on to begin where it does, and what the log does not have
        is lost; otherwise what is missing before its first record was removed by retention.
        """
        self._ranges[queue.topic, queue.queue_id] = _Range(queue, first, end, fills=keeps_first)

    def expected_offset(self, topic: str, queue_id: int) -> int | None:
        return None if self._next is None else self._next.get((topic, queue_id))

    def crc_before(self, first: StoredRecord, sequence: FrameSequence) -> int | None:
        return None

    def record(self, record: StoredRecord) -> None:
        if not record.queued:
            return
        if self._next is not None:
            self._next[record.topic, record.queue_id] = record.queue_offset + 1
        wanted = self._ranges.get((record.topic, record.queue_id))
        if wanted is None or not wanted.next <= record.queue_offset < wanted.end:
            return
        if record.queue_offset > wanted.next:
            self._lose(wanted, record.queue_offset, record.position)
        wanted.fills = True
        self._add(wanted, entry_of(record), 1)
        self.count += 1

    def frame(self, first: StoredRecord, sequence: FrameSequence) -> None:
        pass

    def damaged(self, stretch: DamagedRange) -> bool:
        self._lost_at = stretch.begin
        if not stretch.known:
            self.stretches.append(stretch)
        return True

    def finish(self, position: int) -> None:
        """The scan has ended at `position`: what has not come by now is lost."""
        for wanted in self._ranges.values():
            if wanted.next < wanted.end:
                self._lose(wanted, wanted.end, position)
            self._write(wanted)

    def _lose(self, wanted: _Range, end: int, position: int) -> None:
        queue, position = wanted.queue, position if self._lost_at is None else self._lost_at
        if not wanted.fills:
            wanted.next = queue.min = end
            return
        self.lost.append((queue.topic, queue.queue_id, wanted.next, end))
        while wanted.next < end:
            count = min(FILL_COUNT_MAX, end - wanted.next)
            self._add(wanted, lost_entry(position) * count, count)

    def _add(self, wanted: _Range, entries: bytes, count: int) -> None:
        wanted.waiting += entries
        wanted.next += count
        self._waiting_bytes += len(entries)
        if len(wanted.waiting) >= WRITE_BYTES:
            self._write(wanted)
        elif self._waiting_bytes > WAITING_BYTES_MAX:
            for each in self._ranges.values():
                self._write(each)

    def _write(self, wanted: _Range) -> None:
        first = wanted.next - len(wanted.waiting) // ENTRY_BYTES
        skip = max(0, wanted.queue.min - first)  # retention has passed it meanwhile
        if len(wanted.waiting) > skip * ENTRY_BYTES:
            data = bytes(wanted.waiting[skip * ENTRY_BYTES :])
            self._files.write(wanted.queue, (first + skip) * ENTRY_BYTES, data)
            wanted.queue.rewrite(first + skip, data)
        self._waiting_bytes -= len(wanted.waiting)
        wanted.waiting.clear()
