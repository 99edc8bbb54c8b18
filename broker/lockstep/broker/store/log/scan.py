"""Read the log record by record, and check everything. The start, the repair of a consume queue, the background scrub and
`lockstep store check` all use this scan. It changes no file.

If the bytes are not a good record, the scan looks for the next position at which one certainly begins (`LogScan._next_valid`):

1. after the bad record, if its own head still has its position and length and the lengths of its fields agree with that;
2. at the next bytes that are a whole good record of this position with a possible queue offset, and that are followed by another record, a
   blank or the end of the log;
3. at the beginning of a later segment: a record never spans two.

The bytes in between are a `DamagedRange`. They are not changed.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from lockstep.broker.store.log.commit_log import BLANK_BYTES, CommitLog, Segment
from lockstep.broker.store.log.scan_run import RUN_BYTES_MAX, RunScan, RunSink
from lockstep.broker.store.log.stored_record import BadRecordError, FrameEnd, ScopeKey, StoredRecord, frame_row, read_record
from lockstep.broker.store.log.waiting_records import NO_SEAL, ROOMS
from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.messages.record import (
    BLANK_MAGIC,
    BODY_AT,
    BODY_LENGTH_AT,
    HEAD_BYTES_MAX,
    INT32,
    INT64,
    MAGIC,
    PHYSICAL_OFFSET_AT,
    PREPARED_OFFSET_AT,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    head_of,
    record_bounds,
    zero_broker_fields,
)
from lockstep.protocol.messages.sequence import FrameSequence, crc_digits_at, frame_crc

WINDOW_BYTES = 1 << 20
"""Number of bytes of one read. A longer record is read whole."""
OnScanned = Callable[[int], Awaitable[None]]
"""Called with the log offset that a long read has reached, so that other tasks can run."""
ReadAt = Callable[[Segment, int, int], Awaitable[bytes]]
"""(segment, count, byte in the file) → bytes."""
NO_RECORD = "nothing is there"
MAGIC_BYTES = MAGIC.to_bytes(4, "big")
BLANK_MAGIC_BYTES = BLANK_MAGIC.to_bytes(4, "big")


async def read_here(segment: Segment, count: int, at: int) -> bytes:
    """Read in the loop. For a start, when nothing is served yet."""
    return segment.file.pread(count, at)


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Bytes [begin, end) of the log that contain no good record."""

    begin: int
    end: int
    reason: str
    followed: bool = True
    """Whether a good record, or the end of the log, follows at `end`. False if nothing good was found after `begin`."""
    known: bool = False
    """Whether it is recorded in `lockstep/damage`."""

    @property
    def records_max(self) -> int:
        """Return the highest number of records that the range can have contained."""
        return (self.end - self.begin) // RECORD_BYTES_MIN


class ScanSink(Protocol):
    """Receives the good records in log order. The records of an idempotent frame come only when the whole frame is good."""

    def expected_offset(self, topic: str, queue_id: int) -> int | None:
        """Return the queue offset that the next record must have, or None if any will do. After damage a higher one may follow."""
        ...

    def crc_before(self, scope: ScopeKey, epoch: int, first: int, store_ms: int) -> int | None:
        """Return the running CRC before sequence `first` of this epoch of a scope that is new to the scan, or None if it is not known.

        `store_ms` is the time of the frame that begins there.
        """
        ...

    def record(self, record: StoredRecord) -> None: ...

    def frame(self, first: StoredRecord, sequence: FrameSequence) -> None:
        """Receive a whole idempotent frame, after its records."""
        ...

    def damaged(self, damaged_range: DamagedRange) -> bool:
        """Return whether the scan continues after the range. The result is ignored for a known range."""
        ...


class _OpenFrame:
    """An idempotent frame with more records to follow."""

    __slots__ = ("data", "first", "records", "sequence")

    def __init__(self, first: StoredRecord, sequence: FrameSequence) -> None:
        self.first = first
        self.sequence = sequence
        self.records: list[StoredRecord] = []
        self.data = bytearray()


class BadFrameError(BadRecordError):
    """The records are good but their idempotent frame is not: all of it is damaged."""


class LogScan:
    """Reads from a position to `limit`, to the end of the log, or to the first bytes that are not a good record.

    Below `complete_until` everything must be records: zeros there are damage, and the sink decides whether the scan continues after it.
    From `complete_until` on, the first bytes that are not a good record end the log. With a `limit`, `complete_until` is the limit.
    After `run`, `end` is the end of the good log, and `reason` is why it ends ("" for zeros, the end of the files or the limit).
    """

    def __init__(
        self,
        log: CommitLog,
        position: int,
        sink: ScanSink,
        limit: int | None = None,
        *,
        complete_until: int = 0,
        known: Mapping[int, int] | None = None,
        read: ReadAt = read_here,
        window_bytes: int = WINDOW_BYTES,
        frames: bool = True,
        keep_until: int = 0,
        on_overtaken: Callable[[], None] = lambda: None,
        runs: RunSink | None = None,
    ) -> None:
        """`keep_until`: nothing below is cut, because a snapshot of this position is valid. With a `limit` it is the limit.

        `on_overtaken` is called when retention has removed the records that were to be read next. The scan continues after them.

        `runs` is the sink again, if it also receives runs of records, which a kernel reads. A scan without `frames`, or with
        `known` ranges to skip, has none.
        """
        self._log = log
        self._sink = sink
        self._limit = limit
        self._complete_until = complete_until if limit is None else limit
        self._keep_until = keep_until if limit is None else limit
        self._known = known or {}
        """Begin → end of the recorded ranges."""
        self._read = read
        self._window_bytes = window_bytes
        self._frames = frames
        """False if a part of the log is read, which may begin or end within an idempotent frame: each record is checked alone."""
        self._window = b""
        self._window_start = position
        self._frame: _OpenFrame | None = None
        self._scopes: dict[ScopeKey, FrameEnd] = {}
        """The last frame of each scope here."""
        self._topics: dict[bytes, str] = {}
        self._runs: RunScan | None = None
        if runs is not None and frames and all(end <= position for end in self._known.values()):
            self._runs = RunScan(runs, self._topics, self._scopes)
        self._on_overtaken = on_overtaken
        self._missing_max = 0
        """Highest number of records that the ranges so far can have contained."""
        self.end = position
        self.reason = ""
        self.last_record = -1

    async def run(self, on_progress: OnScanned) -> None:
        """Run the scan. Await `on_progress(position)` once in each window."""
        position, window_start = self.end, -1
        while self._limit is None or position < self._limit:
            segment = self._log.segment_of(position)
            if segment is None:
                if position >= self._log.start:
                    break
                position = self._log.start  # retention has removed the next records
                self._frame = None
                self._on_overtaken()
                continue
            if position in self._known:
                position = self._skip(DamagedRange(position, self._known[position], "on record", known=True))
                continue
            try:
                size = await self._take_run(segment, position) or await self._next(segment, position)
                if not size:
                    self._refuse_open_frame("the log ends")
                    return
            except BadRecordError as bad:
                after = await self._damage(bad, position, on_progress)
                if after is None:
                    return
                position = after
                continue
            position += size
            if self._frame is None:
                self.end = position
            if self._window_start != window_start:
                window_start = self._window_start
                await on_progress(position)
        try:
            self._refuse_open_frame("the log ends")
        except BadRecordError as bad:
            await self._damage(bad, position, on_progress)

    async def _take_run(self, segment: Segment, position: int) -> int:
        """Let the kernel take a run of records from `position` on. Return its length, 0 if there is none."""
        if self._runs is None or self._frame is not None:
            return 0
        end = segment.end if self._limit is None else min(segment.end, self._limit)
        while True:
            at = await self._reach(segment, position, 1)
            there = min(len(self._window) - at, end - position)
            run = self._runs.take(self._window, at, at + there, position)
            if run is None:
                return 0
            if run.size:
                self.last_record = run.last_record
                return run.size
            wanted = min(end - position, max(self._window_bytes, run.cut, 2 * there))
            if not there < wanted <= RUN_BYTES_MAX:
                return 0
            await self._reach(segment, position, wanted)
            if len(self._window) <= there:
                return 0  # the file ends there

    async def _next(self, segment: Segment, position: int) -> int:
        """Handle the record or blank at `position`. Return its length, 0 at the end of the log."""
        left = segment.end - position
        head = await self._bytes(segment, position, min(BLANK_BYTES, left))
        size, magic = SIZE_AND_MAGIC.unpack(head) if len(head) == BLANK_BYTES else (0, 0)
        if size == 0 and magic == 0:
            if position < self._complete_until:
                raise BadRecordError(NO_RECORD)
            return 0
        if magic == BLANK_MAGIC and size == left:
            self._refuse_open_frame("the segment ends")
            return left
        record, data = await self._record(segment, position, size, magic)
        self._take(record, data)
        return record.size

    async def _bytes(self, segment: Segment, position: int, count: int) -> bytes:
        at = await self._reach(segment, position, count)
        return self._window[at : at + count]

    async def _reach(self, segment: Segment, position: int, count: int) -> int:
        """Read a window with `count` bytes from `position` on, if there is none yet. Return where they begin in it."""
        at = position - self._window_start
        if 0 <= at <= len(self._window) - count:
            return at
        left = segment.end - position
        self._window = await self._read(segment, min(left, max(self._window_bytes, count)), position - segment.start)
        self._window_start = position
        return 0

    async def _record(self, segment: Segment, position: int, size: int, magic: int) -> tuple[StoredRecord, bytes]:
        left = segment.end - position
        if magic != MAGIC:
            raise BadRecordError(f"magic {magic:#010x}, expected {MAGIC:#010x}")
        if not RECORD_BYTES_MIN <= size <= left:
            raise BadRecordError(f"size {size}, expected {RECORD_BYTES_MIN} to {left}")
        if position + size > self._window_start + len(self._window):
            _check_size(await self._bytes(segment, position, min(HEAD_BYTES_MAX, left)), position, size)
        data = await self._bytes(segment, position, size)
        if len(data) != size:
            raise BadRecordError(f"only {len(data)} of its {size} bytes exist")
        record = read_record(data, position, self._topics)
        expected = self._expected(record)
        if record.queued and expected is not None and not 0 <= record.queue_offset - expected <= self._missing_max:
            raise BadRecordError(f"queue offset {record.queue_offset} of {record.topic} {record.queue_id}, expected {expected}")
        return record, data

    def _expected(self, record: StoredRecord) -> int | None:
        frame = self._frame
        if frame is None or record.sequence is not None:
            return self._sink.expected_offset(record.topic, record.queue_id)
        if (record.topic, record.queue_id) != (frame.first.topic, frame.first.queue_id):
            raise BadRecordError(f"a record of another queue within the frame at {frame.first.position}")
        expected = frame.first.queue_offset + len(frame.records)
        if record.queue_offset != expected:
            raise BadRecordError(f"queue offset {record.queue_offset} of {record.topic} {record.queue_id}, expected {expected}")
        return expected

    def _take(self, record: StoredRecord, data: bytes) -> None:
        if record.sequence is not None and self._frames:
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
        if record.topic in ROOMS:
            frame.data[at + PREPARED_OFFSET_AT : at + BODY_LENGTH_AT] = NO_SEAL
        if len(frame.records) == frame.sequence.count:
            self._close_frame(frame)

    def _close_frame(self, frame: _OpenFrame) -> None:
        first, sequence = frame.first, frame.sequence
        scope, ended, _ = frame_row(first, sequence)
        known = self._scopes.get(scope)
        previous: int | None = None
        if sequence.first == 0:
            previous = 0
        elif sequence.first_known:
            pass
        elif known is None:
            previous = self._sink.crc_before(scope, sequence.epoch, sequence.first, first.store_ms)
        elif (known[0], known[2]) == (sequence.epoch, sequence.first):
            previous = known[3]
        if previous is not None:
            crc = frame_crc(previous, frame.data, crc_digits_at(frame.data))
            if crc != sequence.crc:
                raise BadFrameError(f"frame of {sequence.count} records: running CRC {sequence.crc:#010x}, its bytes give {crc:#010x}")
        self._scopes[scope] = ended
        self._frame = None
        for record in frame.records:
            self._sink.record(record)
        self._sink.frame(first, sequence)
        self.last_record = frame.records[-1].position

    def _refuse_open_frame(self, what: str) -> None:
        frame = self._frame
        if frame is not None:
            raise BadFrameError(
                f"{what} after {len(frame.records)} of the {frame.sequence.count} records of the frame at {frame.first.position}"
            )

    # -- after damage ----------------------------------------------------------------------------

    async def _damage(self, bad: BadRecordError, position: int, on_progress: OnScanned) -> int | None:
        """Return where the scan continues after the bad bytes at `position`, or None if it ends here."""
        frame, begin, after = self._frame, position, None
        if frame is not None and isinstance(bad, BadFrameError):
            begin = frame.first.position
            after = frame.records[-1].position + frame.records[-1].size
        if (begin if frame is None else frame.first.position) >= self._complete_until:
            self.reason = str(bad)
            return None
        if after is None:
            after = await self._next_valid(position, on_progress)
        kept = begin < self._keep_until
        end = after if after is not None else self._keep_until if kept else self._log.files_end
        damaged_range = DamagedRange(begin, end, str(bad), followed=after is not None)
        if not self._sink.damaged(damaged_range):
            self.reason = str(bad)
            return None
        if isinstance(bad, BadFrameError):
            self._frame = None
        if after is not None or kept:
            return self._skip(damaged_range)
        # The log will be cut here: an idempotent frame is kept whole or not at all.
        self._frame = None
        self.end = begin if frame is None else frame.first.position
        self.reason = str(bad)
        return None

    def _skip(self, damaged_range: DamagedRange) -> int:
        """Continue after the range. The records of an open frame that were read are good."""
        self._keep_open_frame()
        if damaged_range.known:
            self._sink.damaged(damaged_range)
        self._missing_max += damaged_range.records_max
        self.end = damaged_range.end
        return damaged_range.end

    def _keep_open_frame(self) -> None:
        frame, self._frame = self._frame, None
        if frame is None:
            return
        for record in frame.records:
            self._sink.record(record)
        self._sink.frame(frame.first, frame.sequence)
        self.last_record = frame.records[-1].position

    async def _next_valid(self, position: int, on_progress: OnScanned) -> int | None:
        """Return the next position after `position` at which a good record, a blank or the end of the log certainly begins."""
        named, certain = await self._named_end(position)
        if certain:
            return named
        at = position + 1
        while (segment := self._log.segment_of(at)) is not None and (self._limit is None or at < self._limit):
            if named is not None and at >= named:
                break
            if at == segment.start and await self._resumes(at):
                return at
            found = await self._find(segment, at, on_progress)
            if found is not None:
                return found if named is None else min(found, named)
            at = segment.end
        return named

    async def _named_end(self, position: int) -> tuple[int | None, bool]:
        """Return where the bad record at `position` ends by its own size, None if nothing good may begin there, and whether it is certain.

        It is certain if the lengths of its fields add up to the size. Otherwise the size may be damaged, and extend over good records.
        """
        segment = self._log.segment_of(position)
        if segment is None:
            return None, False
        left = segment.end - position
        head = await self._bytes(segment, position, min(BODY_AT, left))
        if len(head) < BODY_AT:
            return None, False
        size, magic = map(int, SIZE_AND_MAGIC.unpack_from(head))
        if magic != MAGIC or INT64.unpack_from(head, PHYSICAL_OFFSET_AT)[0] != position or not RECORD_BYTES_MIN <= size <= left:
            return None, False
        if (self._limit is not None and position + size > self._limit) or not await self._resumes(position + size):
            return None, False
        data = await self._bytes(segment, position, size)
        try:
            record_bounds(data)
        except RemoteProtocolError:
            return position + size, False
        return position + size, len(data) == size

    async def _find(self, segment: Segment, at: int, on_progress: OnScanned) -> int | None:
        """Return the first position in this segment, from `at` on, at which a record or blank certainly begins."""
        end = segment.end if self._limit is None else min(segment.end, self._limit)
        while at + BLANK_BYTES <= end:
            wanted = min(self._window_bytes, end - at)
            data = await self._read(segment, wanted, at - segment.start)
            place = -1
            while (place := _next_magic(data, place + 1)) >= 0:
                if place >= 4 and await self._starts(segment, at + place - 4):
                    return at + place - 4
            if len(data) < wanted:
                return None  # the file is absent, or ends there
            at += len(data) - BLANK_BYTES + 1
            await on_progress(at)
        return None

    async def _starts(self, segment: Segment, position: int) -> bool:
        """Return whether a good record with a possible offset begins here, followed by a good one, or a blank that fills the segment."""
        left = segment.end - position
        head = await self._bytes(segment, position, min(BLANK_BYTES, left))
        if len(head) < BLANK_BYTES:
            return False
        size, magic = SIZE_AND_MAGIC.unpack(head)
        if magic == BLANK_MAGIC:
            return bool(size == left)
        missing_max, self._missing_max = self._missing_max, self._missing_max + (position - self.end) // RECORD_BYTES_MIN
        frame, self._frame = self._frame, None
        try:
            await self._record(segment, position, size, magic)
        except BadRecordError:
            return False
        finally:
            self._missing_max, self._frame = missing_max, frame
        return await self._resumes(position + size)

    async def _resumes(self, position: int) -> bool:
        """Return whether a record or blank may begin here, or the log ends here. This confirms the record before it."""
        segment = self._log.segment_of(position)
        if segment is None or position == self._limit:
            return True
        left = segment.end - position
        head = await self._bytes(segment, position, min(PHYSICAL_OFFSET_AT + 8, left))
        if len(head) < min(PHYSICAL_OFFSET_AT + 8, left):
            return False
        size, magic = SIZE_AND_MAGIC.unpack_from(head) if len(head) >= BLANK_BYTES else (0, 0)
        if magic == BLANK_MAGIC:
            return bool(size == left)
        if size == 0 and magic == 0:
            return bool(position >= self._complete_until)
        return bool(magic == MAGIC and len(head) == PHYSICAL_OFFSET_AT + 8 and INT64.unpack_from(head, PHYSICAL_OFFSET_AT)[0] == position)


def _next_magic(data: bytes, start: int) -> int:
    """Return the next position of a record's or blank's magic, or −1."""
    places = [place for place in (data.find(MAGIC_BYTES, start), data.find(BLANK_MAGIC_BYTES, start)) if place >= 0]
    return min(places, default=-1)


def _check_size(head: bytes, position: int, size: int) -> None:
    """Raise BadRecordError if the other fields of the head rule out that the record at `position` has `size` bytes.

    The record is read at once, and a damaged size may be as large as the file.
    """
    if len(head) < BODY_AT or len(head) < (body_at := head_of(head).size):
        raise BadRecordError(f"only {len(head)} of its {size} bytes exist")
    physical, body_bytes = INT64.unpack_from(head, PHYSICAL_OFFSET_AT)[0], INT32.unpack_from(head, body_at - INT32.size)[0]
    after = size - body_at - body_bytes
    if physical != position or not 3 <= after <= 3 + 0xFF + 0xFFFF:
        raise BadRecordError(f"size {size}, physical offset {physical} and a body of {body_bytes} bytes do not agree")
