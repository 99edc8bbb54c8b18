"""What a live tail of a topic reads next, what it shows, and what it passes over. Pure.

A tail follows every queue from an offset on. Of what is new in a round it reads a limited part: the newest messages of some queues. What it
does not read is passed over and counted. So of each queue, from where the tail began to where it is: all = shown + passed over + unmatched.

Offsets of a queue go on when its topic is deleted and created again, so a tail does as well.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from lockstep.protocol.bodies import OffsetRange
from lockstep.protocol.topics.queue import MessageQueue

QUEUES_MAX = 20
"""Queues that are read in one round."""
SHOWN_MAX = 20
"""Messages that are shown of one round."""


class Stored(Protocol):
    """What is needed of a message."""

    @property
    def queue_offset(self) -> int: ...
    @property
    def stored_ms(self) -> int: ...


M = TypeVar("M", bound=Stored)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive messages of one queue that are to be read."""

    queue: MessageQueue
    first: int
    end: int
    """One more than the last offset."""


@dataclass(frozen=True, slots=True)
class ReadBatch(Generic[M]):
    """What was read of a part."""

    part: Part
    following: int
    """The offset from which the next read would go on."""
    matching: Sequence[M]
    """The messages that meet the filter, in the order of the queue."""


class TailPlan(Generic[M]):
    """Where a tail is in each queue. A round is `look` for each broker that has answered, then `parts`, then `take` for what was read."""

    def __init__(self, brokers: Iterable[str]) -> None:
        """`brokers`: those of the topic's layout. Their queues begin at the end that they have when the broker answers first."""
        self.shown = 0
        self.passed_over = 0
        self.unmatched = 0
        """Messages that were read and do not meet the filter, or whose record is damaged."""
        self._at_end = set(brokers)
        self._next: dict[MessageQueue, int] = {}
        """Queue → the first offset that is not accounted for."""
        self._shown_ms: dict[MessageQueue, int] = {}
        """Queue → the time at which its last shown message is placed."""

    @property
    def positions(self) -> Mapping[MessageQueue, int]:
        """Return for each queue the first offset that is not accounted for."""
        return self._next

    def look(self, broker: str, ranges: Mapping[MessageQueue, OffsetRange]) -> None:
        """Note which queues a broker has. One that it had not before is followed from its first message."""
        for queue, held in ranges.items():
            if queue not in self._next:
                self._next[queue] = held.max_offset if broker in self._at_end else held.min_offset
            elif held.max_offset < self._next[queue]:
                self._next[queue] = held.max_offset  # the broker lost the end of its log
        self._at_end.discard(broker)

    def parts(self, ranges: Mapping[MessageQueue, OffsetRange], count_max: int) -> list[Part]:
        """Return what is to be read of these queues, in all at most `count_max` messages. What is new in other queues is passed over."""
        fresh = {}
        for queue, held in ranges.items():
            first = max(self._next[queue], held.min_offset)
            if first < held.max_offset:
                fresh[queue] = held.max_offset - first
            else:
                self._pass_over(queue, first)
        chosen = shares(fresh, count_max)
        for queue in fresh.keys() - chosen.keys():
            self._pass_over(queue, ranges[queue].max_offset)
        return [Part(queue, ranges[queue].max_offset - count, ranges[queue].max_offset) for queue, count in chosen.items()]

    def take(self, batches: Iterable[ReadBatch[M]]) -> list[tuple[int, M]]:
        """Account for what was read. Return the messages that are shown, each with the time at which it is placed: sorted by it, messages
        are in the order of their queues, also if a broker's clock was set back."""
        placed: list[tuple[int, MessageQueue, M]] = []
        for batch in batches:
            queue, part = batch.part.queue, batch.part
            reached = min(max(batch.following, part.first), part.end)
            matching = [each for each in batch.matching if part.first <= each.queue_offset < reached]
            self._pass_over(queue, part.first)
            self._next[queue] = reached
            self.unmatched += reached - part.first - len(matching)
            at_ms = self._shown_ms.get(queue, 0)
            for message in matching:
                at_ms = max(at_ms, message.stored_ms)
                placed.append((at_ms, queue, message))
        placed.sort(key=lambda each: each[0])
        self.passed_over += max(0, len(placed) - SHOWN_MAX)
        newest = placed[-SHOWN_MAX:]
        self.shown += len(newest)
        for at_ms, queue, _ in newest:
            self._shown_ms[queue] = at_ms
        return [(at_ms, message) for at_ms, _, message in newest]

    def _pass_over(self, queue: MessageQueue, offset: int) -> None:
        """Go on to an offset without reading."""
        self.passed_over += offset - self._next[queue]
        self._next[queue] = offset


def shares(fresh: Mapping[MessageQueue, int], count_max: int) -> dict[MessageQueue, int]:
    """Return how many messages are read of each queue, given how many are new: of the QUEUES_MAX that have most, each as many as the others
    or all that it has."""
    chosen = sorted(fresh, key=lambda queue: (-fresh[queue], queue))[:QUEUES_MAX]
    found, left = {}, count_max
    for waiting in range(len(chosen), 0, -1):  # the one that has least is the first: what it leaves is for the others
        queue = chosen[waiting - 1]
        found[queue] = min(fresh[queue], left // waiting)
        left -= found[queue]
    return {queue: count for queue, count in found.items() if count}


def merged(older: Collection[tuple[int, T]], newer: Collection[tuple[int, T]], count_max: int) -> list[tuple[int, T]]:
    """Return the newest of placed rows, the oldest first."""
    return sorted([*older, *newer], key=lambda each: each[0])[-count_max:]
