"""A scan reads damage in windows: not byte by byte, and not as much at once as a damaged size names."""

import pytest

from lockstep.broker.store.health.path_watch import PathWatch
from lockstep.broker.store.log.commit_log import AbsentFile, CommitLog, Segment
from lockstep.broker.store.log.scan import WINDOW_BYTES, DamagedRange, LogScan
from lockstep.broker.store.log.stored_record import ScopeKey, StoredRecord
from lockstep.protocol.messages.record import OFFSETS
from lockstep.protocol.messages.sequence import FrameSequence
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import LongFile, record

SEGMENT_BYTES = 1 << 26
READS_MAX = 2 * SEGMENT_BYTES // WINDOW_BYTES
RECORD = record(b"x" * 100)
COUNT = 10


class Sink:
    """Collects the results of a scan, which continues after damage."""

    def __init__(self) -> None:
        self.ranges: list[DamagedRange] = []
        self.offsets: list[int] = []

    def expected_offset(self, topic: str, queue_id: int) -> int | None:
        return len(self.offsets)

    def crc_before(self, scope: ScopeKey, epoch: int, first: int, store_ms: int) -> int | None:
        return None

    def record(self, record: StoredRecord) -> None:
        self.offsets.append(record.queue_offset)

    def frame(self, first: StoredRecord, sequence: FrameSequence) -> None:
        pass

    def damaged(self, damaged_range: DamagedRange) -> bool:
        self.ranges.append(damaged_range)
        return True


def records(first: int, position: int) -> bytes:
    data = bytearray(RECORD * COUNT)
    for number in range(COUNT):
        OFFSETS.pack_into(data, number * len(RECORD) + 20, first + number, position + number * len(RECORD))
    return bytes(data)


async def scan(sink: Sink, *log_files: AbsentFile, limit: int) -> int:
    """Scan a log of these files; return the largest single read in bytes."""
    log = CommitLog(SimFiles(), "/log", SEGMENT_BYTES, 0, PathWatch(SimFiles()))
    starts = range(0, len(log_files) * SEGMENT_BYTES, SEGMENT_BYTES)
    log.segments = [Segment(f"/log/{start}", start, SEGMENT_BYTES, file) for start, file in zip(starts, log_files, strict=True)]
    reads: list[int] = []

    async def read(segment: Segment, count: int, at: int) -> bytes:
        reads.append(count)
        assert len(reads) <= READS_MAX
        return segment.file.pread(count, at)

    async def on_progress(position: int) -> None:
        pass

    await LogScan(log, 0, sink, limit, read=read).run(on_progress)
    return max(reads)


@pytest.mark.parametrize("size", [0, 1, len(RECORD) * COUNT, len(RECORD) * COUNT + 50, SEGMENT_BYTES - 1, SEGMENT_BYTES])
async def test_short_log_file_is_not_searched_past_its_end(size: int) -> None:
    sink = Sink()
    missing = COUNT if size < len(RECORD) else 0
    second = LongFile(records(COUNT - missing, SEGMENT_BYTES), SEGMENT_BYTES)
    first = LongFile(b"" if missing else records(0, 0), size) if size else AbsentFile()
    limit = SEGMENT_BYTES + len(RECORD) * COUNT
    assert await scan(sink, first, second, limit=limit) <= WINDOW_BYTES
    begin = 0 if missing else len(RECORD) * COUNT
    assert [(damaged_range.begin, damaged_range.end) for damaged_range in sink.ranges] == [(begin, SEGMENT_BYTES)]
    assert sink.offsets == list(range(2 * COUNT - missing))


@pytest.mark.parametrize("bit", range(32))
async def test_damaged_size_field_does_not_determine_the_read_size(bit: int) -> None:
    data = bytearray(records(0, 0))
    data[3 - bit // 8] ^= 1 << bit % 8
    sink = Sink()
    sink.expected_offset = lambda topic, queue_id: None  # type: ignore[method-assign]
    assert await scan(sink, LongFile(bytes(data), SEGMENT_BYTES), limit=len(data)) <= WINDOW_BYTES
    assert [(damaged_range.begin, damaged_range.end) for damaged_range in sink.ranges] == [(0, len(RECORD))]
    assert sink.offsets == list(range(1, COUNT))
