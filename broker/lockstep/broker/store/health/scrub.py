"""Compare a whole log with itself and with the consume queues. `lockstep store check` and the background scrub share this part.

Every record is read with the scan of scan.py. After each window, the entries of its records are compared with the files of the queues.
Nothing is changed here: findings go to a ScrubReport.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from lockstep.broker.store.log.append import ENTRY, ENTRY_BYTES
from lockstep.broker.store.log.commit_log import CommitLog
from lockstep.broker.store.log.scan import DamagedRange, LogScan, ReadAt
from lockstep.broker.store.log.scan_run import ScannedRun
from lockstep.broker.store.log.stored_record import ScopeKey, StoredRecord
from lockstep.broker.store.queues.queue_table import StoreQueueKey
from lockstep.broker.store.queues.rebuild import entry_of
from lockstep.protocol.messages.sequence import FrameSequence
from lockstep.protocol.names import STATE_TOPIC
from lockstep.runtime.metrics import Slices

ReadEntries = Callable[[StoreQueueKey, int, int], Awaitable[bytes]]
"""(queue, first index, count) → entries, as far as the file that holds the first one has them."""


class ScrubReport(Protocol):
    """Receives the findings of a scrub."""

    def damaged(self, damaged_range: DamagedRange) -> None:
        """Receive bytes without a good record, also known ones."""
        ...

    def lost(self, key: StoreQueueKey, first: int, end: int, position: int) -> None:
        """Receive queue offsets that must have a record, but none was found."""
        ...

    def wrong_entries(self, key: StoreQueueKey, first: int, count: int) -> None:
        """Receive entries that do not name the records with these offsets."""
        ...

    def expected(self, key: StoreQueueKey) -> tuple[int, int]:
        """Return [low, high) of the entries that the queue's files must have."""
        ...

    def queues(self) -> Iterable[StoreQueueKey]:
        """Return the queues that are known to have, or to have had, messages."""
        ...

    def knows(self, key: StoreQueueKey) -> bool:
        """Return whether the queue is among `queues`."""
        ...

    def first(self, key: StoreQueueKey) -> int | None:
        """Return the first offset that must have a record, or None if that is the first record found."""
        ...

    async def end(self, key: StoreQueueKey, seen: int) -> int:
        """Return the end of the messages that must be in the part read. All records below `seen` were found, or reported as lost."""
        ...


@dataclass(slots=True)
class _Run:
    """Adjacent entries that the files must have."""

    key: StoreQueueKey
    first: int
    entries: bytearray = field(default_factory=bytearray)


class Scrub:
    """One pass over [start, limit) of a log, and the ScanSink of its scan. Call `run` once."""

    def __init__(self, log: CommitLog, report: ScrubReport, read_entries: ReadEntries, known: Mapping[int, int]) -> None:
        self._log = log
        self._report = report
        self._read_entries = read_entries
        self._known = known
        self._next: dict[StoreQueueKey, int] = {}
        self._runs: list[_Run] = []
        """Entries since the last comparison."""
        self._open: dict[StoreQueueKey, _Run] = {}
        """The last run of each queue."""
        self._unproved: dict[StoreQueueKey, StoredRecord] = {}
        """The first record of a queue, if its offset is not the one with which the queue begins. No CRC covers the offset, so the next
        record of the queue must confirm it. Otherwise one flipped bit would make all following records damage.
        """
        self._missing_max = 0
        """Highest number of records that the ranges so far can have contained."""
        self._lost_at = 0
        self.record_count = 0
        self.end = 0
        """Where the good log ends."""
        self.reason = ""

    async def run(
        self,
        on_progress: Callable[[int], Awaitable[None]],
        *,
        limit: int | None,
        complete_until: int,
        read: ReadAt,
        window_bytes: int,
        keep_until: int = 0,
    ) -> None:
        """Run the scan. Await `on_progress(position)` after each window. LogScan describes the other arguments."""
        known = self._known
        scan = LogScan(
            self._log,
            self._log.start,
            self,
            limit,
            complete_until=complete_until,
            known=known,
            read=read,
            window_bytes=window_bytes,
            keep_until=keep_until,
            on_overtaken=self._overtaken,
            runs=self,
        )

        async def compare(position: int) -> None:
            await self._compare()
            await on_progress(position)

        await scan.run(compare)
        await self._compare()
        self.end, self.reason = scan.end, scan.reason
        await self._look_behind()

    async def _look_behind(self) -> None:
        """Report the messages that are missing after the last record of each queue, and those of queues without any record."""
        slices = Slices()
        for key, record in self._unproved.items():
            await slices.step()
            first, offset = self._report.first(key), record.queue_offset
            if first is None or record.body is not None or offset < max(first + self._missing_max + 1, await self._report.end(key, first)):
                self._count(record)
            else:
                self._misplaced(record, f"the queue begins with {first} and has no record after this one")
        for key in list(self._report.queues()):
            await slices.step()
            seen = self._next.get(key, self._report.first(key))
            if seen is not None and seen < (end := await self._report.end(key, seen)):
                self._report.lost(key, seen, end, self._lost_at)

    def _overtaken(self) -> None:
        """Forget the next offset of each queue: retention has removed records that this pass has not read."""
        self._next.clear()
        self._open.clear()
        self._unproved.clear()

    async def _compare(self) -> None:
        runs, self._runs, self._open = self._runs, [], {}
        for run in runs:
            low, high = self._report.expected(run.key)
            index, end = max(run.first, low), min(run.first + len(run.entries) // ENTRY_BYTES, high)
            while index < end:
                found = await self._read_entries(run.key, index, end - index)
                count = len(found) // ENTRY_BYTES
                if not count:
                    self._report.wrong_entries(run.key, index, end - index)
                    break
                at = (index - run.first) * ENTRY_BYTES
                wrong = [
                    number
                    for number in range(count if found != run.entries[at : at + len(found)] else 0)
                    if found[number * ENTRY_BYTES :][:ENTRY_BYTES] != run.entries[at + number * ENTRY_BYTES :][:ENTRY_BYTES]
                ]
                if wrong:
                    self._report.wrong_entries(run.key, index + wrong[0], len(wrong))
                index += count

    # -- the scan's sink -------------------------------------------------------------------------

    def expected_offset(self, topic: str, queue_id: int) -> int | None:
        """Return the next offset, also for the first record of an unknown queue: its topic or queue id may be damaged."""
        key = topic, queue_id
        if key in self._unproved:
            return None
        expected = self._next.get(key)
        if expected is None and topic != STATE_TOPIC and not self._report.knows(key):
            expected = self._report.first(key)
        return expected

    def crc_before(self, scope: ScopeKey, epoch: int, first: int, store_ms: int) -> int | None:
        return None

    def scopes_fit(self, count: int) -> bool:
        return True

    def record(self, record: StoredRecord) -> None:
        self.record_count += 1
        if not record.queued:
            return
        key, offset = (record.topic, record.queue_id), record.queue_offset
        self._prove(key, offset)
        if self._begins_elsewhere(key, offset):
            self._unproved[key] = record
        else:
            self._count(record)

    def take_run(self, run: ScannedRun) -> None:
        for topic, queue_id, first, count, entries in run.queues:
            self.record_count += count
            key = topic, queue_id
            self._prove(key, first)
            if count == 1 and self._begins_elsewhere(key, first):
                position, size, tag = ENTRY.unpack(entries)
                self._unproved[key] = StoredRecord(topic, queue_id, first, position, size, tag, run.first_ms, True, None, None)
            else:
                self._count_entries(key, first, entries)

    def _prove(self, key: StoreQueueKey, offset: int) -> None:
        """Count the record before, if it was not sure to have the right queue offset, or report it."""
        before = self._unproved.pop(key, None)
        if before is None:
            return
        if 0 < offset - before.queue_offset <= 1 + self._missing_max:
            self._count(before)
        else:
            self._misplaced(before, f"the next record has {offset}")

    def _begins_elsewhere(self, key: StoreQueueKey, offset: int) -> bool:
        return key not in self._next and self._report.first(key) not in (None, offset)

    def _count(self, record: StoredRecord) -> None:
        """Count a good record: its entry has to name it."""
        key = record.topic, record.queue_id
        if record.body is not None:
            self._next[key] = record.queue_offset + 1  # the broker's own state has no consume queue
        else:
            self._count_entries(key, record.queue_offset, entry_of(record))

    def _count_entries(self, key: StoreQueueKey, offset: int, entries: bytes) -> None:
        """Count good records of one queue, from `offset` on, which have these entries."""
        following = self._next.get(key, self._report.first(key))
        self._next[key] = offset + len(entries) // ENTRY_BYTES
        if following is None:
            following = offset
        if offset > following:
            self._report.lost(key, following, offset, self._lost_at)
        run = self._open.get(key)
        if run is None or offset > following:  # entries of lost messages are not compared
            run = self._open[key] = _Run(key, offset)
            self._runs.append(run)
        run.entries += entries

    def frame(self, first: StoredRecord, sequence: FrameSequence) -> None:
        pass

    def _misplaced(self, record: StoredRecord, why: str) -> None:
        """Report that the record's queue offset is damaged."""
        reason = f"queue offset {record.queue_offset} of {record.topic} {record.queue_id}, and {why}"
        self.damaged(DamagedRange(record.position, record.position + record.size, reason))

    def damaged(self, damaged_range: DamagedRange) -> bool:
        self._lost_at = damaged_range.begin
        self._missing_max += damaged_range.records_max
        self._report.damaged(damaged_range)
        return True
