"""Repairs of a running store, when an entry of a consume queue and the record that it names do not match.

The log decides: the part of it between the nearest matching entries on either side is read again, in worker threads and short turns, and
the entries in between are written from it. A wrong entry is corrected. The entry of a damaged record becomes that of a lost message
(damage.py), and readers report the gap. Until then, reads of that offset get the response SYSTEM_BUSY.
"""

import asyncio
from functools import partial

from lockstep.broker.store.health.damage import LOST_SIZE, DamageTable
from lockstep.broker.store.log.append import ENTRY, ENTRY_BYTES
from lockstep.broker.store.log.commit_log import CommitLog
from lockstep.broker.store.log.scan import LogScan, ReadAt
from lockstep.broker.store.log.stored_record import BadRecordError, read_record
from lockstep.broker.store.queues.consume_queue import ConsumeQueue
from lockstep.broker.store.queues.queue_table import QueueTable
from lockstep.broker.store.queues.reader import MismatchError
from lockstep.broker.store.queues.rebuild import EntryRebuild, entry_of
from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.protocol.messages.record import RECORD_BYTES_MIN
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.requests.request import RetryLaterError

log = get_logger("broker")

WINDOW_BYTES = 64 << 10
"""Bytes of the log that are handled in one turn of the loop: a millisecond or two."""
NEIGHBOURS_MAX = 1_024
"""Number of entries on either side that are checked one by one."""
RUNNING_MAX = 2
"""Number of repairs that run at a time: they use the same disk as all requests."""
REPAIRS_MAX = 64
"""Number of repairs that run or wait."""
RETRY_MS = 200


async def next_turn(_position: int) -> None:
    await asyncio.sleep(0)


class QueueRepairs:
    """Runs at most one repair of a queue at a time, and RUNNING_MAX of all."""

    def __init__(
        self, log: CommitLog, queues: QueueTable, damage: DamageTable, directory: StoreDirectory, host: Host, tasks: Tasks
    ) -> None:
        self._log = log
        self._queues = queues
        self._damage = damage
        self._directory = directory
        self._host = host
        self._tasks = tasks
        self._read: ReadAt = partial(log.read, host)
        self._running: dict[ConsumeQueue, None] = {}
        self._tried: dict[ConsumeQueue, int] = {}
        """Queue → an offset that did not match after its repair. If it is found again, it is given up."""
        self._slots = asyncio.Semaphore(RUNNING_MAX)
        self._saving = asyncio.Lock()
        self.idle = asyncio.Event()
        """Set while no repair is running."""
        self.idle.set()
        self.repaired_count = 0
        """Number of entries that named another record, since the store was opened."""

    def start_repair(self, mismatch: MismatchError) -> RetryLaterError:
        """Start a repair, unless one of the queue is running or there are REPAIRS_MAX of all. Return the error for the reader.

        A mismatch without a repair is found again by the next read.
        """
        queue = mismatch.queue
        if queue not in self._running and len(self._running) < REPAIRS_MAX:
            self._running[queue] = None
            self.idle.clear()
            self._tasks.spawn(self._run(mismatch), f"repair {queue.topic} {queue.queue_id}")
        return RetryLaterError(f"offset {mismatch.offset} of queue {queue.queue_id} of {queue.topic} is compared with the log", RETRY_MS)

    async def _run(self, mismatch: MismatchError) -> None:
        queue, offset = mismatch.queue, mismatch.offset
        facts = {"topic": queue.topic, "queue_id": queue.queue_id}
        log_limited(log, "error", "store.mismatch", **facts, offset=offset, position=mismatch.position, error=str(mismatch))
        try:
            async with self._slots:
                if await self._agrees(queue, offset) is not None:
                    return  # detected before another repair of the same offset
                await self._repair(queue, offset, given_up=self._tried.get(queue) == offset)
                if await self._is_settled(queue, offset):
                    self._tried.pop(queue, None)
                else:
                    self._tried[queue] = offset
        except OSError as error:
            log_limited(
                log,
                "error",
                "queue.repair_failed",
                **facts,
                offset=offset,
                error=str(error),
                then="the broker tries again when the offset is read",
            )
        finally:
            self._running.pop(queue, None)
            if not self._running:
                self.idle.set()

    async def _repair(self, queue: ConsumeQueue, offset: int, *, given_up: bool) -> None:
        """Write the entries around `offset` again. `given_up`: that did not help, so the message at `offset` is lost."""
        first, position = (offset, self._log.start) if given_up else await self._below(queue, offset)
        end, limit = (offset + 1, self._log.start) if given_up else await self._above(queue, offset)
        sink = EntryRebuild(self._queues.files, whole=False)
        sink.add_range(queue, first, end, keeps_first=True)
        known = self._damage.ranges
        scan = LogScan(self._log, position, sink, limit, known=known, read=self._read, window_bytes=WINDOW_BYTES, frames=False)
        await scan.run(next_turn)
        sink.finish(position)
        if queue.min > end:
            return  # dropped, or removed by retention since
        self._damage.remove_lost(queue.topic, queue.queue_id, first, end)
        lost = sum(self._damage.add_lost(*row) for row in sink.lost)
        self.repaired_count += sink.count
        facts = {"topic": queue.topic, "queue_id": queue.queue_id, "first": first, "end": end, "lost_messages": lost}
        if sink.lost:
            places = [f"{damaged_range.begin}: {damaged_range.reason}" for damaged_range in sink.ranges[:4]]
            log.error("store.damaged", **facts, positions=places, then="consumers receive QueueGap")
        else:
            log_limited(log, "warning", "queue.repaired", **facts)
        await self.save()

    async def save(self) -> None:
        """Make the table of damage durable if it has changed. A failure is logged, and the next call tries again."""
        async with self._saving:
            if not self._damage.changed:
                return
            try:
                await self._host.threads.run(self._directory.save_damage, self._damage.encode())
            except OSError as error:
                self._damage.changed = True
                facts = {"path": self._directory.damage_path, "error": str(error)}
                log_limited(log, "error", "damage.unsaved", **facts, then="it is written again in 10 s")

    async def _below(self, queue: ConsumeQueue, offset: int) -> tuple[int, int]:
        """Return (first entry to write, log position to read from): after the nearest entry below that matches its record."""
        for index in range(offset - 1, max(queue.min, offset - NEIGHBOURS_MAX) - 1, -1):
            behind = await self._agrees(queue, index)
            if behind is not None:
                return index + 1, behind
        return queue.min, self._log.start

    async def _above(self, queue: ConsumeQueue, offset: int) -> tuple[int, int]:
        """Return (end of the entries to write, log position to read up to): after the nearest entry above that matches its record.

        Beyond NEIGHBOURS_MAX every step is twice as long as the one before.
        """
        index, step = offset + 1, 1
        while index < queue.visible:
            behind = await self._agrees(queue, index)
            if behind is not None:
                return index + 1, behind
            if index - offset >= NEIGHBOURS_MAX:
                step *= 2
            index += step
        return queue.visible, self._log.written

    async def _is_settled(self, queue: ConsumeQueue, index: int) -> bool:
        """Return whether entry `index` matches its record now, belongs to a lost message, or is below the queue's minimum."""
        if index < queue.min:
            return True
        entry = await self._entry(queue, index)
        return entry[1] == LOST_SIZE or await self._record_end(queue, index, entry) is not None

    async def _entry(self, queue: ConsumeQueue, index: int) -> tuple[int, int, int]:
        """Return (log position, size, tag hash) of entry `index`, or zeros if the file does not have it."""
        entry = queue.memory_entry(index)
        if entry is None:
            data = await self._host.threads.run(self._queues.files.entries, queue.directory, index, 1)
            entry = ENTRY.unpack(data) if len(data) == ENTRY_BYTES else (0, 0, 0)
        return entry

    async def _agrees(self, queue: ConsumeQueue, index: int) -> int | None:
        """Return the end of the record that entry `index` names, or None if they do not match."""
        return await self._record_end(queue, index, await self._entry(queue, index))

    async def _record_end(self, queue: ConsumeQueue, index: int, entry: tuple[int, int, int]) -> int | None:
        """As `_agrees`, for an entry that has been read."""
        position, size, _ = entry
        segment = self._log.segment_of(position)
        if size < RECORD_BYTES_MIN or segment is None or position + size > segment.end:
            return None
        try:
            record = read_record(await self._read(segment, size, position - segment.start), position, {})
        except BadRecordError:
            return None
        fits = (record.topic, record.queue_id, record.queue_offset) == (queue.topic, queue.queue_id, index)
        return position + size if fits and entry_of(record) == ENTRY.pack(*entry) else None
