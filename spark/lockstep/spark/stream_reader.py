"""The streaming source. Spark stores its offsets in the checkpoint; the offsets that it publishes to the brokers only show the lag.

A query publishes under a group of its own: its first offset contains the group's name, and each later one repeats it, so that it is in the
checkpoint. What the planner starts a batch from is done: it is published then, and not only when Spark commits it, because Spark does not
commit the last batch of an AvailableNow run.

Spark calls initialOffset, then latestOffset, then initialOffset again, and the log of batch 0 contains only the batch's end. So `latest` is
pinned: the first latestOffset after an initialOffset returns the start unchanged, which makes batch 0 empty and stores the start in the
checkpoint. Otherwise messages that arrive between the two calls, or before a restart with batch 0 unfinished, would be lost. After such a
restart Spark calls partitions for batch 0 first: its end is in the checkpoint, and the next latestOffset is a regular one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from lockstep.protocol.errors import ConfigError, LockstepError
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger
from lockstep.spark.cluster import CachedCluster, Cluster, QueuePull
from lockstep.spark.offsets import QUERY, Plain, StreamOffset, from_plain, group_in, ranges_between, share_limit, to_plain, with_group
from lockstep.spark.options import SourceOptions
from lockstep.spark.positions import Subscribed, starts, subscribed
from lockstep.spark.reader import ReadPartition, partitions_of
from lockstep.spark.reading import read, report_loss

log = get_logger("lockstep.spark")

GROUP_PREFIX = "spark-"
IDLE_DAYS = 7
"""A group of a query's own is forgotten by a broker after so many days without a commit."""


class LockstepStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. One object in a planner process serves a whole run; `read` runs in tasks and uses only options and partition."""

    def __init__(self, options: SourceOptions) -> None:
        if options.ending_offsets != "latest" or (options.ending_timestamp, options.ending_offsets_by_timestamp) != (None, None):
            raise ConfigError(
                "endingOffsets, endingTimestamp and endingOffsetsByTimestamp are for batch reads: use Trigger.AvailableNow to end a stream"
            )
        self._options = options
        self._state: _State | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the connection, which tasks don't need."""
        return {**self.__dict__, "_state": None}

    def _running(self) -> "_State":
        if self._state is None:
            self._state = _State(self._options, Host.real())
        return self._state

    def prepareForTriggerAvailableNow(self) -> None:
        self._running().fix_target()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:
        return self._running().initial()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._running().next_end(start, limit)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._running().newest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._running().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, ReadPartition)
        return read(self._options, partition.reading)

    def commit(self, end: dict[str, Any]) -> None:
        self._running().publish(end)

    def stop(self) -> None:
        if self._state is not None:
            self._state.cached.close()
            self._state = None


class _State:
    """The state that the planner process keeps between calls."""

    def __init__(self, options: SourceOptions, host: Host) -> None:
        self.cached = CachedCluster(options.nameserver, options.request_timeout_ms)
        self._options = options
        self._host = host
        self._clock = host.clock
        self._initial: StreamOffset | None = None
        self._pinned = False
        """True if the start is in the checkpoint, or in the batch that is being planned."""
        self._target: dict[MessageQueue, int] | None = None
        """The end of a read with AvailableNow."""
        self._now: Subscribed | None = None
        self._now_ms = 0
        self._waiting_since_ms: int | None = None
        """Since when fewer messages are available than minOffsetsPerTrigger."""
        self._mean_bytes: dict[MessageQueue, int] = {}
        self._published: StreamOffset | None = None
        self._planned: dict[MessageQueue, int] = {}
        """The end of the batch that was planned last."""

    def fix_target(self) -> None:
        self._target = {queue: high for queue, (_, high) in self._look(fresh=True).bounds.items()}

    def initial(self) -> StreamOffset:
        if self._initial is None:
            now = self._look(fresh=True)

            async def begin(cluster: Cluster) -> Plain:
                return to_plain(await starts(cluster, self._options, now, default="latest"))

            group = self._options.group or f"{GROUP_PREFIX}{self._host.random.token(8).hex()}"
            self._initial = with_group(group, self.cached.run(begin))
        return self._initial

    def next_end(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        """Return the end of the next batch, or `start` if there is none yet."""
        if not self._pinned and start == self._initial:
            self._pinned = True
            return start
        now = self._look_fresh()
        self._planned = begin = from_plain(start, now.layouts)
        self._check_present(begin, now)
        self.publish(start)
        end = self._reachable(begin, now)
        waiting = {queue: end[queue] - begin.get(queue, 0) for queue in end}
        if not any(count > 0 for count in waiting.values()) or self._waits_for_more(sum(waiting.values())):
            return start
        group = self._group_of(start)
        shares = waiting if isinstance(limit, ReadAllAvailable) else self._shares(waiting, begin, limit, group)
        self._planned = {queue: begin[queue] + max(0, shares.get(queue, 0)) for queue in begin}
        return with_group(group, to_plain(self._planned))

    def newest(self) -> StreamOffset | None:
        """Return the ends of the queues, and how many messages are after the end of the planned batch. Spark shows it as `latestOffset` of
        the source's progress."""
        ends = {queue: high for queue, (_, high) in self._look().bounds.items()}
        behind = [max(0, high - self._planned.get(queue, high)) for queue, high in ends.items()]
        return {QUERY: {"offsetsBehindLatest": sum(behind), "maxOffsetsBehindLatest": max(behind, default=0)}, **to_plain(ends)}

    def partitions(self, start: StreamOffset, end: StreamOffset) -> list[ReadPartition]:
        self._pinned = True
        now = self._look()
        begin, stop = from_plain(start, now.layouts), from_plain(end, now.layouts)
        for queue in stop:
            begin.setdefault(queue, now.bounds.get(queue, (0, 0))[0])
        self._planned = stop
        return partitions_of(ranges_between(begin, stop), now, self._options, self._group_of(end))

    def publish(self, end: StreamOffset) -> None:
        """Publish the group's offsets, so that its lag can be observed, unless they are published already. Rejections are logged: Spark
        relies on the checkpoint alone. A group of the query's own is forgotten when it was idle for a week."""
        if end == self._published or not self._options.commit_offsets:
            return
        self._published = end
        now, group = self._look(), self._group_of(end)
        offsets = {queue: offset for queue, offset in from_plain(end, now.layouts).items() if queue in now.bounds}
        idle_days = None if self._options.group is not None else IDLE_DAYS
        try:
            errors: Sequence[LockstepError] = self.cached.run(lambda cluster: cluster.commit(group, offsets, idle_days))
        except LockstepError as failed:
            errors = [failed]
        for error in errors:
            log.warning("offsets.not_published", group=group, error=str(error))

    def _group_of(self, offset: StreamOffset) -> str:
        """Return the option, or the group of the query's own."""
        return self._options.group or group_in(offset)

    # ----------------------------------------------------------------------------------------------------------------- parts

    def _look_fresh(self) -> Subscribed:
        """Return fresh bounds, which processAllAvailable relies on, at most once per `offsetPollMs`: an idle query makes 90 calls per s."""
        since_ms = self._clock.monotonic_ms() - self._now_ms
        if self._now is not None and since_ms < self._options.offset_poll_ms:
            self.cached.pause(self._options.offset_poll_ms - since_ms)
        return self._look(fresh=True)

    def _look(self, *, fresh: bool = False) -> Subscribed:
        """Return queues and bounds that are at most `offsetPollMs` old."""
        now_ms = self._clock.monotonic_ms()
        if self._now is None or fresh or now_ms - self._now_ms >= self._options.offset_poll_ms:
            self._now = self.cached.run(lambda cluster: subscribed(cluster, self._options))
            self._now_ms = now_ms
        return self._now

    def _check_present(self, begin: dict[MessageQueue, int], now: Subscribed) -> None:
        """Update `begin`: report queues that were removed or truncated as loss, and add new queues at their first offset."""
        fail = self._options.fail_on_data_loss
        for queue in [queue for queue in begin if queue not in now.bounds]:
            report_loss(f"{queue}: the query is at offset {begin[queue]}, and the queue no longer exists", fail=fail)
            del begin[queue]
        for queue, (low, high) in now.bounds.items():
            at = begin.setdefault(queue, low)
            if at > high:
                report_loss(
                    f"{queue}: the query is at offset {at}, and the queue ends at {high}: its topic was created again, or its log was cut",
                    fail=fail,
                )
                begin[queue] = high

    def _reachable(self, begin: Mapping[MessageQueue, int], now: Subscribed) -> dict[MessageQueue, int]:
        if self._target is None:
            return {queue: max(high, begin[queue]) for queue, (_, high) in now.bounds.items()}
        return {queue: max(min(high, self._target.get(queue, begin[queue])), begin[queue]) for queue, (_, high) in now.bounds.items()}

    def _waits_for_more(self, count: int) -> bool:
        low = self._options.min_offsets_per_trigger
        if low is None or self._target is not None or count >= low:
            self._waiting_since_ms = None
            return False
        now_ms = self._clock.monotonic_ms()
        if self._waiting_since_ms is None:
            self._waiting_since_ms = now_ms
        if now_ms - self._waiting_since_ms < self._options.max_trigger_delay:
            return True
        self._waiting_since_ms = None
        return False

    def _shares(
        self, waiting: Mapping[MessageQueue, int], begin: Mapping[MessageQueue, int], limit: ReadLimit, group: str
    ) -> Mapping[MessageQueue, int]:
        if isinstance(limit, ReadMaxRows):
            return share_limit(waiting, limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            return share_limit(waiting, self._rows_of(limit.max_bytes, waiting, begin, group))
        return waiting

    def _rows_of(self, bytes_max: int, waiting: Mapping[MessageQueue, int], begin: Mapping[MessageQueue, int], group: str) -> int:
        """Estimate how many messages have `bytes_max` bytes, from the mean size in the first page of each queue."""
        total = weight = 0
        for queue, count in waiting.items():
            if count > 0:
                if queue not in self._mean_bytes:
                    pull = QueuePull(group, queue, begin[queue], self._options)
                    pulled = self.cached.run(lambda cluster, pull=pull: cluster.pull(pull))  # type: ignore[misc]
                    self._mean_bytes[queue] = len(pulled.data) // max(1, pulled.next_offset - begin[queue]) or 1
                total += count
                weight += count * self._mean_bytes[queue]
        return max(1, bytes_max * total // weight) if weight else 1
