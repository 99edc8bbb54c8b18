"""Reading messages of one queue. RocketMQ: DefaultMessageStore.getMessage.

The steps of a read are one generator that requests bytes. A read without waiting stops if they are in neither memory nor page cache; a read
with waiting has a worker thread fetch them. Adjacent records of the log are returned as one piece.

Bytes that come from a file are checked: each entry must name a record of this topic, queue and offset with a correct CRC. The messages
before the first one that fails are returned. If there are none, `MismatchError` names the entry, and repair.py finds out whether the entry
or the record is wrong. Entries of lost messages (damage.py) give the status LOST.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Generator
from functools import partial
from itertools import accumulate, islice
from struct import Struct

from lockstep.broker.store.health.damage import LOST_SIZE
from lockstep.broker.store.log.append import ENTRY, ENTRY_BYTES, POSITION
from lockstep.broker.store.log.commit_log import CommitLog, Segment
from lockstep.broker.store.log.stored_record import BadRecordError, read_record, valid_properties
from lockstep.broker.store.log.waiting_records import SEALED, seal_holds
from lockstep.broker.store.queues.consume_queue import ConsumeQueue, QueueFiles
from lockstep.broker.store.queues.predicates import EXAMINED_BYTES_MAX, Keep, select
from lockstep.broker.store.results import ReadResult, ReadStatus
from lockstep.protocol.crc import crc32
from lockstep.protocol.messages.record import BODY_AT, CRC_MASK, MAGIC, RECORD_BYTES_MIN, SYS_IPV6_MASK, UINT32, head_of, iter_records
from lockstep.protocol.native import kernels
from lockstep.runtime.host import Host

SCAN_ENTRY_COUNT_MIN = 800
"""Number of entries that a filtered read scans before it returns that nothing matched (RocketMQ: 16,000 bytes)."""
GAP_BYTES_MAX = 16 * 1024
"""Records with a smaller gap between them are fetched from the file with one read."""
FETCH_BYTES_MAX = 1 << 20
STORED_BYTES_MAX = 32 << 20
"""An entry with a larger size is damaged: no record is that long."""
CHECKED = Struct(">IIIi4xqqI44xI")
"""Fields of a record: size, magic, body CRC, queue id, queue offset, physical offset, system flag, body length."""
_SWAP = sys.byteorder == "little"

Run = tuple[int, int]
"""(log position, number of bytes) of adjacent records."""


class QueueBytes:
    """Requests consume-queue entries that memory no longer holds."""

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
    """Requests bytes of a log file."""

    __slots__ = ("_at", "_count", "_log", "_segment")

    def __init__(self, log: CommitLog, segment: Segment, position: int, count: int) -> None:
        self._log = log
        self._segment = segment
        self._at = position - segment.start
        self._count = count

    def cached(self) -> bytes | None:
        return self._segment.file.pread_cached(self._count, self._at)

    async def wait(self, host: Host) -> bytes:
        return await self._log.read(host, self._segment, self._count, self._at)


class MismatchError(Exception):
    """The entry at `offset` and the record that it names do not match."""

    def __init__(self, queue: ConsumeQueue, offset: int, position: int, reason: str) -> None:
        super().__init__(reason)
        self.queue = queue
        self.offset = offset
        self.position = position


ReadSteps = Generator[QueueBytes | LogBytes, bytes, ReadResult]


class Reader:
    """Reads queues from memory and files."""

    def __init__(self, log: CommitLog, files: QueueFiles, host: Host, *, verify: bool) -> None:
        self._log = log
        self._files = files
        self._host = host
        self._verify = verify

    def read(
        self,
        queue: ConsumeQueue | None,
        offset: int,
        max_count: int,
        max_bytes: int,
        hashes: frozenset[int] | None = None,
        keep: Keep | None = None,
    ) -> ReadResult | None:
        """Read from memory and the page cache; None if the disk would have to be waited for."""
        steps = self._steps(queue, offset, max_count, max_bytes, hashes, keep)
        step = _advance(steps, None)
        while not isinstance(step, ReadResult):
            data = step.cached()
            if data is None:
                return None
            step = _advance(steps, data)
        return step

    async def read_waiting(
        self,
        queue: ConsumeQueue | None,
        offset: int,
        max_count: int,
        max_bytes: int,
        hashes: frozenset[int] | None = None,
        keep: Keep | None = None,
    ) -> ReadResult:
        """Read as `read`, and wait for the disk in a worker thread."""
        steps = self._steps(queue, offset, max_count, max_bytes, hashes, keep)
        step = _advance(steps, None)
        while not isinstance(step, ReadResult):
            data = step.cached()
            step = _advance(steps, await step.wait(self._host) if data is None else data)
        return step

    def _steps(
        self,
        queue: ConsumeQueue | None,
        offset: int,
        max_count: int,
        max_bytes: int,
        hashes: frozenset[int] | None,
        keep: Keep | None,
    ) -> ReadSteps:
        outside = outside_bounds(queue, offset)
        if outside is not None:
            return outside
        assert queue is not None
        wanted = max_count if hashes is None and keep is None else max(SCAN_ENTRY_COUNT_MIN, max_count)
        count = min(wanted, queue.visible - offset)
        trusted = queue.in_memory(offset)
        if trusted:
            entries = queue.recent(offset, count)
        else:
            entries = yield QueueBytes(self._files, *queue.file_range(self._files, offset, count))
            entries = entries[: len(entries) - len(entries) % ENTRY_BYTES]
        if offset < queue.min:
            return ReadResult(ReadStatus.OFFSET_TOO_SMALL, queue.min, queue.min, queue.visible)
        present = present_count(entries)
        if not present:
            lost = lost_count(entries)
            if not lost:
                raise MismatchError(queue, offset, -1, "the queue's file has no entry there")
            return ReadResult(ReadStatus.LOST, offset + lost, queue.min, queue.visible)
        entries = entries[: present * ENTRY_BYTES]
        while True:
            page = (max_count, max_bytes) if keep is None else (wanted, EXAMINED_BYTES_MAX)
            runs, taken, scanned = choose(entries, *page, hashes)
            try:
                indexes = range(taken) if hashes is None else matching(entries, hashes, taken)
                parts = yield from self._parts(queue, offset, entries, runs, indexes, trusted=trusted)
            except MismatchError as mismatch:
                if mismatch.offset == offset:
                    raise
                entries = entries[: (mismatch.offset - offset) * ENTRY_BYTES]
                continue
            if parts is None or offset < queue.min:  # removed, deleted or purged while the log was read
                return ReadResult(ReadStatus.OFFSET_TOO_SMALL, queue.min, queue.min, queue.visible)
            examined = 0, 0
            if keep is not None:
                kept = select(parts, [size for _, size in map(partial(place_of, entries), indexes)], keep, max_count, max_bytes)
                examined = kept.examined, kept.examined_bytes
                if kept.examined < taken:
                    scanned = indexes[kept.examined]
                parts, taken = kept.parts, kept.count
            status = ReadStatus.FOUND if taken else ReadStatus.NO_MATCHED
            return ReadResult(status, offset + scanned, queue.min, queue.visible, parts, taken, sum(map(len, parts)), *examined)

    def _parts(
        self, queue: ConsumeQueue, offset: int, entries: bytes, runs: list[Run], indexes: "list[int] | range", *, trusted: bool
    ) -> "Generator[QueueBytes | LogBytes, bytes, list[bytes] | None]":
        """Return the bytes of the runs, which are the entries at `indexes`. None if retention has just removed them.

        `trusted`: the entries were in memory.
        """
        parts: list[bytes] = []
        check: Check | None = None
        for position, size, inner in self._fetches(runs):
            data = self._log.from_tail(position, size)
            verify = self._verify and not trusted
            if data is None:
                segment = self._log.segment_of(position)
                if segment is None and position < self._log.start and (queue.min_position or 0) < self._log.start:
                    return None
                if segment is None or position + size > segment.end:
                    check = check or Check(queue, offset, entries, indexes)
                    raise check.outside(position, None if segment is None else segment.end)
                data = yield LogBytes(self._log, segment, position, size)
                verify = self._verify
            if verify:
                check = check or Check(queue, offset, entries, indexes)
                for at, run_size in inner:
                    check.run(data[at - position : at - position + run_size], at)
            if len(inner) == 1:
                parts.append(data)
            else:
                parts += [data[at - position : at - position + run_size] for at, run_size in inner]
        return parts

    def _fetches(self, runs: list[Run]) -> list[tuple[int, int, list[Run]]]:
        """Return (position, number of bytes, runs within) of each read."""
        memory_start = self._log.memory_start
        fetches: list[tuple[int, int, list[Run]]] = []
        for run in runs:
            position, size = run
            if fetches and position < memory_start:
                start, length, inner = fetches[-1]
                end = position + size
                near = 0 <= position - (start + length) <= GAP_BYTES_MAX and end - start <= FETCH_BYTES_MAX
                if near and self._log.segment_of(start) is self._log.segment_of(position):
                    fetches[-1] = (start, end - start, inner)
                    inner.append(run)
                    continue
            fetches.append((position, size, [run]))
        return fetches


def _advance(steps: ReadSteps, data: bytes | None) -> QueueBytes | LogBytes | ReadResult:
    """Send the bytes that `steps` requested. Return its next request, or its result."""
    try:
        return next(steps) if data is None else steps.send(data)
    except StopIteration as stop:
        result: ReadResult = stop.value
        return result


class Check:
    """Compares the bytes that one read took from files with the entries that name them, in order."""

    __slots__ = ("_count", "_entries", "_indexes", "_numbers", "_offset", "_ordinal", "_queue")

    def __init__(self, queue: ConsumeQueue, offset: int, entries: bytes, indexes: "list[int] | range") -> None:
        self._queue = queue
        self._offset = offset
        """Offset of the first entry."""
        self._entries = entries
        self._indexes = indexes
        """Indexes of the chosen entries."""
        self._numbers = None if isinstance(indexes, range) else indexes
        """The indexes, or None if they are those of the first entries."""
        self._count = len(indexes)
        self._ordinal = 0
        """Which of them is next."""

    def run(self, data: bytes, position: int) -> None:
        """Check `data`, which was read at `position`. Raise MismatchError for the first entry that does not match its record."""
        self._find(position)
        queue_id, name, offset, last = self._queue.queue_id, self._queue.topic_field.field, self._offset, len(data) - RECORD_BYTES_MIN
        name_bytes, sealed = len(name), self._queue.topic in SEALED
        if kernels is not None:
            checked = kernels.check_run(data, position, self._entries, self._numbers, self._count, self._ordinal, offset, queue_id, name)
            if checked is not None and (not sealed or all(seal_holds(data, *each, name[1:]) for each in iter_records(data))):
                self._ordinal += checked
                return
        unpack, place, indexes, view = CHECKED.unpack_from, self._place, self._indexes, memoryview(data)
        ordinal, count, at, end = self._ordinal, self._count, 0, len(data)
        while at <= last and ordinal < count:
            size, magic, crc, stored_queue, queue_offset, physical, sys_flag, body_bytes = unpack(data, at)
            index = indexes[ordinal]
            body_at = at + BODY_AT
            if sys_flag & SYS_IPV6_MASK:
                body_at = at + head_of(data, at).size
                body_bytes = UINT32.unpack_from(data, body_at - UINT32.size)[0] if body_at <= end else STORED_BYTES_MAX
            stop, behind = at + size, body_at + body_bytes
            if (
                physical != position + at
                or place(index) != (physical, size)
                or queue_offset != offset + index
                or magic != MAGIC
                or stored_queue != queue_id
                or stop > end
                or behind + name_bytes + 2 > stop
                or crc32(view[body_at:behind]) & CRC_MASK != crc
            ):
                break
            if data[behind : behind + name_bytes] != name or not valid_properties(data, behind + name_bytes + 2, stop):
                break
            if sealed and not seal_holds(data, at, stop, name[1:]):
                break
            at = stop
            ordinal += 1
        self._ordinal = ordinal
        if at != end:
            try:
                size = int.from_bytes(data[at : at + 4], "big")
                record = read_record(data[at : at + size], position + at, {})
                reason = f"it is offset {record.queue_offset} of queue {record.queue_id} of {record.topic}"
            except BadRecordError as bad:
                reason = str(bad)
            raise self._mismatch(position + at, reason)

    def outside(self, position: int, segment_end: int | None) -> MismatchError:
        """Return the error of the first entry of the run at `position` that is not inside a segment."""
        self._find(position)
        while segment_end is not None and self._ordinal < self._count - 1:
            if sum(self._place(self._indexes[self._ordinal])) > segment_end:
                break
            self._ordinal += 1
        return self._mismatch(position, "the entry points outside of the log")

    def _find(self, position: int) -> None:
        """Continue with the entry that names `position`: those before it were in memory."""
        for ordinal in range(self._ordinal, self._count):
            if self._place(self._indexes[ordinal])[0] == position:
                self._ordinal = ordinal
                return

    def _place(self, index: int) -> Run:
        return place_of(self._entries, index)

    def _mismatch(self, position: int, reason: str) -> MismatchError:
        index = self._indexes[min(self._ordinal, self._count - 1)]
        return MismatchError(self._queue, self._offset + index, position, reason)


def place_of(entries: bytes, index: int) -> Run:
    """Return the log position and the size of an entry."""
    position, size, _ = ENTRY.unpack_from(entries, index * ENTRY_BYTES)
    return position, size


def matching(entries: bytes, hashes: frozenset[int], count: int) -> list[int]:
    """Return the indexes of the first `count` entries whose tag hash is among `hashes`."""
    found = (index for index, tag in enumerate(_words(entries)[4::5]) if tag in hashes)
    return list(islice(found, count))


def outside_bounds(queue: ConsumeQueue | None, offset: int) -> ReadResult | None:
    """Return the result for an offset outside the visible range, or None if it is inside."""
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


def present_count(entries: bytes) -> int:
    """Return how many entries from the first on may name a record. From minimum to end all do, except lost ones (damage.py)."""
    words = _words(entries)
    places, sizes = words[0::5], words[2::5]
    if not sizes:
        return 0
    if min(sizes) >= RECORD_BYTES_MIN and max(sizes) <= STORED_BYTES_MAX and min(places) >= 0:
        return len(sizes)
    good = (RECORD_BYTES_MIN <= size <= STORED_BYTES_MAX and place >= 0 for place, size in zip(places, sizes, strict=True))
    return next(index for index, is_good in enumerate(good) if not is_good)


def lost_count(entries: bytes) -> int:
    """Return how many entries from the first on belong to lost messages."""
    sizes = _words(entries)[2::5]
    return next((index for index, size in enumerate(sizes) if size != LOST_SIZE), len(sizes))


def _words(entries: bytes) -> "array[int]":
    """Return five int32 for each entry: position high and low, size, tag hash high and low."""
    words = array("i", entries)
    if _SWAP:
        words.byteswap()
    return words


def choose(entries: bytes, max_count: int, max_bytes: int, hashes: frozenset[int] | None) -> tuple[list[Run], int, int]:
    """Return (runs, number of messages, number of scanned entries). The first message always fits."""
    # The tag hash is a sign-extended int32, so its low word is enough.
    words = _words(entries)
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
    """Return the runs of the entries at `indexes`. Adjacent records are one run."""
    if kernels is not None:
        joined = kernels.join_entries(entries, None if isinstance(indexes, range) else indexes, len(indexes))
        if joined is not None:
            return joined
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
