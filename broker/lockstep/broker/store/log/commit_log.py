"""The commit log: records of all queues in segments of one length, append only. RocketMQ: CommitLog, MappedFileQueue.

    commitlog/00000000000000000000   the name is the log offset of the file's first byte, 20 digits
    commitlog/00000000001073741824   …

Every file has its full apparent length from the start and is sparse. A record or frame never spans two files. If it does not fit with 8
bytes to spare, it goes into the next file, and the rest of this one is a blank record (int32 rest, magic 0xCBD43194, no further bytes).

Appended bytes wait in `tail`, the recent end of the log in memory, until `write` passes them to the file in one call. When half of the
memory for recent bytes is full, `tail` is kept as it is for readers, in place of the one before it, and a new one begins: no byte is moved.

The file of the next segment is opened in advance, under another name, so that rolling needs no descriptor: connections may have taken all.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EDQUOT, ENOENT, ENOSPC, EXDEV
from struct import Struct
from typing import NoReturn

from lockstep.broker.store.errors import NoNextFileError, StoreDiskError
from lockstep.broker.store.health.path_watch import PathWatch, truncated
from lockstep.broker.store.start.survey import LogSurvey
from lockstep.protocol.errors import StateError
from lockstep.protocol.messages.record import BLANK_MAGIC
from lockstep.runtime.descriptors import SHORTAGE
from lockstep.runtime.files import Buffer, Directory, File, FileIdentity, Files
from lockstep.runtime.host import Host

BLANK = Struct(">iI")
BLANK_BYTES = 8
COPY_BYTES = 1 << 20
NO_FILE = (*SHORTAGE, ENOSPC, EDQUOT)
"""No file can be created now, for lack of a descriptor, an inode, space or quota. Open files can still be written."""


def _step(error: OSError) -> str:
    if error.errno in SHORTAGE:
        return "raise its limit of file descriptors (ulimit -n), or try again when connections have closed"
    return "free some space or inodes (df -i), or raise the quota: sends resume without a restart"


def write_all(file: File, data: Buffer, offset: int) -> None:
    """Call pwritev until all is written. After a short write the next call writes the rest or raises the error that caused it."""
    written = file.pwritev([data], offset)
    if written == len(data):
        return
    with memoryview(data) as view:
        while written < len(view):
            more = file.pwritev([view[written:]], offset + written)
            if more == 0:
                raise StoreDiskError(f"write of {len(view)} bytes at {offset} stopped after {written}")
            written += more


class AbsentFile:
    """Takes the place of a missing log file: it reads as a file of no bytes."""

    def size(self) -> int:
        return 0

    def pread(self, count: int, offset: int) -> bytes:
        return b""

    def pread_cached(self, count: int, offset: int) -> bytes | None:
        return b""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        raise OSError(ENOENT, "a log file is missing")

    def truncate(self, size: int) -> None:
        raise OSError(ENOENT, "a log file is missing")

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


class Segment:
    """One file of the log."""

    __slots__ = ("end", "file", "path", "reader_count", "start")

    def __init__(self, path: str, start: int, size: int, file: File) -> None:
        self.path = path
        self.start = start
        self.end = start + size
        self.file = file
        self.reader_count = 0
        """Number of reads in worker threads. Retention waits for them."""


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """The syncs that make the log durable up to `position`. `run` is for a worker thread."""

    position: int
    files: list[File]
    directory: Directory | None
    """The directory, if names changed in it. It is kept open: a sync must not fail, or wait, for lack of a descriptor."""

    def run(self) -> None:
        """Do each sync once. An OSError is final: the kernel has marked pages that it could not write as written."""
        for file in self.files:
            file.sync()
        if self.directory is not None:
            self.directory.sync()


COPY = ".copy"
"""Ends the name of a file that will replace one of the log. If the process dies before, the next start removes it."""


class CommitLog:
    """The segments, and the bytes that are not written to them yet. Positions are log offsets; start ≤ synced ≤ written ≤ end."""

    def __init__(
        self, files: Files, directory: str, segment_bytes: int, tail_bytes: int, presence: PathWatch, next_path: str | None = None
    ) -> None:
        """`next_path` is where the file of the next segment is created in advance. None for a log that is only read."""
        self._files = files
        self._next_path = next_path
        self._next: File | None = None
        """The empty file, open at `_next_path`. None while it can't be created."""
        self._next_identity: FileIdentity | None = None
        self.refusal: str | None = None
        """Why the file of the next segment could not be created for an append; None if it can."""
        self._presence = presence
        """Watches the newest file."""
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._tail_bytes = tail_bytes
        self.segments: list[Segment] = []
        self.tail = bytearray()
        self.tail_start = 0
        self._before_tail = bytearray()
        """The bytes before `tail` that are still in memory."""
        self.written = 0
        self.synced = 0
        self._unsynced: list[Segment] = []
        self.lacking = False
        """Whether a file below the synced length is absent or short, and the start continues without its content."""
        self._open_directory: Directory | None = None
        """The log's directory. None in a log that is only read."""
        self._names_changed = False
        """Whether files were created since the directory was last synced."""
        self._stray: list[str] = []
        """Files after a gap above the synced length. `begin` removes them, after the start has found nothing wrong."""
        self.on_truncated: Callable[[StoreDiskError], None] = lambda error: None
        """Called when `read` or `read_here` finds a truncated file. The process has to end (exit 3)."""

    @property
    def start(self) -> int:
        """Return the oldest position that still exists."""
        return self.segments[0].start if self.segments else 0

    @property
    def files_end(self) -> int:
        """Return the end of the newest file."""
        return self.segments[-1].end if self.segments else 0

    @property
    def end(self) -> int:
        """Return the position of the next record."""
        return self.tail_start + len(self.tail)

    @property
    def memory_start(self) -> int:
        """Return the position from which on the bytes are in memory."""
        return self.tail_start - len(self._before_tail)

    @property
    def frame_bytes_max(self) -> int:
        """Return the longest run of bytes that fits into one segment."""
        return self._segment_bytes - BLANK_BYTES

    # -- opening ---------------------------------------------------------------------------------

    def load(self, survey: LogSurvey) -> None:
        """Open the files that the survey found. Changes nothing: short or absent files read as zeros until `begin`."""
        for start in survey.starts:
            path = self._path(start)
            file: File = AbsentFile() if start in survey.absent else self._files.open(path)
            self.segments.append(Segment(path, start, self._segment_bytes, file))
        self._stray = [self._path(start) for start in survey.stray]
        self.synced = survey.synced
        self.lacking = survey.lacking

    def begin(self, end: int, *, clean: bool, aside: str | None = None) -> None:
        """Continue appending at `end`: zero the bytes after it and remove later files. Nothing above `synced` is considered synced.

        Durable at once, unless `clean` (nothing is there): a record that is appended meanwhile must not be followed by stale ones.
        `aside` is a directory into which the files are moved instead of being removed.
        """
        for segment in [s for s in self.segments if s.start >= end and s.start > self.start]:
            self.segments.remove(segment)
            segment.file.close()
            if not isinstance(segment.file, AbsentFile):
                self._stray.append(segment.path)
        for path in self._stray:
            if aside is None:
                self._files.unlink(path)
            else:
                self._files.rename(path, f"{aside}/{path.rpartition('/')[2]}")
        if self._stray and aside is not None:
            self._files.sync_directory(aside)  # before the old names are removed permanently
        completed = [segment for segment in self.segments if self._complete(segment)]
        if self.segments and end < self.segments[-1].end:
            last = self.segments[-1]
            last.file.truncate(end - last.start)
            last.file.truncate(self._segment_bytes)
            if not clean:
                last.file.sync()
        if self._stray or completed or not clean:
            # The previous process may have died between creating a name and syncing it.
            self._files.sync_directory(self._directory)
        self._stray = []
        for name in self._files.listdir(self._directory):
            if name.endswith(COPY):
                self._files.unlink(f"{self._directory}/{name}")
        self._begin_tail(end)
        self.written = end
        self._unsynced = list(self.segments)
        self._open_directory = self._open_directory or self._files.open_directory(self._directory)
        if self.segments:
            self._watch_newest()
        self.prepare()

    def _complete(self, segment: Segment) -> bool:
        """Give an absent or short file its full length, durably, filled with zeros. Return False if it has that length."""
        if isinstance(segment.file, AbsentFile):
            segment.file = self._files.open(segment.path, create=True)
        if segment.file.size() >= self._segment_bytes:
            return False
        segment.file.truncate(self._segment_bytes)
        segment.file.sync()
        return True

    def rewrite(self, position: int, end: int) -> None:
        """Write the bytes of [position, end) to the same place again.

        The previous process may have died at a failed sync before it could record that. The kernel then has these pages, considers them
        clean, and would never write them. Writing makes them dirty again.
        """
        for segment in self.segments:
            at, stop = max(position, segment.start), min(end, segment.end)
            while at < stop:
                data = segment.file.pread(min(COPY_BYTES, stop - at), at - segment.start)
                write_all(segment.file, data, at - segment.start)
                at += len(data)

    def copy(self, position: int, end: int, path: str) -> None:
        """Copy [position, end) into another file, durably."""
        file = self._files.open(path, create=True)
        try:
            for segment in self.segments:
                at, stop = max(position, segment.start), min(end, segment.end)
                while at < stop:
                    data = segment.file.pread(min(COPY_BYTES, stop - at), at - segment.start)
                    if not data:
                        break
                    write_all(file, data, at - position)
                    at += len(data)
            file.sync()
        finally:
            file.close()
        self._files.sync_directory(path.rpartition("/")[0])

    def replace_segments(self, position: int, end: int) -> None:
        """Copy the files that hold [position, end) into new ones. After a failed sync, bytes that can be read may not be on the disk."""
        for segment in self.segments:
            if segment.end <= position or segment.start >= end:
                continue
            path = segment.path + COPY
            if self._files.exists(path):
                self._files.unlink(path)
            copy = self._files.open(path, create=True)
            copy.truncate(self._segment_bytes)
            at, stop = segment.start, min(end, segment.end)
            while at < stop:
                data = segment.file.pread(min(COPY_BYTES, stop - at), at - segment.start)
                write_all(copy, data, at - segment.start)
                at += len(data)
            copy.sync()
            segment.file.close()
            self._files.rename(path, segment.path)
            segment.file = copy
        self._files.sync_directory(self._directory)
        if self.segments:
            self._watch_newest()

    # -- appending -------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Open the file of the next segment, unless it is open. If that fails, `reserve` tries again."""
        try:
            self._open_next()
        except OSError:
            pass

    def _open_next(self) -> None:
        """Open the next file, also if another program has removed or replaced the open one: bytes written to that one would be lost."""
        if self._next_path is None:
            return
        if self._next is not None and self._files.identity(self._next_path) != self._next_identity:
            self._next.close()
            self._next = None
        if self._next is None:
            if self._files.exists(self._next_path):
                self._files.unlink(self._next_path)  # another program's, or a segment after a power cut
            self._next = self._files.open(self._next_path, create=True)
            self._next_identity = self._files.identity(self._next_path)
        self.refusal = None

    def reserve(self, size: int, *, leave: int = 0) -> int:
        """Return the position at which `size` bytes may now be added to `tail`. Roll to the next segment if they do not fit.

        `leave` is the number of bytes of the newest segment that are reserved while the file of the next one is not open.
        Raises OSError, and NoNextFileError if that file can't be created now; nothing has changed then.
        """
        room = self.segments[-1].end - self.end - BLANK_BYTES if self.segments else 0
        if size > room - (leave if self._next is None else 0):
            start = self.segments[-1].end if self.segments else self.end
            with self._creating():
                self._open_next()
                file = self._take_next(self._path(start)) if size > room else None
            if file is not None:
                if self.end < start:
                    self.tail += BLANK.pack(start - self.end, BLANK_MAGIC)
                self._roll(start, file)
        return self.end

    def receive(self, position: int, data: Buffer) -> None:
        """Add to `tail` what another copy of the log has at `position`: bytes of one segment, zeros behind its blank record included.

        Raises OSError and NoNextFileError as `reserve` does, and StateError if they do not continue the log.
        """
        if position != self.end:
            raise StateError(f"bytes of position {position} were received, and the log ends at {self.end}")
        if not self.segments or position == self.segments[-1].end:
            with self._creating():
                self._open_next()
                file = self._take_next(self._path(position))
            self._roll(position, file)
        if len(data) > self.segments[-1].end - position:
            raise StateError(f"{len(data)} bytes of position {position} were received, and its segment ends at {self.segments[-1].end}")
        self.tail += data

    def _path(self, start: int) -> str:
        return f"{self._directory}/{start:020d}"

    @contextmanager
    def _creating(self) -> Iterator[None]:
        """Raise NoNextFileError if the file of the next segment can't be created now."""
        try:
            yield
        except OSError as error:
            if error.errno in NO_FILE:
                self.refusal = f"the broker can't create the next file of its log ({error.strerror}): {_step(error)}"
                raise NoNextFileError(self.refusal) from error
            raise

    def _roll(self, start: int, file: File) -> None:
        """Continue in the empty file of the segment that begins at `start`."""
        self.write()
        file.truncate(self._segment_bytes)
        segment = Segment(self._path(start), start, self._segment_bytes, file)
        if self.segments:
            self._presence.unwatch(self.segments[-1].path)
        self.segments.append(segment)
        self._watch_newest()
        self._unsynced.append(segment)
        self._names_changed = True
        self._begin_tail(start)
        self.written = start
        self.prepare()

    def _watch_newest(self) -> None:
        newest = self.segments[-1]
        self._presence.watch(newest.path, newest.file, self._segment_bytes)

    def _take_next(self, path: str) -> File:
        """Return the file of the next segment, empty and under its final name."""
        if self._files.exists(path):
            # A power cut undid its removal. Its bytes must not be read as records.
            self._files.unlink(path)
        file, self._next = self._next, None
        if file is not None and self._next_path is not None:
            try:
                self._files.rename(self._next_path, path)
                return file
            except OSError as error:
                file.close()
                # commitlog/ may be a separate file system, or another program has just removed the file
                if error.errno not in (EXDEV, ENOENT):
                    raise
        return self._files.open(path, create=True)

    def write(self) -> bool:
        """Write everything that was appended, in one call. Return False if there was nothing."""
        end = self.end
        if self.written == end:
            return False
        segment = self.segments[-1]
        with memoryview(self.tail) as view, view[self.written - self.tail_start :] as data:
            write_all(segment.file, data, self.written - segment.start)
        self.written = end
        if not self._unsynced or self._unsynced[-1] is not segment:
            self._unsynced.append(segment)
        return True

    def trim(self) -> None:
        """Keep the recent part of the written bytes in memory: between half of `tail_bytes` and all of it, and the last turn's."""
        if self.written == self.end and len(self.tail) > self._tail_bytes // 2:
            full = self.tail
            self._begin_tail(self.end)
            self._before_tail = full

    def _begin_tail(self, position: int) -> None:
        """Forget the bytes in memory. The next one has this position."""
        self.tail = bytearray()
        self.tail_start = position
        self._before_tail = bytearray()

    # -- syncing ---------------------------------------------------------------------------------

    def sync_plan(self) -> "SyncPlan":
        """Return what a sync must cover now. `sync_done` follows after it has run."""
        directory = self._open_directory if self._names_changed else None
        plan = SyncPlan(self.written, [segment.file for segment in self._unsynced], directory)
        self._unsynced = []
        self._names_changed = False
        return plan

    def sync_done(self, plan: "SyncPlan") -> None:
        self.synced = max(self.synced, plan.position)

    # -- reading ---------------------------------------------------------------------------------

    def from_tail(self, position: int, count: int) -> bytes | None:
        """Return bytes that are still in memory, or None."""
        at = position - self.tail_start
        if at < 0:
            return self._from_before_tail(at + len(self._before_tail), count)
        if at + count > len(self.tail):
            return None
        return bytes(memoryview(self.tail)[at : at + count])

    def _from_before_tail(self, at: int, count: int) -> bytes | None:
        """Return `count` bytes from index `at` of the bytes before the tail, and the first ones of the tail if those are too few."""
        following = at + count - len(self._before_tail)
        if at < 0 or following > len(self.tail):
            return None
        data = bytes(memoryview(self._before_tail)[at : at + count])
        return data if following <= 0 else data + memoryview(self.tail)[:following]

    def segment_of(self, position: int) -> Segment | None:
        """Return the file that holds a position, or None below the log's start and after its files."""
        if not self.segments:
            return None
        index = (position - self.segments[0].start) // self._segment_bytes
        return self.segments[index] if 0 <= index < len(self.segments) else None

    def cached(self, position: int, count: int) -> bytes | None:
        """Return bytes from memory or the page cache, or None if reading might wait for the disk."""
        data = self.from_tail(position, count)
        if data is not None:
            return data
        segment = self.segment_of(position)
        return None if segment is None else segment.file.pread_cached(count, position - segment.start)

    async def read(self, host: Host, segment: Segment, count: int, at: int) -> bytes:
        """Return `count` bytes of a file from byte `at` on, read in a worker thread. Retention does not remove the file meanwhile.

        Raises OSError, and StoreDiskError if the file is truncated: `begin` has given every file its full length.
        """
        segment.reader_count += 1
        try:
            data = await host.threads.run(segment.file.pread, count, at)
        finally:
            segment.reader_count -= 1
        return data if len(data) == count else self._refuse(segment)

    def read_here(self, segment: Segment, count: int, at: int) -> bytes:
        """As `read`, in this thread."""
        data = segment.file.pread(count, at)
        return data if len(data) == count else self._refuse(segment)

    def _refuse(self, segment: Segment) -> NoReturn:
        error = truncated(segment.path, segment.file.size(), self._segment_bytes)
        self.on_truncated(error)
        raise error

    def forget_oldest(self) -> Segment:
        """Make the log begin with the next segment. `remove` removes the file."""
        return self.segments.pop(0)

    def remove(self, segments: Sequence[Segment]) -> None:
        """Remove files, each durably before the next one, oldest first, so that a power cut leaves no gap. For a worker thread."""
        for segment in segments:
            segment.file.close()
            self._files.unlink(segment.path)
            self._files.sync_directory(self._directory)

    def close(self) -> None:
        for segment in self.segments:
            segment.file.close()
        self.segments = []
        if self._open_directory is not None:
            self._open_directory.close()
            self._open_directory = None
        if self._next is not None:
            self._next.close()
            self._next = None
