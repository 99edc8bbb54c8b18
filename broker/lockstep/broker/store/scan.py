"""Reading the log record by record, trusting nothing. Used at start; nothing here changes a file."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from lockstep.broker.store.commit_log import BLANK_BYTES, CommitLog
from lockstep.broker.store.frame import TAGS, tag_code
from lockstep.protocol.crc import crc32
from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError
from lockstep.protocol.names import STATE_TOPIC, check_topic
from lockstep.protocol.record import (
    BLANK_MAGIC,
    BODY_AT,
    CRC_MASK,
    HEAD,
    MAGIC,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    SYS_IPV6_MASK,
    SYS_TRANSACTION_MASK,
    zero_broker_fields,
)
from lockstep.protocol.sequence import STAMP_HEAD, FrameSequence, crc_digits_at, find_sequence, frame_crc

WINDOW_BYTES = 1 << 20
"""Read at once. A record that is longer is read whole."""
Breathe = Callable[[int], Awaitable[None]]
"""Told the log offset that a long reading has come to; others run meanwhile."""
PREPARED = 0x4
ROLLED_BACK = 0xC


@dataclass(slots=True)
class StoredRecord:
    """One good record of the log."""

    topic: str
    queue_id: int
    queue_offset: int
    position: int
    size: int
    tag: int
    store_ms: int
    queued: bool
    """It has a place in its queue (a prepared or rolled-back transaction message of Apache's has none)."""
    sequence: FrameSequence | None
    body: bytes | None
    """Of state records."""


class ScanSink(Protocol):
    """Takes what a scan found good, in log order; the records of an idempotent frame only once the whole frame is good."""

    def expected_offset(self, topic: str, queue_id: int) -> int | None:
        """The queue offset that the next record must have; None where any will do."""
        ...

    def crc_before(self, first: StoredRecord, sequence: FrameSequence) -> int | None:
        """The running CRC that this frame of a scope not met yet goes on from; None where nobody knows it."""
        ...

    def record(self, record: StoredRecord) -> None: ...

    def frame(self, first: StoredRecord, sequence: FrameSequence) -> None:
        """A whole idempotent frame, after its records."""
        ...


class _OpenFrame:
    """An idempotent frame whose records are still coming."""

    __slots__ = ("data", "first", "records", "sequence")

    def __init__(self, first: StoredRecord, sequence: FrameSequence) -> None:
        self.first = first
        self.sequence = sequence
        self.records: list[StoredRecord] = []
        self.data = bytearray()


class BadRecord(Exception):
    """Why the bytes at a position are no record."""


class LogScan:
    """Reads from a position to the first bytes that are no good record, or to `limit`.

    After `run`: `end` is where the good log ends, `reason` why ("" for zeros, the files' end or the limit).
    """

    def __init__(self, log: CommitLog, position: int, sink: ScanSink, limit: int | None = None) -> None:
        self._log = log
        self._sink = sink
        self._limit = limit
        self._window = b""
        self._window_start = position
        self._frame: _OpenFrame | None = None
        self._scopes: dict[tuple[str, int, str, int], tuple[int, int, int]] = {}
        """(producer, partition, topic, queue) → (epoch, next sequence, running CRC) of the scope's last frame here."""
        self._topics: dict[bytes, str] = {}
        self.end = position
        self.reason = ""
        self.last_record = -1

    async def run(self, breathe: Breathe) -> None:
        """`breathe(position)` is awaited after each window."""
        position, breath_at = self.end, self.end + WINDOW_BYTES
        try:
            while (segment := self._log.segment_of(position)) is not None and (self._limit is None or position < self._limit):
                left = segment.end - position
                head = self._bytes(position, min(BLANK_BYTES, left), left)
                size, magic = SIZE_AND_MAGIC.unpack(head) if len(head) == BLANK_BYTES else (0, 0)
                if size == 0 and magic == 0:
                    break
                if magic == BLANK_MAGIC and size == left:
                    self._refuse_open_frame("the segment ends")
                    position = segment.end
                else:
                    record, data = self._record(position, size, magic, left)
                    self._take(record, data)
                    position += size
                if self._frame is None:
                    self.end = position
                if position >= breath_at:
                    breath_at = position + WINDOW_BYTES
                    await breathe(position)
            self._refuse_open_frame("the log ends")
        except BadRecord as bad:
            self.reason = str(bad)

    def _bytes(self, position: int, count: int, left: int) -> bytes:
        at = position - self._window_start
        if at < 0 or at + count > len(self._window):
            segment = self._log.segment_of(position)
            assert segment is not None
            self._window = segment.file.pread(min(left, max(WINDOW_BYTES, count)), position - segment.start)
            self._window_start = position
            at = 0
        return self._window[at : at + count]

    def _record(self, position: int, size: int, magic: int, left: int) -> tuple[StoredRecord, bytes]:
        if magic != MAGIC:
            raise BadRecord(f"magic {magic:#010x}, expected {MAGIC:#010x}")
        if not RECORD_BYTES_MIN <= size <= left:
            raise BadRecord(f"size {size}, expected {RECORD_BYTES_MIN} to {left}")
        data = self._bytes(position, size, left)
        if len(data) != size:
            raise BadRecord(f"{len(data)} of its {size} bytes are there")
        record = read_record(data, position, self._topics)
        expected = self._expected(record)
        if record.queued and expected is not None and record.queue_offset != expected:
            raise BadRecord(f"queue offset {record.queue_offset} of {record.topic} {record.queue_id}, expected {expected}")
        return record, data

    def _expected(self, record: StoredRecord) -> int | None:
        frame = self._frame
        if frame is None or record.sequence is not None:
            return self._sink.expected_offset(record.topic, record.queue_id)
        if (record.topic, record.queue_id) != (frame.first.topic, frame.first.queue_id):
            raise BadRecord(f"a record of another queue within the frame at {frame.first.position}")
        return frame.first.queue_offset + len(frame.records)

    def _take(self, record: StoredRecord, data: bytes) -> None:
        if record.sequence is not None:
            self._refuse_open_frame("another frame begins")
            self._frame = _OpenFrame(record, record.sequence)
        frame = self._frame
        if frame is None:
            self._sink.record(record)
            self.last_record = record.position
            return
        frame.records.append(record)
        at = len(frame.data)
        frame.data += data
        zero_broker_fields(frame.data, at)
        if len(frame.records) == frame.sequence.count:
            self._close_frame(frame)

    def _close_frame(self, frame: _OpenFrame) -> None:
        first, sequence = frame.first, frame.sequence
        scope = (sequence.producer_id, sequence.partition, first.topic, first.queue_id)
        known = self._scopes.get(scope)
        previous: int | None = None
        if sequence.first == 0:
            previous = 0
        elif known is None:
            previous = self._sink.crc_before(first, sequence)
        elif not sequence.first_known and known[:2] == (sequence.epoch, sequence.first):
            previous = known[2]
        if previous is not None:
            crc = frame_crc(previous, frame.data, crc_digits_at(frame.data))
            if crc != sequence.crc:
                raise BadRecord(f"frame of {sequence.count} records: running CRC {sequence.crc:#010x}, its bytes give {crc:#010x}")
        self._scopes[scope] = (sequence.epoch, sequence.next, sequence.crc)
        self._frame = None
        for record in frame.records:
            self._sink.record(record)
        self._sink.frame(first, sequence)
        self.last_record = frame.records[-1].position

    def _refuse_open_frame(self, what: str) -> None:
        frame = self._frame
        if frame is not None:
            raise BadRecord(
                f"{what} after {len(frame.records)} of the {frame.sequence.count} records of the frame at {frame.first.position}"
            )


def read_record(data: bytes, position: int, topics: dict[bytes, str]) -> StoredRecord:
    """Checks the whole record `data` that stands at `position`; BadRecord says what is wrong. `topics` remembers names that are good."""
    if len(data) < RECORD_BYTES_MIN:
        raise BadRecord(f"{len(data)} bytes, a record has at least {RECORD_BYTES_MIN}")
    size, magic, crc, queue_id, _, queue_offset, physical, sys_flag, _, _, store_ms, _, _, _, body_bytes = HEAD.unpack_from(data)
    if magic != MAGIC or size != len(data):
        raise BadRecord(f"size {size} and magic {magic:#010x}, expected {len(data)} and {MAGIC:#010x}")
    if physical != position or queue_id < 0:
        raise BadRecord(f"physical offset {physical}, queue id {queue_id}")
    if sys_flag & SYS_IPV6_MASK:
        raise BadRecord(f"system flag {sys_flag:#x} says IPv6 hosts, which are not supported")
    behind = BODY_AT + body_bytes
    if body_bytes < 0 or behind + 3 > size:
        raise BadRecord(f"body of {body_bytes} bytes in a record of {size}")
    properties_at = behind + 3 + data[behind]
    if properties_at > size or properties_at + (data[properties_at - 2] << 8 | data[properties_at - 1]) != size:
        raise BadRecord(f"its fields do not make its size {size}")
    body = data[BODY_AT:behind]
    if crc32(body) & CRC_MASK != crc:
        raise BadRecord("body CRC")
    name = data[behind + 1 : properties_at - 2]
    topic = topics.get(name)
    if topic is None:
        topic = topics[name] = _topic(name)
    transaction = sys_flag & SYS_TRANSACTION_MASK
    properties = data[properties_at:]
    if 0 in properties:
        raise BadRecord("a byte 0 in the properties")
    tag = properties.find(TAGS)
    return StoredRecord(
        topic,
        queue_id,
        queue_offset,
        position,
        size,
        tag_code(properties, tag) if tag >= 0 else 0,
        store_ms,
        transaction not in (PREPARED, ROLLED_BACK),
        _sequence(properties) if properties.startswith(STAMP_HEAD) else None,
        body if topic == STATE_TOPIC else None,
    )


def _topic(name: bytes) -> str:
    try:
        topic = name.decode("ascii")
        check_topic(topic)
    except (UnicodeDecodeError, LocalProtocolError) as error:
        raise BadRecord(f"topic {name[:40]!r}") from error
    return topic


def _sequence(properties: bytes) -> FrameSequence:
    try:
        sequence = find_sequence(properties)
    except RemoteProtocolError as error:
        raise BadRecord(str(error)) from error
    if sequence is None or sequence.count < 1:
        raise BadRecord("an idempotent frame without records")
    return sequence
