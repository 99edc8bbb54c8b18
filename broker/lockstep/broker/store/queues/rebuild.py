"""Write consume-queue entries again from the log, if the files of a queue are missing or disagree with it.

A start does so for whole queues, a running store for the entries between two correct ones (repair.py). Messages of the range that the log
no longer has are written as lost (damage.py).
"""

from dataclasses import dataclass, field

from lockstep.broker.store.health.damage import lost_entry
from lockstep.broker.store.log.append import ENTRY, ENTRY_BYTES
from lockstep.broker.store.log.scan import DamagedRange
from lockstep.broker.store.log.scan_run import ScannedRun
from lockstep.broker.store.log.stored_record import ScopeKey, StoredRecord
from lockstep.broker.store.queues.consume_queue import ConsumeQueue, QueueFiles
from lockstep.protocol.messages.sequence import FrameSequence

WRITE_BYTES = 64_000
"""Bytes of entries of one queue that are written at once."""
WAITING_BYTES_MAX = 64 << 20
"""Bytes of entries of all queues that may wait to be written."""
FILL_COUNT_MAX = 3_200
"""Number of entries of lost messages that are made at once."""


def entry_of(record: StoredRecord) -> bytes:
    """Return the record's consume-queue entry."""
    return ENTRY.pack(record.position, record.size, record.tag if record.due is None else record.due)


@dataclass(slots=True)
class _Range:
    """The entries [next, end) of one queue that are still missing."""

    queue: ConsumeQueue
    next: int
    end: int
    waiting: bytearray = field(default_factory=bytearray)
    """Entries up to `next` that are not written yet."""
    fills: bool = False
    """Whether the next missing ones get entries of lost messages. Otherwise retention has removed them."""


class EntryRebuild:
    """A ScanSink that fills ranges of queues. Raises the minimum of a queue if its first entries were removed with old segments."""

    def __init__(self, files: QueueFiles, *, whole: bool) -> None:
        self._files = files
        self._next: dict[tuple[str, int], int] | None = {} if whole else None
        """Queue → next offset, for a scan from the log's beginning. A scan of a part can't know which offset comes first."""
        self._ranges: dict[tuple[str, int], _Range] = {}
        self._waiting_bytes = 0
        """Bytes of all ranges."""
        self._lost_at: int | None = None
        """Where the last damaged range began."""
        self.ranges: list[DamagedRange] = []
        self.lost: list[tuple[str, int, int, int]] = []
        """(topic, queue id, first, end) of entries that the log no longer has."""
        self.count = 0
        """Number of written entries that name a record."""

    def add_range(self, queue: ConsumeQueue, first: int, end: int, *, keeps_first: bool = False) -> None:
        """Add the entries [first, end) to be written.

        With `keeps_first` the queue's beginning does not change, and messages that the log does not have are lost. Otherwise retention has
        removed those before its first record.
        """
        self._ranges[queue.topic, queue.queue_id] = _Range(queue, first, end, fills=keeps_first)

    def expected_offset(self, topic: str, queue_id: int) -> int | None:
        return None if self._next is None else self._next.get((topic, queue_id))

    def crc_before(self, scope: ScopeKey, epoch: int, first: int, store_ms: int) -> int | None:
        return None

    def record(self, record: StoredRecord) -> None:
        if not record.queued:
            return
        if self._next is not None:
            self._next[record.topic, record.queue_id] = record.queue_offset + 1
        self._fill(record.topic, record.queue_id, record.queue_offset, entry_of(record))

    def scopes_fit(self, count: int) -> bool:
        return True

    def take_run(self, run: ScannedRun) -> None:
        for topic, queue_id, first, count, entries in run.queues:
            if self._next is not None:
                self._next[topic, queue_id] = first + count
            self._fill(topic, queue_id, first, entries)

    def _fill(self, topic: str, queue_id: int, first: int, entries: bytes) -> None:
        """Write those of these entries of a queue, from `first` on, that are missing."""
        wanted = self._ranges.get((topic, queue_id))
        if wanted is None:
            return
        low, high = max(first, wanted.next), min(first + len(entries) // ENTRY_BYTES, wanted.end)
        if low >= high:
            return
        found = entries[(low - first) * ENTRY_BYTES : (high - first) * ENTRY_BYTES]
        if low > wanted.next:
            self._lose(wanted, low, ENTRY.unpack_from(found)[0])
        wanted.fills = True
        self._add_entries(wanted, found, high - low)
        self.count += high - low

    def frame(self, first: StoredRecord, sequence: FrameSequence) -> None:
        pass

    def damaged(self, damaged_range: DamagedRange) -> bool:
        self._lost_at = damaged_range.begin
        if not damaged_range.known:
            self.ranges.append(damaged_range)
        return True

    def finish(self, position: int) -> None:
        """Note that the scan has ended at `position`: entries that are still missing are lost."""
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
            self._add_entries(wanted, lost_entry(position) * count, count)

    def _add_entries(self, wanted: _Range, entries: bytes, count: int) -> None:
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
        skip = max(0, wanted.queue.min - first)  # retention has removed them since
        if len(wanted.waiting) > skip * ENTRY_BYTES:
            data = bytes(wanted.waiting[skip * ENTRY_BYTES :])
            self._files.write(wanted.queue, (first + skip) * ENTRY_BYTES, data)
            wanted.queue.rewrite(first + skip, data)
        self._waiting_bytes -= len(wanted.waiting)
        wanted.waiting.clear()
