"""The file system interface of the store: positioned reads and writes, explicit syncs, and separate syncs of directory entries.

There are two implementations: `RealFiles` here, and crash-consistent ones of the tests and the simulator, which lose and tear data that was
not synced. The protocol is therefore small and makes explicit everything that a crash could affect: a write may be short, a sync names
its file, and a new name is durable only after `sync_directory`.
"""

import ctypes
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from lockstep.runtime.descriptors import DESCRIPTORS

Buffer = bytes | bytearray | memoryview
FileIdentity = tuple[int, int]
"""(device, inode). No other file has it while a descriptor of the file is open."""

READ_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
"""The preadv flag to read from the page cache or not at all (Linux 4.14)."""


SYNC_SINGLY_MAX = 64
"""The maximum number of files and directories that `sync_many` syncs one by one, some ms each. For more, one sync of the file system is
faster: 10,000 small files take 0.2 s instead of 30 s."""
_syncfs: Callable[[int], int] | None = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The file system that holds a path. Used space is counted as df(1) does: without the blocks reserved for root."""

    total_bytes: int
    free_bytes: int


class File(Protocol):
    """One open file. Every call may raise OSError."""

    def size(self) -> int:
        """Return the apparent length in bytes."""
        ...

    def pread(self, count: int, offset: int) -> bytes:
        """Return `count` bytes from `offset`; fewer only at the end of the file. May wait for the disk."""
        ...

    def pread_cached(self, count: int, offset: int) -> bytes | None:
        """Do the same as `pread`, but return None if it might wait for the disk."""
        ...

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write all buffers at `offset` at once. Return the number of bytes written, which may be short as with pwritev(2)."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file, or extend it by zeros that take no space."""
        ...

    def sync(self) -> None:
        """Call fdatasync: then the written bytes and the length survive a power cut. A failure is final: never call it again."""
        ...

    def close(self) -> None: ...


class Directory(Protocol):
    """One open directory. Every call may raise OSError."""

    def sync(self) -> None:
        """Do the same as `Files.sync_directory`."""
        ...

    def close(self) -> None: ...


class Files(Protocol):
    """A file system. Paths are plain strings; every call may raise OSError."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. Raise FileNotFoundError if the file does not exist, unless `create`."""
        ...

    def exists(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        ...

    def makedirs(self, path: str) -> None:
        """Create the directory and its missing parents; their names are durable only after `sync_directory` of each parent."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename atomically, replacing `target`."""
        ...

    def unlink(self, path: str) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None:
        """Make names that were created, renamed or removed in the directory survive a power cut."""
        ...

    def open_directory(self, path: str) -> Directory:
        """Open a directory, for syncs that need no other descriptor."""
        ...

    def sync_many(self, paths: Sequence[str], directories: Sequence[str]) -> None:
        """Call `File.sync` for each path and `sync_directory` for each directory, whatever their number. Missing ones are skipped."""
        ...

    def lock(self, path: str) -> Callable[[], None]:
        """Lock byte 0 of the file (Java's record lock), creating it. Return the function that releases it. Raise BlockingIOError if it
        is locked."""
        ...

    def identity(self, path: str) -> FileIdentity | None:
        """Return the identity of the file at the path, or None. An open file keeps its identity when its path is moved or removed."""
        ...

    def disk_space(self, path: str) -> DiskSpace: ...

    def memory_bytes(self) -> int:
        """Return the physical memory of the machine."""
        ...


def _sync_file_system(fd: int) -> None:
    """Call syncfs(2) for the file system of the descriptor. Linux 5.8 and later report data that could not be written."""
    assert _syncfs is not None
    if _syncfs(fd):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _sync_descriptor(path: str, flags: int, sync: Callable[[int], None]) -> None:
    fd = DESCRIPTORS.open_or_wait(os.open, path, flags | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)


def _sync_if_exists(path: str, flags: int, sync: Callable[[int], None]) -> None:
    try:
        _sync_descriptor(path, flags, sync)
    except FileNotFoundError:
        pass


class RealFile:
    """A File with a file descriptor."""

    __slots__ = ("_fd", "_nowait")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._nowait = READ_NOWAIT

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def pread(self, count: int, offset: int) -> bytes:
        data = os.pread(self._fd, count, offset)
        if len(data) == count or not data:
            return data
        parts = [data]
        have = len(data)
        while have < count and (data := os.pread(self._fd, count - have, offset + have)):
            parts.append(data)
            have += len(data)
        return b"".join(parts)

    def pread_cached(self, count: int, offset: int) -> bytes | None:
        if self._nowait is None:
            return None
        buffer = bytearray(count)
        try:
            have = os.preadv(self._fd, [buffer], offset, self._nowait)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                self._nowait = None
                return None
            raise
        # Short: the rest is not in memory, or the file ends. Only a read that may wait can decide.
        return bytes(buffer) if have == count else None

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        return os.pwritev(self._fd, buffers, offset)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class RealDirectory:
    """A Directory with a descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class RealFiles:
    """The operating system's files."""

    __slots__ = ()

    _locked: ClassVar[set[tuple[int, int]]] = set()
    """(device, inode). A POSIX record lock belongs to the process: it would not exclude a second store in the same process."""

    def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        open_file = DESCRIPTORS.open_or_wait if create else DESCRIPTORS.open
        return RealFile(open_file(os.open, path, flags, 0o640))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def listdir(self, path: str) -> list[str]:
        return sorted(DESCRIPTORS.open(os.listdir, path))

    def makedirs(self, path: str) -> None:
        os.makedirs(path, mode=0o750, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        _sync_descriptor(path, os.O_RDONLY | os.O_DIRECTORY, os.fsync)

    def open_directory(self, path: str) -> RealDirectory:
        return RealDirectory(DESCRIPTORS.open(os.open, path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def sync_many(self, paths: Sequence[str], directories: Sequence[str]) -> None:
        if _syncfs is None or len(paths) + len(directories) <= SYNC_SINGLY_MAX:
            for path in paths:
                _sync_if_exists(path, os.O_RDWR, os.fdatasync)
            for path in directories:
                _sync_if_exists(path, os.O_RDONLY | os.O_DIRECTORY, os.fsync)
            return
        opened: dict[int, int] = {}
        try:
            for path in (*directories, *paths):
                try:
                    fd = DESCRIPTORS.open_or_wait(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
                except FileNotFoundError:
                    continue
                device = os.fstat(fd).st_dev
                if opened.setdefault(device, fd) != fd:
                    os.close(fd)
            for fd in opened.values():
                _sync_file_system(fd)
        finally:
            for fd in opened.values():
                os.close(fd)

    def lock(self, path: str) -> Callable[[], None]:
        self._check_unlocked_here(path)
        fd = DESCRIPTORS.open(os.open, path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        return self._lock_byte_0(fd, path, fcntl.LOCK_EX)

    def _check_unlocked_here(self, path: str) -> None:
        # Closing any descriptor of a file drops all record locks that the process has on it: check before opening.
        if os.path.exists(path):
            found = os.stat(path)
            if (found.st_dev, found.st_ino) in RealFiles._locked:
                raise BlockingIOError(errno.EAGAIN, "locked by this process", path)

    def _lock_byte_0(self, fd: int, path: str, kind: int) -> Callable[[], None]:
        """Lock byte 0 of an open file, which is closed with the lock. Return the function that releases it."""
        try:
            fcntl.lockf(fd, kind | fcntl.LOCK_NB, 1, 0)
            found = os.fstat(fd)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise BlockingIOError(errno.EAGAIN, "locked by another process", path) from error
            raise
        key = (found.st_dev, found.st_ino)
        RealFiles._locked.add(key)
        held = [fd]

        def release() -> None:
            if held:
                RealFiles._locked.discard(key)
                os.close(held.pop())

        return release

    def identity(self, path: str) -> FileIdentity | None:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_dev, found.st_ino

    def disk_space(self, path: str) -> DiskSpace:
        found = os.statvfs(path)
        used = found.f_blocks - found.f_bfree
        return DiskSpace((used + found.f_bavail) * found.f_frsize, found.f_bavail * found.f_frsize)

    def memory_bytes(self) -> int:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class ReadOnlyFiles(RealFiles):
    """The operating system's files, opened read-only: nothing is created, even with `create`."""

    __slots__ = ()

    def open(self, path: str, *, create: bool = False) -> RealFile:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return RealFile(descriptor)

    def lock(self, path: str) -> Callable[[], None]:
        """Lock byte 0 of the file against `RealFiles.lock` of other processes, by a shared lock: that needs no right to write. Return the
        function that releases it. Raise BlockingIOError if it is locked, FileNotFoundError if there is no file."""
        self._check_unlocked_here(path)
        return self._lock_byte_0(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path, fcntl.LOCK_SH)
