"""One task of a read: pulls its ranges and yields Arrow batches."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from lockstep.client.patience import PAUSE_MS
from lockstep.protocol.command import Command
from lockstep.protocol.errors import StateError, TransportError
from lockstep.protocol.responses import Pulled
from lockstep.protocol.tags import TagFilter
from lockstep.runtime.logs.log import get_logger
from lockstep.spark.cluster import CachedCluster, Cluster, QueuePull
from lockstep.spark.columns import Columns
from lockstep.spark.offsets import QueueRange
from lockstep.spark.options import SourceOptions
from lockstep.spark.pages import RangePage

log = get_logger("lockstep.spark")

READERS = "spark"
"""The group that the pulls of a batch read without the option `group` name. It has no progress."""
BATCH_ROWS = 10_000
"""Rows per batch, as in spark.sql.execution.arrow.maxRecordsPerBatch: Spark takes about 1 ms per batch, whatever its size."""
BATCH_BYTES = 2 << 20
"""Size of the records at which a batch ends before BATCH_ROWS."""

Begun: TypeAlias = asyncio.Future[Command] | None
"""A pull in flight."""


class DataLostError(StateError):
    """Messages in the range of a read are no longer stored (option failOnDataLoss)."""


@dataclass(frozen=True, slots=True)
class TaskReading:
    """The ranges of one task, each with its queue's position in the layout."""

    ranges: tuple[tuple[QueueRange, int], ...]
    group: str = READERS
    """The group that the pulls name, for the brokers' metrics."""


def report_loss(message: str, *, fail: bool) -> None:
    """Raise DataLostError, or log a warning if `fail` is false."""
    if fail:
        raise DataLostError(f"{message}. To continue with the remaining messages, set failOnDataLoss=false")
    log.warning("data.lost", what=message)


def read(options: SourceOptions, reading: TaskReading) -> Iterator[Any]:
    """Yield RecordBatches, each of several pulls. The next pull is in flight while Spark processes a batch."""
    cached = CachedCluster(options.nameserver, options.request_timeout_ms)
    try:
        for range_, number in reading.ranges:
            yield from _read_range(cached, options, reading.group, range_, number)
    finally:
        cached.close()


def _read_range(cached: CachedCluster, options: SourceOptions, group: str, range_: QueueRange, number: int) -> Iterator[Any]:
    """Read up to the planned end. Offsets that a filter skips are not a loss."""
    queue, at, fail = range_.queue, range_.start, options.fail_on_data_loss
    filter_ = TagFilter.parse(options.sub_expression)
    tags = None if filter_.all else filter_.tags
    columns = Columns(options, queue, number)
    begun: Begun = None
    idle_ms = 0
    page = RangePage(range_.end, tags)

    async def fetch(cluster: Cluster) -> tuple[Pulled, Begun]:
        pulled = await cluster.pull(QueuePull(group, queue, at, options), begun)
        more = pulled.data and at < pulled.next_offset < range_.end
        return pulled, await cluster.begin(QueuePull(group, queue, pulled.next_offset, options)) if more else None

    cached.run(lambda cluster: cluster.layout(queue.topic))
    while at < range_.end:
        pulled, begun = cached.run(fetch)
        if pulled.moved:
            what = f"{queue}: offset {at} is no longer stored; the stored range is {pulled.min_offset} to {pulled.max_offset}"
            report_loss(what, fail=fail)
            if at >= pulled.max_offset:
                break
            at = max(at + 1, pulled.min_offset)
        elif pulled.next_offset > at:
            page.take(pulled.data)
            at = pulled.next_offset
            idle_ms = 0
            if page.count >= BATCH_ROWS or page.bytes >= BATCH_BYTES:
                yield from columns.batches(page)
                page = RangePage(range_.end, tags)
        elif at >= pulled.max_offset:
            report_loss(f"{queue}: the queue ends at {pulled.max_offset}, before the planned {range_.end}", fail=fail)
            break
        else:
            if idle_ms >= options.fetch_timeout_ms:
                raise TransportError(
                    f"{queue}: no message at offset {at} within {idle_ms} ms, although the queue ends at {pulled.max_offset}"
                )
            cached.pause(PAUSE_MS)
            idle_ms += PAUSE_MS
    if page.count:
        yield from columns.batches(page)
