"""Offsets of a read: their JSON, how a limit is shared out, which task reads what. Pure.

JSON: {"orders":{"broker-a:0":1042}}, the *next* offset of each queue, keys sorted: Spark compares offsets as text, and an order that
varies would make it run one empty batch after the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.protocol.errors import ConfigError
from lockstep.protocol.queue import MessageQueue, TopicLayout

Offsets = Mapping[MessageQueue, int]
Plain = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """Messages [start, end) of one queue."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.start


def to_plain(offsets: Offsets) -> Plain:
    """As JSON, keys sorted."""
    plain: Plain = {}
    for queue in sorted(offsets):
        plain.setdefault(queue.topic, {})[f"{queue.broker_name}:{queue.queue_id}"] = offsets[queue]
    return plain


def from_plain(plain: Mapping[str, Mapping[str, Any]], layouts: Mapping[str, TopicLayout]) -> dict[MessageQueue, int]:
    """The queues that JSON names; `"0"` alone will do where one broker holds the topic. ConfigError names what can't be read."""
    offsets: dict[MessageQueue, int] = {}
    for topic, queues in plain.items():
        for name, offset in queues.items():
            broker, colon, number = name.rpartition(":")
            if not colon:
                broker = _only_broker(topic, name, layouts)
            if not (number.isascii() and number.isdigit()) or not broker or type(offset) is not int:
                raise ConfigError(
                    f'offset of topic {topic}, "{name}": {offset!r}; expected "BROKER:QUEUE" with a number, as "broker-a:0": 1042'
                )
            offsets[MessageQueue(topic, broker, int(number))] = offset
    return offsets


def _only_broker(topic: str, name: str, layouts: Mapping[str, TopicLayout]) -> str:
    brokers = {entry.broker_name for entry in layouts[topic].entries} if topic in layouts else set()
    if len(brokers) != 1:
        raise ConfigError(f'offset of topic {topic}, "{name}": {len(brokers)} brokers hold it, so write "BROKER:{name}"')
    return brokers.pop()


def share_limit(available: Offsets, limit: int) -> dict[MessageQueue, int]:
    """How many messages of each queue a batch takes, `limit` together: in proportion to what waits, at least 1 of each where the limit
    has room for it.

    Deterministic; what rounding leaves over goes to the largest remainders.
    """
    waiting = {queue: available[queue] for queue in sorted(available) if available[queue] > 0}
    total = sum(waiting.values())
    if total <= limit:
        return waiting
    if limit <= len(waiting):
        return dict.fromkeys(sorted(waiting, key=lambda queue: -waiting[queue])[:limit], 1)
    more, behind = limit - len(waiting), total - len(waiting)
    shares = {queue: 1 + (count - 1) * more // behind for queue, count in waiting.items()}
    by_remainder = sorted(waiting, key=lambda queue: -((waiting[queue] - 1) * more % behind))
    for queue in by_remainder[: limit - sum(shares.values())]:
        shares[queue] += 1
    return shares


def ranges_between(start: Offsets, end: Offsets) -> list[Range]:
    """What lies between two offsets, sorted; a queue whose start is at or above its end has nothing (as after some restarts)."""
    return [Range(queue, start[queue], end[queue]) for queue in sorted(end) if queue in start and start[queue] < end[queue]]


def split_tasks(ranges: Sequence[Range], min_tasks: int | None, max_tasks: int | None) -> list[list[Range]]:
    """Which task reads what: a queue a task, long ranges split up to `min_tasks`, several grouped down to `max_tasks`. Deterministic."""
    pieces = [range_ for range_ in ranges if range_.count > 0]
    if min_tasks is not None and 0 < len(pieces) < min_tasks:
        pieces = _split(pieces, min_tasks)
    if max_tasks is None or len(pieces) <= max_tasks:
        return [[piece] for piece in pieces]
    tasks: list[list[Range]] = [[] for _ in range(max_tasks)]
    loads = [0] * max_tasks
    for piece in sorted(pieces, key=lambda piece: (-piece.count, piece)):
        lightest = loads.index(min(loads))
        tasks[lightest].append(piece)
        loads[lightest] += piece.count
    return [sorted(task) for task in tasks]


def _split(pieces: Sequence[Range], wanted: int) -> list[Range]:
    """In proportion to their lengths, each in equal parts; as many as wanted where there are messages enough."""
    parts = [1] * len(pieces)
    for _ in range(min(wanted, sum(piece.count for piece in pieces)) - len(pieces)):
        longest = max(range(len(pieces)), key=lambda index: (pieces[index].count / parts[index], -index))
        parts[longest] += 1
    return [
        Range(piece.queue, piece.start + piece.count * part // count, piece.start + piece.count * (part + 1) // count)
        for piece, count in zip(pieces, parts, strict=True)
        for part in range(count)
    ]
