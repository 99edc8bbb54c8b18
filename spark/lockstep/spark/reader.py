"""The batch source: resolves its ranges when Spark plans the read, and reads with one task per queue."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from lockstep.protocol.errors import ConfigError
from lockstep.spark.cluster import Cluster, run_once
from lockstep.spark.filter_pushdown import FilterPushdown, pushdown_of
from lockstep.spark.offsets import QueueRange, ranges_between, split_tasks
from lockstep.spark.options import SourceOptions
from lockstep.spark.positions import Subscribed, ends, starts, subscribed
from lockstep.spark.reading import READERS, TaskReading, read, report_loss


class ReadPartition(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, reading: TaskReading) -> None:
        self.reading = reading


def partitions_of(ranges: Sequence[QueueRange], now: Subscribed, options: SourceOptions, group: str) -> list[ReadPartition]:
    """Return one partition per task, as a list, which Spark requires."""
    tasks = split_tasks(ranges, options.min_partitions, options.max_partitions)
    return [ReadPartition(TaskReading(tuple((range_, now.number_of(range_.queue)) for range_ in task), group)) for task in tasks]


class LockstepReader(DataSourceReader):
    """A batch read."""

    def __init__(self, options: SourceOptions) -> None:
        if options.starting_offsets == "latest":
            raise ConfigError("startingOffsets=latest: a batch read would be empty; use earliest, group, JSON or a timestamp")
        self._options = options
        self._group = options.group or READERS
        self._pushdown = FilterPushdown()

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks. Both ends are resolved once, here."""
        options = self._options

        async def plan(cluster: Cluster) -> list[ReadPartition]:
            now = await subscribed(cluster, options)
            start = await starts(cluster, options, now, default="earliest")
            end = await ends(cluster, options, now)
            for option, named in (("startingOffsets", start), ("endingOffsets", end)):
                for queue, (_, high) in now.bounds.items():
                    if named[queue] > high:
                        report_loss(f"{option}: {queue} ends at offset {high}, before {named[queue]}", fail=options.fail_on_data_loss)
                        named[queue] = high
            ranges = await self._pushdown.apply(ranges_between(start, end), now, cluster)
            return partitions_of(ranges, now, options, self._group)

        # Without any partition Spark would make one of its own class: return an empty one.
        return run_once(options.nameserver, options.request_timeout_ms, plan) or [ReadPartition(TaskReading(()))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, ReadPartition)
        return read(self._options, partition.reading)


class LockstepPushdownReader(LockstepReader):
    """A batch read with filter pushdown. Fails without spark.sql.python.filterPushdown.enabled=true, so the option pushdown selects it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Restrict queues and ranges. All filters are returned, so Spark applies them to every row again."""
        self._pushdown = pushdown_of(filters)
        return filters
