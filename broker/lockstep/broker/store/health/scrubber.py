"""The scrub of a running store: it finds damage slowly, before a consumer does, and starts the repairs."""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from lockstep.broker.store.health.damage import DamageTable
from lockstep.broker.store.health.repair import QueueRepairs
from lockstep.broker.store.health.scrub import Scrub
from lockstep.broker.store.log.append import ENTRY, ENTRY_BYTES
from lockstep.broker.store.log.commit_log import CommitLog, Segment
from lockstep.broker.store.log.scan import DamagedRange, ReadAt
from lockstep.broker.store.queues.queue_table import QueueTable, StoreQueueKey
from lockstep.broker.store.queues.reader import MismatchError
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.waiting import is_set_within

log = get_logger("broker")

WINDOW_BYTES = 64 << 10
"""Bytes that are handled in one turn of the loop: a millisecond or two."""


class _StoppedError(Exception):
    """The broker stops or the scrub is turned off, so the pass ends early."""


class Scrubber:
    """Runs one pass at a time. Reads at most `bytes_per_s`, in worker threads."""

    def __init__(
        self, log: CommitLog, queues: QueueTable, damage: DamageTable, repairs: QueueRepairs, host: Host, bytes_per_s: int
    ) -> None:
        self._log = log
        self._queues = queues
        self._damage = damage
        self._repairs = repairs
        self._host = host
        self._read: ReadAt = partial(log.read, host)
        self.limit: Callable[[], int] = lambda: log.synced
        """Returns up to where a pass reads: that is on the disk, and its entries are in the queues."""
        self.bytes_per_s = bytes_per_s
        """A change applies to the next read. 0 ends the pass."""
        self._found: dict[int, DamagedRange] = {}
        """The damage that this pass has found so far."""
        self.found: dict[int, DamagedRange] = {}
        """Position → damage of the log that is not recorded in `lockstep/damage`."""
        self._pending: list[MismatchError] = []
        """Mismatches to be repaired before the scan continues."""
        self._end = 0
        """Log position at which this pass ends."""
        self.pass_count = 0
        self.position = 0
        """The position that the running pass has reached."""

    @property
    def damaged_bytes(self) -> int:
        """Return the number of log bytes without good records: the recorded ranges and those that the passes have found."""
        start = self._log.start
        return self._damage.byte_count + sum(found.end - found.begin for found in self.found.values() if found.end > start)

    async def run(self, stopping: asyncio.Event) -> None:
        """Run one pass over the data that is on the disk now, and start repairs. End at once if `stopping` is set or `bytes_per_s` is 0.

        A failed read ends the pass and is logged.
        """
        if not self.bytes_per_s:
            return
        end = self._end = self.limit()
        self._found, self._pending = {}, []

        async def on_progress(position: int) -> None:
            self.position = position
            pending, self._pending = self._pending, []
            for mismatch in pending:
                await self._repairs.idle.wait()  # a refused repair would not be found again before the next pass
                self._repairs.start_repair(mismatch)
                await self._repairs.idle.wait()
            if stopping.is_set():
                raise _StoppedError

        scrub = Scrub(self._log, self, self._entries, self._damage.ranges)
        try:
            await scrub.run(on_progress, limit=end, complete_until=end, read=self._paced(stopping), window_bytes=WINDOW_BYTES)
            await on_progress(end)
        except _StoppedError:
            return
        except OSError as error:
            log.error("scrub.failed", position=self.position, error=str(error), then="the next pass starts from the beginning")
            return
        self.found = self._found
        self.pass_count += 1
        log.info("scrub.passed", read_to=end, records=scrub.record_count, damaged_ranges=len(self.found))

    def _paced(self, stopping: asyncio.Event) -> ReadAt:
        async def read(segment: Segment, count: int, at: int) -> bytes:
            if self.bytes_per_s:
                await is_set_within(stopping, count / self.bytes_per_s)
            if stopping.is_set() or not self.bytes_per_s:
                raise _StoppedError
            return await self._read(segment, count, at)

        return read

    async def _entries(self, key: StoreQueueKey, first: int, count: int) -> bytes:
        queue = self._queues.get(key)
        return b"" if queue is None else await self._host.threads.run(self._queues.files.entries, queue.directory, first, count)

    # -- the report ------------------------------------------------------------------------------

    def damaged(self, damaged_range: DamagedRange) -> None:
        if damaged_range.known:
            return
        self._found[damaged_range.begin] = damaged_range
        if damaged_range.begin not in self.found:
            self.found[damaged_range.begin] = damaged_range
            where = self._log.segment_of(damaged_range.begin)
            path = None if where is None else where.path
            log.error("scrub.damage_found", begin=damaged_range.begin, end=damaged_range.end, file=path, error=damaged_range.reason)

    def lost(self, key: StoreQueueKey, first: int, end: int, position: int) -> None:
        queue = self._queues.get(key)
        if queue is not None:
            for low, _ in self._damage.not_lost_ranges(*key, max(first, queue.min), end):
                self._pending.append(MismatchError(queue, low, position, "no record of it was found in the log"))

    def wrong_entries(self, key: StoreQueueKey, first: int, count: int) -> None:
        queue = self._queues.get(key)
        if queue is not None and first >= queue.min:
            self._pending.append(MismatchError(queue, first, -1, f"{count} entries do not name the records of the log"))

    def expected(self, key: StoreQueueKey) -> tuple[int, int]:
        queue = self._queues.get(key)
        return (0, 0) if queue is None else (queue.min, queue.flushed)

    def queues(self) -> Iterable[StoreQueueKey]:
        return [(queue.topic, queue.queue_id) for queue in self._queues]

    def knows(self, key: StoreQueueKey) -> bool:
        return self._queues.get(key) is not None

    def first(self, key: StoreQueueKey) -> int | None:
        queue = self._queues.get(key)
        return 0 if queue is None else queue.min

    async def end(self, key: StoreQueueKey, seen: int) -> int:
        """Return the end of the messages that must exist: after those recorded as lost, except messages that came while the pass ran."""
        queue = self._queues.get(key)
        if queue is None or seen >= queue.visible:
            return seen
        for index, _ in self._damage.not_lost_ranges(*key, max(seen, queue.min), queue.visible):
            entry = queue.memory_entry(index)
            if entry is None:
                data = await self._entries(key, index, 1)
                entry = ENTRY.unpack(data) if len(data) == ENTRY_BYTES else (-1, 0, 0)
            return index + 1 if entry[0] < self._end else seen
        return seen
