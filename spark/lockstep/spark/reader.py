"""The batch source: ranges from two questions when Spark plans the read, then one task a queue."""

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from lockstep.protocol.errors import ConfigError
from lockstep.spark.cluster import Cluster, ask
from lockstep.spark.filter_pushdown import FilterPushdown, narrowing
from lockstep.spark.offsets import Range, ranges_between, split_tasks
from lockstep.spark.options import SourceOptions
from lockstep.spark.positions import Subscribed, ends, starts, subscribed
from lockstep.spark.reading import Reading, lost, read


class ReadPartition(InputPartition):
    """What one task reads."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading


def group_of(options: SourceOptions) -> str:
    """The group under which the read appears: named, or made of what it reads."""
    if options.group is not None:
        return options.group
    text = json.dumps([options.subscribe, options.subscribe_pattern, options.assign, options.sub_expression], sort_keys=True)
    return f"spark-{zlib.crc32(text.encode()):08x}"


def partitions_of(ranges: Sequence[Range], now: Subscribed, options: SourceOptions) -> list[ReadPartition]:
    """One for each task. Spark wants a list."""
    tasks = split_tasks(ranges, options.min_partitions, options.max_partitions)
    return [ReadPartition(Reading(tuple((range_, now.number_of(range_.queue)) for range_ in task))) for task in tasks]


class LockstepReader(DataSourceReader):
    """A batch read."""

    def __init__(self, options: SourceOptions) -> None:
        if options.starting_offsets == "latest":
            raise ConfigError("startingOffsets=latest: a batch read would have nothing; use earliest, group, JSON or a timestamp")
        self._options = options
        self._group = group_of(options)
        self._narrowing = FilterPushdown()

    def partitions(self) -> Sequence[InputPartition]:
        """Both ends are resolved here, once."""
        options = self._options

        async def plan(cluster: Cluster) -> list[ReadPartition]:
            now = await subscribed(cluster, options)
            start = await starts(cluster, options, now, self._group, default="earliest")
            end = await ends(cluster, options, now)
            for option, named in (("startingOffsets", start), ("endingOffsets", end)):
                for queue, (_, high) in now.bounds.items():
                    if named[queue] > high:
                        lost(f"{option}: {queue} ends at offset {high}, before {named[queue]}", fail=options.fail_on_data_loss)
                        named[queue] = high
            ranges = await self._narrowing.apply(ranges_between(start, end), now, cluster)
            return partitions_of(ranges, now, options)

        # Without a partition Spark makes one of its own kind; it is given an empty one.
        return ask(options.nameserver, options.request_timeout_ms, plan) or [ReadPartition(Reading(()))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, ReadPartition)
        return read(self._options, self._group, partition.reading)


class LockstepPushdownReader(LockstepReader):
    """With option pushdown, and spark.sql.python.filterPushdown.enabled=true: without that setting a reader that has this method fails."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrows queues and ranges; Spark checks every row again."""
        self._narrowing = narrowing(filters)
        return filters
