"""The store of one broker: one log of all queues' records and of the broker's state, with consume queues built from it.

RocketMQ: DefaultMessageStore. The event loop is the only writer. `append_frame` and `append_state` add records in memory and give them
their positions in the log and in their queue. At the end of the loop turn they are written with one pwritev. They are confirmed at once, or
after a sync that turns share (log_writer.py), and then readers see them.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial

from lockstep.broker.store.config import FlushMode, Identity, StoreConfig
from lockstep.broker.store.errors import StoreDiskError, misplaced
from lockstep.broker.store.health.damage import DamageTable
from lockstep.broker.store.health.disk import DiskWatch
from lockstep.broker.store.health.repair import QueueRepairs
from lockstep.broker.store.health.retention import BeforeRemoval, Moved, Retention
from lockstep.broker.store.health.scrubber import Scrubber
from lockstep.broker.store.log.append import ENTRY, POSITION, STAMP, take_frame
from lockstep.broker.store.log.checkpoint import Checkpointer
from lockstep.broker.store.log.commit_log import CommitLog
from lockstep.broker.store.log.log_writer import LogWriter
from lockstep.broker.store.log.waiting_records import ROOMS, SEALED, Room, seal_waiting
from lockstep.broker.store.queues.predicates import Keep
from lockstep.broker.store.queues.query import Query
from lockstep.broker.store.queues.queue_table import QueueTable
from lockstep.broker.store.queues.reader import MismatchError, Reader
from lockstep.broker.store.queues.search import Search, Searched, SearchLimits, Wanted
from lockstep.broker.store.replica_log import ReplicaLog
from lockstep.broker.store.results import Appended, DiskStatus, ReadResult, Recovery
from lockstep.broker.store.start.directory import StoreDirectory, StoreIdentity, Survey, locked_directory
from lockstep.broker.store.start.recovery import Recoverer, RecoveryProgress
from lockstep.broker.store.start.replay import LogState, StateReplay
from lockstep.broker.store.start.snapshot import Snapshots, encode_parts, gathered, recorded_start
from lockstep.protocol.errors import MessageIllegalError, ServiceNotAvailableError, StateError
from lockstep.protocol.messages.properties import COPY_GROWTH_BYTES_MAX
from lockstep.protocol.messages.record import BODY_AT, HOSTS, OFFSETS, RECORD_BYTES_MIN, encode_record
from lockstep.protocol.names import STATE_TOPIC
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.descriptors import SHORTAGE
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited

log = get_logger("broker")

STATE_SHARE = 8
"""One of this many parts of a log file is for state records only while no descriptor is free: sends can be refused, state records can't."""
YOUNG_MEMORY_PERCENT = 40
"""RocketMQ: accessMessageInMemoryMaxRatio. A queue with its first message nearer to the log's end than this share of memory is young."""


def _no_rooms(topic: str, _offset: int, _dues: list[int], _era: int) -> None:
    raise StateError(f"nobody takes messages that wait in {topic}")


class Store:
    """Serves after `open`, `recover`, `sync` and `mark_boot`. Everything except the waiting reads runs on the event loop."""

    def __init__(
        self,
        config: StoreConfig,
        host: Host,
        directory: StoreDirectory,
        identity: StoreIdentity,
        *,
        clean: bool,
        adopted_end: int | None,
    ) -> None:
        """Use `open` or `open_surveyed` instead."""
        self._config = config
        self._host = host
        self._directory = directory
        self._log = CommitLog(
            host.files, directory.log, identity.segment_bytes, config.tail_bytes, directory.presence, directory.next_log_path
        )
        self._state_room = identity.segment_bytes // STATE_SHARE
        """Bytes of a log file that are for state records only, while there is no descriptor for the next file."""
        self.sent_record_bytes_max = min(config.record_bytes_max, self._log.frame_bytes_max - COPY_GROWTH_BYTES_MAX)
        """The largest record that a sender may send, so that any copy of it also fits into a file of the log."""
        self._queues = QueueTable(directory.queue_files(identity, config.open_file_count_max), config.queue_tail_bytes)
        self._snapshots = Snapshots(host.files, directory)
        self.damage = DamageTable()
        """Known damage of the log, and the messages lost with it."""
        self._disk = DiskWatch(config, host.files)
        self._disk_is_full = False
        """Whether the last look found that sends are refused for lack of room."""
        self.writer = LogWriter(config, host, directory, self._log, self._queues, self._disk)
        """Writes the appended records, and calls back when they are confirmed."""
        self._log.on_truncated = self.writer.fail
        self._tasks = Tasks(self.writer.fail)
        self._checkpointer = Checkpointer(config, host, directory, self.writer, self._queues, self._snapshots)
        self._reader = Reader(self._log, self._queues.files, host, verify=config.verify_reads)
        self._repairs = QueueRepairs(self._log, self._queues, self.damage, directory, host, self._tasks)
        self.scrubber = Scrubber(self._log, self._queues, self.damage, self._repairs, host, config.scrub_bytes_per_s)
        """Looks for damage in the files of the log and the queues."""
        self._query = Query(self._log, self._queues, self.damage, host, config.record_bytes_max)
        self._search = Search(self._log, self._queues, self._query, host, config.record_bytes_max)
        self._retention = Retention(config, host, self._log, self._queues, self._snapshots, directory)
        self._state = LogState()
        self._recovered = False
        self._replica: ReplicaLog | None = None
        """The log that is received from a master, if this store copies one."""
        self._log_start = identity.log_start
        self._adopted_end = adopted_end
        self.reading = RecoveryProgress(host.clock)
        """How far `recover` has read."""
        self.store_id = identity.store_id
        self.proof = ""
        """The store's secret (lockstep/proof)."""
        self.accepted_term, self.last_term = directory.terms()
        """The last term that was certainly accepted, and the term of the last start (lockstep/term). Zeros if not known."""
        self.tried_terms = directory.tried_terms()
        self.stopped_clean = clean
        """Whether the last run closed the store in order. True for a new store."""
        self._found_clean = clean
        """Whether it did and this start has changed nothing. `_found_end` is where this start found the end of the log."""
        self._found_end = -1
        self._last_boot = directory.boot()
        self.restored = directory.is_restored
        """Whether the store is a restored backup of which no nameserver has accepted a start: everything after the backup is lost."""
        self._boot_id = ""
        self._clock_was_set_ms = 0
        """By how much the clock was set between the last clock record and this start."""
        self.on_waiting: Callable[[str, int, list[int], int], None] = _no_rooms
        """Called for each frame that is appended to a waiting room, with the arguments of `StateReplay.waits`."""
        self.store_host = config.store_host
        """IPv4 address and port that records carry: 4 bytes and int32."""

    @classmethod
    async def open(cls, config: StoreConfig, host: Host, identity: Identity) -> "Store":
        """Lock the directory and open its files. A missing directory becomes a new store.

        Raises StoreInUseError (exit 6), IdentityError (4), StoreCorruptError (5) and StoreDiskError (3). A broker opens its store by
        rocketmq_store/opening.py, which notices first whether another broker has written to the directory.
        """
        with locked_directory(host.files, config.path) as directory:
            begins = partial(recorded_start, host.files, directory)
            return cls.open_surveyed(config, host, directory, directory.survey(identity, config, host.random.token(16).hex(), begins))

    @classmethod
    def open_surveyed(
        cls, config: StoreConfig, host: Host, directory: StoreDirectory, survey: Survey, adopted_end: int | None = None
    ) -> "Store":
        """Open the files of a locked directory. From here on a start changes it.

        `adopted_end`: if another program has written the log, and its own files have the state, the log offset up to which the caller has
        read good records; else None.
        """
        directory.establish(survey.identity, fresh=survey.is_new)
        directory.load_synced()
        clean = directory.mark_open()
        store = cls(config, host, directory, survey.identity, clean=clean, adopted_end=adopted_end)
        try:
            store.proof = directory.proof(host.random)
            store._log.load(survey.log)
            if (known := directory.read(directory.damage_path)) is not None:
                store.damage.restore(known, directory.damage_path)
                store.damage.trim_log(store._log.start)
        except BaseException:  # re-raised
            store._log.close()
            if clean:
                directory.revert_open()
            raise
        return store

    async def recover(self, replay: StateReplay, *, clock_ahead_ms: int | None = None) -> Recovery:
        """Read the log from the last snapshot on, cut an unfinished tail, and pass the state to `replay`.

        `clock_ahead_ms`: the time of the store whose log was copied, minus the boot clock of this machine, if it is known.
        Raises StoreCorruptError if synced bytes are damaged. Nothing is confirmed before the next `sync`.
        """
        recoverer = Recoverer(
            self._config,
            self._directory,
            self._log,
            self._queues,
            self._snapshots,
            self.damage,
            reading=self.reading,
            log_start=self._log_start,
            clean=self.stopped_clean,
            adopted_end=self._adopted_end,
        )
        self._state = recoverer.state
        try:
            try:
                found = await recoverer.run(replay)
            finally:
                self._found_clean = self.stopped_clean and not recoverer.changed
        except OSError as error:
            raise misplaced(error, self._config.path) or StoreDiskError(f"store {self._config.path} can't be read: {error}") from error
        self._state = recoverer.state
        self._checkpointer.last_position = found.from_position
        self._boot_id = self._host.boot_id()
        self._clock_was_set_ms = self._state.stamps.start(self._host.clock, self._boot_id, clock_ahead_ms)
        self._found_end = found.end
        self._recovered = True
        self.writer.start(found.end, self._tasks)
        return found

    def follow(self, replay: StateReplay, reason: str) -> ReplicaLog:
        """Let this store, which has recovered into `replay`, copy the log of another one. It refuses messages for `reason` from now on."""
        self.writer.refusal = reason
        self._replica = replica = ReplicaLog(self._log, self.writer, self._queues, self.damage, self._state, replay, self._config.flush)
        self.scrubber.limit = lambda: min(replica.synced, replica.applied)
        return replica

    # -- appending -------------------------------------------------------------------------------

    def append_frame(
        self,
        topic: str,
        queue_id: int,
        frame: bytes | bytearray,
        count: int,
        *,
        born_host: bytes,
        trusted: bool = False,
        sequenced: bool = False,
        room: Room | None = None,
        from_reserve: bool = False,
    ) -> Appended:
        """Append `count` records of one queue in the layout of record.py, with the broker's fields zero.

        `trusted`: the broker made the records, so its own property names and counters are allowed. `sequenced`: the frame has the
        `__LS_SEQ` of an idempotent producer, and the caller has checked it. `room`: the topic is a waiting room, to which a client sends.
        `from_reserve`: half of the disk reserve may be used.
        Raises MessageIllegalError, which names the record and the rule that it breaks, and ServiceNotAvailableError below the disk reserve
        and while closing. The frame is not confirmed on return: see `LogWriter.when_confirmed`.
        """
        self.writer.check_open()
        size = len(frame)
        log, state = self._log, self._state
        if size > log.frame_bytes_max or not 0 < count * RECORD_BYTES_MIN <= size or queue_id < 0 or topic == STATE_TOPIC:
            raise MessageIllegalError(self._unfit(topic, queue_id, size, count))
        if size > self._disk.room:
            if from_reserve:
                self._disk.check_half(size, self._host.clock.monotonic_ms())
            else:
                self._make_room(size)
        queue = self._queues.get((topic, queue_id))
        known = queue is not None
        if queue is None:
            queue = self._queues.make_queue(topic, queue_id)
        try:
            position = self.writer.reserve(size, leave=self._state_room)
        except StoreDiskError as error:
            self._note_refusal()
            raise ServiceNotAvailableError(str(error)) from error
        store_ms = state.stamps.now_ms()
        entries = take_frame(
            log.tail,
            frame if type(frame) is bytes else bytes(frame),
            count,
            queue.topic_field,
            queue_id,
            queue_offset=queue.next,
            position=position,
            stamp=STAMP.pack(born_host, store_ms, self.store_host),
            size_max=self._config.record_bytes_max if trusted else self.sent_record_bytes_max,
            trusted=trusted,
            sequenced=sequenced,
            room=room,
        )
        if room is None and topic in SEALED:
            try:
                seal_waiting(log.tail, len(log.tail) - size, entries, topic, queue_id, store_ms)
            except MessageIllegalError:
                del log.tail[-size:]
                raise
        try:
            if not known:
                self._queues.add_queue(queue)
            queue_offset = queue.next
            queue.add_entries(entries, count)
            queue.bytes_in += size
            self._queues.entries_added(queue, count)
            self._disk.room -= size
            state.stamps.newest_ms = store_ms
            state.last_record = POSITION.unpack_from(entries, len(entries) - 20)[0]
            self.writer.appended(queue)
            if topic in ROOMS:
                self.on_waiting(topic, queue_offset, [due for _, _, due in ENTRY.iter_unpack(entries)], state.stamps.era)
        except Exception as error:  # re-raised
            self.writer.fail_inconsistent(error)
            raise
        return Appended(queue_offset, position, store_ms)

    def now_ms(self) -> int:
        """Return the wall time for the stamp of the next record. It does not follow jumps of the wall clock: see `upkeep`."""
        return self._state.stamps.now_ms()

    def upkeep(self) -> None:
        """Follow the wall clock, and open the next file of the log if there was no descriptor for it. Call it every second."""
        self.follow_clock()
        self._log.prepare()

    def follow_clock(self) -> None:
        """Set the clock of the store if a jump of the wall clock has lasted for 5 minutes.

        This is in the log before any record that is stamped by the new setting.
        """
        if not self.writer.has_failed and (by_ms := self._state.stamps.follow()):
            self._append_clock(by_ms)

    def record_clock(self) -> None:
        """Append the first clock record of a start. Call it before anything else is appended."""
        self._append_clock(self._clock_was_set_ms)

    def _append_clock(self, by_ms: int) -> None:
        stamps, boot_id = self._state.stamps, self._boot_id
        body, boot_ms, now_ms = stamps.make_clock_record(boot_id, by_ms)
        self.append_state(body)
        stamps.clock_record_written(self._state.last_record, boot_id, boot_ms, now_ms, by_ms)

    def safe_now_ms(self) -> int:
        """Return the earlier one of `now_ms` and the wall clock: old records must be old by both."""
        return min(self.now_ms(), self._host.clock.wall_ms())

    @property
    def clock_sets(self) -> int:
        """Return how often the clock of the store was set. Each time `now_ms` and `stored_ms` change, and must be compared again."""
        return self._state.stamps.set_count

    @property
    def eras(self) -> list[int]:
        """Return the log positions since which one setting of the clock has stamped, and 0 (StoreClock.era)."""
        return [0, *(step.position for step in self._state.stamps.steps)]

    def stored_ms(self, position: int, stamp_ms: int) -> int:
        """Return when the record at a log position was stored, by the current setting of the clock."""
        return self._state.stamps.true_ms(position, stamp_ms)

    def queue_ids(self, topic: str) -> list[int]:
        """Return the queues of a topic that have, or had, messages."""
        return [queue.queue_id for queue in self._queues.queues_of_topic(topic)]

    def stored_queue_ids(self, topic: str) -> list[int]:
        """Return the queues of a topic that have messages now."""
        return [queue.queue_id for queue in self._queues.queues_of_topic(topic) if queue.min < queue.next]

    @property
    def state_bytes_max(self) -> int:
        """Return the longest body of a state record, which has to fit into a file of the log."""
        fitting = self._log.frame_bytes_max - RECORD_BYTES_MIN - len(STATE_TOPIC)
        asked = self._config.state_bytes_max
        return fitting if asked is None else min(asked, fitting)

    def append_state(self, body: bytes) -> None:
        """Append a state record, also below the disk reserve."""
        self.writer.check_healthy()
        if not self._recovered or self._replica is not None:
            raise StateError("the store has not recovered yet" if self._replica is None else "the log of a replica takes no own records")
        state = self._state
        now_ms = self.now_ms()
        record = bytearray(encode_record(STATE_TOPIC.encode(), 0, body, b"", born_ms=now_ms))
        if len(record) > self._log.frame_bytes_max:
            raise StoreDiskError(f"a state record of {len(record)} bytes does not fit a log file of {self._log.frame_bytes_max + 8}")
        position = self.writer.reserve(len(record))
        state.stamps.newest_ms = now_ms
        OFFSETS.pack_into(record, 20, state.state_next, position)
        HOSTS.pack_into(record, 48, self.store_host, now_ms, self.store_host)
        self._log.tail += record
        self._disk.room -= len(record)
        state.state_next += 1
        state.last_record = position
        self.writer.request_write()

    def _unfit(self, topic: str, queue_id: int, size: int, count: int) -> str:
        if topic == STATE_TOPIC or queue_id < 0:
            return f"queue {queue_id} of {topic} takes no sends"
        if size > self._log.frame_bytes_max:
            return f"frame of {size} bytes, a log file takes {self._log.frame_bytes_max}"
        return f"frame of {size} bytes does not hold the {count} records that it claims"

    async def sync(self) -> None:
        """Return when everything appended so far is on the disk. Raise StoreDiskError after a failure."""
        await self.writer.sync()

    # -- marks of a start ------------------------------------------------------------------------

    def may_have_forgotten(self, boot_id: str) -> bool:
        """Return whether readers may have seen a suffix of the log that is lost now.

        This is so if the machine crashed under a store that served with async flush in that run, whatever the current mode is. If only the
        process was killed, its writes are in the page cache. It is so for a restored backup, too.
        """
        if self.restored:
            return True
        if self._last_boot is None or self.stopped_clean:
            return False
        last_boot_id, flush = self._last_boot
        return boot_id != last_boot_id and flush != FlushMode.SYNC.value

    async def mark_terms(self, *, accepted: int, tried: tuple[int, ...]) -> None:
        """Store the term that was accepted, and those of the starts since then, outside the log, durably. Raises StoreDiskError."""
        try:
            await self._host.threads.run(self._directory.mark_terms, accepted, tried)
        except OSError as error:
            raise StoreDiskError(f"store {self._config.path}: the term can't be stored: {error}") from error

    async def mark_boot(self, boot_id: str) -> None:
        """Store the kernel's boot id, durably, after everything that a start decided is durable. Raises StoreDiskError."""
        try:
            await self._host.threads.run(self._directory.mark_boot, boot_id, self._config.flush.value)
        except OSError as error:
            raise StoreDiskError(f"store {self._config.path}: the boot id can't be stored: {error}") from error

    async def read_file(self, name: str, offset: int, bytes_max: int) -> tuple[str, int, bytes]:
        """Return (name, size, bytes from `offset` on) of a small file in lockstep/, for a copy of the store: ("", 0, b"") if there is none.

        "snapshot" is the oldest one, with which all of the log can be read. Raises StoreDiskError.
        """
        try:
            return await self._host.threads.run(self._directory.read_part, name, offset, bytes_max)
        except OSError as error:
            raise StoreDiskError(f"store {self._config.path}: {name} can't be read: {error}") from error

    async def change_directory(self, change: Callable[[StoreDirectory], None]) -> None:
        """Call a function in a worker thread that replaces small files of the directory. Raises StoreDiskError."""
        try:
            await self._host.threads.run(change, self._directory)
        except OSError as error:
            raise StoreDiskError(f"store {self._config.path}: a file can't be replaced: {error}") from error

    async def clear_restored(self) -> None:
        """Remove the mark of a restored backup, if there is one, durably. Call it when a nameserver has accepted the start and before
        anything is served. Raises StoreDiskError."""
        if not self.restored:
            return
        try:
            await self._host.threads.run(self._directory.clear_restored)
        except OSError as error:
            raise StoreDiskError(f"store {self._config.path}: the mark of a restored backup can't be removed: {error}") from error
        self.restored = False

    # -- snapshots -------------------------------------------------------------------------------

    def snapshot_due(self, now_ms: int) -> bool:
        """Return whether enough was logged since the last snapshot, or anything was and enough time of the monotonic clock has passed."""
        return not self.writer.has_failed and self._checkpointer.due(self._tables_at(self._log.end), now_ms)

    def _tables_at(self, end: int) -> int:
        """Return up to where the tables have the log, which ends at `end`."""
        return end if self._replica is None else self._replica.applied

    async def write_snapshot(self, plain: object) -> None:
        """Write `plain` as the snapshot of the present end of the log: values that msgpack can pack, and SnapshotRows.

        In a replica it is the snapshot of what is applied.

        Make `plain` and call this in one loop turn. It is packed in slices, and written when the log is durable up to here. Two snapshots
        are kept. Tuples are read back as lists.
        """
        if self._checkpointer.running:
            raise StateError("a snapshot is being written already")
        self.writer.end_turn()
        self.writer.check_healthy()
        position, state = self._tables_at(self._log.written), self._state
        needs_from = position if state.last_record < 0 else state.last_record
        newest_ms, clock = state.stamps.newest_ms, state.stamps.plain()
        last_head = None if state.last_record < 0 else self._head(state.last_record)
        queues, start = self._queues.plain(), self._log.start
        parts = encode_parts(position, state.last_record, newest_ms, state.state_next, queues, plain, clock, last_head, start)
        self._checkpointer.running = True
        try:
            chunks = await gathered(parts)
            await self._checkpointer.write(position, needs_from, newest_ms, chunks)
        except OSError as error:
            if error.errno in SHORTAGE:
                log_limited(log, "warning", "snapshot.postponed", error=str(error), then="the broker tries again")
                return
            self.writer.fail(error)
            raise StoreDiskError(f"the snapshot could not be written: {error}") from error
        finally:
            self._checkpointer.running = False

    def _head(self, position: int) -> bytes | None:
        """Return the head of the record at `position`. It distinguishes this log from another one with a record at the same position."""
        head = self._log.from_tail(position, BODY_AT)
        if head is None and (segment := self._log.segment_of(position)) is not None:
            head = self._log.read_here(segment, BODY_AT, position - segment.start)
        return head

    # -- reading ---------------------------------------------------------------------------------

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_count: int,
        max_bytes: int,
        tag_hashes: frozenset[int] | None = None,
        keep: Keep | None = None,
    ) -> ReadResult | None:
        """Return confirmed messages from `offset` on, at most `max_count` and `max_bytes` (the first always fits), with a wanted tag
        hash, for which `keep` returns True.

        Return None if that would wait for the disk: then call `read_cold`. Messages lost to damage give the status LOST. Raises
        RetryLaterError while an entry that does not match its record is compared with the log.
        """
        try:
            return self._reader.read(self._queues.get((topic, queue_id)), offset, max_count, max_bytes, tag_hashes, keep)
        except MismatchError as mismatch:
            raise self._repairs.start_repair(mismatch) from None

    async def read_cold(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_count: int,
        max_bytes: int,
        tag_hashes: frozenset[int] | None = None,
        keep: Keep | None = None,
    ) -> ReadResult:
        """As `read`, but wait for the disk in a worker thread."""
        try:
            return await self._reader.read_waiting(self._queues.get((topic, queue_id)), offset, max_count, max_bytes, tag_hashes, keep)
        except MismatchError as mismatch:
            raise self._repairs.start_repair(mismatch) from None

    async def read_or_wait(self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int) -> ReadResult:
        """Read at once if possible, else wait for the disk. Raises OSError and RetryLaterError."""
        result = self.read(topic, queue_id, offset, max_count=max_count, max_bytes=max_bytes)
        if result is None:
            result = await self.read_cold(topic, queue_id, offset, max_count=max_count, max_bytes=max_bytes)
        return result

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return (first offset, end) of the visible messages, or (0, 0) for an unknown queue."""
        queue = self._queues.get((topic, queue_id))
        return (0, 0) if queue is None else (queue.min, queue.visible)

    async def first_offset_from(self, topic: str, queue_id: int, position: int) -> int:
        """Return the offset of the queue's first message whose record begins at this log position or after it, or the queue's end."""
        low, high = self.bounds(topic, queue_id)
        while low < high:
            middle = (low + high) // 2
            entry = await self.queue_entry(topic, queue_id, middle)
            low, high = (middle + 1, high) if entry is not None and entry[0] < position else (low, middle)
        return low

    def end_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the next message, after all appended ones, confirmed or not."""
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.next

    async def read_log(self, position: int, bytes_max: int) -> bytes:
        """Return what the log has written from `position` on: bytes of one segment, none at its end. Raises OSError and StoreDiskError.

        A position below the log's beginning has none either.
        """
        data = self.recent_log(position, bytes_max)
        if data is not None or (segment := self._log.segment_of(position)) is None:
            return data or b""
        count = min(bytes_max, self._log.written - position, segment.end - position)
        return await self._log.read(self._host, segment, count, position - segment.start)

    def recent_log(self, position: int, bytes_max: int) -> bytes | None:
        """As `read_log`, without waiting. Return None if the bytes are not in memory."""
        segment = self._log.segment_of(position)
        count = 0 if segment is None else min(bytes_max, self._log.written - position, segment.end - position)
        return self._log.from_tail(position, count) if count > 0 else b""

    @property
    def log_bounds(self) -> tuple[int, int]:
        """Return (position of the first byte, end) of the log."""
        return self._log.start, self._log.end

    @property
    def written(self) -> int:
        """Return up to where the log is written."""
        return self._log.written

    async def oldest_ms(self) -> int:
        """Return the store time of the log's first record, in ms since 1970; 0 if there is none."""
        return await self._retention.oldest_ms()

    def young_queue(self, topic: str, queue_id: int, first: int) -> bool:
        """Return whether nothing from `first` on was removed and the first message is still a recent one, so that a group without progress
        begins there. `first`: where the queue was added.

        RocketMQ: ConsumerManageProcessor.queryConsumerOffset.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None or queue.min > first:
            return queue is None
        near = self._host.files.memory_bytes() * YOUNG_MEMORY_PERCENT // 100
        return queue.min_position is None or self._log.end - queue.min_position <= near

    async def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the offset of the first message with the store time `timestamp_ms` or a later one, or the queue's end.

        No message with such a store time is skipped. If the clock was set back, older messages may follow.
        """
        return await self._query.offset_by_time(self._queues.get((topic, queue_id)), timestamp_ms, self._state.stamps.rising_ranges())

    async def offset_stored_since(self, topic: str, queue_id: int, low: int, high: int, since_ms: int) -> int:
        """Return the offset of the first message in [low, high) with `stored_ms` at `since_ms` or later, or `high`.

        If the clock was set back before the last boot, an earlier message may follow, or a later one precede.
        """
        queue = self._queues.get((topic, queue_id))
        return await self._query.offset_stored_since(queue, low, high, since_ms, self._state.stamps.true_ms)

    async def stored_ms_from(self, topic: str, queue_id: int, offset: int, high: int) -> int | None:
        """Return `stored_ms` of the message at a queue offset, or of the next one that is not lost; None if there is none before `high`."""
        return await self._query.stored_ms_from(self._queues.get((topic, queue_id)), offset, high, self._state.stamps.true_ms)

    async def first_stored_ms(self, topic: str, queue_id: int) -> int | None:
        """Return the store time of the queue's first message, or None if it has none."""
        return await self._query.first_stored_ms(self._queues.get((topic, queue_id)))

    async def store_time_at(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the store time of the message at a queue offset, or None if there is none."""
        return await self._query.store_time_at(self._queues.get((topic, queue_id)), offset)

    async def queue_entry(self, topic: str, queue_id: int, offset: int) -> tuple[int, int, int] | None:
        """Return (log offset, size, tag hash) of the message at a queue offset, or None if there is none."""
        return await self._query.entry_at(self._queues.get((topic, queue_id)), offset)

    async def queue_entries(self, topic: str, queue_id: int, offset: int, count: int) -> bytes:
        """Return entries (`ENTRY`) from a queue offset on, confirmed or not: at most `count`, and at least one if there is one."""
        return await self._query.entries_at(self._queues.get((topic, queue_id)), offset, count)

    async def record_at(self, physical_offset: int, *, hidden: bool = False) -> bytes | None:
        """Return the message at a log offset. None if no message begins there, it is not confirmed yet, or it is state of the broker.

        `hidden`: also a message that was purged, or whose topic was deleted, as long as the log has its record.
        """
        return await self._query.record_at(physical_offset, self.writer.confirmed, hidden=hidden)

    async def search(self, wanted: Wanted, limits: SearchLimits, cursor: int | None = None) -> Searched:
        """Return confirmed messages with a key, the newest first, that were stored before the log position `cursor`."""
        ranges = self._state.stamps.rising_ranges()
        return await self._search.run(wanted, limits, ranges, self.writer.confirmed, cursor)

    # -- upkeep ----------------------------------------------------------------------------------

    def apply(self, config: StoreConfig) -> None:
        """Use the limits of retention, of the disk and of the scrub that `config` has. Its other settings are not looked at."""
        self._retention.config = config
        self._disk.apply(config)
        self.scrubber.bytes_per_s = config.scrub_bytes_per_s

    async def retention(self, now_ms: int, before_removal: BeforeRemoval | None = None) -> list[Moved]:
        """Remove old segments. Return (topic, queue id, new minimum) of the queues that lost messages.

        `now_ms` is wall time, best `safe_now_ms`. `before_removal` is as for Retention.run. Also writes the table of damage if that failed
        before. Raises StoreDiskError if the disk fails, which is final too: it is not known then which files were removed.
        """
        return await self._removing(self._retention.run(now_ms, self._state.stamps, before_removal))

    async def follow_retention(self, log_start: int) -> None:
        """Remove what the master of this replica has removed: its log begins at `log_start`. Raises StoreDiskError as `retention` does."""
        await self.sync()  # the first one after a start covers all files
        await self._removing(self._retention.follow(log_start))

    def pin_log(self, pinned: Callable[[], int]) -> None:
        """Keep what is old, from the position on that `pinned` returns, unless there is no room for it."""
        self._retention.pinned = pinned

    async def _removing(self, removal: Awaitable[list[Moved]]) -> list[Moved]:
        try:
            moved = await removal
            self.damage.trim(self._log.start, lambda topic, queue_id: self.bounds(topic, queue_id)[0])
            await self._repairs.save()
        except OSError as error:
            self.writer.fail(error)
            raise StoreDiskError(f"old log files could not be removed: {error}") from error
        self._state.stamps.forget_before(self._log.start)
        return moved

    def check_append(self, size: int) -> None:
        """Raise ServiceNotAvailableError if a frame of `size` bytes would be refused: below the disk reserve and while closing."""
        self.writer.check_open()
        if size > self._disk.room:
            self._make_room(size)

    def _make_room(self, size: int) -> None:
        try:
            self._disk.make_room(size, self._host.clock.monotonic_ms())
        except ServiceNotAvailableError:
            self._note_refusal()
            raise

    def _note_refusal(self) -> None:
        if not self._disk_is_full and not self.writer.has_failed:
            self.disk_status()

    def check_new_state(self, what: str) -> None:
        """Raise ServiceNotAvailableError if the disk has room only for changes of existing state, not for `what`, which is new."""
        self._disk.check_new_state(what, self._host.clock.monotonic_ms())

    def check_copy(self, size: int) -> None:
        """Raise ServiceNotAvailableError if the disk has no room for `size` more bytes of another store's log."""
        self._disk.check_copy(size, self._host.clock.monotonic_ms())

    def disk_status(self) -> DiskStatus:
        """Return the present use of the file system. A change between accepting and refusing sends is logged."""
        status = self._disk.status(self._host.clock.monotonic_ms(), self._log.end - self._log.start)
        if self._log.refusal is not None:
            status = replace(status, refusal=self._log.refusal)
        if self._disk_is_full is (status.refusal is None):
            self._disk_is_full = status.refusal is not None
            facts = {"free_bytes": status.free_bytes, "reserve_bytes": status.reserve_bytes}
            if status.refusal is not None:
                log_limited(log, "error", "disk.filled", **facts, reason=status.refusal, effect="sends fail; reads and commits continue")
            else:
                log_limited(log, "info", "disk.recovered", **facts)
        return status

    @property
    def message_count(self) -> int:
        """Return the number of messages that the queues ever had, confirmed or not."""
        return sum(queue.next for queue in self._queues)

    def queue_totals(self) -> Iterator[tuple[str, int, int, int]]:
        """Yield (topic, messages, stored, bytes) of each queue: all messages ever appended, those that are stored, and record bytes since
        the store was opened.

        Each value is that of the turn in which it is yielded.
        """
        return ((queue.topic, queue.visible, max(0, queue.visible - queue.min), queue.bytes_in) for queue in list(self._queues))

    def drop_topic(self, topic: str) -> None:
        """Hide the topic's messages permanently. If the topic is created again, its queue offsets continue above."""
        self._queues.drop_topic(topic)

    def hide_below(self, topic: str, queue_id: int, minimum: int) -> None:
        """Hide the messages of one queue below an offset permanently, at most all that it has. Its offsets are not used again."""
        if (queue := self._queues.get((topic, queue_id))) is not None:
            self._queues.hide_below(queue, minimum)

    async def close(self, clean: bool = True, *, refused: bool = False) -> None:
        """Sync and close. With `clean` False leave everything as a killed process would.

        `refused`: the start has failed. A store that had been stopped in order and was not changed by this start still counts as stopped
        in order.
        """
        self.writer.refusal = self.writer.refusal or "the broker is stopping"
        try:
            if clean and self._recovered and not self.writer.has_failed:
                await self._close_in_order()
            elif refused and self._found_clean and not self.writer.has_failed and (not self._recovered or self._log.end == self._found_end):
                await self._host.threads.run(self._directory.revert_open)
        except OSError as error:
            self.writer.fail(error)
            raise StoreDiskError(f"store {self._config.path} could not be closed in order: {error}") from error
        finally:
            self.writer.flusher.abandon()
            await self.writer.flusher.wait_ended()
            self._log.close()
            self._queues.files.close()
            self._directory.unlock()

    async def _close_in_order(self) -> None:
        self.writer.end_turn()
        self.writer.check_healthy()
        self._queues.flush_all()
        await self._repairs.save()
        await self.writer.flusher.stop()
        await self._checkpointer.sync_queues(self._state.stamps.newest_ms)
        await self._host.threads.run(self._directory.mark_closed)
