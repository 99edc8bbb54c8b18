"""Reads a log that another program has written whole, before a store takes it over (RocketMQ: the same format)."""

from collections.abc import Callable
from dataclasses import dataclass, field

from lockstep.broker.store.errors import StoreCorruptError
from lockstep.broker.store.log.commit_log import CommitLog
from lockstep.broker.store.log.scan import DamagedRange, LogScan, OnScanned
from lockstep.broker.store.log.stored_record import ScopeKey, StoredRecord
from lockstep.broker.store.log.waiting_records import ROOMS
from lockstep.broker.store.start.survey import LogSurvey
from lockstep.protocol.messages.properties import decode_properties
from lockstep.protocol.messages.record import RecordView
from lockstep.protocol.messages.sequence import FrameSequence
from lockstep.protocol.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

CHUNK_BYTES = 1 << 20
MARKED_COUNT_PER_TURN = 64
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
TIMER_DUE = "TIMER_OUT_MS"
"""The property of a message in TIMER_TOPIC: when it is due."""
OnState = Callable[[int, bytes], None]
"""Called with the position and the body of a state record."""
OnWaiting = Callable[[StoredRecord], None]
NEVER_MS = (1 << 63) - 1


@dataclass(slots=True)
class QueueExtent:
    """The messages of one queue that the log holds."""

    first: int
    end: int
    """The offset of the next message."""


@dataclass(slots=True)
class ForeignLog:
    """What a log contains."""

    start: int = 0
    end: int = 0
    record_count: int = 0
    oldest_ms: int = 0
    """When the first record was stored."""
    state_position: int | None = None
    """Log position of the first state record of a lockstep broker; None if there is none."""
    queues: dict[tuple[str, int], QueueExtent] = field(default_factory=dict)
    half_offsets: list[int] = field(default_factory=list)
    """Queue offsets of the half messages of transactions that RocketMQ's broker has stored."""
    ended_halves: set[int] = field(default_factory=set)
    """Those of them that were committed or rolled back."""
    last_delayed: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Queue id of the delay → (queue offset, position, store time) of its last message."""
    timers_ms: list[int] = field(default_factory=list)
    """When the messages of RocketMQ's timer are due."""

    topics: dict[str, dict[int, QueueExtent]] = field(default_factory=dict)
    """Topic → queue id → its messages, in order: `queues` after the whole log has been read."""

    def end_offset(self, topic: str, queue_id: int) -> int:
        extent = self.queues.get((topic, queue_id))
        return 0 if extent is None else extent.end

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        extent = self.queues.get((topic, queue_id))
        return (0, 0) if extent is None else (extent.first, extent.end)

    def delayed_count(self, delivered: dict[int, int]) -> int:
        """Return the number of messages that wait for their delay. `delivered`: queue id → offset of the next one to deliver."""
        return sum(
            extent.end - max(extent.first, delivered.get(queue_id, 0))
            for queue_id, extent in self.topics.get(SCHEDULE_TOPIC, {}).items()
            if extent.end > delivered.get(queue_id, 0)
        )


async def read_whole(
    log: CommitLog,
    survey: LogSurvey,
    on_progress: OnScanned,
    *,
    own: bool = False,
    on_state: OnState | None = None,
    on_waiting: OnWaiting | None = None,
) -> ForeignLog:
    """Read the log to its end and close it. Raise StoreCorruptError, with the position, unless all of it is records and then zeros.

    `own`: the directory is a store of lockstep, so its state may be in the log. `on_state` is called for each of its records,
    `on_waiting` for each message in a waiting room and for each copy that ends a wait.
    """
    log.load(survey)
    try:
        found = ForeignLog(start=log.start)
        # Frames are not checked: RocketMQ copies a message with the property that begins a frame.
        sink = _ForeignSink(found, on_state, on_waiting)
        scan = LogScan(log, log.start, sink, frames=False)
        await scan.run(on_progress)
        found.end = scan.end
        for (topic, queue_id), extent in sorted(found.queues.items()):
            found.topics.setdefault(topic, {})[queue_id] = extent
        for number, (position, size) in enumerate(sink.marked):
            _read_marked(log, position, size, found)
            if number % MARKED_COUNT_PER_TURN == 0:
                await on_progress(scan.end)
        if found.state_position is not None and not own:
            raise StoreCorruptError(
                f"log position {found.state_position}: the state of a lockstep broker. The log is such a broker's, and the directory "
                "lockstep with its identity and snapshots is missing: restore it. Nothing was changed",
                position=found.state_position,
            )
        for segment in log.segments:
            at = max(scan.end, segment.start)
            while at < segment.end:
                data = segment.file.pread(min(CHUNK_BYTES, segment.end - at), at - segment.start)
                if data.count(0) != len(data):
                    why = scan.reason or f"zeros, and other bytes before {at + len(data)}"
                    raise StoreCorruptError(
                        f"log position {scan.end} in {segment.path}: {why}. Another program made it, and its log can't be read to the end. "
                        "Let that program start and stop once if it was killed; what this version does not read has to be consumed there. "
                        "Nothing was changed",
                        position=scan.end,
                    )
                at += len(data)
                await on_progress(scan.end)
        return found
    finally:
        log.close()


def _read_marked(log: CommitLog, position: int, size: int, found: ForeignLog) -> None:
    """Read the end of transactions, or the time of a timer's message, from a record."""
    segment = log.segment_of(position)
    assert segment is not None, position
    record = RecordView(segment.file.pread(size, position - segment.start))
    if record.topic.decode() == OP_TOPIC:  # its body names the prepared messages: "7" or "7,8,12,"
        found.ended_halves.update(int(number) for number in record.body.decode("ascii", "replace").split(",") if number.isdecimal())
        return
    due = decode_properties(record.properties).get(TIMER_DUE, "")
    found.timers_ms.append(int(due) if due.isdecimal() else NEVER_MS)


class _ForeignSink:
    """Takes every record; only the queue offsets have to be dense."""

    def __init__(self, found: ForeignLog, on_state: OnState | None, on_waiting: OnWaiting | None) -> None:
        self._on_waiting = on_waiting
        self._found = found
        self._on_state = on_state
        self.marked: list[tuple[int, int]] = []
        """(position, size) of the records that `_read_marked` reads."""

    def expected_offset(self, topic: str, queue_id: int) -> int | None:
        extent = self._found.queues.get((topic, queue_id))
        return None if extent is None else extent.end

    def crc_before(self, scope: ScopeKey, epoch: int, first: int, store_ms: int) -> int | None:
        return None

    def record(self, record: StoredRecord) -> None:
        found = self._found
        if not found.record_count:
            found.oldest_ms = record.store_ms
        found.record_count += 1
        if record.body is not None:
            if found.state_position is None:
                found.state_position = record.position
            if self._on_state is not None:
                self._on_state(record.position, record.body)
        if self._on_waiting is not None and (record.ends is not None or record.topic in ROOMS):
            self._on_waiting(record)
        if not record.queued:
            return
        key = record.topic, record.queue_id
        extent = found.queues.get(key)
        if extent is None:
            extent = found.queues[key] = QueueExtent(record.queue_offset, record.queue_offset)
        extent.end = record.queue_offset + 1
        if record.topic == SCHEDULE_TOPIC:
            found.last_delayed[record.queue_id] = record.queue_offset, record.position, record.store_ms
        elif record.topic == HALF_TOPIC and record.due is None:
            found.half_offsets.append(record.queue_offset)
        elif record.topic == OP_TOPIC or (record.topic == TIMER_TOPIC and record.due is None):
            self.marked.append((record.position, record.size))

    def frame(self, first: StoredRecord, sequence: FrameSequence) -> None:
        pass

    def damaged(self, damaged_range: DamagedRange) -> bool:
        return False
