"""The store's directory and its small files.

    lock                    fcntl lock on byte 0 (Java's record lock)
    abort                   exists while the store is open, or if it was not closed in order
    checkpoint              three int64: store times up to which log, queues and index are on disk (Apache's, 4096 bytes)
    commitlog/ consumequeue/ index/ config/
    lockstep/identity       {"format", "version", "cluster", "broker_name", "store_id", "segment_bytes", "queue_file_entries", "log_start"}
    lockstep/apache         JSON: format, the CRC-32 of each file of config/ that the store has read or written, and whether an export wrote
                            them (foreign_config.py)
    lockstep/proof          32 random hex digits, sent to nameservers only: a broker without them is not of this store
    lockstep/term           "ACCEPTED LAST": the last term that a nameserver may have accepted, and the term of the last start. The log also
                            has the second one, unless damage there was cut
    lockstep/boot           kernel boot id under which the store last served, a blank, and the flush mode
    lockstep/synced         position up to which fdatasync has covered the log, in two slots of 512 bytes written in turn:
                            magic 8, number 8, log offset 8, CRC-32 of these 4; the valid slot with the higher number counts
    lockstep/restored       the directory is a restored backup of which no nameserver has accepted a start (`lockstep store restore`)
    lockstep/sync_failed    a sync failed in this boot: bytes that can be read may not be on the disk
    lockstep/snapshot-N     the tables at log offset N (snapshot.py)
    lockstep/start          the log offset at which the log begins; written before retention removes older segments
    lockstep/next-log-file  empty, open while the store is; it becomes the next file of the log (commit_log.py)
    lockstep/users.toml     a copy of the last file of users that could be used (runtime/security/last_good.py), if the broker has users
    lockstep/damage         the known damage (damage.py)
    lockstep/set-aside-N/   files that a start with --cut-corrupt has taken out of the store, and manifest.json

Small files are replaced by tmp, fsync, rename, fsync of the directory.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from struct import Struct

from lockstep.broker.store.config import Identity, StoreConfig
from lockstep.broker.store.errors import IdentityError, StoreCorruptError, StoreDiskError, StoreInUseError, misplaced
from lockstep.broker.store.health.path_watch import PathWatch
from lockstep.broker.store.log.commit_log import write_all
from lockstep.broker.store.queues.consume_queue import QueueFiles
from lockstep.broker.store.start.survey import (
    LogFile,
    LogSurvey,
    adopted_queue_entries,
    adopted_segment_bytes,
    is_log_name,
    log_files,
    queue_directories,
    survey_log,
)
from lockstep.protocol.crc import crc32
from lockstep.runtime.extras import VERSION
from lockstep.runtime.files import File, Files
from lockstep.runtime.host import Random

FORMAT = 1
"""The format of everything in the directory. A version that writes what this one can't read has a higher number."""
SLOT = Struct(">8sQQI")
SLOT_BYTES = 512
SLOT_MAGIC = b"LSSYNC01"
SNAPSHOT_PREFIX = "snapshot-"
SET_ASIDE = "set-aside-"
CHECKPOINT = Struct(">qqq")
CHECKPOINT_BYTES = 4096


_PROOF = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """The content of `lockstep/identity`, which is fixed when the store is created."""

    version: str
    """The version of lockstep that created the store."""
    cluster: str
    broker_name: str
    store_id: str
    segment_bytes: int
    queue_file_entries: int
    log_start: int
    """Where the log began then: above 0 if another program wrote the log. All state comes after it."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What a start has found in a directory, before anything is changed."""

    identity: StoreIdentity
    log: LogSurvey
    is_new: bool
    """Whether the directory has no identity yet."""


class StoreDirectory:
    """Creates, locks and replaces the files of a store. It does not read records."""

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self.root = root
        self.log = f"{root}/commitlog"
        self.queues = f"{root}/consumequeue"
        self.own = f"{root}/lockstep"
        self.damage_path = f"{self.own}/damage"
        self.next_log_path = f"{self.own}/next-log-file"
        self._release: Callable[[], None] | None = None
        self._slots: File | None = None
        self._slot_number = 0
        self.presence = PathWatch(files)
        self.slot_position = 0
        """The log offset in the newest slot."""

    def lock(self) -> None:
        """Create the directory if it is missing, and take the lock. Raise StoreInUseError if another process has it."""
        files = self._files
        files.makedirs(self.root)
        try:
            self._release = files.lock(f"{self.root}/lock")
        except BlockingIOError as error:
            raise StoreInUseError(
                f"store {self.root} is open in another broker: stop that one, or give this one a directory of its own"
            ) from error
        self.presence.watch(f"{self.root}/lock")
        # The previous process may have died between creating a name and syncing it.
        for above in directories_above(self.root):
            try:
                files.sync_directory(above)
            except PermissionError:
                pass  # a directory above the store that this user may traverse but not read: another user created it
        files.sync_directory(self.root)

    def unlock(self) -> None:
        if self._slots is not None:
            self._slots.close()
            self._slots = None
        if self._release is not None:
            self._release()
            self._release = None

    # -- before anything is changed --------------------------------------------------------------

    def survey(self, wanted: Identity, config: StoreConfig, new_store_id: str, recorded_start: Callable[[], int | None]) -> Survey:
        """Return what the directory holds. Changes nothing.

        `recorded_start` returns where the log begins, or None if that is not known (snapshot.py).
        Raises IdentityError if the store belongs to another broker, and StoreCorruptError as survey.py describes.
        """
        text = self.read(f"{self.own}/identity")
        found = log_files(self._files, self.log)
        if text is None:
            identity = self._new_identity(wanted, config, new_store_id, found)
            start: int | None = identity.log_start
        else:
            identity = parse_identity(text, f"{self.own}/identity")
            if (identity.cluster, identity.broker_name) != (wanted.cluster, wanted.broker_name):
                raise IdentityError(
                    f"store {self.root} belongs to broker {identity.broker_name} of cluster {identity.cluster}, not to "
                    f"{wanted.broker_name} of {wanted.cluster}: start it under its own name, or give this broker a directory of its own"
                )
            start = recorded_start()
        return Survey(identity, self.survey_log(identity, found, start, cut_corrupt=config.cut_corrupt), text is None)

    def survey_log(self, identity: StoreIdentity, found: list[LogFile], start: int | None, *, cut_corrupt: bool) -> LogSurvey:
        """Return the parts of the log. Raises StoreCorruptError as survey.py describes."""
        # Snapshots are written after syncs: if the record of syncs is missing, the older snapshot proves how far the log was synced.
        synced = max(self.read_synced()[1] or min(self.snapshot_positions(), default=0), identity.log_start)
        return survey_log(found, self.log, identity.segment_bytes, start=start, synced=synced, cut_corrupt=cut_corrupt)

    def _new_identity(self, wanted: Identity, config: StoreConfig, new_store_id: str, found: list[LogFile]) -> StoreIdentity:
        """Return a new identity. A log that another program wrote begins with its first file: nothing below that counts as lost."""
        own = self._files.listdir(self.own) if self._files.exists(self.own) else []
        left = [name for name in own if not name.endswith(".tmp")]
        if left and (found or self.snapshot_positions()):
            raise StoreCorruptError(
                f"{self.own}/identity is missing, and {left[0]} and a log exist: restore it; it holds the cluster, broker and store id. "
                "Nothing was changed"
            )
        segment_bytes, entries, start = config.segment_bytes, config.queue_file_entries, 0
        if found:
            segment_bytes = adopted_segment_bytes(found, self.log)
            entries = adopted_queue_entries(self._files, self.queues, entries)
            start = found[0].start
        return StoreIdentity(VERSION, wanted.cluster, wanted.broker_name, new_store_id, segment_bytes, entries, start)

    def snapshot_positions(self) -> list[int]:
        """Return the positions of the snapshot files, oldest first."""
        names = self._files.listdir(self.own) if self._files.exists(self.own) else []
        tails = [name[len(SNAPSHOT_PREFIX) :] for name in names if name.startswith(SNAPSHOT_PREFIX)]
        return sorted(int(tail) for tail in tails if is_log_name(tail))

    def read_start(self) -> int | None:
        """Return where the log began when retention last ran. None if it is not recorded: the store is new, or the file was removed."""
        text = self.read(f"{self.own}/start")
        if text is None:
            return None
        if not text.strip().isdigit():
            raise StoreCorruptError(
                f"{self.own}/start is damaged: expected the log offset at which the log begins. Restore it, or remove it"
            )
        return int(text)

    def read_synced(self) -> tuple[int, int]:
        """Return (number, log offset) of the newest slot, or (0, 0) if there is none."""
        data = self.read(f"{self.own}/synced") or b""
        newest = (0, 0)
        for at in (0, SLOT_BYTES):
            slot = data[at : at + SLOT.size]
            if len(slot) == SLOT.size:
                magic, number, position, crc = SLOT.unpack(slot)
                if magic == SLOT_MAGIC and crc == crc32(slot[:24]):
                    newest = max(newest, (number, position))
        return newest

    # -- changes ---------------------------------------------------------------------------------

    def make_own(self) -> None:
        """Create the directory lockstep/, if it is missing."""
        self._files.makedirs(self.own)
        self._files.sync_directory(self.root)

    def establish(self, identity: StoreIdentity, *, fresh: bool) -> None:
        """Create missing directories, and make the identity of a new store durable before anything else."""
        for name in ("commitlog", "consumequeue", "index", "config", "lockstep"):
            self._files.makedirs(f"{self.root}/{name}")
        self._files.sync_directory(self.root)
        self._files.sync_directory(self.own)
        if fresh:
            self.replace(f"{self.own}/identity", json.dumps({"format": FORMAT, **asdict(identity)}, indent=1).encode())

    def proof(self, random: Random) -> str:
        """Return the store's secret, and create it if the store has none. Raises StoreCorruptError."""
        path = f"{self.own}/proof"
        text = self.read(path)
        if text is None:
            text = random.token(16).hex().encode()
            self.replace(path, text)
        found = text.decode("ascii", "replace").strip()
        if not _PROOF.fullmatch(found):
            raise StoreCorruptError(f"{path} is damaged: expected 32 hex digits; remove the file, and the next start makes another")
        return found

    def save_start(self, position: int) -> None:
        """Record where the log begins, before retention removes older files: a later start can then distinguish a missing first file from a
        removed one.
        """
        self.replace(f"{self.own}/start", b"%d\n" % position)

    def save_damage(self, data: bytes) -> None:
        self.replace(self.damage_path, data)

    def set_aside(self) -> str:
        """Create and return a new directory `lockstep/set-aside-N`, for files that a start takes out of the store."""
        number = 1
        while self._files.exists(f"{self.own}/{SET_ASIDE}{number}"):
            number += 1
        path = f"{self.own}/{SET_ASIDE}{number}"
        self._files.makedirs(path)
        self._files.sync_directory(self.own)
        return path

    def mark_open(self) -> bool:
        """Mark the store as open. Return whether it had been closed in order."""
        path = f"{self.root}/abort"
        clean = not self._files.exists(path)
        if clean:
            self._files.open(path, create=True).close()
            self._files.sync_directory(self.root)
        return clean

    def clear_abort(self) -> None:
        """Empty the file `abort`: RocketMQ's broker writes its process id to it."""
        file = self._files.open(f"{self.root}/abort", create=True)
        try:
            file.truncate(0)
            file.sync()
        finally:
            file.close()

    def mark_closed(self) -> None:
        """Mark the store as closed in order."""
        self._files.unlink(f"{self.root}/abort")
        self._files.sync_directory(self.root)

    def revert_open(self) -> None:
        """Undo `mark_open` after a failed start. If that fails, the store is considered not closed in order, which is always safe."""
        with suppress(OSError):
            self.mark_closed()

    def checkpoint(self, store_ms: int) -> None:
        """Write Apache's checkpoint: messages stored up to this time are on disk, in all three kinds of file."""
        file = self._files.open(f"{self.root}/checkpoint", create=True)
        try:
            file.truncate(CHECKPOINT_BYTES)
            write_all(file, CHECKPOINT.pack(store_ms, store_ms, store_ms), 0)
            file.sync()
        finally:
            file.close()

    def remove_all_but(self, *kept: str) -> None:
        """Remove everything of the store but its lock, what was set aside, and these files of lockstep/."""
        files = self._files
        for topic, queue_id in self.queue_directories() if files.exists(self.queues) else ():
            path = f"{self.queues}/{topic}/{queue_id}"
            self._remove_files(path)
            files.rmdir(path)
        for path in (self.log, f"{self.root}/index", f"{self.root}/config"):
            self._remove_files(path)
        names = files.listdir(self.own) if files.exists(self.own) else []
        for name in names:
            if name not in kept and not name.startswith(SET_ASIDE):
                files.unlink(f"{self.own}/{name}")
        for path in (f"{self.root}/abort", f"{self.root}/checkpoint"):
            if files.exists(path):
                files.unlink(path)
        for path in (self.own, self.root):
            files.sync_directory(path)

    def _remove_files(self, path: str) -> None:
        if self._files.exists(path):
            for name in self._files.listdir(path):
                self._files.unlink(f"{path}/{name}")
            self._files.sync_directory(path)

    # -- term ------------------------------------------------------------------------------------

    def terms(self) -> tuple[int, int]:
        """Return the last term that was certainly accepted, and the term of the last start. Zeros if they are not known."""
        accepted, *tried = self._terms() or (0,)
        return accepted, tried[-1] if tried else accepted

    def tried_terms(self) -> tuple[int, ...]:
        """Return the terms of the starts since the one that was certainly accepted."""
        return self._terms()[1:]

    def _terms(self) -> tuple[int, ...]:
        parts = (self.read(f"{self.own}/term") or b"").split()
        return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else ()

    def mark_terms(self, accepted: int, tried: Sequence[int]) -> None:
        self.replace(f"{self.own}/term", b" ".join(b"%d" % term for term in (accepted, *tried)))

    # -- boot ------------------------------------------------------------------------------------

    def boot(self) -> tuple[str, str] | None:
        """Return (boot id, flush mode) of the last time the store served, or None for a new one."""
        text = self.read(f"{self.own}/boot")
        if text is None:
            return None
        boot_id, _, flush = text.decode("ascii", "replace").partition(" ")
        return boot_id, flush

    def mark_boot(self, boot_id: str, flush: str) -> None:
        self.replace(f"{self.own}/boot", f"{boot_id} {flush}".encode())

    @property
    def has_log(self) -> bool:
        """Return whether a broker has begun a log here."""
        return self._files.exists(f"{self.own}/identity")

    @property
    def is_restored(self) -> bool:
        """Return whether the directory is a restored backup of which no nameserver has accepted a start."""
        return self._files.exists(f"{self.own}/restored")

    def mark_restored(self) -> None:
        """Mark the directory as a restored backup, durably."""
        self.replace(f"{self.own}/restored", b"")

    def clear_restored(self) -> None:
        """Remove the mark of a restored backup, durably."""
        self._files.unlink(f"{self.own}/restored")
        self._files.sync_directory(self.own)

    # -- synced length ---------------------------------------------------------------------------

    def load_synced(self) -> int:
        """Return up to where a sync has certainly covered the log, and open the slots for `save_synced`."""
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
        self._slot_number, self.slot_position = self.read_synced()
        return self.slot_position

    def save_synced(self, position: int) -> None:
        """Write the other slot and sync it. One caller at a time; may run in a worker thread."""
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
        """Record whether a sync has failed. Needs no sync: if the page cache is lost, so is the danger. An OSError is ignored."""
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
        """Return the content of a small file, or None if it does not exist."""
        try:
            file = self._files.open(path)
        except FileNotFoundError:
            return None
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def read_part(self, name: str, offset: int, bytes_max: int) -> tuple[str, int, bytes]:
        """Return (name, size, bytes from `offset` on) of a small file in lockstep/; ("", 0, b"") if there is none."""
        if name == "snapshot":
            positions = self.snapshot_positions()
            if not positions:
                return "", 0, b""
            name = f"{SNAPSHOT_PREFIX}{positions[0]:020d}"
        try:
            file = self._files.open(f"{self.own}/{name}")
        except FileNotFoundError:
            return "", 0, b""
        try:
            size = file.size()
            return name, size, file.pread(max(0, min(bytes_max, size - offset)), offset)
        finally:
            file.close()

    def replace(self, path: str, *chunks: bytes) -> None:
        """Replace the content of a file with the concatenated `chunks`, atomically. Durable on return."""
        temporary = path + ".tmp"
        if self._files.exists(temporary):
            self._files.unlink(temporary)
        file = self._files.open(temporary, create=True)
        try:
            at = 0
            for chunk in chunks:
                write_all(file, chunk, at)
                at += len(chunk)
            file.sync()
        finally:
            file.close()
        self._files.rename(temporary, path)
        self._files.sync_directory(path.rpartition("/")[0])

    def queue_files(self, identity: StoreIdentity, open_count_max: int) -> QueueFiles:
        return QueueFiles(self._files, self.queues, identity.queue_file_entries, open_count_max)

    def queue_directories(self) -> list[tuple[str, int]]:
        """Return (topic, queue id) of every consume queue on disk."""
        return queue_directories(self._files, self.queues)


@contextmanager
def locked_directory(files: Files, path: str) -> Iterator[StoreDirectory]:
    """Lock the directory of a store, and unlock it if the body raises. An OSError of the body becomes a StoreError.

    Raises StoreInUseError.
    """
    directory = StoreDirectory(files, path)
    try:
        directory.lock()
        try:
            yield directory
        except BaseException:  # re-raised
            directory.unlock()
            raise
    except OSError as error:
        raise misplaced(error, path) or StoreDiskError(f"store {path} can't be opened: {error}") from error


@contextmanager
def held_directory(files: Files, path: str) -> Iterator[StoreDirectory]:
    """Lock the directory of a store as `locked_directory` does, and unlock it after the body."""
    with locked_directory(files, path) as directory:
        try:
            yield directory
        finally:
            directory.unlock()


def directories_above(path: str) -> list[str]:
    """Return the directories above a path, the nearest first, up to "/" or, for a relative path, to "."."""
    above = []
    while path not in ("/", "."):
        head, slash, _ = path.rstrip("/").rpartition("/")
        path = head or slash or "."
        above.append(path)
    return above


def parse_identity(text: bytes, path: str) -> StoreIdentity:
    """Return the content of `lockstep/identity`. Raise IdentityError if the store has another format, and StoreCorruptError."""
    try:
        found = json.loads(text)
        if found["format"] != FORMAT:
            raise IdentityError(
                f"{path} has format {found['format']}, written by lockstep {found.get('version', 'of an unknown version')}; lockstep "
                f"{VERSION} reads format {FORMAT}: start it with a version that reads its format, or restore a backup. "
                "Nothing was changed"
            )
        identity = StoreIdentity(**{name: found[name] for name in StoreIdentity.__slots__})
    except (ValueError, KeyError, TypeError) as error:
        raise StoreCorruptError(f"{path} is damaged ({error}): restore it; it holds the cluster, broker and store id") from error
    if not all(isinstance(value, str) for value in (identity.version, identity.cluster, identity.broker_name, identity.store_id)):
        raise StoreCorruptError(f"{path} is damaged: version, cluster, broker_name and store_id are texts")
    if not all(isinstance(value, int) and value > 0 for value in (identity.segment_bytes, identity.queue_file_entries)):
        raise StoreCorruptError(f"{path} is damaged: segment_bytes and queue_file_entries are positive numbers")
    if not isinstance(identity.log_start, int) or identity.log_start < 0:
        raise StoreCorruptError(f"{path} is damaged: log_start is a log offset")
    return identity
