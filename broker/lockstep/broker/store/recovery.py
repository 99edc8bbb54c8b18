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
import json
from bisect import bisect_right
from dataclasses import dataclass, field
from enum import Enum
from operator import ne
from struct import Struct

from lockstep.broker.store.append import ENTRY, ENTRY_BYTES
from lockstep.broker.store.commit_log import CommitLog, Segment
from lockstep.broker.store.config import StoreConfig
from lockstep.broker.store.consume_queue import ConsumeQueue, names_place
from lockstep.broker.store.damage import LOST_SIZE, DamageTable, lost_entry
from lockstep.broker.store.directory import StoreDirectory
from lockstep.broker.store.errors import StoreCorruptError
from lockstep.broker.store.losses import Losses, LostRow
from lockstep.broker.store.queue_table import QueueKey, QueueTable
from lockstep.broker.store.rebuild import EntryRebuild, entry_of
from lockstep.broker.store.results import Recovery, Replay
from lockstep.broker.store.scan import NOTHING, WINDOW_BYTES, BadRecordError, DamagedRange, LogScan, StoredRecord, read_here, read_record
from lockstep.broker.store.scrub import Scrub
from lockstep.broker.store.snapshot import Snapshot, Snapshots
from lockstep.broker.store.store_clock import StoreClock
from lockstep.broker.store.survey import LogSurvey
from lockstep.protocol.names import STATE_TOPIC
from lockstep.protocol.record import BLANK_MAGIC, BODY_AT, MAGIC, SIZE_AND_MAGIC
from lockstep.protocol.sequence import FrameSequence
from lockstep.runtime.clock import Clock
from lockstep.runtime.log import get_logger

logger = get_logger("broker")

ZERO_CHUNK_BYTES = 1 << 20
TELL_MS = 5_000
"""How often a long recovery says how far it is."""
HELD_ENTRIES_MAX = 8_000_000
"""Entries that a start keeps in memory, 160 MB, before it begins to write consume queues although it has not read the whole log."""
SAMPLED_QUEUES_MAX = 1_024
"""Queues of which a start compares entries with the log; every read compares its own."""
SAMPLED_FILES_MAX = 64
"""Files of one queue whose first and last entry are compared."""
ROTTEN_BYTES_MAX = 4
"""Bytes of a record's head that may differ from what a snapshot names while it counts as the same record, damaged. Another log's record
differs at least in its store time and the CRC of its body.
"""
TOLD_MAX = 20
"""Ranges of lost offsets in one line of the log; the manifest has all."""
NAMED = Struct(">IIIi4xqq")
"""Of a record: size, magic, body CRC, queue id, queue offset, physical offset."""
QUEUE_OFFSET_AT = 20
LOST = "lost"
"""In place of a boot id: no boot has this one, so the store counts as having forgotten something."""


@dataclass(slots=True)
class LogState:
    """What goes on from the recovered log."""

    stamps: StoreClock = field(default_factory=StoreClock)
    state_next: int = 0
    """Queue offset of the next state record."""
    last_record: int = -1
    """Log offset of the newest record; −1 while there is none."""


class _ReplaySink:
    """Hands good records on: entries to their queues, state and frames to the replay. No file is written while entries fit in memory."""

    def __init__(self, queues: QueueTable, replay: Replay, state: LogState, damage: DamageTable, *, dense: bool, skips: bool) -> None:
        self._queues = queues
        self._replay = replay
        self._state = state
        self._damage = damage
        self._dense = dense
        """Every queue's next offset is known; without a snapshot the first record of a queue may have any."""
        self._skips = skips
        """Damage is passed over instead of ending the scan."""
        self._lost_at = 0
        self.stretches: list[DamagedRange] = []
        """Damage that was not known before."""
        self.lost: list[LostRow] = []
        """Messages that were not known to be lost."""

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
        stamps = self._state.stamps
        if record.body is not None:
            self._state.state_next = record.queue_offset + 1
            own = stamps.read(record.position, record.body)
            stamps.seen(record.position, record.store_ms)
            if not own:
                self._replay.state(record.body)
            return
        stamps.seen(record.position, record.store_ms)
        if not record.queued:
            return
        queue = self._queues.get((record.topic, record.queue_id))
        if queue is None:
            queue = self._queues.obtain(record.topic, record.queue_id)
            first = 0 if self._dense else record.queue_offset
            queue.restore(first, first)
        if missing := record.queue_offset - queue.next:
            for first, end in self._damage.unknown(record.topic, record.queue_id, queue.next, record.queue_offset):
                self._damage.add_lost(record.topic, record.queue_id, first, end)
                self.lost.append((record.topic, record.queue_id, first, end))
            queue.add(lost_entry(self._lost_at) * missing, missing)
            self._queues.added(queue, missing)
        queue.add(entry_of(record), 1)
        self._queues.added(queue, 1)
        if self._queues.waiting_count > HELD_ENTRIES_MAX:
            self._queues.files.release()
            self._queues.flush_all()

    def frame(self, first: StoredRecord, sequence: FrameSequence) -> None:
        self._replay.frame(first.topic, first.queue_id, first.queue_offset, first.position, sequence, sequence.count, first.store_ms)

    def damaged(self, stretch: DamagedRange) -> bool:
        self._lost_at = stretch.begin
        if not stretch.known:
            self.stretches.append(stretch)
        return self._skips


class RecoveryProgress:
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


class _NullSink:
    """Takes everything; the queue offsets have to be dense."""

    def __init__(self) -> None:
        self._next: dict[tuple[str, int], int] = {}
        self.state_position: int | None = None
        """Of the first state record."""

    def expected_offset(self, topic: str, queue_id: int) -> int | None:
        return self._next.get((topic, queue_id))

    def crc_before(self, first: StoredRecord, sequence: FrameSequence) -> int | None:
        return None

    def record(self, record: StoredRecord) -> None:
        if record.queued:
            self._next[record.topic, record.queue_id] = record.queue_offset + 1
        if record.body is not None and self.state_position is None:
            self.state_position = record.position

    def frame(self, first: StoredRecord, sequence: FrameSequence) -> None:
        pass

    def damaged(self, stretch: DamagedRange) -> bool:
        return False


async def read_whole(log: CommitLog, survey: LogSurvey) -> None:
    """Reads a log that another program made to its end. StoreCorruptError, with the place, when it has anything that is no record of
    ours."""
    log.load(survey)
    try:
        sink = _NullSink()
        scan = LogScan(log, log.start, sink)
        await scan.run(_breathe)
        if sink.state_position is not None:
            raise StoreCorruptError(
                f"log position {sink.state_position}: the state of a lockstep broker. The log is such a broker's, and the directory "
                "lockstep with its identity and snapshots is missing: restore it. Nothing was changed",
                position=sink.state_position,
            )
        for segment in log.segments:
            at = max(scan.end, segment.start)
            while at < segment.end:
                data = segment.file.pread(min(ZERO_CHUNK_BYTES, segment.end - at), at - segment.start)
                if data.count(0) != len(data):
                    why = scan.reason or f"zeros, and other bytes before {at + len(data)}"
                    raise StoreCorruptError(
                        f"log position {scan.end} in {segment.path}: {why}. The directory has no lockstep/identity, so another program "
                        "made it, and its log can't be read to the end. If that program was killed, let it start and stop once. "
                        "Nothing was changed",
                        position=scan.end,
                    )
                at += len(data)
    finally:
        log.close()


async def _breathe(_position: int) -> None:
    await asyncio.sleep(0)


class SnapshotEvidence(Enum):
    """What the log says of a snapshot."""

    OUT = "a record ends at its position"
    AHEAD = "the log does not reach it"
    PASSED = "the log begins behind the record before its position"
    DAMAGED = "the record before its position can't be read"
    CHANGED = "the record there is not what it was"
    OTHER = "another record stands there, or none ends where one did"


def borne_out(log: CommitLog, damage: DamageTable, snapshot: Snapshot) -> SnapshotEvidence:
    """What the log says of a snapshot."""
    if snapshot.last_record < 0 and snapshot.position == log.start:
        return SnapshotEvidence.OUT
    if max(snapshot.last_record, 0) < log.start:
        return SnapshotEvidence.PASSED
    if snapshot.last_record < 0:
        return SnapshotEvidence.OTHER
    if damage.stretches.get(snapshot.last_record, -1) >= snapshot.position:
        return SnapshotEvidence.OUT
    segment = log.segment_of(snapshot.last_record)
    if segment is None:
        return SnapshotEvidence.AHEAD
    data = _record_at(segment, snapshot.last_record)
    if data is None:
        return SnapshotEvidence.DAMAGED
    behind = snapshot.last_record + len(data)
    if behind == snapshot.position:
        differing = 0 if snapshot.last_head is None else sum(map(ne, data[:BODY_AT], snapshot.last_head))
        return (
            SnapshotEvidence.OUT if not differing else SnapshotEvidence.CHANGED if differing <= ROTTEN_BYTES_MAX else SnapshotEvidence.OTHER
        )
    if snapshot.position != segment.end:
        return SnapshotEvidence.OTHER
    head = segment.file.pread(8, behind - segment.start)
    size, magic = SIZE_AND_MAGIC.unpack(head) if len(head) == 8 else (0, 0)
    return SnapshotEvidence.OUT if magic == BLANK_MAGIC and behind + size == segment.end else SnapshotEvidence.DAMAGED


def _record_at(segment: Segment, position: int) -> bytes | None:
    """The good record at `position`; None when there is none."""
    size = int.from_bytes(segment.file.pread(4, position - segment.start), "big")
    if size > segment.end - position:
        return None
    data = segment.file.pread(size, position - segment.start)
    try:
        read_record(data, position, {})
    except BadRecordError:
        return None
    return data


def _place_in(stretches: list[DamagedRange], position: int) -> DamagedRange | None:
    """The stretch that holds the position; None when there is none."""
    number = bisect_right(stretches, position, key=lambda stretch: stretch.begin)
    return stretches[number - 1] if number and position < stretches[number - 1].end else None


def count_of(lost: list[LostRow]) -> int:
    """Messages in these ranges."""
    return sum(end - first for _, _, first, end in lost)


class Recoverer:
    """One start's reading. `run` may wait for the disk, and lets others run now and then: nothing is served yet.

    Until `_judge` and `_judge_below` have returned nothing is changed but memory.
    """

    def __init__(
        self,
        config: StoreConfig,
        directory: StoreDirectory,
        log: CommitLog,
        queues: QueueTable,
        snapshots: Snapshots,
        damage: DamageTable,
        *,
        reading: RecoveryProgress,
        log_start: int,
        clean: bool,
    ) -> None:
        self._config = config
        self._directory = directory
        self._log = log
        self._queues = queues
        self._snapshots = snapshots
        self._damage = damage
        self._reading = reading
        self._log_start = log_start
        """Where the log began when the store got its identity: from there on it holds all state."""
        self._clean = clean
        self.state = LogState()
        self._known = dict(damage.stretches)
        """Damage that was known before this start."""
        self._known_state_from = damage.state_from
        self._unwanted: list[int] = []
        """Snapshots to remove once the log has turned out to be whole."""
        self.changed = False
        """Files have been changed, or are about to be: not so for a store that was stopped in order and has all that its snapshot names."""
        self._suspect: tuple[Snapshot, SnapshotEvidence] | None = None
        """A snapshot from below the synced length that the log does not bear out."""
        self._began = 0
        """Where the log began when the snapshot was taken: its queues have no entry that names a place below."""

    async def run(self, replay: Replay) -> Recovery:
        log, files = self._log, self._queues.files
        files.hold()
        synced = log.synced
        snapshot = self._snapshot()
        start = log.start if snapshot is None else snapshot.position
        if snapshot is not None:
            self.state = LogState(snapshot.stamps(), snapshot.state_next, snapshot.last_record)
            log.synced = max(log.synced, snapshot.position)
        wrong = self._restore_queues(snapshot)
        if snapshot is not None:
            replay.snapshot(snapshot.plain)
        dense = snapshot is not None or log.start == 0
        sink = _ReplaySink(self._queues, replay, self.state, self._damage, dense=dense, skips=self._config.cut_corrupt)
        scan = LogScan(log, start, sink, solid=log.synced, known=self._damage.stretches)
        await scan.run(self._reading.at)
        if scan.last_record >= 0:
            self.state.last_record = scan.last_record
        self._judge(scan, sink)
        # A topic that was deleted since has nothing below the snapshot any more, whatever its files hold.
        needed = [(queue, following) for queue, following in wrong if queue.min < following]
        lost = sink.lost
        if snapshot is not None and (needed or log.lacking or self._suspect is not None):
            needed, rows = await self._look_below(snapshot, needed)
            self._judge_below(rows)
            lost = rows + lost
        for stretch in sink.stretches:
            if stretch.followed:
                self._damage.add_stretch(stretch.begin, stretch.end, stretch.reason)
        lost = self._not_deleted([*lost, *self._lost_ends(sink, scan.end)])
        given_up = self._damage.state_from != self._known_state_from
        lost_synced = bool(scan.end < log.synced or sink.stretches or lost or self._damage.stretches != self._known or given_up)
        self.changed = bool(wrong or scan.reason or lost_synced or scan.end != start or self._unwanted or log.lacking)
        cut_bytes = self._cut(scan, lost if lost_synced else None)
        files.release()
        if snapshot is not None:
            await self._rebuild(needed, snapshot.position)
        self._queues.flush_all()
        for queue in self._queues:
            queue.find_min(files, log.start)
        self._damage.trim(log.start, self._minimum)
        if self._damage.changed:
            self._directory.save_damage(self._damage.encode())
        if self._directory.read_start() != log.start:
            self._directory.save_start(log.start)
        if log.synced < synced:
            self._directory.save_synced(log.synced)
        return Recovery(start, scan.end, cut_bytes, self._clean, lost_synced, count_of(lost))

    def _minimum(self, topic: str, queue_id: int) -> int:
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.min

    def _not_deleted(self, lost: list[LostRow]) -> list[LostRow]:
        """The parts of these ranges that no deletion of their topic has hidden."""
        rows = [(topic, queue_id, max(first, self._minimum(topic, queue_id)), end) for topic, queue_id, first, end in lost]
        return [row for row in rows if row[2] < row[3]]

    # -- the snapshot ----------------------------------------------------------------------------

    def _snapshot(self) -> Snapshot | None:
        """The newest snapshot that the log still bears out; the next older one is counted in as well, the others are no longer wanted."""
        chosen: Snapshot | None = None
        for position in reversed(self._directory.snapshot_positions()):
            snapshot = self._snapshots.load(position)
            if snapshot is None:
                logger.warning("snapshot.damaged", position=position, then="an older one and the log behind it are read instead")
                self._unwanted.append(position)
                continue
            borne = self._borne_out(snapshot)
            if (
                borne is not SnapshotEvidence.OUT
                and position <= self._log.synced
                and not (borne is SnapshotEvidence.PASSED and chosen is not None)
            ):
                # It was written when the log was durable up to it, and nothing below that has been cut since.
                self._suspect = self._suspect or (snapshot, borne)
                if borne in (SnapshotEvidence.DAMAGED, SnapshotEvidence.CHANGED) and self._config.cut_corrupt:
                    self._damage.add_stretch(snapshot.last_record, position, "the record before a snapshot can't be read")
                    borne = SnapshotEvidence.OUT
            if borne is not SnapshotEvidence.OUT:
                self._unwanted.append(position)
                continue
            self._unwanted += [left for left in self._snapshots.keep(position, snapshot.needs_from) if left not in self._unwanted]
            chosen = chosen or snapshot
        if chosen is None and self._log.start > max(self._log_start, self._damage.state_from):
            if self._config.cut_corrupt:
                self._damage.give_up_state(self._log.start)
                return None
            raise StoreCorruptError(
                f"no snapshot in {self._directory.own} fits the log, which begins at {self._log.start}: the state of groups and topics is "
                "lost. Restore lockstep/snapshot-*, or start with --cut-corrupt to go on without it",
                position=self._log.start,
            )
        return chosen

    def _borne_out(self, snapshot: Snapshot) -> SnapshotEvidence:
        return borne_out(self._log, self._damage, snapshot)

    # -- consume queues --------------------------------------------------------------------------

    def _restore_queues(self, snapshot: Snapshot | None) -> list[tuple[ConsumeQueue, int]]:
        """What the snapshot says of the queues; those whose entries below it are missing or disagree with the log, with its next offset."""
        files = self._queues.files
        known = {} if snapshot is None else {(topic, queue_id): (low, following) for topic, queue_id, low, following in snapshot.queues}
        self._began = 0 if snapshot is None else snapshot.log_start or 0
        wrong: list[tuple[ConsumeQueue, int]] = []
        sampled = max(1, len(known) // SAMPLED_QUEUES_MAX)
        for number, (key, (low, following)) in enumerate(known.items()):
            queue = self._queues.obtain(*key)
            queue.restore(low, following)
            if low < following and not self._entries_agree(queue, low, following, sampled=number % sampled == 0):
                files.cut(queue, 0)
                wrong.append((queue, following))
            elif not self._clean:
                files.cut(queue, following * ENTRY_BYTES)
        if not self._clean or snapshot is None:
            for key in self._directory.queue_directories():
                if key not in known:
                    files.cut(self._queues.fresh(*key), 0)
        return wrong

    def _entries_agree(self, queue: ConsumeQueue, low: int, following: int, *, sampled: bool) -> bool:
        """The first and the last entry below the snapshot are there; of sampled queues, those at the edges of files name their records."""
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
        """Whether entry `index` names a record that retention has removed. It leaves the file with the last such entry of a queue, so the
        entries before it were removed in order.
        """
        position, size = self._entry(queue, index)
        return names_place(position, size) and self._began <= position < self._log.start

    def _entry(self, queue: ConsumeQueue, index: int) -> tuple[int, int]:
        """(log position, size) of entry `index`; zeros when the files do not have it."""
        data = self._queues.files.entries(queue.directory, index, 1)
        position, size, _ = ENTRY.unpack(data) if len(data) == ENTRY_BYTES else (0, 0, 0)
        return position, size

    def _agrees(self, queue: ConsumeQueue, index: int, *, look: bool) -> bool:
        """`look`: at the head of the record that the entry names. Below the log's start there is none any more."""
        position, size = self._entry(queue, index)
        log = self._log
        if size == LOST_SIZE:
            return True
        segment = log.segment_of(position)
        if size <= 0 or position < self._began or position + size > (segment.end if segment is not None else log.start):
            return False
        if not look or segment is None:
            return True
        head = segment.file.pread(QUEUE_OFFSET_AT + 16, position - segment.start)
        if len(head) < QUEUE_OFFSET_AT + 16:
            return False
        stored_size, magic, _, queue_id, offset, physical = NAMED.unpack(head)
        return bool((stored_size, magic, queue_id, offset, physical) == (size, MAGIC, queue.queue_id, index, position))

    def _lost_ends(self, sink: _ReplaySink, end: int) -> list[LostRow]:
        """Gives lost messages behind which their queue has none the place that they had: their offsets are not given again.

        Those that are on record, and those whose entries in the queue's files name a place that turned out to be damaged. The second ones
        are returned.
        """
        for topic, queue_id, first, behind in self._damage.lost():
            queue = self._queues.get((topic, queue_id)) or self._queues.fresh(topic, queue_id)
            if first <= queue.next < behind:
                self._add_lost(queue, behind - queue.next, end)
            elif queue.next < first:  # the log was cut before
                self._damage.found_again(topic, queue_id, first, behind)
        places = [stretch for stretch in sink.stretches if stretch.followed and stretch.end <= end]
        keys = [*((queue.topic, queue.queue_id) for queue in self._queues), *self._directory.queue_directories()] if places else []
        rows: list[LostRow] = []
        for key in dict.fromkeys(keys):
            queue = self._queues.get(key) or self._queues.fresh(*key)
            first = queue.next
            while (entry := self._entry(queue, queue.next))[1] > 0 and (at := _place_in(places, entry[0])) is not None:
                self._add_lost(queue, 1, at.begin)
            if first < queue.next:
                self._damage.add_lost(*key, first, queue.next)
                rows.append((*key, first, queue.next))
        return rows

    def _add_lost(self, queue: ConsumeQueue, count: int, position: int) -> None:
        """Appends entries of lost messages to a queue, which may be one that is not in the table yet."""
        if self._queues.get((queue.topic, queue.queue_id)) is None:
            self._queues.adopt(queue)
        queue.add(lost_entry(position) * count, count)
        self._queues.added(queue, count)

    async def _look_below(
        self, snapshot: Snapshot, wrong: list[tuple[ConsumeQueue, int]]
    ) -> tuple[list[tuple[ConsumeQueue, int]], list[LostRow]]:
        """Compares everything below the snapshot with the queues; changes the table of damage in memory, and no file.

        Returns the queues whose entries have to be written again, with their next offsets at the snapshot, and the messages that are lost.
        """
        log, files = self._log, self._queues.files
        following = {(topic, queue_id): behind for topic, queue_id, low, behind in snapshot.queues if low < behind}
        keys = [(queue.topic, queue.queue_id) for queue, _ in wrong]
        for key in following.keys() - set(keys):
            self._queues.obtain(*key).find_min(files, log.start)
        following = {key: behind for key, behind in following.items() if self._queues.obtain(*key).min < behind}
        report = Losses(self._queues, following, keys, self._damage, known=self._known, sure=log.start <= self._began)

        async def entries(key: QueueKey, first: int, count: int) -> bytes:
            return files.entries(self._queues.obtain(*key).directory, first, count)

        scrub = Scrub(log, report, entries, self._damage.stretches)
        limit = snapshot.position
        await scrub.run(self._reading.at, limit=limit, solid=limit, read=read_here, window_bytes=WINDOW_BYTES)
        return [(queue, following[queue.topic, queue.queue_id]) for queue in report.rewrite], report.rows

    async def _rebuild(self, wrong: list[tuple[ConsumeQueue, int]], limit: int) -> None:
        """Writes the entries of these queues below `limit`, the log position at which they had these next offsets, again from the log."""
        if not wrong:
            return
        logger.warning("queues.rebuilding", count=len(wrong), why="their entries are missing or disagree with the log")
        sink = EntryRebuild(self._queues.files, whole=True)
        for queue, following in wrong:
            # What was read behind the snapshot is in memory.
            begins_lost = self._damage.is_lost(queue.topic, queue.queue_id, queue.min, queue.min + 1)
            sink.add(queue, queue.min, following, keeps_first=begins_lost)
        scan = LogScan(self._log, self._log.start, sink, limit, known=self._damage.stretches)
        await scan.run(self._reading.at)
        sink.finish(scan.end)

    # -- the tail --------------------------------------------------------------------------------

    def _corrupt(self, position: int, reason: str) -> StoreCorruptError:
        return StoreCorruptError(
            f"log position {position}: {reason}, and {self._log.synced} bytes had been synced. Restore the store, or start "
            "with --cut-corrupt to go on without what is damaged; nothing was changed",
            position=position,
        )

    def _judge_below(self, lost: list[LostRow]) -> None:
        """Raises StoreCorruptError when the log below the snapshot is not what was written, unless damage may be passed over."""
        if self._config.cut_corrupt:
            return
        new = [begin for begin, end in self._damage.stretches.items() if self._known.get(begin) != end]
        if new:
            raise self._corrupt(min(new), self._damage.reasons[min(new)])
        if lost:
            topic, queue_id, first, _ = lost[0]
            raise self._corrupt(self._log.start, f"offset {first} of queue {queue_id} of {topic} has no record there or behind")

    def _judge(self, scan: LogScan, sink: _ReplaySink) -> None:
        """Raises StoreCorruptError when the log is not what was written, unless damage may be passed over. Nothing has been changed
        then."""
        if scan.end < self._log.synced and not self._config.cut_corrupt:
            raise self._corrupt(scan.end, scan.reason or NOTHING)
        if (
            self._suspect is not None
            and not sink.stretches
            and (self._suspect[1] is SnapshotEvidence.OTHER or not self._config.cut_corrupt)
        ):
            snapshot, borne = self._suspect
            path = f"{self._directory.own}/snapshot-{snapshot.position:020d}"
            raise StoreCorruptError(
                f"log position {snapshot.last_record}: {borne.value}, and {path} was taken when a record began there and ended at "
                f"{snapshot.position}: the log is another broker's, or an older copy. Put the right files into commitlog; nothing was "
                "changed",
                position=snapshot.last_record,
            )

    def _cut(self, scan: LogScan, lost: list[LostRow] | None) -> int:
        """Ends the log where the scan ended; how many bytes that were not zero went. `lost`: messages that this start goes on without;
        None when nothing that was synced is lost."""
        log, end, aside = self._log, scan.end, None
        clean = self._clean and not scan.reason
        cut_bytes = 0 if clean else self._bytes_behind(end)
        if lost is not None:
            aside = self._set_aside(end, lost, cut_bytes if end < log.synced else 0)
            # Should this start die before what follows from the loss is durable, the next one must still know of it.
            self._directory.mark_boot(LOST, "async")
            self._directory.save_damage(self._damage.encode())
            if end < log.synced:
                log.synced = end
                self._directory.save_synced(end)
        self._snapshots.remove(self._unwanted, aside)
        self._snapshots.removed(self._unwanted)
        log.begin(end, clean=clean, aside=aside)
        if self._directory.sync_has_failed():
            log.replace_segments(log.synced, end)
            self._directory.mark_sync_failed(False)
        elif not self._clean:
            log.rewrite(log.synced, end)
        return cut_bytes

    def _set_aside(self, end: int, lost: list[LostRow], cut_bytes: int) -> str:
        """Copies what will be cut, writes down what is lost, and logs it; the directory."""
        aside = self._directory.set_aside()
        if cut_bytes:
            self._log.copy(end, end + cut_bytes, f"{aside}/{end:020d}")
        damage = self._damage
        new = [begin for begin, stop in sorted(damage.stretches.items()) if self._known.get(begin) != stop]
        skipped = [[begin, damage.stretches[begin], damage.reasons.get(begin, "")] for begin in new]
        state_from = None if damage.state_from == self._known_state_from else damage.state_from
        facts: dict[str, object] = {"skipped": skipped, "cut_from": end if cut_bytes else None, "cut_bytes": cut_bytes}
        facts |= {"state_lost_before": state_from, "lost_messages": count_of(lost)}
        self._directory.replace(f"{aside}/manifest.json", json.dumps({**facts, "lost_offsets": lost}, indent=1).encode())
        logger.error(
            "store.set_aside",
            directory=aside,
            skipped_bytes=damage.byte_count_of(new),
            skipped_stretches=len(new),
            cut_bytes=cut_bytes,
            state_lost_before=state_from,
            lost_messages=count_of(lost),
            lost_queues=len({(topic, queue_id) for topic, queue_id, _, _ in lost}),
            lost_offsets=[f"{topic}:{queue_id} {first}..{behind - 1}" for topic, queue_id, first, behind in lost[:TOLD_MAX]],
        )
        return aside

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
