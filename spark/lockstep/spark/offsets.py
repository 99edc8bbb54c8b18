"""Offsets of a read: their JSON form, the distribution of a limit over queues, the assignment of ranges to tasks. Pure.

The JSON {"orders":{"broker-a:0":1042}} contains the *next* offset of each queue. Keys are sorted: Spark compares offsets as text, and with
a varying order it would run one empty batch after the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.protocol.errors import ConfigError
from lockstep.protocol.topics.queue import MessageQueue, TopicLayout

Offsets = Mapping[MessageQueue, int]
Plain = dict[str, dict[str, int]]
StreamOffset = dict[str, dict[str, Any]]
"""`Plain`, and what it says about the query (QUERY)."""
QUERY = "@query"
"""The key of what the JSON says about the query itself. No topic has this name, because a topic's name has no @."""


@dataclass(frozen=True, slots=True, order=True)
class QueueRange:
    """Messages [start, end) of one queue."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.start


def to_plain(offsets: Offsets) -> Plain:
    """Return the JSON form, with sorted keys."""
    plain: Plain = {}
    for queue in sorted(offsets):
        plain.setdefault(queue.topic, {})[f"{queue.broker_name}:{queue.queue_id}"] = offsets[queue]
    return plain


def from_plain(plain: Mapping[str, Mapping[str, Any]], layouts: Mapping[str, TopicLayout]) -> dict[MessageQueue, int]:
    """Parse the JSON form. A queue number alone, `"0"`, is allowed if one broker holds the topic. Raise ConfigError for invalid entries."""
    offsets: dict[MessageQueue, int] = {}
    for topic, queues in plain.items():
        for name, offset in queues.items() if topic != QUERY else ():
            broker, colon, number = name.rpartition(":")
            if not colon:
                broker = _only_broker(topic, name, layouts)
            if not (number.isascii() and number.isdigit()) or not broker or type(offset) is not int:
                raise ConfigError(
                    f'offset of topic {topic}, "{name}": {offset!r}; expected "BROKER:QUEUE" with a number, as "broker-a:0": 1042'
                )
            offsets[MessageQueue(topic, broker, int(number))] = offset
    return offsets


def with_group(group: str, offsets: Plain) -> StreamOffset:
    """Return the JSON form of a stream's offsets, with the group under which the query publishes them."""
    return {QUERY: {"group": group}, **offsets}


def group_in(plain: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the group of a stream's offsets."""
    return str(plain[QUERY]["group"])


def _only_broker(topic: str, name: str, layouts: Mapping[str, TopicLayout]) -> str:
    brokers = {entry.broker_name for entry in layouts[topic].entries} if topic in layouts else set()
    if len(brokers) != 1:
        raise ConfigError(f'offset of topic {topic}, "{name}": {len(brokers)} brokers hold it, so write "BROKER:{name}"')
    return brokers.pop()


def share_limit(available: Offsets, limit: int) -> dict[MessageQueue, int]:
    """Return how many messages a batch takes from each queue, `limit` in total, in proportion to the available ones.

    Each queue gets at least 1 if the limit allows it. Deterministic: messages left by rounding go to the largest remainders.
    """
    pending = {queue: available[queue] for queue in sorted(available) if available[queue] > 0}
    total = sum(pending.values())
    if total <= limit:
        return pending
    if limit <= len(pending):
        return dict.fromkeys(sorted(pending, key=lambda queue: -pending[queue])[:limit], 1)
    limit_left, total_left = limit - len(pending), total - len(pending)
    shares = {queue: 1 + (count - 1) * limit_left // total_left for queue, count in pending.items()}
    by_remainder = sorted(pending, key=lambda queue: -((pending[queue] - 1) * limit_left % total_left))
    for queue in by_remainder[: limit - sum(shares.values())]:
        shares[queue] += 1
    return shares


def ranges_between(start: Offsets, end: Offsets) -> list[QueueRange]:
    """Return the ranges between two offsets, sorted. A queue that starts at or above its end has none (as after some restarts)."""
    return [QueueRange(queue, start[queue], end[queue]) for queue in sorted(end) if queue in start and start[queue] < end[queue]]


def split_tasks(ranges: Sequence[QueueRange], min_tasks: int | None, max_tasks: int | None) -> list[list[QueueRange]]:
    """Assign ranges to tasks, one queue per task, splitting them to get `min_tasks` and grouping them to get `max_tasks`."""
    pieces = [range_ for range_ in ranges if range_.count > 0]
    if min_tasks is not None and 0 < len(pieces) < min_tasks:
        pieces = _split(pieces, min_tasks)
    if max_tasks is None or len(pieces) <= max_tasks:
        return [[piece] for piece in pieces]
    tasks: list[list[QueueRange]] = [[] for _ in range(max_tasks)]
    loads = [0] * max_tasks
    for piece in sorted(pieces, key=lambda piece: (-piece.count, piece)):
        lightest = loads.index(min(loads))
        tasks[lightest].append(piece)
        loads[lightest] += piece.count
    return [sorted(task) for task in tasks]


def _split(pieces: Sequence[QueueRange], count_min: int) -> list[QueueRange]:
    """Split ranges into equal parts, in proportion to their lengths, until there are `count_min` or no messages are left to split."""
    parts = [1] * len(pieces)
    for _ in range(min(count_min, sum(piece.count for piece in pieces)) - len(pieces)):
        longest = max(range(len(pieces)), key=lambda index: (pieces[index].count / parts[index], -index))
        parts[longest] += 1
    return [
        QueueRange(piece.queue, piece.start + piece.count * part // count, piece.start + piece.count * (part + 1) // count)
        for piece, count in zip(pieces, parts, strict=True)
        for part in range(count)
    ]
