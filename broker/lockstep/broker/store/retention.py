"""Which segments may go. RocketMQ: CleanCommitLogService, CleanConsumeQueueService.

A whole segment goes when the record that follows it is older than the retention time, when the log is longer than its limit, or when the
file system is fuller than its limit: the oldest first, never the newest, never one that is being read, and never what the older kept
snapshot needs.
Consumers are not asked: the caller moves their progress to the new minimum and tells them what they lost.
"""

import sys

from lockstep.broker.store.commit_log import CommitLog, Segment
from lockstep.broker.store.config import StoreConfig
from lockstep.broker.store.frame import ENTRY_BYTES
from lockstep.broker.store.queue_table import QueueTable
from lockstep.broker.store.snapshot import Snapshots
from lockstep.protocol.record import INT64, STORE_TIMESTAMP_AT
from lockstep.runtime.host import Host

Moved = tuple[str, int, int]
"""(topic, queue id, new minimum)."""


class Retention:
    """Removes old segments and moves the queues' minimums."""

    def __init__(self, config: StoreConfig, host: Host, log: CommitLog, queues: QueueTable, snapshots: Snapshots) -> None:
        self._config = config
        self._host = host
        self._log = log
        self._queues = queues
        self._snapshots = snapshots

    async def run(self, now_ms: int) -> list[Moved]:
        """One round; the queues whose minimum moved."""
        needed = self._snapshots.needs_from
        if needed is None or len(self._log.segments) < 2:
            return []
        candidates = [segment for segment in self._log.segments[:-1] if segment.end <= needed]
        expired = await self._expired(candidates, now_ms)
        free = [segment for segment in expired if self._log.segments and segment.reader_count == 0]
        # Between the question and here a reader may have come: only an unbroken run of the oldest may go.
        going: list[Segment] = []
        for segment, oldest in zip(free, self._log.segments, strict=False):
            if segment is not oldest:
                break
            going.append(segment)
        if not going:
            return []
        for _ in going:
            self._log.forget_oldest()
        await self._host.threads.run(self._log.remove, going)
        return await self._move_minimums()

    async def _expired(self, candidates: list[Segment], now_ms: int) -> list[Segment]:
        excess = self._excess_bytes()
        expired: list[Segment] = []
        removed = 0
        for segment in candidates:
            if removed < excess:
                pass
            elif now_ms - await self._newest_ms(segment) <= self._config.retention_ms:
                break
            expired.append(segment)
            removed += segment.end - segment.start
        return expired

    def _excess_bytes(self) -> int:
        """How many bytes of log have to go whatever their age."""
        log_bytes = self._log.end - self._log.start
        by_log = 0 if self._config.log_bytes_max is None else log_bytes - self._config.log_bytes_max
        if self._config.disk_used_percent_max >= 100:
            return max(0, by_log)
        space = self._host.files.disk_space(self._config.path)
        used = space.total_bytes - space.free_bytes
        return max(0, by_log, used - space.total_bytes * self._config.disk_used_percent_max // 100)

    async def _newest_ms(self, segment: Segment) -> int:
        """Store time of the record that follows the segment: its own are not newer. Without one, the segment is the newest."""
        following = self._log.segment_of(segment.end)
        assert following is not None, "only segments before the newest are asked for"
        data = self._log.from_tail(following.start + STORE_TIMESTAMP_AT, 8)
        if data is None:
            following.reader_count += 1
            try:
                data = await self._host.threads.run(following.file.pread, 8, STORE_TIMESTAMP_AT)
            finally:
                following.reader_count -= 1
        stamp: int = INT64.unpack(data)[0]
        return stamp or sys.maxsize

    async def _move_minimums(self) -> list[Moved]:
        moved: list[Moved] = []
        files = self._queues.files
        start = self._log.start
        for queue in list(self._queues):
            if queue.min_position is None or queue.min_position >= start:
                continue
            found = await self._host.threads.run(files.search, queue.directory, queue.min, queue.flushed, start)
            if queue.settle_min(found, start):
                moved.append((queue.topic, queue.queue_id, queue.min))
                files.remove_below(queue, queue.min * ENTRY_BYTES)
        return moved
