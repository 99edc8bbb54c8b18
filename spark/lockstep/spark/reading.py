"""What one task of a read does: its ranges, pull by pull, as Arrow."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from lockstep.protocol.command import Command
from lockstep.protocol.errors import StateError, TransportError
from lockstep.protocol.tags import TagFilter
from lockstep.runtime.log import get_logger
from lockstep.spark.cluster import PAUSE_MS, CachedCluster, Cluster, Pull, Pulled
from lockstep.spark.columns import Columns
from lockstep.spark.offsets import Range
from lockstep.spark.options import SourceOptions
from lockstep.spark.pages import Page

log = get_logger("lockstep.spark")

BATCH_ROWS = 10_000
"""Spark's own spark.sql.execution.arrow.maxRecordsPerBatch: it takes some 1 ms for each batch, whatever is in it."""
BATCH_BYTES = 2 << 20
"""Of records in one batch, whichever comes first."""

Begun: TypeAlias = asyncio.Future[Command] | None
"""A pull that is on its way."""


class DataLostError(StateError):
    """Messages that were to be read are not stored any more (option failOnDataLoss)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Ranges of one task, and the number of each one's queue in its layout."""

    ranges: tuple[tuple[Range, int], ...]


def lost(message: str, *, fail: bool) -> None:
    """Fails, or warns where the user said that loss is no failure."""
    if fail:
        raise DataLostError(f"{message}. To go on with what is there set failOnDataLoss=false")
    log.warning("data.lost", what=message)


def read(options: SourceOptions, group: str, reading: Reading) -> Iterator[Any]:
    """RecordBatches of several pulls each. The next pull is on its way while Spark takes what there is."""
    kept = CachedCluster(options.nameserver, options.request_timeout_ms)
    try:
        for range_, number in reading.ranges:
            yield from _read_range(kept, options, group, range_, number)
    finally:
        kept.close()


def _read_range(kept: CachedCluster, options: SourceOptions, group: str, range_: Range, number: int) -> Iterator[Any]:
    """Bounded by the planned end; offsets that a filter leaves out are no loss."""
    queue, at, fail = range_.queue, range_.start, options.fail_on_data_loss
    filter_ = TagFilter.parse(options.sub_expression)
    tags = None if filter_.all else filter_.tags
    columns = Columns(options, queue, number)
    begun: Begun = None
    idle_ms = 0
    page = Page(range_.end, tags)

    async def fetch(cluster: Cluster) -> tuple[Pulled, Begun]:
        pulled = await cluster.pull(Pull(group, queue, at, options), begun)
        more = pulled.data and at < pulled.next_offset < range_.end
        return pulled, await cluster.begin(Pull(group, queue, pulled.next_offset, options)) if more else None

    kept.ask(lambda cluster: cluster.layout(queue.topic))
    while at < range_.end:
        pulled, begun = kept.ask(fetch)
        if pulled.moved:
            what = f"{queue}: offset {at} is not stored any more, what is there is {pulled.min_offset} to {pulled.max_offset}"
            lost(what, fail=fail)
            if at >= pulled.max_offset:
                break
            at = max(at + 1, pulled.min_offset)
        elif pulled.next_offset > at:
            page.take(pulled.data)
            at = pulled.next_offset
            idle_ms = 0
            if page.count >= BATCH_ROWS or page.bytes >= BATCH_BYTES:
                yield from columns.batches(page)
                page = Page(range_.end, tags)
        elif at >= pulled.max_offset:
            lost(f"{queue}: the queue ends at {pulled.max_offset}, before the planned {range_.end}", fail=fail)
            break
        else:
            if idle_ms >= options.fetch_timeout_ms:
                raise TransportError(
                    f"{queue}: no message at offset {at} within {idle_ms} ms although the queue reaches {pulled.max_offset}"
                )
            kept.pause(PAUSE_MS)
            idle_ms += PAUSE_MS
    if page.count:
        yield from columns.batches(page)
