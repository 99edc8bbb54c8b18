"""Snapshots: the tables at a log position.

    lockstep/snapshot-00000000000012345678     the name is the position P
        0   8   "LSSNAP01"
        8   4   CRC-32 of the payload
       12   8   length of the payload
       20       payload: msgpack [P, position of the last record before P (−1: none), store time, next state offset, queues, plain, clock,
                the first 88 bytes of that record (null: none), where the log began]

`queues` is a list of [topic, queue id, minimum, next offset], `clock` the state of store_clock.py. A snapshot is valid only if a record
of the log still ends exactly at P: one that is ahead of the log, or of another log, is ignored. Two are kept.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import msgpack  # type: ignore[import-untyped]

from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.broker.store.log.store_clock import StoreClock, stamps_of
from lockstep.broker.store.start.directory import SNAPSHOT_PREFIX, StoreDirectory
from lockstep.protocol.crc import crc32
from lockstep.runtime.files import Files
from lockstep.runtime.metrics import Slices

MAGIC = b"LSSNAP01"
HEAD = Struct(">8sIQ")
KEPT_COUNT = 2
PARTS_PER_SLICE = 250
"""Number of rows that are made and packed in one turn of the loop: about a millisecond."""
PART_BYTES = 128
"""A part counts as one more row for each of these bytes."""
CHUNK_BYTES = 256 << 10
"""Parts are joined when they have this many bytes."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of one file."""

    position: int
    last_record: int
    """Log offset of the last record before `position`. −1 if the log was empty."""
    store_ms: int
    state_next: int
    queues: list[tuple[str, int, int, int]]
    plain: object
    clock: object
    """The state of store_clock.py."""
    last_head: bytes | None
    """The last record's first 88 bytes. None if the log was empty."""
    log_start: int
    """Where the log began: no queue had an entry at or above its minimum with a lower position."""

    def stamps(self) -> StoreClock:
        """Return the clock of the stamps up to here."""
        return stamps_of(self.store_ms, self.clock)

    @property
    def needs_from(self) -> int:
        """Return the oldest log offset that this snapshot needs."""
        return self.position if self.last_record < 0 else self.last_record


def encode_parts(
    position: int,
    last_record: int,
    store_ms: int,
    state_next: int,
    queues: SnapshotRows | list[list[object]],
    plain: object,
    clock: object,
    last_head: bytes | None,
    log_start: int,
) -> Iterator[bytes]:
    """Yield the payload in many small parts, one for each row of SnapshotRows."""
    packer = msgpack.Packer()
    values = position, last_record, store_ms, state_next, queues, plain, clock, last_head, log_start
    yield packer.pack_array_header(len(values))
    for value in values:
        yield from _packed(packer, value)


def _packed(packer: Any, value: object) -> Iterator[bytes]:
    if isinstance(value, SnapshotRows):
        yield packer.pack_array_header(len(value))
        yield from map(packer.pack, value)
    elif isinstance(value, dict):
        yield packer.pack_map_header(len(value))
        for name, each in value.items():
            yield packer.pack(name)
            yield from _packed(packer, each)
    else:
        yield packer.pack(value)


class _Payload:
    """Collects the payload's parts in chunks, and updates their CRC with each part: no step takes longer than one chunk needs."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._crc = 0
        self._size = 0

    def add(self, part: bytes) -> None:
        self._parts.append(part)
        self._parts_bytes += len(part)
        if self._parts_bytes >= CHUNK_BYTES:
            self._join()

    def _join(self) -> None:
        chunk = b"".join(self._parts)
        self._chunks.append(chunk)
        self._crc = crc32(chunk, self._crc)
        self._size += len(chunk)
        self._parts, self._parts_bytes = [], 0

    def seal(self) -> list[bytes]:
        """Return the file in chunks, its head first."""
        self._join()
        return [HEAD.pack(MAGIC, self._crc, self._size), *self._chunks]


async def gathered(parts: Iterable[bytes]) -> list[bytes]:
    """Return the file in chunks, made of the payload's parts in several turns of the loop. Larger parts count for more."""
    slices, payload = Slices(PARTS_PER_SLICE), _Payload()
    for part in parts:
        payload.add(part)
        await slices.step(1 + len(part) // PART_BYTES)
    return payload.seal()


def encode(*values: Any) -> bytes:
    """Return the file's bytes, made at once from the arguments of `encode_parts`."""
    payload = _Payload()
    for part in encode_parts(*values):
        payload.add(part)
    return b"".join(payload.seal())


def decode(data: bytes) -> Snapshot | None:
    """Return the snapshot, or None if the bytes are not a whole one."""
    if len(data) < HEAD.size:
        return None
    magic, crc, size = HEAD.unpack_from(data)
    payload = data[HEAD.size :]
    if magic != MAGIC or len(payload) != size or crc32(payload) != crc:
        return None
    try:
        position, last_record, store_ms, state_next, queues, plain, clock, last_head, log_start = msgpack.unpackb(
            payload, raw=False, strict_map_key=False
        )
        stamps_of(0, clock)  # raises if it can't be read
        rows = [_queue_row(*queue) for queue in queues]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, msgpack.UnpackException):
        return None
    numbers = position, last_record, store_ms, state_next, log_start
    if not all(isinstance(value, int) for value in numbers) or not isinstance(last_head, bytes | None):
        return None
    return Snapshot(position, last_record, store_ms, state_next, rows, plain, clock, last_head, log_start)


def _queue_row(topic: object, queue_id: object, low: object, following: object) -> tuple[str, int, int, int]:
    """Return one row of `queues`. Raises TypeError if a value has another type."""
    if isinstance(topic, str) and isinstance(queue_id, int) and isinstance(low, int) and isinstance(following, int):
        return topic, queue_id, low, following
    raise TypeError("a queue of a snapshot is [text, number, number, number]")


class Snapshots:
    """The snapshot files of one store."""

    def __init__(self, files: Files, directory: StoreDirectory) -> None:
        self._files = files
        self._directory = directory
        self.kept: list[tuple[int, int]] = []
        """(position, oldest log offset needed) of the valid snapshots on disk, oldest first."""
        self._left: dict[int, int] = {}
        """Position → oldest log offset needed, for files that may be on the disk but are not valid: incomplete, or to be removed."""

    def load(self, position: int) -> Snapshot | None:
        data = self._directory.read(self._path(position))
        snapshot = None if data is None else decode(data)
        return snapshot if snapshot is not None and snapshot.position == position else None

    def note_writing(self, position: int, needs_from: int) -> None:
        """Note that a snapshot will be written: whether or not that succeeds, its file may exist from now on."""
        self._left[position] = needs_from

    def write(self, position: int, chunks: Sequence[bytes]) -> None:
        """Make a snapshot durable. For a worker thread."""
        self._directory.replace(self._path(position), *chunks)

    def remove(self, positions: list[int], aside: str | None = None) -> None:
        """Remove snapshots. `aside` is a directory into which the files are moved instead."""
        for position in positions:
            path = self._path(position)
            if not self._files.exists(path):
                continue
            if aside is None:
                self._files.unlink(path)
            else:
                self._files.rename(path, f"{aside}/{path.rpartition('/')[2]}")
        if positions and aside is not None:
            self._files.sync_directory(aside)  # before the old names are removed permanently
        if positions:
            self._files.sync_directory(self._directory.own)

    def note_durable(self, position: int, needs_from: int) -> list[int]:
        """Add a durable snapshot. Return the positions of the files to remove. Until `note_removed` they may exist after a crash."""
        self.kept = sorted({*[kept for kept in self.kept if kept[0] != position], (position, needs_from)})
        self._left |= dict(self.kept[:-KEPT_COUNT])
        self.kept = self.kept[-KEPT_COUNT:]
        self._left = {left: needed for left, needed in self._left.items() if left not in dict(self.kept)}
        return list(self._left)

    def note_removed(self, positions: list[int]) -> None:
        """Note that `remove` has returned: the log that these snapshots needed may be removed."""
        for position in positions:
            self._left.pop(position, None)

    @property
    def needs_from(self) -> int | None:
        """Return the oldest log offset that a snapshot on the disk needs. None if there is no valid one.

        A file that is no longer valid is included until it is removed: the start after a crash must not find it without its log.
        """
        return min(needed for _, needed in [*self.kept, *self._left.items()]) if self.kept else None

    def _path(self, position: int) -> str:
        return f"{self._directory.own}/{SNAPSHOT_PREFIX}{position:020d}"


def recorded_start(files: Files, directory: StoreDirectory) -> int | None:
    """Return where the log begins: from the file `lockstep/start`, else from the newest whole snapshot. None if neither is known.

    Raises StoreCorruptError if the file is damaged.
    """
    start = directory.read_start()
    if start is not None:
        return start
    snapshots = Snapshots(files, directory)
    whole = filter(None, map(snapshots.load, reversed(directory.snapshot_positions())))
    return next((snapshot.log_start for snapshot in whole), None)
