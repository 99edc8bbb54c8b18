"""The commit log: records of all queues in segments of one length, append only. RocketMQ: CommitLog, MappedFileQueue.

    commitlog/00000000000000000000   the name is the log offset of the file's first byte, 20 digits
    commitlog/00000000001073741824   …

Every file has its full apparent length from the start and is sparse. A record or frame never spans two: what does not fit with 8 bytes to
spare goes into the next, and the rest of this one is a blank record (int32 rest, magic 0xCBD43194, nothing behind).

Bytes appended wait in `tail`, the recent end of the log in memory, until `write` hands them to the file in one call.

The file of the next segment is open before it is needed, under another name: rolling needs no descriptor, which connections may have taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from errno import EDQUOT, ENOENT, ENOSPC, EXDEV
from struct import Struct

from lockstep.broker.store.errors import NoNextFileError, StoreDiskError
from lockstep.broker.store.path_watch import PathWatch
from lockstep.broker.store.survey import LogSurvey
from lockstep.protocol.record import BLANK_MAGIC
from lockstep.runtime.descriptors import SHORTAGE
from lockstep.runtime.files import Buffer, Directory, File, FileIdentity, Files

BLANK = Struct(">iI")
BLANK_BYTES = 8
COPY_BYTES = 1 << 20
NO_FILE = (*SHORTAGE, ENOSPC, EDQUOT)
"""No file can be created now, for want of a descriptor, an inode, space or quota. What is open can be written."""


def _step(error: OSError) -> str:
    if error.errno in SHORTAGE:
        return "raise its limit of file descriptors (ulimit -n), or try again when connections have closed"
    return "free some space or inodes (df -i), or raise the quota: sends resume by themselves"


def write_all(file: File, data: Buffer, offset: int) -> None:
    """pwritev until all is written; a short write is followed by the error that caused it, or by the rest."""
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
    """Stands for a log file that is missing: it reads as a file of no bytes."""

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
        """Reads in a worker thread: retention waits for them."""


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """What makes the log durable up to `position`. `run` is for a worker thread."""

    position: int
    files: list[File]
    directory: Directory | None
    """Names changed here. It is open: a sync must not fail, or wait, for want of a descriptor."""

    def run(self) -> None:
        """Every sync once. An OSError is final: what the kernel could not write it has marked as written."""
        for file in self.files:
            file.sync()
        if self.directory is not None:
            self.directory.sync()


class CommitLog:
    """Segments plus the bytes that are not in them yet. All positions are log offsets; start ≤ synced ≤ written ≤ end."""

    def __init__(
        self, files: Files, directory: str, segment_bytes: int, tail_bytes: int, presence: PathWatch, next_path: str | None = None
    ) -> None:
        """`next_path`: where the file of the next segment waits; None for a log that is only read."""
        self._files = files
        self._next_path = next_path
        self._next: File | None = None
        """Empty, and open at `_next_path`; None while it can't be created."""
        self._next_identity: FileIdentity | None = None
        self._presence = presence
        """Watches the newest file."""
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._tail_bytes = tail_bytes
        self.segments: list[Segment] = []
        self.tail = bytearray()
        self.tail_start = 0
        self.written = 0
        self.synced = 0
        self._unsynced: list[Segment] = []
        self.lacking = False
        """A file below the synced length is absent or short, and the start goes on without what it held."""
        self._open_directory: Directory | None = None
        """None in a log that is only read."""
        self._names_changed = False
        """Files were created since the directory was last synced."""
        self._stray: list[str] = []
        """Files behind a gap above the synced length: `begin` removes them, once the start has found nothing wrong."""

    @property
    def start(self) -> int:
        """The oldest position that is still there."""
        return self.segments[0].start if self.segments else 0

    @property
    def files_end(self) -> int:
        """Where the newest file ends."""
        return self.segments[-1].end if self.segments else 0

    @property
    def end(self) -> int:
        """Where the next record goes."""
        return self.tail_start + len(self.tail)

    @property
    def frame_bytes_max(self) -> int:
        """The longest run of bytes that fits one segment."""
        return self._segment_bytes - BLANK_BYTES

    # -- opening ---------------------------------------------------------------------------------

    def load(self, survey: LogSurvey) -> None:
        """Opens what the survey found. Nothing is changed: what is short or absent reads as zeros until `begin`."""
        for start in survey.starts:
            path = f"{self._directory}/{start:020d}"
            file: File = AbsentFile() if start in survey.absent else self._files.open(path)
            self.segments.append(Segment(path, start, self._segment_bytes, file))
        self._stray = [f"{self._directory}/{start:020d}" for start in survey.stray]
        self.synced = survey.synced
        self.lacking = survey.lacking

    def begin(self, end: int, *, clean: bool, aside: str | None = None) -> None:
        """Appending goes on at `end`: what lies behind it is made zero, later files go. Nothing counts as synced above `synced`.

        Durable at once unless `clean` says that nothing lies there: a record appended meanwhile must not be followed by stale ones.
        `aside`: a directory into which the files go instead of being removed.
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
            self._files.sync_directory(aside)  # before the old names are gone for good
        completed = [segment for segment in self.segments if self._complete(segment)]
        if self.segments and end < self.segments[-1].end:
            last = self.segments[-1]
            last.file.truncate(end - last.start)
            last.file.truncate(self._segment_bytes)
            if not clean:
                last.file.sync()
        if self._stray or completed or not clean:
            # The life before this one may have died between making a name and syncing it.
            self._files.sync_directory(self._directory)
        self._stray = []
        self.tail = bytearray()
        self.tail_start = self.written = end
        self._unsynced = list(self.segments)
        self._open_directory = self._open_directory or self._files.open_directory(self._directory)
        if self.segments:
            self._presence.watch(self.segments[-1].path)
        self.prepare()

    def _complete(self, segment: Segment) -> bool:
        """Gives a file that is absent or short its full length, durably; what it lacked is zeros. False: it has that length."""
        if isinstance(segment.file, AbsentFile):
            segment.file = self._files.open(segment.path, create=True)
        if segment.file.size() >= self._segment_bytes:
            return False
        segment.file.truncate(self._segment_bytes)
        segment.file.sync()
        return True

    def rewrite(self, position: int, end: int) -> None:
        """Writes [position, end) back over itself.

        The life before may have died at a failed sync before it could say so: the kernel then has these pages, calls them clean, and would
        never write them. Writing makes them dirty again.
        """
        for segment in self.segments:
            at, stop = max(position, segment.start), min(end, segment.end)
            while at < stop:
                data = segment.file.pread(min(COPY_BYTES, stop - at), at - segment.start)
                write_all(segment.file, data, at - segment.start)
                at += len(data)

    def copy(self, position: int, end: int, path: str) -> None:
        """Copies [position, end) into a file of its own, durably."""
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
        """Copies the files that hold [position, end) into new ones: after a failed sync, what is read may not be on the disk."""
        for segment in self.segments:
            if segment.end <= position or segment.start >= end:
                continue
            path = segment.path + ".copy"
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
            self._presence.watch(self.segments[-1].path)

    # -- appending -------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Opens the file of the next segment, unless it is open. Where that fails `reserve` tries again."""
        try:
            self._open_next()
        except OSError:
            pass

    def _open_next(self) -> None:
        """Also where another program has removed or replaced the file that was open: what is written to that one is lost."""
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

    def reserve(self, size: int, *, leave: int = 0) -> int:
        """The position at which `size` bytes may now be added to `tail`; rolls to the next segment where they do not fit.

        `leave`: bytes of the newest segment that are not for this while the file of the next one is not open.
        Raises OSError, and NoNextFileError when that file can't be created now; nothing has changed then.
        """
        room = self.segments[-1].end - self.end - BLANK_BYTES if self.segments else 0
        if size > room - (leave if self._next is None else 0):
            start = self.segments[-1].end if self.segments else self.end
            path = f"{self._directory}/{start:020d}"
            try:
                self._open_next()
                file = self._take_next(path) if size > room else None
            except OSError as error:
                if error.errno in NO_FILE:
                    raise NoNextFileError(f"the broker can't create the next file of its log ({error.strerror}): {_step(error)}") from error
                raise
            if file is not None:
                self._roll(path, start, file)
        return self.end

    def _roll(self, path: str, start: int, file: File) -> None:
        if self.end < start:
            self.tail += BLANK.pack(start - self.end, BLANK_MAGIC)
        self.write()
        file.truncate(self._segment_bytes)
        segment = Segment(path, start, self._segment_bytes, file)
        self._presence.watch(path)
        if self.segments:
            self._presence.forget(self.segments[-1].path)
        self.segments.append(segment)
        self._unsynced.append(segment)
        self._names_changed = True
        self.tail = bytearray()
        self.tail_start = self.written = start
        self.prepare()

    def _take_next(self, path: str) -> File:
        """The file of the next segment, empty and under its name."""
        if self._files.exists(path):
            # Left by a power cut that forgot its removal: its bytes must not turn into records.
            self._files.unlink(path)
        file, self._next = self._next, None
        if file is not None and self._next_path is not None:
            try:
                self._files.rename(self._next_path, path)
                return file
            except OSError as error:
                file.close()
                # commitlog/ may be a file system of its own, or another program has just removed the file
                if error.errno not in (EXDEV, ENOENT):
                    raise
        return self._files.open(path, create=True)

    def write(self) -> bool:
        """Hands everything appended to the file in one write; False where there was nothing."""
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
        """Keeps the recent part of what is written in memory."""
        if len(self.tail) > self._tail_bytes + (self._tail_bytes >> 1):
            cut = min(len(self.tail) - self._tail_bytes, self.written - self.tail_start)
            del self.tail[:cut]
            self.tail_start += cut

    # -- syncing ---------------------------------------------------------------------------------

    def sync_plan(self) -> "SyncPlan":
        """What a sync has to cover now; `sync_done` follows when it has run."""
        directory = self._open_directory if self._names_changed else None
        plan = SyncPlan(self.written, [segment.file for segment in self._unsynced], directory)
        self._unsynced = []
        self._names_changed = False
        return plan

    def sync_done(self, plan: "SyncPlan") -> None:
        self.synced = max(self.synced, plan.position)

    # -- reading ---------------------------------------------------------------------------------

    def from_tail(self, position: int, count: int) -> bytes | None:
        """Bytes that are still in memory."""
        at = position - self.tail_start
        if at < 0 or at + count > len(self.tail):
            return None
        return bytes(memoryview(self.tail)[at : at + count])

    def segment_of(self, position: int) -> Segment | None:
        """The file that holds a position; None below the log's start and behind its files."""
        if not self.segments:
            return None
        index = (position - self.segments[0].start) // self._segment_bytes
        return self.segments[index] if 0 <= index < len(self.segments) else None

    def cached(self, position: int, count: int) -> bytes | None:
        """Bytes from memory or the page cache; None where reading might wait for the disk."""
        data = self.from_tail(position, count)
        if data is not None:
            return data
        segment = self.segment_of(position)
        return None if segment is None else segment.file.pread_cached(count, position - segment.start)

    def forget_oldest(self) -> Segment:
        """The log now begins with the next segment; `remove` takes the file away."""
        return self.segments.pop(0)

    def remove(self, segments: Sequence[Segment]) -> None:
        """Removes files, the oldest durably before the next: a power cut leaves no gap. For a worker thread."""
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
