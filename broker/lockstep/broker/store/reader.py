"""Reading messages of one queue. RocketMQ: DefaultMessageStore.getMessage.

The steps of a read stand in one generator that asks for bytes. Asked without waiting, it stops where they are in neither memory nor page
cache; asked again with waiting, a worker thread fetches them. Records that lie side by side in the log go out as one piece.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Generator
from itertools import accumulate
from struct import Struct

from lockstep.broker.store.commit_log import CommitLog, Segment
from lockstep.broker.store.consume_queue import ConsumeQueue, QueueFiles
from lockstep.broker.store.errors import StoreCorrupt
from lockstep.broker.store.frame import ENTRY_BYTES, POSITION
from lockstep.broker.store.results import ReadResult, ReadStatus
from lockstep.broker.store.scan import BadRecord, read_record
from lockstep.protocol.crc import crc32
from lockstep.protocol.record import BODY_AT, CRC_MASK, MAGIC, RECORD_BYTES_MIN
from lockstep.runtime.host import Host

SCAN_ENTRY_COUNT_MIN = 800
"""Entries that a filtered read looks at before it answers that nothing matched (RocketMQ: 16,000 bytes)."""
GAP_BYTES_MAX = 16 * 1024
"""Records that lie nearer than this are fetched from the file with one read."""
FETCH_BYTES_MAX = 1 << 20
CHECKED = Struct(">IIIi12xq48xI")
"""Of a record: size, magic, body CRC, queue id, physical offset, body length."""
_SWAP = sys.byteorder == "little"

Run = tuple[int, int]
"""(log position, bytes) of records that lie side by side."""


class QueueBytes:
    """Asks for consume-queue entries that memory no longer holds."""

    __slots__ = ("_files", "path", "size", "within")

    def __init__(self, files: QueueFiles, path: str, size: int, within: int) -> None:
        self._files = files
        self.path = path
        self.size = size
        self.within = within

    def cached(self) -> bytes | None:
        try:
            return self._files.file(self.path, create=False).pread_cached(self.size, self.within)
        except FileNotFoundError:
            return b""

    async def wait(self, host: Host) -> bytes:
        return await host.threads.run(self._files.read, self.path, self.size, self.within)


class LogBytes:
    """Asks for bytes of a log file."""

    __slots__ = ("_at", "_count", "_segment")

    def __init__(self, segment: Segment, position: int, count: int) -> None:
        self._segment = segment
        self._at = position - segment.start
        self._count = count

    def cached(self) -> bytes | None:
        return self._segment.file.pread_cached(self._count, self._at)

    async def wait(self, host: Host) -> bytes:
        """Retention leaves the file alone meanwhile."""
        self._segment.reader_count += 1
        try:
            return await host.threads.run(self._segment.file.pread, self._count, self._at)
        finally:
            self._segment.reader_count -= 1


Steps = Generator[QueueBytes | LogBytes, bytes, ReadResult]


class Reader:
    """Reads queues from memory and files."""

    def __init__(self, log: CommitLog, files: QueueFiles, host: Host, *, verify: bool) -> None:
        self._log = log
        self._files = files
        self._host = host
        self._verify = verify

    def read(
        self, queue: ConsumeQueue | None, offset: int, max_count: int, max_bytes: int, hashes: frozenset[int] | None
    ) -> ReadResult | None:
        """None where the disk would have to be waited for."""
        outside = outside_bounds(queue, offset)
        if outside is not None:
            return outside
        assert queue is not None
        steps = self._steps(queue, offset, max_count, max_bytes, hashes)
        try:
            wanted = next(steps)
            while True:
                data = wanted.cached()
                if data is None:
                    steps.close()
                    return None
                wanted = steps.send(data)
        except StopIteration as stop:
            result: ReadResult = stop.value
            return result

    async def read_waiting(
        self, queue: ConsumeQueue | None, offset: int, max_count: int, max_bytes: int, hashes: frozenset[int] | None
    ) -> ReadResult:
        outside = outside_bounds(queue, offset)
        if outside is not None:
            return outside
        assert queue is not None
        steps = self._steps(queue, offset, max_count, max_bytes, hashes)
        try:
            wanted = next(steps)
            while True:
                data = wanted.cached()
                wanted = steps.send(await wanted.wait(self._host) if data is None else data)
        except StopIteration as stop:
            result: ReadResult = stop.value
            return result

    def _steps(self, queue: ConsumeQueue, offset: int, max_count: int, max_bytes: int, hashes: frozenset[int] | None) -> Steps:
        wanted = max_count if hashes is None else max(SCAN_ENTRY_COUNT_MIN, max_count)
        count = min(wanted, queue.visible - offset)
        if queue.in_memory(offset):
            entries = queue.recent(offset, count)
        else:
            entries = yield QueueBytes(self._files, *queue.place(self._files, offset, count))
            entries = entries[: len(entries) - len(entries) % ENTRY_BYTES]
        if offset < queue.min:
            return ReadResult(ReadStatus.OFFSET_TOO_SMALL, queue.min, queue.min, queue.visible)
        if not queue.in_memory(offset):
            check_entries(entries, queue, offset)
        runs, taken, scanned = choose(entries, max_count, max_bytes, hashes)
        parts: list[bytes] = []
        for position, size, inner in self._fetches(runs):
            data = self._log.from_tail(position, size)
            if data is None:
                segment = self._log.segment_of(position)
                if segment is None:
                    return ReadResult(ReadStatus.OFFSET_TOO_SMALL, queue.min, queue.min, queue.visible)
                data = yield LogBytes(segment, position, size)
                if self._verify:
                    for at, run_size in inner:
                        self._check(data[at - position : at - position + run_size], at, queue)
            if len(inner) == 1:
                parts.append(data)
            else:
                parts += [data[at - position : at - position + run_size] for at, run_size in inner]
        status = ReadStatus.FOUND if taken else ReadStatus.NO_MATCHED
        return ReadResult(status, offset + scanned, queue.min, queue.visible, parts, taken, sum(map(len, parts)))

    def _fetches(self, runs: list[Run]) -> list[tuple[int, int, list[Run]]]:
        """(position, bytes, runs within): what to read at once."""
        tail_start = self._log.tail_start
        fetches: list[tuple[int, int, list[Run]]] = []
        for run in runs:
            position, size = run
            if fetches and position < tail_start:
                start, length, inner = fetches[-1]
                end = position + size
                near = position - (start + length) <= GAP_BYTES_MAX and end - start <= FETCH_BYTES_MAX
                if near and self._log.segment_of(start) is self._log.segment_of(position):
                    fetches[-1] = (start, end - start, inner)
                    inner.append(run)
                    continue
            fetches.append((position, size, [run]))
        return fetches

    def _check(self, data: bytes, position: int, queue: ConsumeQueue) -> None:
        """What comes from a file is what was written. StoreCorrupt names the position: a damaged record is never served."""
        unpack, queue_id, end, at = CHECKED.unpack_from, queue.queue_id, len(data), 0
        view = memoryview(data)
        while at < end:
            if end - at < RECORD_BYTES_MIN:
                break
            size, magic, crc, stored_queue, physical, body_bytes = unpack(data, at)
            stop = at + size
            if magic != MAGIC or physical != position + at or stored_queue != queue_id or body_bytes > size or stop > end:
                break
            if crc32(view[at + BODY_AT : at + BODY_AT + body_bytes]) & CRC_MASK != crc:
                break
            at = stop
        if at != end:
            try:
                size = int.from_bytes(data[at : at + 4], "big")
                record = read_record(data[at : at + size], position + at, {})
                reason = f"it belongs to queue {record.queue_id} of {record.topic}"
            except BadRecord as bad:
                reason = str(bad)
            text = f"log position {position + at}, read for queue {queue_id} of {queue.topic}: {reason}"
            raise StoreCorrupt(text, position=position + at)


def outside_bounds(queue: ConsumeQueue | None, offset: int) -> ReadResult | None:
    """The answer where the offset is not among what readers may see."""
    if queue is None:
        return ReadResult(ReadStatus.NO_QUEUE, 0, 0, 0)
    low, high = queue.min, queue.visible
    if high == 0:
        return ReadResult(ReadStatus.EMPTY, 0, 0, 0)
    if offset < low:
        return ReadResult(ReadStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return ReadResult(ReadStatus.OFFSET_AT_END, offset, low, high)
    if offset > high:
        return ReadResult(ReadStatus.OFFSET_TOO_LARGE, high, low, high)
    return None


def check_entries(entries: bytes, queue: ConsumeQueue, offset: int) -> None:
    """Between minimum and end every entry names a record. StoreCorrupt where one does not: to pass over it would lose its message."""
    words = array("i", entries)
    if _SWAP:
        words.byteswap()
    sizes = words[2::5]
    if not sizes or min(sizes) < RECORD_BYTES_MIN:
        at = offset + next((index for index, size in enumerate(sizes) if size < RECORD_BYTES_MIN), 0)
        raise StoreCorrupt(
            f"offset {at} of queue {queue.queue_id} of {queue.topic} has no entry in {queue.directory}: remove that directory while the "
            "broker is stopped, and its start builds it again from the log"
        )


def choose(entries: bytes, max_count: int, max_bytes: int, hashes: frozenset[int] | None) -> tuple[list[Run], int, int]:
    """(runs, messages taken, entries scanned). The first message always fits."""
    # An entry as five int32: position high, position low, size, tag high, tag low (the tag is an int32 with its sign carried on).
    words = array("i", entries)
    if _SWAP:
        words.byteswap()
    sizes = words[2::5]
    if hashes is not None:
        return _choose_matching(entries, sizes, words[4::5], max_count, max_bytes, hashes)
    count = min(len(sizes), max_count)
    total = sum(sizes[:count])
    if total > max_bytes and count > 1:
        ends = list(accumulate(sizes[:count]))
        count = max(1, bisect_right(ends, max_bytes))
        total = ends[count - 1]
    first: int = POSITION.unpack_from(entries)[0]
    last: int = POSITION.unpack_from(entries, (count - 1) * ENTRY_BYTES)[0]
    if last + sizes[count - 1] - first == total:
        return [(first, total)], count, count
    return _join(entries, sizes, range(count)), count, count


def _choose_matching(
    entries: bytes, sizes: "array[int]", tags: "array[int]", max_count: int, max_bytes: int, hashes: frozenset[int]
) -> tuple[list[Run], int, int]:
    chosen: list[int] = []
    total = 0
    scanned = len(sizes)
    for index, tag in enumerate(tags):
        if tag in hashes:
            if chosen and (len(chosen) == max_count or total + sizes[index] > max_bytes):
                scanned = index
                break
            chosen.append(index)
            total += sizes[index]
    return _join(entries, sizes, chosen), len(chosen), scanned


def _join(entries: bytes, sizes: "array[int]", indexes: "list[int] | range") -> list[Run]:
    """Runs of the entries at `indexes`, those side by side made one."""
    runs: list[Run] = []
    start = end = -1
    unpack = POSITION.unpack_from
    for index in indexes:
        position: int = unpack(entries, index * ENTRY_BYTES)[0]
        if position != end:
            if end >= 0:
                runs.append((start, end - start))
            start = position
        end = position + sizes[index]
    if end >= 0:
        runs.append((start, end - start))
    return runs
