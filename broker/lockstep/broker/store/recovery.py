"""What a start does with what it finds.

1. The snapshot: the newest whose position still ends a record of the log; newer ones are removed (they are ahead of the log, and would be
   taken for true once the log has grown past them).
2. The log is read from there to the first bytes that are no good record. Below the synced length that is corruption and stops the start;
   behind it, it is the unfinished tail (pages reach the disk in any order): cut, with all that follows, and zero again.
3. Consume queues are cut back to the snapshot and built on from the log; one whose files are missing is built from the log's start.
4. What no sync is known to have covered is written again: after a failed sync into new files, after any other unclean stop in its place.
   What was read may be in memory alone, in pages that the kernel calls clean.

Nothing is confirmed by this: that takes the sync that follows.
"""

import asyncio
from dataclasses import dataclass, field

from lockstep.broker.store.commit_log import CommitLog, Segment
from lockstep.broker.store.config import StoreConfig
from lockstep.broker.store.directory import StoreDirectory
from lockstep.broker.store.errors import StoreCorrupt
from lockstep.broker.store.frame import ENTRY, ENTRY_BYTES, due_of
from lockstep.broker.store.queue_table import QueueTable
from lockstep.broker.store.results import Recovery, Replay
from lockstep.broker.store.scan import BadRecord, LogScan, ScanSink, StoredRecord, read_record
from lockstep.broker.store.snapshot import Snapshot, Snapshots
from lockstep.broker.store.stamps import Stamps
from lockstep.protocol.names import STATE_TOPIC
from lockstep.protocol.record import BLANK_MAGIC, SIZE_AND_MAGIC
from lockstep.protocol.sequence import FrameSequence
from lockstep.runtime.clock import Clock
from lockstep.runtime.log import get_logger

logger = get_logger("broker")

ZERO_CHUNK_BYTES = 1 << 20
TELL_MS = 5_000
"""How often a long recovery says how far it is."""
LOST = "lost"
"""In place of a boot id: no boot has this one, so the store counts as having forgotten something."""


@dataclass(slots=True)
class LogState:
    """What goes on from the recovered log."""

    stamps: Stamps = field(default_factory=Stamps)
    state_next: int = 0
    """Queue offset of the next state record."""
    last_record: int = -1
    """Log offset of the newest record; −1 while there is none."""


def entry_of(record: StoredRecord) -> bytes:
    """The record's consume-queue entry."""
    due_ms = due_of(record.topic, record.queue_id, record.store_ms)
    return ENTRY.pack(record.position, record.size, record.tag if due_ms is None else due_ms)


class _ReplaySink:
    """Hands good records on: entries to their queues, state and frames to the replay."""

    def __init__(self, queues: QueueTable, replay: Replay, state: LogState, dense: bool) -> None:
        self._queues = queues
        self._replay = replay
        self._state = state
        self._dense = dense
        """Every queue's next offset is known; without a snapshot the first record of a queue may have any."""

    def expected_offset(self, topic: str, queue_id: int) -> int | None:
        if topic == STATE_TOPIC:
            return self._state.state_next if self._dense or self._state.state_next else None
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return 0 if self._dense else None
        return queue.next

    def crc_before(self, first: StoredRecord, sequence: FrameSequence) -> int | None:
        return self._replay.crc_before(first.topic, first.queue_id, sequence, first.store_ms)

    def record(self, record: StoredRecord) -> None:
        self._state.stamps.seen(record.position, record.store_ms)
        if record.body is not None:
            self._state.state_next = record.queue_offset + 1
            self._replay.state(record.body)
            return
        if not record.queued:
            return
        queue = self._queues.get((record.topic, record.queue_id))
        if queue is None:
            queue = self._queues.obtain(record.topic, record.queue_id)
            queue.restore(record.queue_offset, record.queue_offset)
        queue.add(entry_of(record), 1)
        self._queues.added(queue, 1)
        self._queues.flush_full(queue)
        self._queues.flush_some()

    def frame(self, first: StoredRecord, sequence: FrameSequence) -> None:
        self._replay.frame(first.topic, first.queue_id, first.queue_offset, first.position, sequence, sequence.count, first.store_ms)


class _RebuildSink:
    """Fills consume queues whose files are missing, from the log's start up to the snapshot. Nothing else is touched."""

    def __init__(self, queues: QueueTable, missing: dict[tuple[str, int], int], minimum: dict[tuple[str, int], int]) -> None:
        self._queues = queues
        self._missing = missing
        """Queue → next offset by the snapshot."""
        self._minimum = minimum
        self._next: dict[tuple[str, int], int] = {}

    def expected_offset(self, topic: str, queue_id: int) -> int | None:
        return self._next.get((topic, queue_id))

    def crc_before(self, first: StoredRecord, sequence: FrameSequence) -> int | None:
        return None

    def record(self, record: StoredRecord) -> None:
        key = (record.topic, record.queue_id)
        if not record.queued or key not in self._missing:
            return
        self._next[key] = record.queue_offset + 1
        if record.queue_offset < self._minimum[key]:
            return
        queue = self._queues.obtain(*key)
        if queue.next != record.queue_offset:
            queue.restore(record.queue_offset, record.queue_offset)
        queue.add(entry_of(record), 1)
        self._queues.added(queue, 1)
        self._queues.flush_full(queue)
        self._queues.flush_some()

    def frame(self, first: StoredRecord, sequence: FrameSequence) -> None:
        pass


class Reading:
    """How far a start has read the log, for people and probes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told_ms = clock.monotonic_ms()
        self.position = 0

    async def at(self, position: int) -> None:
        """Others run meanwhile, the admin port among them."""
        self.position = position
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._told_ms >= TELL_MS:
            self._told_ms = now_ms
            logger.info("store.recovering", read_to=position)
        await asyncio.sleep(0)


class Recoverer:
    """One start's reading. `run` may wait for the disk, and lets others run now and then: nothing is served yet."""

    def __init__(
        self,
        config: StoreConfig,
        directory: StoreDirectory,
        log: CommitLog,
        queues: QueueTable,
        snapshots: Snapshots,
        *,
        reading: Reading,
        log_start: int,
        clean: bool,
    ) -> None:
        self._config = config
        self._directory = directory
        self._log = log
        self._queues = queues
        self._snapshots = snapshots
        self._reading = reading
        self._log_start = log_start
        """Where the log began when the store got its identity: from there on it holds all state."""
        self._clean = clean
        self.state = LogState()
        self._lost_synced = False
        self._unwanted: list[int] = []
        """Snapshots to remove once the log has turned out to be whole."""

    async def run(self, replay: Replay) -> Recovery:
        log = self._log
        snapshot = self._snapshot()
        start = log.start if snapshot is None else snapshot.position
        if snapshot is not None:
            self.state = LogState(Stamps(snapshot.store_ms, snapshot.falls), snapshot.state_next, snapshot.last_record)
            log.synced = max(log.synced, snapshot.position)
        await self._restore_queues(snapshot)
        if snapshot is not None:
            replay.snapshot(snapshot.plain)
        scan = LogScan(log, start, _ReplaySink(self._queues, replay, self.state, snapshot is not None or log.start == 0))
        await scan.run(self._reading.at)
        if scan.last_record >= 0:
            self.state.last_record = scan.last_record
        cut_bytes = self._cut(scan)
        self._queues.flush_all()
        for queue in self._queues:
            queue.find_min(self._queues.files, log.start)
        return Recovery(start, scan.end, cut_bytes, self._clean, self._lost_synced)

    # -- the snapshot ----------------------------------------------------------------------------

    def _snapshot(self) -> Snapshot | None:
        """The newest snapshot that the log still bears out; the next older one is counted in as well, the others are no longer wanted."""
        chosen: Snapshot | None = None
        for position in reversed(self._snapshots.positions()):
            snapshot = self._snapshots.load(position)
            if snapshot is None or not self._borne_out(snapshot):
                self._unwanted.append(position)
                continue
            self._unwanted += self._snapshots.keep(position, snapshot.needs_from)
            chosen = chosen or snapshot
        if chosen is None and self._log.start > self._log_start and not self._config.cut_corrupt:
            raise StoreCorrupt(
                f"no snapshot in {self._directory.own} fits the log, which begins at {self._log.start}: the state of groups and topics is "
                "lost. Restore lockstep/snapshot-*, or start with --cut-corrupt to go on without it",
                position=self._log.start,
            )
        return chosen

    def _borne_out(self, snapshot: Snapshot) -> bool:
        if snapshot.last_record < 0:
            return snapshot.position == self._log.start
        segment = self._log.segment_of(snapshot.last_record)
        if segment is None:
            return False
        behind = self._end_of_record(segment, snapshot.last_record)
        if behind == snapshot.position:
            return True
        if behind is None or snapshot.position != segment.end:
            return False
        size, magic = SIZE_AND_MAGIC.unpack(segment.file.pread(8, behind - segment.start))
        return bool(magic == BLANK_MAGIC and behind + size == segment.end)

    def _end_of_record(self, segment: Segment, position: int) -> int | None:
        head = segment.file.pread(4, position - segment.start)
        size = int.from_bytes(head, "big")
        if size > segment.end - position:
            return None
        try:
            read_record(segment.file.pread(size, position - segment.start), position, {})
        except BadRecord:
            return None
        return position + size

    # -- consume queues --------------------------------------------------------------------------

    async def _restore_queues(self, snapshot: Snapshot | None) -> None:
        files = self._queues.files
        known = {} if snapshot is None else {(topic, queue_id): (low, following) for topic, queue_id, low, following in snapshot.queues}
        missing: dict[tuple[str, int], int] = {}
        for key, (low, following) in known.items():
            queue = self._queues.obtain(*key)
            queue.restore(low, following)
            if low < following and not self._entries_there(key, following):
                missing[key] = following
            elif not self._clean:
                files.cut(queue, following * ENTRY_BYTES)
        if not self._clean or snapshot is None:
            for key in self._directory.queue_directories():
                if key not in known:
                    files.cut(self._queues.fresh(*key), 0)
        if missing and snapshot is not None:
            await self._rebuild(missing, snapshot.position)

    def _entries_there(self, key: tuple[str, int], following: int) -> bool:
        """The last entry below the snapshot names a record of the log; entries are written and synced in order."""
        at = (following - 1) * ENTRY_BYTES
        files = self._queues.files
        path = files.path(self._queues.obtain(*key), at)
        data = files.read(path, ENTRY_BYTES, at % files.file_bytes)
        position, size, _ = ENTRY.unpack(data) if len(data) == ENTRY_BYTES else (0, 0, 0)
        return bool(0 < size <= self._log.segments[-1].end - position)

    async def _rebuild(self, missing: dict[tuple[str, int], int], limit: int) -> None:
        minimum = {key: self._queues.obtain(*key).min for key in missing}
        for key in missing:
            queue = self._queues.obtain(*key)
            self._queues.files.cut(queue, 0)
            queue.restore(queue.min, queue.min)
        sink: ScanSink = _RebuildSink(self._queues, missing, minimum)
        scan = LogScan(self._log, self._log.start, sink, limit)
        await scan.run(self._reading.at)
        if scan.reason and not self._config.cut_corrupt:
            raise self._corrupt(scan)
        self._queues.flush_all()
        for key, following in missing.items():
            queue = self._queues.obtain(*key)
            if queue.next != following:
                queue.restore(following, following)

    # -- the tail --------------------------------------------------------------------------------

    def _corrupt(self, scan: LogScan) -> StoreCorrupt:
        return StoreCorrupt(
            f"log position {scan.end}: {scan.reason or 'nothing is there'}, and {self._log.synced} bytes had been synced. Restore the "
            "store, or start with --cut-corrupt to go on without everything from there on",
            position=scan.end,
        )

    def _cut(self, scan: LogScan) -> int:
        """Ends the log where the scan ended; how many bytes that were not zero went."""
        log, end = self._log, scan.end
        if end < log.synced:
            if not self._config.cut_corrupt:
                raise self._corrupt(scan)
            self._lost_synced = True
            # Should this start die before what follows from the loss is durable, the next one must still know of it.
            self._directory.mark_boot(LOST, "async")
            log.synced = end
            self._directory.save_synced(end)
        self._snapshots.remove(self._unwanted)
        clean = self._clean and not scan.reason
        cut_bytes = 0 if clean else self._bytes_behind(end)
        log.begin(end, clean=clean)
        if self._directory.sync_has_failed():
            log.replace_segments(log.synced, end)
            self._directory.mark_sync_failed(False)
        elif not self._clean:
            log.rewrite(log.synced, end)
        return cut_bytes

    def _bytes_behind(self, end: int) -> int:
        """Distance from `end` to the last byte that is not zero; a zero stretch of 1 MiB ends the search in each file."""
        last = end
        for segment in self._log.segments:
            at = max(end, segment.start)
            while at < segment.end:
                data = segment.file.pread(min(ZERO_CHUNK_BYTES, segment.end - at), at - segment.start)
                kept = data.rstrip(b"\0")
                if not kept:
                    break
                last = at + len(kept)
                at += len(data)
        return last - end
