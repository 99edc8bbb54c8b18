"""The store's directory and its small files.

    lock                    fcntl lock on byte 0 (Java's record lock)
    abort                   exists while the store is open or was not closed in order
    checkpoint              three int64: store times up to which log, queues and index are on disk (Apache's, 4096 bytes)
    commitlog/ consumequeue/ index/ config/
    lockstep/identity       {"format", "cluster", "broker_name", "store_id", "segment_bytes", "queue_file_entries", "log_start"}
    lockstep/proof          32 random hex digits, told to nameservers alone: whoever lacks them is not this store
    lockstep/boot           kernel boot id under which the store last served, a blank, the flush mode in which it did
    lockstep/synced         how far fdatasync has covered the log, in two slots of 512 bytes written in turn:
                            magic 8, number 8, log offset 8, CRC-32 of these 4; the valid slot with the higher number counts
    lockstep/sync_failed    a sync failed in this boot: what is read may not be on the disk
    lockstep/snapshot-N     the tables at log offset N (snapshot.py)

Small files are replaced by tmp, fsync, rename, fsync of the directory.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct

from lockstep.broker.store.commit_log import write_all
from lockstep.broker.store.config import Identity, StoreConfig
from lockstep.broker.store.consume_queue import QueueFiles
from lockstep.broker.store.errors import IdentityError, StoreCorrupt, StoreInUse
from lockstep.broker.store.presence import Presence
from lockstep.protocol.crc import crc32
from lockstep.runtime.files import File, Files
from lockstep.runtime.host import Random

FORMAT = 1
SLOT = Struct(">8sQQI")
SLOT_BYTES = 512
SLOT_MAGIC = b"LSSYNC01"
CHECKPOINT = Struct(">qqq")
CHECKPOINT_BYTES = 4096


_PROOF = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """What `lockstep/identity` says: fixed at the store's birth."""

    cluster: str
    broker_name: str
    store_id: str
    segment_bytes: int
    queue_file_entries: int
    log_start: int
    """Where the log began then: above 0 in one that another program made. All state is behind it."""


class StoreDirectory:
    """Names, locks and replaces; knows nothing of records."""

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self.root = root
        self.log = f"{root}/commitlog"
        self.queues = f"{root}/consumequeue"
        self.own = f"{root}/lockstep"
        self._release: Callable[[], None] | None = None
        self._slots: File | None = None
        self._slot_number = 0
        self.presence = Presence(files)
        self.slot_position = 0
        """The log offset that the newest slot names."""

    def lock(self) -> None:
        """Creates the directories and takes the lock; StoreInUse where another has it."""
        files = self._files
        files.makedirs(self.root)
        try:
            self._release = files.lock(f"{self.root}/lock")
        except BlockingIOError as error:
            raise StoreInUse(
                f"store {self.root} is open in another broker: stop that one, or give this one a directory of its own"
            ) from error
        self.presence.watch(f"{self.root}/lock")
        for name in ("commitlog", "consumequeue", "index", "config", "lockstep"):
            files.makedirs(f"{self.root}/{name}")
        # The life before this one may have died between making a name and syncing it.
        for above in directories_above(self.root):
            try:
                files.sync_directory(above)
            except PermissionError:
                pass  # a directory above the store that this user may pass but not read: it was made by someone else
        files.sync_directory(self.root)
        files.sync_directory(self.own)

    def unlock(self) -> None:
        if self._slots is not None:
            self._slots.close()
            self._slots = None
        if self._release is not None:
            self._release()
            self._release = None

    def identity(self, wanted: Identity, config: StoreConfig, new_store_id: str) -> StoreIdentity:
        """Reads the identity, or gives the directory one; IdentityError where it is another's."""
        text = self.read(f"{self.own}/identity")
        if text is None:
            log_start = self._adopt_log()
            fresh = StoreIdentity(
                wanted.cluster, wanted.broker_name, new_store_id, config.segment_bytes, config.queue_file_entries, log_start
            )
            self.replace(f"{self.own}/identity", json.dumps({"format": FORMAT, **_plain(fresh)}, indent=1).encode())
            return fresh
        found = _parse_identity(text, f"{self.own}/identity")
        if (found.cluster, found.broker_name) != (wanted.cluster, wanted.broker_name):
            raise IdentityError(
                f"store {self.root} belongs to broker {found.broker_name} of cluster {found.cluster}, not to {wanted.broker_name} of "
                f"{wanted.cluster}: start it under its own name, or give this broker a directory of its own"
            )
        return found

    def proof(self, random: Random) -> str:
        """The store's secret: made at its birth, or by the first start of a version that has proofs. Raises StoreCorrupt."""
        path = f"{self.own}/proof"
        text = self.read(path)
        if text is None:
            text = random.token(16).hex().encode()
            self.replace(path, text)
        found = text.decode("ascii", "replace").strip()
        if not _PROOF.fullmatch(found):
            raise StoreCorrupt(f"{path} is damaged: expected 32 hex digits; remove the file, and the next start makes another")
        return found

    def _adopt_log(self) -> int:
        """A log that another program made begins where its first file does: nothing below counts as lost."""
        start = min((int(name) for name in self._files.listdir(self.log) if name.isdecimal()), default=0)
        if self.load_synced() < start:
            self.save_synced(start)
        return start

    def begin(self) -> bool:
        """Marks the store as open; whether it had been closed in order."""
        path = f"{self.root}/abort"
        clean = not self._files.exists(path)
        if clean:
            self._files.open(path, create=True).close()
            self._files.sync_directory(self.root)
        return clean

    def finish(self) -> None:
        """Marks the store as closed in order."""
        self._files.unlink(f"{self.root}/abort")
        self._files.sync_directory(self.root)

    def checkpoint(self, store_ms: int) -> None:
        """Apache's checkpoint: what was stored up to this time is on disk, in all three kinds of file."""
        file = self._files.open(f"{self.root}/checkpoint", create=True)
        try:
            file.truncate(CHECKPOINT_BYTES)
            write_all(file, CHECKPOINT.pack(store_ms, store_ms, store_ms), 0)
            file.sync()
        finally:
            file.close()

    # -- boot ------------------------------------------------------------------------------------

    def boot(self) -> tuple[str, str] | None:
        """(boot id, flush mode) of the last time the store served; None for a new one."""
        text = self.read(f"{self.own}/boot")
        if text is None:
            return None
        boot_id, _, flush = text.decode("ascii", "replace").partition(" ")
        return boot_id, flush

    def mark_boot(self, boot_id: str, flush: str) -> None:
        self.replace(f"{self.own}/boot", f"{boot_id} {flush}".encode())

    # -- synced length ---------------------------------------------------------------------------

    def load_synced(self) -> int:
        """How far a sync had covered the log for certain."""
        if self._slots is not None:
            return self.slot_position
        path = f"{self.own}/synced"
        fresh = not self._files.exists(path)
        self._slots = self._files.open(path, create=True)
        if fresh:
            self._slots.truncate(2 * SLOT_BYTES)
            self._slots.sync()
            self._files.sync_directory(self.own)
        self.presence.watch(path)
        for at in (0, SLOT_BYTES):
            data = self._slots.pread(SLOT.size, at)
            if len(data) == SLOT.size:
                magic, number, position, crc = SLOT.unpack(data)
                if magic == SLOT_MAGIC and crc == crc32(data[:24]) and number > self._slot_number:
                    self._slot_number = number
                    self.slot_position = position
        return self.slot_position

    def save_synced(self, position: int) -> None:
        """Writes the other slot and syncs it. One caller at a time; may run in a worker thread."""
        assert self._slots is not None
        number = self._slot_number + 1
        data = SLOT.pack(SLOT_MAGIC, number, position, 0)[:24]
        write_all(self._slots, data + crc32(data).to_bytes(4, "big"), number % 2 * SLOT_BYTES)
        self._slots.sync()
        self._slot_number = number
        self.slot_position = position

    def sync_has_failed(self) -> bool:
        return self._files.exists(f"{self.own}/sync_failed")

    def mark_sync_failed(self, failed: bool) -> None:
        """Needs no sync: where the page cache is gone, so is the danger. An OSError changes nothing any more."""
        path = f"{self.own}/sync_failed"
        if failed:
            try:
                self._files.open(path, create=True).close()
            except OSError:
                pass
        else:
            self._files.unlink(path)
            self._files.sync_directory(self.own)

    # -- small files -----------------------------------------------------------------------------

    def read(self, path: str) -> bytes | None:
        """A whole small file; None where there is none."""
        try:
            file = self._files.open(path)
        except FileNotFoundError:
            return None
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def replace(self, path: str, data: bytes) -> None:
        """The file holds `data` or what it held before, whatever happens; durable when this returns."""
        temporary = path + ".tmp"
        if self._files.exists(temporary):
            self._files.unlink(temporary)
        file = self._files.open(temporary, create=True)
        try:
            write_all(file, data, 0)
            file.sync()
        finally:
            file.close()
        self._files.rename(temporary, path)
        self._files.sync_directory(path.rpartition("/")[0])

    def queue_files(self, identity: StoreIdentity, open_count_max: int) -> QueueFiles:
        return QueueFiles(self._files, self.queues, identity.queue_file_entries, open_count_max)

    def queue_directories(self) -> list[tuple[str, int]]:
        """(topic, queue id) of every consume queue on disk."""
        found = []
        for topic in self._files.listdir(self.queues):
            found += [(topic, int(name)) for name in self._files.listdir(f"{self.queues}/{topic}") if name.isdecimal()]
        return found


def directories_above(path: str) -> list[str]:
    """The nearest first, up to "/" or, of a relative path, to "."."""
    above = []
    while path not in ("/", "."):
        head, slash, _ = path.rstrip("/").rpartition("/")
        path = head or slash or "."
        above.append(path)
    return above


def _plain(identity: StoreIdentity) -> dict[str, object]:
    return {name: getattr(identity, name) for name in StoreIdentity.__slots__}


def _parse_identity(text: bytes, path: str) -> StoreIdentity:
    try:
        found = json.loads(text)
        if found["format"] != FORMAT:
            raise IdentityError(f"{path} has format {found['format']}, this version knows {FORMAT}: use the version that wrote it")
        identity = StoreIdentity(**{name: found[name] for name in StoreIdentity.__slots__})
    except (ValueError, KeyError, TypeError) as error:
        raise StoreCorrupt(f"{path} is damaged ({error}): restore it, it names cluster, broker and store id") from error
    if not all(isinstance(value, str) for value in (identity.cluster, identity.broker_name, identity.store_id)):
        raise StoreCorrupt(f"{path} is damaged: cluster, broker_name and store_id are texts")
    if not all(isinstance(value, int) and value > 0 for value in (identity.segment_bytes, identity.queue_file_entries)):
        raise StoreCorrupt(f"{path} is damaged: segment_bytes and queue_file_entries are positive numbers")
    if not isinstance(identity.log_start, int) or identity.log_start < 0:
        raise StoreCorrupt(f"{path} is damaged: log_start is a log offset")
    return identity
