"""Gives a start its state back: entries of good records go to their queues, state records and frames to the broker's tables."""

from dataclasses import dataclass, field
from typing import Protocol

from lockstep.broker.store.health.damage import DamageTable, lost_entry
from lockstep.broker.store.log.scan import DamagedRange
from lockstep.broker.store.log.scan_run import ScannedRun
from lockstep.broker.store.log.store_clock import StoreClock
from lockstep.broker.store.log.stored_record import CopyPlace, Ended, FirstPlace, FrameEnd, ScopeKey, StoredRecord, frame_row
from lockstep.broker.store.log.waiting_records import ROOMS
from lockstep.broker.store.queues.consume_queue import ConsumeQueue
from lockstep.broker.store.queues.queue_table import QueueTable
from lockstep.broker.store.queues.rebuild import entry_of
from lockstep.broker.store.start.losses import LostRow
from lockstep.protocol.messages.sequence import FrameSequence
from lockstep.protocol.names import STATE_TOPIC

HELD_ENTRIES_MAX = 8_000_000
"""Entries that a start keeps in memory, 160 MB, before it begins to write consume queues although it has not read the whole log."""


class StateReplay(Protocol):
    """Takes the state back at a start: first the snapshot, then the log after it, in log order.

    `replay_state` may call `Store.drop_topic` and `Store.hide_below`: the messages that the topic had up to that record stay hidden.
    """

    def replay_snapshot(self, plain: object) -> None:
        """Take what `write_snapshot` was given. Called at most once, and first."""
        ...

    def replay_state(self, body: bytes) -> None:
        """Take a state record."""
        ...

    def crc_before(self, scope: ScopeKey, epoch: int, first: int, store_ms: int) -> int | None:
        """Return the running CRC before sequence `first` of this epoch, by the frames and the snapshot so far, or None if it is not known.

        `store_ms` is the time of the frame that begins there.
        """
        ...

    def frame(self, scope: ScopeKey, end: FrameEnd, place: FirstPlace) -> None:
        """Take a whole frame of an idempotent producer. If `scopes_fit`, one that another of its scope follows may be left out."""
        ...

    def ended(self, ended: Ended, place: CopyPlace) -> None:
        """Take a copy that ends the wait of a message, and the place of the copy."""
        ...

    def waits(self, topic: str, offset: int, dues: list[int], era: int, first: int | None = None) -> None:
        """Take messages in a waiting room from `offset` on, due by these codes. `era`: that of their stamps (StoreClock.era).

        `first`: the one message was stored at this offset at first, and was stored again.
        """
        ...

    def scopes_fit(self, count: int) -> bool:
        """Return whether frames of `count` more scopes would not make it forget any scope: only the last frame of each matters then."""
        ...


@dataclass(slots=True)
class LogState:
    """The position of a store in the log that a start has read."""

    stamps: StoreClock = field(default_factory=StoreClock)
    state_next: int = 0
    """Queue offset of the next state record."""
    last_record: int = -1
    """Log offset of the newest record; −1 while there is none."""


class ReplaySink:
    """Takes the good records of a scan. No file is written while their entries fit in memory."""

    def __init__(self, queues: QueueTable, replay: StateReplay, state: LogState, damage: DamageTable, *, dense: bool, skips: bool) -> None:
        self._queues = queues
        self._replay = replay
        self._state = state
        self._damage = damage
        self._dense = dense
        """Every queue's next offset is known; without a snapshot the first record of a queue may have any."""
        self._skips = skips
        """Damage is passed over instead of ending the scan."""
        self._lost_at = 0
        self.ranges: list[DamagedRange] = []
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

    def crc_before(self, scope: ScopeKey, epoch: int, first: int, store_ms: int) -> int | None:
        return self._replay.crc_before(scope, epoch, first, store_ms)

    def record(self, record: StoredRecord) -> None:
        stamps = self._state.stamps
        if record.body is not None:
            self._state.state_next = record.queue_offset + 1
            own = stamps.read_clock_record(record.position, record.body)
            stamps.record_stamp(record.position, record.store_ms)
            if not own:
                self._replay.replay_state(record.body)
            return
        stamps.record_stamp(record.position, record.store_ms)
        if not record.queued:
            return
        queue = self._queue(record.topic, record.queue_id, record.queue_offset)
        if missing := record.queue_offset - queue.next:
            for first, end in self._damage.not_lost_ranges(record.topic, record.queue_id, queue.next, record.queue_offset):
                self._damage.add_lost(record.topic, record.queue_id, first, end)
                self.lost.append((record.topic, record.queue_id, first, end))
            queue.add_entries(lost_entry(self._lost_at) * missing, missing)
            self._queues.entries_added(queue, missing)
        queue.add_entries(entry_of(record), 1)
        self._queues.entries_added(queue, 1)
        if record.ends is not None:
            self._replay.ended(record.ends, record.place)
        if record.due is not None and record.topic in ROOMS:
            self._replay.waits(record.topic, record.queue_offset, [record.due], stamps.era, record.first)
        self._write_if_many()

    def scopes_fit(self, count: int) -> bool:
        return self._replay.scopes_fit(count)

    def take_run(self, run: ScannedRun) -> None:
        self._state.stamps.record_stamp(run.position, run.first_ms)
        self._state.stamps.record_stamp(run.last_record, run.last_ms)
        for topic, queue_id, first, count, entries in run.queues:
            queue = self._queue(topic, queue_id, first)
            queue.add_entries(entries, count)
            self._queues.entries_added(queue, count)
        for row in run.frames:
            self._replay.frame(*row)
        self._write_if_many()

    def _queue(self, topic: str, queue_id: int, offset: int) -> ConsumeQueue:
        """Return the queue to which the message with this offset is to be added."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._queues.get_or_create(topic, queue_id)
            first = 0 if self._dense else offset
            queue.restore(first, first)
        return queue

    def _write_if_many(self) -> None:
        if self._queues.waiting_count > HELD_ENTRIES_MAX:
            self._queues.files.apply_postponed()
            self._queues.flush_all()

    def frame(self, first: StoredRecord, sequence: FrameSequence) -> None:
        self._replay.frame(*frame_row(first, sequence))

    def damaged(self, damaged_range: DamagedRange) -> bool:
        self._lost_at = damaged_range.begin
        if not damaged_range.known:
            self.ranges.append(damaged_range)
        return self._skips
