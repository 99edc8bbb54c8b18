"""Remove old segments. RocketMQ: CleanCommitLogService, CleanConsumeQueueService.

A whole segment is removed if its first record and the one that follows it are older than the retention time, if the log is longer than its
limit, or if the file system is fuller than its limit: the oldest first, never the newest, never one that is being read, and never one that
the older kept snapshot needs. A replica removes what its master has removed, and nothing else.
It does not matter whether groups have consumed the messages: the caller moves their progress to the new minimum and reports the gap.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable

from lockstep.broker.store.config import StoreConfig
from lockstep.broker.store.log.append import ENTRY_BYTES
from lockstep.broker.store.log.commit_log import CommitLog, Segment
from lockstep.broker.store.log.store_clock import StoreClock
from lockstep.broker.store.queues.consume_queue import ConsumeQueue
from lockstep.broker.store.queues.queue_table import FLUSH_QUEUES_PER_SLICE, QueueTable
from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.broker.store.start.snapshot import Snapshots
from lockstep.protocol.messages.record import RECORD_BYTES_MIN, store_time_of
from lockstep.runtime.descriptors import SHORTAGE, WAIT_COUNT, WAIT_S
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.metrics import Slices

log = get_logger("broker")

Moved = tuple[str, int, int]
"""(topic, queue id, new minimum)."""
BeforeRemoval = Callable[[int], Awaitable[int]]
"""Called with the log position below which records will be removed. Returns up to which one they may be: what waits there is kept."""


class Retention:
    """Removes old segments and moves the queues' minimums."""

    def __init__(
        self, config: StoreConfig, host: Host, log: CommitLog, queues: QueueTable, snapshots: Snapshots, directory: StoreDirectory
    ) -> None:
        self.config = config
        """Its limits apply from the next round on."""
        self._host = host
        self._log = log
        self._queues = queues
        self._snapshots = snapshots
        self._directory = directory
        self.pinned: Callable[[], int] = lambda: sys.maxsize
        """Returns the log position from which on replicas still copy: what is only old is kept from there on."""

    async def run(self, now_ms: int, stamps: StoreClock, before_removal: BeforeRemoval | None = None) -> list[Moved]:
        """Run one round. Return the queues with a new minimum."""
        needed = self._snapshots.needs_from
        if needed is None or len(self._log.segments) < 2:
            return []
        candidates = [segment for segment in self._log.segments[:-1] if segment.end <= needed]
        excess, reason = self._excess()
        expired = await self._expired(candidates, excess, now_ms, stamps)
        if excess <= 0:
            reason = f"older than {self.config.retention_ms / 3_600_000:g} h"
        return await self._remove(expired, reason, before_removal, is_forced=excess > 0)

    async def follow(self, log_start: int) -> list[Moved]:
        """Remove what ends at or below `log_start`, where the master's log begins. Return the queues with a new minimum."""
        needed = self._snapshots.needs_from
        if needed is None:
            return []
        return await self._remove(
            [segment for segment in self._log.segments[:-1] if segment.end <= min(needed, log_start)], "as its master"
        )

    async def _remove(
        self,
        segments: list[Segment],
        reason: str,
        before_removal: BeforeRemoval | None = None,
        *,
        is_forced: bool = False,
    ) -> list[Moved]:
        going = self._free(segments)
        if not going:
            return []
        if before_removal is not None:
            limit = await before_removal(going[-1].end)
            going = [segment for segment in going if segment.end <= limit]
            if not going:
                return []
        # First the minimums, which may be above the log's start, so that readers of removed messages are sent to the queue's new beginning.
        moved, complete = await self._move_minimums(going[-1].end)
        # A reader may have started since the segments were chosen.
        going = self._free(going) if complete else []
        if not going:
            return self._rows(moved)
        for _ in going:
            self._log.forget_oldest()
        await self._host.threads.run(self._directory.save_start, going[-1].end)
        await self._host.threads.run(self._log.remove, going)
        slices = Slices(FLUSH_QUEUES_PER_SLICE)
        for queue, minimum in moved:
            await slices.step()
            # The entry before it remains: it tells the next start that earlier messages were removed, not lost.
            # A purge may have moved its minimum on: it leaves the entries of records that are there (QueueTable.hide_below).
            self._queues.files.remove_below(queue, (minimum - 1) * ENTRY_BYTES)
        facts = {"files": len(going), "bytes": going[-1].end - going[0].start, "queues": len(moved), "reason": reason}
        if is_forced:
            log.warning("retention.removed", **facts)
        else:
            log.info("retention.removed", **facts)
        return self._rows(moved)

    @staticmethod
    def _rows(moved: list[tuple[ConsumeQueue, int]]) -> list[Moved]:
        return [(queue.topic, queue.queue_id, minimum) for queue, minimum in moved]

    def _free(self, segments: list[Segment]) -> list[Segment]:
        """Return those of `segments` without readers, up to the first one that has one."""
        found: list[Segment] = []
        for segment, oldest in zip(segments, self._log.segments, strict=False):
            if segment is not oldest or segment.reader_count:
                break
            found.append(segment)
        return found

    async def _expired(self, candidates: list[Segment], excess: int, now_ms: int, stamps: StoreClock) -> list[Segment]:
        expired: list[Segment] = []
        removed, pinned = 0, self.pinned()
        for segment in candidates:
            if removed < excess:
                pass
            elif segment.end > pinned or now_ms - await self._newest_ms(segment, now_ms, stamps) <= self.config.retention_ms:
                break
            expired.append(segment)
            removed += segment.end - segment.start
        return expired

    def _excess(self) -> tuple[int, str]:
        """Return how many bytes of log must be removed whatever their age, and why."""
        config, log_bytes = self.config, self._log.end - self._log.start
        excess = [(0, "")]
        if config.log_bytes_max is not None:
            excess.append((log_bytes - config.log_bytes_max, f"the log has {log_bytes} bytes, at most {config.log_bytes_max} are kept"))
        if config.disk_used_percent_max < 100:
            space = self._host.files.disk_space(config.path)
            used = space.total_bytes - space.free_bytes
            reason = f"{used} of the disk's {space.total_bytes} bytes are used, at most {config.disk_used_percent_max}% may be"
            excess.append((used - space.total_bytes * config.disk_used_percent_max // 100, reason))
        return max(excess)

    async def _newest_ms(self, segment: Segment, now_ms: int, stamps: StoreClock) -> int:
        """Return the store time of the record that follows the segment: those of its own records are not later. The newest has none.

        Its own first record counts too, because the following one may have been stamped by a clock that was behind. The later one of a
        stamp and of its StoreClock.true_ms counts, unless the stamp is in the future: then it came from a clock that was ahead.
        """
        newest_ms = 0
        each: Segment | None = segment
        while each is not None:
            if stamp_ms := await self._first_stamp_ms(each):
                true_ms = stamps.true_ms(each.start, stamp_ms)
                newest_ms = max(newest_ms, true_ms if stamp_ms > now_ms else max(true_ms, stamp_ms))
                if each is not segment:
                    return newest_ms
            each = self._log.segment_of(each.end)  # a file that was missing has no record
        return sys.maxsize

    async def oldest_ms(self) -> int:
        """Return the store time of the log's first record, in ms since 1970; 0 if its file has none."""
        return await self._first_stamp_ms(self._log.segments[0]) if self._log.segments else 0

    async def _first_stamp_ms(self, segment: Segment) -> int:
        data = self._log.from_tail(segment.start, RECORD_BYTES_MIN)
        if data is None:
            data = await self._log.read(self._host, segment, RECORD_BYTES_MIN, 0)
        return store_time_of(data)

    async def _move_minimums(self, start: int) -> tuple[list[tuple[ConsumeQueue, int]], bool]:
        """Return (queues with the new minimum, the first message at or above `start`, whether every queue was checked).

        Waits up to a minute for each descriptor that it needs. Without one, the rest is left to the next round.
        """
        moved: list[tuple[ConsumeQueue, int]] = []
        for queue in list(self._queues):
            if queue.min_position is None or queue.min_position >= start:
                continue
            found = await self._search(queue, start)
            if found is None:
                log_limited(log, "warning", "retention.postponed", error="no file descriptor is free", then="the broker tries again")
                return moved, False
            if queue.apply_found_min(found, start):
                moved.append((queue, queue.min))
        return moved, True

    async def _search(self, queue: ConsumeQueue, start: int) -> tuple[int, int | None] | None:
        """As `QueueFiles.search`. Return None if no descriptor was free for a minute."""
        for left in range(WAIT_COUNT, -1, -1):
            try:
                return await self._host.threads.run(self._queues.files.search, queue.directory, queue.min, queue.flushed, start)
            except OSError as error:
                if error.errno not in SHORTAGE:
                    raise
            if left:
                await asyncio.sleep(WAIT_S)
        return None
