"""Consume queues: the positions of a queue's messages in the log. RocketMQ: ConsumeQueue.

    consumequeue/TOPIC/QUEUE/00000000000000000000    6,000,000 bytes of 20-byte entries; the name is the offset of the first byte
        0   8   physical offset
        8   4   size
       12   8   tag hash (0 without a tag)

Entry i of the queue is at byte 20·i of the concatenated files. Files are sparse and have their full apparent length. They are built from
the log, and built again if they are missing, so nothing waits for them: recent entries are in memory and are written in bulk.
"""

from collections.abc import Callable
from errno import ENOENT

from lockstep.broker.store.health.damage import LOST_SIZE
from lockstep.broker.store.log.append import ENTRY, ENTRY_BYTES, POSITION, TopicField
from lockstep.broker.store.log.commit_log import write_all
from lockstep.broker.store.start.survey import is_log_name
from lockstep.runtime.descriptors import SHORTAGE
from lockstep.runtime.files import File, Files

FLUSH_ENTRY_COUNT = 3_200
"""Number of entries of one queue that are kept in memory before a write: 64,000 bytes."""
KEEP_ENTRY_COUNT_MIN = 64
READ_COUNT = 3_200
"""Number of entries of one read."""
CHECKED_COUNT = 1_024
"""Number of entries below a new minimum that must have positions below the log's start: more than a page of a file has."""


def names_place(position: int, size: int) -> bool:
    """Return whether an entry has a position in the log, or belongs to a lost message (damage.py), which keeps its entry."""
    return position >= 0 and (size > 0 or size == LOST_SIZE)


class QueueFiles:
    """The open files of all queues. The least recently used one is closed first."""

    def __init__(self, files: Files, directory: str, entry_count: int, open_count_max: int) -> None:
        self._files = files
        self.directory = directory
        self.file_bytes = entry_count * ENTRY_BYTES
        self._open_count_max = open_count_max
        self._open: dict[str, File] = {}
        self._directories: dict[str, None] = {}
        """Directories in which names changed since the last `take_unsynced`, in order."""
        self._known: set[str] = set()
        """Files whose directories were in `_directories` once. A start can't know what the previous process left unsynced."""
        self._unsynced: dict[str, None] = {}
        """Paths written since then."""
        self._postponed: list[Callable[[], None]] | None = None
        """While a start reads the log: the cuts and removals to do once it has found nothing wrong."""

    def path(self, queue: "ConsumeQueue", at: int) -> str:
        """Return the path of the file that holds byte `at` of the queue."""
        return f"{queue.directory}/{at - at % self.file_bytes:020d}"

    def file(self, path: str, *, create: bool) -> File:
        """Return the open file. Raise FileNotFoundError if it is missing and `create` is false."""
        file = self._open.pop(path, None)
        while file is None:
            try:
                file = self._open_file(path, create)
            except OSError as error:
                if error.errno not in SHORTAGE or not self._open:
                    raise
                self._open.pop(next(iter(self._open))).close()  # frees a descriptor
        self._open[path] = file
        if len(self._open) > self._open_count_max:
            oldest = next(iter(self._open))
            self._open.pop(oldest).close()
        return file

    def _open_file(self, path: str, create: bool) -> File:
        try:
            return self._files.open(path)
        except FileNotFoundError:
            if not create:
                raise
        directory, _, _ = path.rpartition("/")
        if not self._files.exists(directory):
            if not self._files.exists(self.directory):
                raise FileNotFoundError(ENOENT, "the directory of the consume queues is gone", self.directory)
            self._files.makedirs(directory)
        file = self._files.open(path, create=True)
        file.truncate(self.file_bytes)
        return file

    def write(self, queue: "ConsumeQueue", at: int, data: bytes | bytearray) -> None:
        """Write entries at byte `at` of the queue's files."""
        done = 0
        while done < len(data):
            path = self.path(queue, at + done)
            within = (at + done) % self.file_bytes
            part = data[done : done + self.file_bytes - within]
            write_all(self.file(path, create=True), part, within)
            self._changed(path)
            done += len(part)

    def _changed(self, path: str) -> None:
        self._unsynced[path] = None
        if path not in self._known:
            self._known.add(path)
            directory, _, _ = path.rpartition("/")
            parent, _, _ = directory.rpartition("/")
            for name in (directory, parent, self.directory):
                self._directories[name] = None

    def take_unsynced(self) -> tuple[list[str], list[str]]:
        """Return the paths of files and of directories that a snapshot has to sync."""
        taken = (list(self._unsynced), list(self._directories))
        self._unsynced = {}
        self._directories = {}
        return taken

    def mark_unsynced(self, paths: list[str], directories: list[str]) -> None:
        """Let the next sync cover these paths: the sync after `take_unsynced` has failed. Files that are removed until then are skipped."""
        self._unsynced = dict.fromkeys(paths) | self._unsynced
        self._directories = dict.fromkeys(directories) | self._directories

    def sync(self, paths: list[str], directories: list[str]) -> None:
        """Sync with separate descriptors, because it runs in a worker thread. Files that were removed are skipped."""
        self._files.sync_many(paths, directories)

    def entries(self, directory: str, index: int, count: int) -> bytes:
        """Return up to `count` entries from `index` on that one file holds. Empty if it is missing. For a worker thread."""
        at = index * ENTRY_BYTES
        within = at % self.file_bytes
        data = self.read(f"{directory}/{at - within:020d}", min(count * ENTRY_BYTES, self.file_bytes - within), within)
        return data[: len(data) - len(data) % ENTRY_BYTES]

    def names(self, queue: "ConsumeQueue") -> list[int]:
        """Return the first bytes of the queue's files, in order."""
        return self._first_bytes(queue.directory)

    def _first_bytes(self, directory: str) -> list[int]:
        if not self._files.exists(directory):
            return []
        return [int(name) for name in self._files.listdir(directory) if is_log_name(name)]

    def postpone_changes(self) -> None:
        """Postpone cuts and removals until `apply_postponed`, so that a start that fails leaves the files as they were."""
        self._postponed = []

    def apply_postponed(self) -> None:
        """Do the postponed cuts and removals, in order."""
        held, self._postponed = self._postponed or [], None
        for change in held:
            change()

    def cut(self, queue: "ConsumeQueue", at: int) -> None:
        """Zero everything from byte `at` on."""
        if self._postponed is not None:
            self._postponed.append(lambda: self.cut(queue, at))
            return
        for start in self.names(queue):
            path = f"{queue.directory}/{start:020d}"
            if start >= at and start > 0:
                self.remove(path)
            elif start + self.file_bytes > at:
                file = self.file(path, create=False)
                file.truncate(max(0, at - start))
                file.truncate(self.file_bytes)
                self._changed(path)

    def remove(self, path: str) -> None:
        file = self._open.pop(path, None)
        if file is not None:
            file.close()
        self._files.unlink(path)
        self._unsynced.pop(path, None)
        self._known.discard(path)
        self._directories[path.rpartition("/")[0]] = None

    def remove_below(self, queue: "ConsumeQueue", at: int) -> None:
        """Remove the files that are wholly below byte `at`. Without a free descriptor they remain until the next call."""
        if self._postponed is not None:
            self._postponed.append(lambda: self.remove_below(queue, at))
            return
        try:
            names = self.names(queue)
        except OSError as error:
            if error.errno not in SHORTAGE:
                raise
            return
        for start in names:
            if start + self.file_bytes <= at:
                self.remove(f"{queue.directory}/{start:020d}")

    def read(self, path: str, size: int, within: int) -> bytes:
        """Read with a separate descriptor, because it runs in a worker thread. Empty if the file is missing."""
        try:
            file = self._files.open(path)
        except FileNotFoundError:
            return b""
        try:
            return file.pread(size, within)
        finally:
            file.close()

    def search(self, directory: str, low: int, high: int, log_start: int) -> tuple[int, int | None]:
        """Return the first index in [low, high) whose message is at or above the log's start, and its position. Else (high, None).

        For a worker thread. An entry without a position (zeros, a negative number) is not considered removed: its message may be in the
        log. The returned position is the log's start then, and reading the entry repairs it (repair.py).
        """
        first, end = low, high
        position: int | None = None
        middle = low  # usually nothing moved
        while low < high:
            index, found = self._next_position(directory, middle, high)
            if found is not None and found < log_start:
                low = index + 1
            else:
                high = middle
                position = log_start if found is None or index > middle else found
            middle = (low + high) // 2
        if low == end:
            position = None
        # Positions rise with the index: the entry of a removed message never follows one that still exists.
        while low > first:
            begin = max(first, low - CHECKED_COUNT)
            entries = self._entries_between(directory, begin, low)
            there = ((index, at) for index, (at, size, _) in enumerate(entries, begin) if size > 0 and at >= log_start)
            index, at = next(there, (low, 0))
            if index == low:
                break
            low, position = index, at
        return low, position

    def _next_position(self, directory: str, index: int, high: int) -> tuple[int, int | None]:
        """Return (index, log position) of the first entry in [index, high) that has a position, or (high, None) if there is none.

        If the file of `index` was removed with all before it, return (last index of that file, -1).
        """
        per_file = self.file_bytes // ENTRY_BYTES
        oldest: int | None = None
        while index < high:
            behind = min(high, index - index % per_file + per_file)
            data = self.entries(directory, index, min(behind - index, READ_COUNT))
            if not data:
                if oldest is None:
                    names = self._first_bytes(directory)
                    oldest = min(names, default=index * ENTRY_BYTES) // ENTRY_BYTES
                    if behind <= oldest:
                        return behind - 1, -1
                index = behind
                continue
            for at, size, _ in ENTRY.iter_unpack(data):
                if names_place(at, size):
                    return index, at
                index += 1
        return high, None

    def _entries_between(self, directory: str, first: int, end: int) -> list[tuple[int, int, int]]:
        """Return the entries [first, end). Those of missing files are zeros."""
        found: list[tuple[int, int, int]] = []
        per_file = self.file_bytes // ENTRY_BYTES
        while first < end:
            count = min(end - first, per_file - first % per_file)
            found += ENTRY.iter_unpack(self.entries(directory, first, count).ljust(count * ENTRY_BYTES, b"\0"))
            first += count
        return found

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open = {}


class ConsumeQueue:
    """One queue. min ≤ visible ≤ next; readers see [min, visible)."""

    __slots__ = (
        "_base",
        "_entries",
        "bytes_in",
        "directory",
        "flushed",
        "min",
        "min_position",
        "next",
        "queue_id",
        "topic",
        "topic_field",
        "visible",
    )

    def __init__(self, topic: str, queue_id: int, directory: str, topic_field: TopicField) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.directory = directory
        self.topic_field = topic_field
        self.min = 0
        """The first existing offset."""
        self.min_position: int | None = None
        """Its position in the log, or a lower one after messages were hidden; the next search of retention finds the right one. None while
        the queue is empty, or while a start has not determined it yet."""
        self.next = 0
        """The offset of the next message."""
        self.bytes_in = 0
        """Bytes of the records that were appended since the store was opened."""
        self.visible = 0
        """One more than the offset of the last confirmed message."""
        self.flushed = 0
        """Entries below it are in the files."""
        self._entries = bytearray()
        self._base = 0
        """Offset of the first entry in memory."""

    def restore(self, minimum: int, following: int) -> None:
        """Restore the offsets of a snapshot. Entries below `following` are in the files."""
        self.min = minimum
        self.next = self.visible = self.flushed = self._base = following
        self.min_position = None
        self._entries = bytearray()

    def add_entries(self, entries: bytearray | bytes, count: int) -> None:
        """Add the entries of the next `count` messages."""
        if self.min == self.next:
            self.min_position = POSITION.unpack_from(entries)[0]
        self._entries += entries
        self.next += count

    def hide_all(self) -> None:
        """Hide everything below `next`, because the topic was deleted or purged. Its offsets are not used again."""
        self.min = self.visible = self.flushed = self._base = self.next
        self.min_position = None
        self._entries = bytearray()

    def hide_below(self, minimum: int) -> None:
        """Hide everything below `minimum`, which is below `next`, because the topic was purged."""
        self.min = max(self.min, minimum)
        self.visible = max(self.visible, self.min)

    def flush(self, files: QueueFiles) -> None:
        """Write the entries that only memory has."""
        if self.flushed < self.next:
            with memoryview(self._entries) as view, view[(self.flushed - self._base) * ENTRY_BYTES :] as data:
                files.write(self, self.flushed * ENTRY_BYTES, bytes(data))
            self.flushed = self.next

    def rewrite(self, index: int, entries: bytes) -> None:
        """Replace the entries from `index` on, as far as memory holds them."""
        skip = max(0, self._base - index)
        data = entries[skip * ENTRY_BYTES :][: max(0, self.next - index - skip) * ENTRY_BYTES]
        at = (index + skip - self._base) * ENTRY_BYTES
        self._entries[at : at + len(data)] = data

    def trim(self, keep: int) -> None:
        """Keep about the last `keep` entries in memory, and all that the files lack."""
        held = self.next - self._base
        if held > keep + (keep >> 1):
            cut = min(held - keep, self.flushed - self._base)
            del self._entries[: cut * ENTRY_BYTES]
            self._base += cut

    def in_memory(self, index: int) -> bool:
        return index >= self._base

    def recent(self, index: int, count: int) -> bytes:
        """Return `count` entries from `index` on, which memory holds."""
        at = (index - self._base) * ENTRY_BYTES
        return bytes(self._entries[at : at + count * ENTRY_BYTES])

    def file_range(self, files: QueueFiles, index: int, count: int) -> tuple[str, int, int]:
        """Return (path, size, byte in the file) of up to `count` entries that memory no longer holds."""
        at = index * ENTRY_BYTES
        within = at % files.file_bytes
        return files.path(self, at), min(min(count, self._base - index) * ENTRY_BYTES, files.file_bytes - within), within

    def memory_entry(self, index: int) -> tuple[int, int, int] | None:
        """Return (physical offset, size, tag hash) of an entry that memory holds."""
        if not self._base <= index < self.next:
            return None
        return ENTRY.unpack_from(self._entries, (index - self._base) * ENTRY_BYTES)

    def find_min(self, files: QueueFiles, log_start: int) -> bool:
        """Move `min` to the first entry at or above the log's start. Return whether it moved. May wait for the disk."""
        if self.min_position is not None and self.min_position >= log_start:
            return False
        found = files.search(self.directory, self.min, self.flushed, log_start)
        return self.apply_found_min(found, log_start)

    def apply_found_min(self, found: tuple[int, int | None], log_start: int) -> bool:
        """Set `min` from the result of `QueueFiles.search` up to `flushed`, and continue in memory."""
        before = self.min
        index, position = found
        if position is None:
            while (entry := self.memory_entry(index)) is not None and entry[0] < log_start:
                index += 1
            position = None if entry is None else entry[0]
        if index >= before:
            self.min = index
            self.min_position = position
            self.visible = max(self.visible, index)
        elif self.min_position is not None:  # more was hidden while the search ran
            self.min_position = max(self.min_position, log_start)
        return self.min != before
