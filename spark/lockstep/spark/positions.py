"""Resolve the options of a read to the first and last offsets of its queues."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass

from lockstep.protocol.errors import ConfigError, TopicNotExistError
from lockstep.protocol.topics.queue import MessageQueue, TopicLayout
from lockstep.runtime.logs.log import get_logger
from lockstep.spark.cluster import Cluster
from lockstep.spark.offsets import from_plain
from lockstep.spark.options import EARLIEST, LATEST, SourceOptions

log = get_logger("lockstep.spark")

Bounds = Mapping[MessageQueue, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The present queues of a read and their bounds."""

    layouts: Mapping[str, TopicLayout]
    bounds: Bounds

    def number_of(self, queue: MessageQueue) -> int:
        """Return the queue's position in its topic's layout (the column `partition`), or −1 if the layout no longer contains it."""
        layout = self.layouts.get(queue.topic)
        return -1 if layout is None else layout.number_of.get(queue, -1)


async def subscribed(cluster: Cluster, options: SourceOptions) -> Subscribed:
    """Return the queues that the options specify. Raise TopicNotExistError if a named topic does not exist."""
    if options.subscribe_pattern is not None:
        pattern = re.compile(options.subscribe_pattern)
        names = [topic for topic in await cluster.topics() if pattern.fullmatch(topic)]
    else:
        names = list(options.subscribe or options.assign or ())
    layouts: dict[str, TopicLayout] = {}
    for name in names:
        try:
            layouts[name] = await cluster.layout(name)
        except TopicNotExistError:
            if options.subscribe_pattern is None:
                raise
    bounds = await cluster.bounds(layouts.values())
    if options.assign is not None:
        assigned = _assigned(options.assign, layouts)
        bounds = {queue: bounds[queue] for queue in assigned}
    return Subscribed(layouts, {queue: bounds[queue] for queue in sorted(bounds)})


def _assigned(assign: Mapping[str, tuple[int, ...]], layouts: Mapping[str, TopicLayout]) -> list[MessageQueue]:
    queues = []
    for topic, numbers in assign.items():
        known = layouts[topic].read_queues
        for number in numbers:
            if number >= len(known):
                raise ConfigError(f"assign names queue {number} of topic {topic}, which has {len(known)} queues, numbered from 0")
            queues.append(known[number])
    return queues


async def starts(cluster: Cluster, options: SourceOptions, now: Subscribed, *, default: str) -> dict[MessageQueue, int]:
    """Return the first offset of each queue. As in Kafka's source, startingTimestamp overrides times by queue, which override offsets."""
    given = default if options.starting_offsets is None else options.starting_offsets
    if options.starting_timestamp is not None:
        times = dict.fromkeys(now.bounds, options.starting_timestamp)
        return await _at_times(cluster, times, now, options.starting_offsets_by_timestamp_strategy)
    if options.starting_offsets_by_timestamp is not None:
        by_time = _known(from_plain(options.starting_offsets_by_timestamp, now.layouts), now, "startingOffsetsByTimestamp", options)
        rest = {queue: low for queue, (low, _) in now.bounds.items() if queue not in by_time}
        return rest | await _at_times(cluster, by_time, now, options.starting_offsets_by_timestamp_strategy)
    if given == "group":
        group = options.group
        assert group is not None
        committed = await asyncio.gather(*(cluster.committed(group, queue) for queue in now.bounds))
        return {
            queue: low if offset is None else max(low, offset)
            for (queue, (low, _)), offset in zip(now.bounds.items(), committed, strict=True)
        }
    if given == "latest":
        return {queue: high for queue, (_, high) in now.bounds.items()}
    if isinstance(given, str):
        return {queue: low for queue, (low, _) in now.bounds.items()}
    named = _known(from_plain(given, now.layouts), now, "startingOffsets", options)
    return {queue: _special(named.get(queue, EARLIEST), low, high) for queue, (low, high) in now.bounds.items()}


async def ends(cluster: Cluster, options: SourceOptions, now: Subscribed) -> dict[MessageQueue, int]:
    """Return, for each queue, the offset after the last one that a batch reads. As with the starts, endingTimestamp overrides times by
    queue, which override offsets; a time ends before the first message that was stored at it or later."""
    if options.ending_timestamp is not None:
        return await _at_times(cluster, dict.fromkeys(now.bounds, options.ending_timestamp), now, "latest")
    if options.ending_offsets_by_timestamp is not None:
        by_time = _known(from_plain(options.ending_offsets_by_timestamp, now.layouts), now, "endingOffsetsByTimestamp", options)
        rest = {queue: high for queue, (_, high) in now.bounds.items() if queue not in by_time}
        return rest | await _at_times(cluster, by_time, now, "latest")
    if isinstance(options.ending_offsets, str):
        return {queue: high for queue, (_, high) in now.bounds.items()}
    named = _known(from_plain(options.ending_offsets, now.layouts), now, "endingOffsets", options)
    if EARLIEST in named.values():
        raise ConfigError("endingOffsets has -2 (earliest): a read can't end there; -1 means latest")
    return {queue: _special(named.get(queue, LATEST), low, high) for queue, (low, high) in now.bounds.items()}


def _special(offset: int, low: int, high: int) -> int:
    return {EARLIEST: low, LATEST: high}.get(offset, offset)


def _known(named: Mapping[MessageQueue, int], now: Subscribed, option: str, options: SourceOptions) -> Mapping[MessageQueue, int]:
    """Return the entries of existing queues. Raise ConfigError for others, or log them with failOnDataLoss=false: a topic that was created
    again may have fewer queues.
    """
    unknown = [str(queue) for queue in named if queue not in now.bounds]
    if not unknown:
        return named
    what = f"{option} names {', '.join(unknown)}, which this read does not include: it reads {', '.join(map(str, now.bounds))}"
    if options.fail_on_data_loss:
        raise ConfigError(what)
    log.warning("data.lost", what=what)
    return {queue: number for queue, number in named.items() if queue in now.bounds}


async def _at_times(cluster: Cluster, times: Mapping[MessageQueue, int], now: Subscribed, strategy: str) -> dict[MessageQueue, int]:
    found = dict(zip(times, await asyncio.gather(*(cluster.offset_at(queue, ms) for queue, ms in times.items())), strict=True))
    for queue, offset in found.items():
        high = now.bounds[queue][1]
        if offset >= high and strategy == "error":
            raise ConfigError(
                f"{queue} has no message at or after {times[queue]} ms: use an earlier time, or startingOffsetsByTimestampStrategy=latest"
            )
    return found
