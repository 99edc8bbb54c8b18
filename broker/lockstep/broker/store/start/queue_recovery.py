"""Brings the consume queues in line with the log at a start.

They are cut back to the snapshot and built on from the log. A queue with missing files, or files that disagree with the log, is written
again from the log's start.
"""

from bisect import bisect_right
from struct import Struct

from lockstep.broker.store.health.damage import LOST_SIZE, DamageTable, KnownDamage, lost_entry
from lockstep.broker.store.health.scrub import Scrub
from lockstep.broker.store.log.append import ENTRY, ENTRY_BYTES
from lockstep.broker.store.log.commit_log import CommitLog
from lockstep.broker.store.log.scan import WINDOW_BYTES, DamagedRange, LogScan, OnScanned, read_here
from lockstep.broker.store.queues.consume_queue import ConsumeQueue, names_place
from lockstep.broker.store.queues.queue_table import QueueTable, StoreQueueKey
from lockstep.broker.store.queues.rebuild import EntryRebuild
from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.broker.store.start.losses import Losses, LostRow
from lockstep.broker.store.start.snapshot import Snapshot
from lockstep.protocol.messages.record import MAGIC
from lockstep.runtime.logs.log import get_logger

logger = get_logger("broker")

SAMPLED_QUEUES_MAX = 1_024
"""The number of queues for which a start compares entries with the log; every read compares its own."""
SAMPLED_FILES_MAX = 64
"""The number of files of one queue for which a start compares the first and the last entry."""
RECORD_HEAD = Struct(">IIIi4xqq")
"""The beginning of a record: size, magic, body CRC, queue id, queue offset, physical offset."""

WrongQueue = tuple[ConsumeQueue, int]
"""A queue with entries below the snapshot that have to be written again, and its next offset at the snapshot."""


class QueueRecovery:
    """The consume queues of one start."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        directory: StoreDirectory,
        damage: DamageTable,
        known: KnownDamage,
        snapshot: Snapshot | None,
        *,
        clean: bool,
    ) -> None:
        """`known` is the damage that was on record before this start. `clean`: the store was closed in order, so its files have no entries
        beyond the snapshot.
        """
        self._log = log
        self._queues = queues
        self._directory = directory
        self._damage = damage
        self._known = known
        self._snapshot = snapshot
        self._log_began = 0 if snapshot is None else snapshot.log_start
        """Where the log began when the snapshot was taken: its queues have no entry that names a place below."""
        self._clean = clean

    def restore(self) -> list[WrongQueue]:
        """Restore the queues that the snapshot names. Return those whose entries below it are missing or disagree with the log."""
        files, snapshot = self._queues.files, self._snapshot
        known = {} if snapshot is None else {(topic, queue_id): (low, following) for topic, queue_id, low, following in snapshot.queues}
        wrong: list[WrongQueue] = []
        sampled = max(1, len(known) // SAMPLED_QUEUES_MAX)
        for number, (key, (low, following)) in enumerate(known.items()):
            queue = self._queues.get_or_create(*key)
            queue.restore(low, following)
            if low < following and not self._entries_agree(queue, low, following, sampled=number % sampled == 0):
                files.cut(queue, 0)
                wrong.append((queue, following))
            elif not self._clean:
                files.cut(queue, following * ENTRY_BYTES)
        if not self._clean or snapshot is None:
            for key in self._directory.queue_directories():
                if key not in known:
                    files.cut(self._queues.make_queue(*key), 0)
        return wrong

    def _entries_agree(self, queue: ConsumeQueue, low: int, following: int, *, sampled: bool) -> bool:
        """Return whether the first and the last entry below the snapshot exist and, of sampled queues, those at the edges of files name
        their records.
        """
        if not self._agrees(queue, following - 1, look=sampled):
            return False
        if not self._agrees(queue, low, look=sampled):
            first = min(self._queues.files.names(queue), default=0) // ENTRY_BYTES
            if not low < first < following or not self._removed(queue, first):
                return False
            low = first
        if not sampled:
            return True
        per_file = self._queues.files.file_bytes // ENTRY_BYTES
        firsts = range((low // per_file + 1) * per_file, following, per_file)
        edges = [index for first in firsts[:SAMPLED_FILES_MAX] for index in (first - 1, first)]
        return all(self._agrees(queue, index, look=True) for index in edges)

    def _removed(self, queue: ConsumeQueue, index: int) -> bool:
        """Return whether entry `index` names a record that retention has removed. Retention leaves the file with the last such entry of a
        queue, so the entries before it were removed in order.
        """
        position, size = self._entry(queue, index)
        return names_place(position, size) and self._log_began <= position < self._log.start

    def _entry(self, queue: ConsumeQueue, index: int) -> tuple[int, int]:
        """Return (log position, size) of entry `index`; zeros if the files do not have it."""
        data = self._queues.files.entries(queue.directory, index, 1)
        position, size, _ = ENTRY.unpack(data) if len(data) == ENTRY_BYTES else (0, 0, 0)
        return position, size

    def _agrees(self, queue: ConsumeQueue, index: int, *, look: bool) -> bool:
        """Return whether entry `index` may name a record and, with `look`, the head of that record is the right one. Below the log's start
        there is no record any more.
        """
        position, size = self._entry(queue, index)
        log = self._log
        if size == LOST_SIZE:
            return True
        segment = log.segment_of(position)
        if size <= 0 or position < self._log_began or position + size > (segment.end if segment is not None else log.start):
            return False
        if not look or segment is None:
            return True
        head = segment.file.pread(RECORD_HEAD.size, position - segment.start)
        if len(head) < RECORD_HEAD.size:
            return False
        stored_size, magic, _, queue_id, offset, physical = RECORD_HEAD.unpack(head)
        return bool((stored_size, magic, queue_id, offset, physical) == (size, MAGIC, queue.queue_id, index, position))

    def add_lost_ends(self, damaged: list[DamagedRange], end: int) -> list[LostRow]:
        """Give lost messages at the end of a queue the entries that they had, so that their offsets are not given again.

        Those are the messages on record, and those whose entries in the queue's files name a place in `damaged`, the damage that this
        start has found. Return the second ones. `end` is the end of the log.
        """
        for topic, queue_id, first, lost_end in self._damage.lost():
            queue = self._queues.get((topic, queue_id)) or self._queues.make_queue(topic, queue_id)
            if first <= queue.next < lost_end:
                self._add_lost(queue, lost_end - queue.next, end)
            elif queue.next < first:  # the log was cut before
                self._damage.remove_lost(topic, queue_id, first, lost_end)
        places = [damaged_range for damaged_range in damaged if damaged_range.followed and damaged_range.end <= end]
        keys = [*((queue.topic, queue.queue_id) for queue in self._queues), *self._directory.queue_directories()] if places else []
        rows: list[LostRow] = []
        for key in dict.fromkeys(keys):
            queue = self._queues.get(key) or self._queues.make_queue(*key)
            first = queue.next
            while (entry := self._entry(queue, queue.next))[1] > 0 and (at := _range_at(places, entry[0])) is not None:
                self._add_lost(queue, 1, at.begin)
            if first < queue.next:
                self._damage.add_lost(*key, first, queue.next)
                rows.append((*key, first, queue.next))
        return rows

    def _add_lost(self, queue: ConsumeQueue, count: int, position: int) -> None:
        """Append entries of lost messages to a queue, which may be one that is not in the table yet."""
        if self._queues.get((queue.topic, queue.queue_id)) is None:
            self._queues.add_queue(queue)
        queue.add_entries(lost_entry(position) * count, count)
        self._queues.entries_added(queue, count)

    async def compare_below(
        self, snapshot: Snapshot, wrong: list[WrongQueue], on_progress: OnScanned
    ) -> tuple[list[WrongQueue], list[LostRow]]:
        """Compare everything below the snapshot with the queues. Change the table of damage in memory, and no file.

        Return the queues with entries that have to be written again, and the messages that are lost.
        """
        log, files = self._log, self._queues.files
        following = {(topic, queue_id): next_ for topic, queue_id, low, next_ in snapshot.queues if low < next_}
        keys = [(queue.topic, queue.queue_id) for queue, _ in wrong]
        for key in following.keys() - set(keys):
            self._queues.get_or_create(*key).find_min(files, log.start)
        following = {key: next_ for key, next_ in following.items() if self._queues.get_or_create(*key).min < next_}
        report = Losses(self._queues, following, keys, self._damage, known=self._known.ranges, sure=log.start <= self._log_began)

        async def entries(key: StoreQueueKey, first: int, count: int) -> bytes:
            return files.entries(self._queues.get_or_create(*key).directory, first, count)

        scrub = Scrub(log, report, entries, self._damage.ranges)
        limit = snapshot.position
        await scrub.run(on_progress, limit=limit, complete_until=limit, read=read_here, window_bytes=WINDOW_BYTES)
        return [(queue, following[queue.topic, queue.queue_id]) for queue in report.rewrite], report.rows

    async def rebuild(self, wrong: list[WrongQueue], limit: int, on_progress: OnScanned) -> None:
        """Write the entries of these queues below `limit`, the snapshot's position, again from the log."""
        if not wrong:
            return
        logger.warning("queues.rebuilding", count=len(wrong), why="their entries are missing or disagree with the log")
        sink = EntryRebuild(self._queues.files, whole=True)
        for queue, following in wrong:
            # The entries of records after the snapshot are in memory.
            begins_lost = self._damage.is_lost(queue.topic, queue.queue_id, queue.min, queue.min + 1)
            sink.add_range(queue, queue.min, following, keeps_first=begins_lost)
        scan = LogScan(self._log, self._log.start, sink, limit, known=self._damage.ranges, runs=sink)
        await scan.run(on_progress)
        sink.finish(scan.end)


def _range_at(ranges: list[DamagedRange], position: int) -> DamagedRange | None:
    """Return the range that holds the position; None if there is none. The ranges are in log order."""
    number = bisect_right(ranges, position, key=lambda damaged_range: damaged_range.begin)
    return ranges[number - 1] if number and position < ranges[number - 1].end else None
