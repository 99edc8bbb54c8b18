"""Files in memory that lose data like a disk: page cache and durable bytes, directory entries included.

A kill −9 keeps every written byte. A power cut keeps what was synced, and of the rest any writes in any order, torn at sector bounds.
Errors, and the end of the process, can be asked for at the n-th operation; each kind of operation can be given a time that it takes. One
seed gives one behaviour.
"""

import errno
import posixpath
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import inf
from random import Random

from lockstep.runtime.files import Buffer, DiskSpace, FileIdentity

SECTOR_BYTES = 512
UNLIMITED_BYTES = 1 << 40
"""A disk of this capacity never gets full."""
OPERATIONS = ("create", "read", "rename", "sync", "truncate", "unlink", "write")
"""The operations that faults, delays and countdowns name. Each directory sync is a "sync" too."""


class Content:
    """The bytes of a file. The zeros at its end take no memory: a broker makes its files before it fills them."""

    __slots__ = ("_data", "size")

    def __init__(self) -> None:
        self._data = bytearray()
        self.size = 0

    def change(self, offset: int, data: bytes | None) -> None:
        """Apply a write, or a truncate if there is no data."""
        if data is None:
            del self._data[offset:]
            self.size = offset
            return
        if offset > len(self._data):
            self._data.extend(bytes(offset - len(self._data)))
        self._data[offset : offset + len(data)] = data
        self.size = max(self.size, len(self._data))

    def read(self, count: int, offset: int) -> bytes:
        return bytes(self._data[offset : offset + count]).ljust(max(0, min(count, self.size - offset)), b"\0")

    @property
    def used_bytes(self) -> int:
        """Return the size up to the last byte that is not zero."""
        return len(self._data.rstrip(b"\0"))

    def copied(self) -> "Content":
        other = Content()
        other._data, other.size = self._data[:], self.size
        return other


class Inode:
    """One file: the bytes that survive a power cut, those that may survive it, and those that reads return."""

    def __init__(self, number: int = 0, path: str = "") -> None:
        self.number = number
        self.path = path
        """Its last name."""
        self.on_disk = Content()
        self.pending: list[tuple[int, bytes | None]] = []
        """(offset, bytes) of a write or (size, None) of a truncate, not yet synced."""
        self.in_memory = Content()
        self.used_bytes = 0
        """The size of the content in memory up to its last byte that is not zero."""

    @property
    def cache(self) -> bytes:
        """Return the bytes that reads return."""
        return self.in_memory.read(self.in_memory.size, 0)

    @property
    def durable(self) -> bytes:
        """Return the bytes that survive a power cut."""
        return self.on_disk.read(self.on_disk.size, 0)

    def change(self, offset: int, data: bytes | None) -> None:
        """Apply a write or truncate to the content that reads see."""
        self.in_memory.change(offset, data)
        if data is None:
            if offset < self.used_bytes:
                self.measure()
        elif offset + len(data) >= self.used_bytes:
            filled = len(data.rstrip(b"\0"))
            if filled:
                self.used_bytes = offset + filled
            elif offset < self.used_bytes:
                self.measure()

    def measure(self) -> None:
        self.used_bytes = self.in_memory.used_bytes


@dataclass
class Fault:
    """The operations `operation` on paths that hold `path` fail: the one numbered `skip`, and `count` in all from there."""

    operation: str
    path: str = ""
    error: int = errno.EIO
    skip: int = 0
    count: int = 1


@dataclass
class SimFiles:
    """A disk. `crash` ends the process that uses it; another may open it again at once."""

    seed: int | str = 0
    capacity_bytes: int = UNLIMITED_BYTES
    short_writes: bool = False
    """pwritev sometimes writes only a part."""
    cached_reads: bool = True
    """False: pread_cached never returns data."""
    faults: list[Fault] = field(default_factory=list)
    countdown: int | None = None
    """The number of changing operations until the process dies: everything raises then. The one at which it dies fails too; reads don't
    count.
    """
    watch: Callable[[str, str], object] | None = None
    """Called with (operation, path) before each operation."""
    on_death: Callable[[], object] | None = None
    """Called when the countdown is over; it should kill the machine."""
    delays_s: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Operation → how long it takes, at least and at most."""
    slow_until_s: float = inf
    """When the disk is fast again, also for a job of many operations that began before."""
    stall: Callable[[float], object] | None = None
    """Called with each delay: the machine of the disk waits as long."""
    denied: Callable[[], bool] | None = None
    """True while the code that runs belongs to a process that is dead."""
    operation_count: int = 0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.names: dict[str, Inode] = {}
        self.durable_names: dict[str, Inode] = {}
        self.directories: set[str] = {"/"}
        self.locked: set[str] = set()
        self.inode_count = 0
        self.process = 0
        self.dead = False
        self.syncs: list[str] = []
        """Paths synced, in order."""
        self.holed: dict[str, None] = {}
        """Files in which the last power cut kept a whole write after one that it dropped or tore."""

    # -- the disk's owner --------------------------------------------------------------------

    def copied(self, seed: int | str) -> "SimFiles":
        """Return another disk with the same files, like a snapshot of a volume."""
        other = SimFiles(seed, self.capacity_bytes, self.short_writes, self.cached_reads)
        other.names = deepcopy(self.names)
        other.durable_names = dict(other.names)
        other.directories = set(self.directories)
        other.inode_count = self.inode_count
        return other

    def crash(self, *, power: bool, keep: Callable[[str, bytes | None], bool] | None = None) -> None:
        """End the process now. `power`: the machine too, and unsynced writes are kept, dropped or torn at random.

        `keep` (path, bytes written or None for a truncate) decides instead.
        """
        self.process += 1
        self.dead = False
        self.countdown = None
        self.watch = None
        self.faults = []
        self.locked = set()
        if not power:
            return
        for path in sorted(self.names.keys() | self.durable_names.keys()):
            now, then = self.names.get(path), self.durable_names.get(path)
            if now is not then and self.random.random() < 0.5:
                if now is None:
                    del self.durable_names[path]
                else:
                    self.durable_names[path] = now
        self.holed = {}
        for path in sorted(self.durable_names):
            self._lose(path, self.durable_names[path], keep)
        self.names = dict(self.durable_names)

    def _lose(self, path: str, inode: Inode, keep: Callable[[str, bytes | None], bool] | None) -> None:
        torn = False
        for offset, data in inode.pending:
            if keep is not None:
                if keep(path, data):
                    inode.on_disk.change(offset, data)
                continue
            if data is None:
                if self.random.random() < 0.7:
                    inode.on_disk.change(offset, None)
                continue
            whole = True
            for start in range(0, len(data), SECTOR_BYTES):
                if self.random.random() < 0.5:
                    inode.on_disk.change(offset + start, data[start : start + SECTOR_BYTES])
                else:
                    whole = False
            if whole and torn:
                self.holed[path] = None
            torn = torn or not whole
        inode.pending = []
        inode.in_memory = inode.on_disk.copied()
        inode.measure()

    def flip(self, path: str, at: int, bit: int = 0) -> None:
        """Flip a bit at rest."""
        self.overwrite(path, at, bytes([self.names[path].in_memory.read(1, at)[0] ^ 1 << bit]))

    def overwrite(self, path: str, at: int, data: bytes) -> None:
        """Replace bytes, durably."""
        inode = self.names[path]
        for content in (inode.on_disk, inode.in_memory):
            content.change(at, data)
        inode.measure()

    def replace(self, path: str, data: bytes) -> None:
        """Replace the whole content of a file, durably."""
        inode = self.names[path]
        for content in (inode.on_disk, inode.in_memory):
            content.change(0, None)
            content.change(0, data)
        inode.measure()

    def remove_tree(self, path: str) -> None:
        """Remove a tree as `rm -rf` by another process does: open descriptors still read and write files that no path names any more."""
        for names in (self.names, self.durable_names):
            for name in [name for name in names if name == path or name.startswith(f"{path}/")]:
                del names[name]
        self.directories = {name for name in self.directories if name != path and not name.startswith(f"{path}/")}

    def used_bytes(self) -> int:
        """Return the size of the files without the zeros at their ends, which take no space."""
        return sum(inode.used_bytes for inode in self.names.values())

    def tick(self, operation: str, path: str, process: int) -> None:
        """Count one operation: it may be the last one, or a faulty one."""
        if process != self.process or self.dead or (self.denied is not None and self.denied()):
            raise OSError(errno.EBADF, "file of a dead process", path)
        self.operation_count += 1
        if self.watch is not None:
            self.watch(operation, path)
        if self.delays_s and self.stall is not None and (delay_s := self.delays_s.get(operation)) is not None:
            self.stall(self.random.uniform(*delay_s))
        for fault in self.faults:
            if fault.operation == operation and fault.path in path and fault.count:
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.count -= 1
                raise OSError(fault.error, "injected", path)
        if self.countdown is not None and operation != "read":
            if self.countdown == 0:
                self.dead = True
                if self.on_death is not None:
                    self.on_death()
                raise OSError(errno.EBADF, "the process ends here", path)
            self.countdown -= 1

    # -- Files -------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> "SimFile":
        if path in self.directories:
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        if path not in self.names:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self.tick("create", path, self.process)
            if posixpath.dirname(path) not in self.directories:
                raise FileNotFoundError(errno.ENOENT, "no such directory", path)
            self.inode_count += 1
            self.names[path] = Inode(self.inode_count, path)
        return SimFile(self, self.names[path])

    def exists(self, path: str) -> bool:
        return path in self.names or path in self.directories

    def listdir(self, path: str) -> list[str]:
        if path in self.names:
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        found = [name for name in self.names if posixpath.dirname(name) == path]
        found += [name for name in self.directories if posixpath.dirname(name) == path and name != path]
        return sorted(posixpath.basename(name) for name in found)

    def makedirs(self, path: str) -> None:
        while path not in self.directories:
            self.directories.add(path)
            path = posixpath.dirname(path)

    def rename(self, source: str, target: str) -> None:
        self.tick("rename", target, self.process)
        inode = self.names.pop(source, None)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        inode.path = target
        self.names[target] = inode

    def unlink(self, path: str) -> None:
        self.tick("unlink", path, self.process)
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        del self.names[path]

    def rmdir(self, path: str) -> None:
        if self.listdir(path):
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        self.directories.discard(path)

    def sync_directory(self, path: str) -> None:
        self.tick("sync", path, self.process)
        for name in [name for name in self.durable_names if posixpath.dirname(name) == path and name not in self.names]:
            del self.durable_names[name]
        for name, inode in self.names.items():
            if posixpath.dirname(name) == path:
                self.durable_names[name] = inode

    def open_directory(self, path: str) -> "SimDirectory":
        return SimDirectory(self, path)

    def sync_many(self, paths: Sequence[str], directories: Sequence[str]) -> None:
        for path in paths:
            if path in self.names:
                self.open(path).sync()
        for path in directories:
            if path in self.directories:
                self.sync_directory(path)

    def lock(self, path: str) -> Callable[[], None]:
        if path in self.locked:
            raise BlockingIOError(errno.EAGAIN, "locked", path)
        self.open(path, create=True)
        self.locked.add(path)
        process = self.process

        def release() -> None:
            if process == self.process:
                self.locked.discard(path)

        return release

    def identity(self, path: str) -> FileIdentity | None:
        inode = self.names.get(path)
        return None if inode is None else (0, inode.number)

    def disk_space(self, path: str) -> DiskSpace:
        return DiskSpace(self.capacity_bytes, max(0, self.capacity_bytes - self.used_bytes()))

    def memory_bytes(self) -> int:
        return 1 << 30


class SimDirectory:
    """A descriptor of a directory, of the process that opened it."""

    def __init__(self, files: SimFiles, path: str) -> None:
        self._files = files
        self._path = path
        self._process = files.process

    def sync(self) -> None:
        if self._process != self._files.process:
            raise OSError(errno.EBADF, "directory of a dead process", self._path)
        self._files.sync_directory(self._path)

    def close(self) -> None:
        pass


class SimFile:
    """A descriptor of the process that opened it."""

    def __init__(self, files: SimFiles, inode: Inode) -> None:
        self._files = files
        self._inode = inode
        self._process = files.process
        self._open = True

    @property
    def _path(self) -> str:
        return self._inode.path

    def _tick(self, operation: str) -> None:
        if not self._open:
            raise OSError(errno.EBADF, "closed", self._path)
        self._files.tick(operation, self._path, self._process)

    def size(self) -> int:
        return self._inode.in_memory.size

    def pread(self, count: int, offset: int) -> bytes:
        self._tick("read")
        return self._inode.in_memory.read(count, offset)

    def pread_cached(self, count: int, offset: int) -> bytes | None:
        if not self._files.cached_reads:
            return None
        data = self.pread(count, offset)
        return data if len(data) == count else None

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        self._tick("write")
        data = b"".join(bytes(buffer) for buffer in buffers)
        files = self._files
        room = UNLIMITED_BYTES if files.capacity_bytes >= UNLIMITED_BYTES else files.capacity_bytes - files.used_bytes()
        if len(data) > room:
            data = data[: max(0, room)]
            if not data:
                raise OSError(errno.ENOSPC, "no space left", self._path)
        if files.short_writes and len(data) > 1 and files.random.random() < 0.3:
            data = data[: files.random.randrange(1, len(data))]
        self._inode.change(offset, data)
        self._inode.pending.append((offset, data))
        return len(data)

    def truncate(self, size: int) -> None:
        self._tick("truncate")
        self._inode.change(size, None)
        self._inode.pending.append((size, None))

    def sync(self) -> None:
        inode = self._inode
        try:
            self._tick("sync")
        except OSError as error:
            if error.errno != errno.EBADF:
                inode.pending = []  # marked as written, and never to be: still readable
            raise
        self._files.syncs.append(self._path)
        for offset, data in inode.pending:
            inode.on_disk.change(offset, data)
        inode.pending = []

    def close(self) -> None:
        self._open = False
