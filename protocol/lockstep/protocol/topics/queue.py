"""Queues, and the layouts that order them (docs/ordering.md)."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue: (topic, broker name, queue id). Sorts by topic, then broker, then id. RocketMQ: MessageQueue.

    Args:
        topic: The topic's name.
        broker_name: The name of the broker that stores the queue.
        queue_id: The number of the queue at that broker, from 0.
    """

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"


WRITER_MAX = (1 << 32) - 1
"""The writer of a deletion that an operator requested, so that the deletion is the highest of the layouts with its counter."""
BEGAN_FIRST_DELETIONS_MAX = 3
"""A deletion with at most this counter is the first one of its topic, because the lowest counter of a second one is 4 (created, deleted,
created again, deleted). So all layouts before it have `began` 1.

After brokers have forgotten a deletion, a new creation has `began` 1 too, as a layout of the deleted topic does. A creation by a broker
that knew the deletion, and was away while it was forgotten, has a higher `began` and counts as the later one.
"""


@dataclass(frozen=True, slots=True, order=True)
class LayoutVersion:
    """Decides which of two layouts is newer. Compared as a pair, so that two writers of one counter still have one winner."""

    counter: int
    """1 at creation, increased by 1 with each change."""
    writer: int
    """32 random bits that identify the writer."""

    @property
    def successor(self) -> "LayoutVersion":
        """Return the lowest version above this one."""
        return LayoutVersion(self.counter, self.writer + 1)


@dataclass(frozen=True, slots=True)
class LayoutEntry:
    """Some queues of one broker, added in layout `counter`. A broker may have several entries; queue ids continue from one to the next.

    An entry without queues is a marker: in layout `counter` an operator removed queues of this broker.
    """

    broker_name: str
    write_queue_count: int
    read_queue_count: int
    counter: int

    @property
    def id_count(self) -> int:
        """Return the number of queue ids that the entry covers."""
        return max(self.write_queue_count, self.read_queue_count)

    @property
    def is_marker(self) -> bool:
        """Return whether the entry records a removal instead of queues."""
        return not self.id_count


@dataclass(frozen=True, slots=True)
class _QueueRange:
    """Consecutive readable queues of one broker."""

    first_id: int
    count: int
    number: int
    """The queue number of the first queue."""


class _QueueNumbers(Mapping[MessageQueue, int]):
    """Maps each readable queue to its queue number g, computed from the layout's entries: a lookup builds no queues."""

    __slots__ = ("_layout",)

    def __init__(self, layout: "TopicLayout") -> None:
        self._layout = layout

    def __getitem__(self, queue: MessageQueue) -> int:
        ranges = self._layout.queue_ranges.get(queue.broker_name, ()) if queue.topic == self._layout.topic else ()
        index = bisect_right(ranges, queue.queue_id, key=lambda each: each.first_id) - 1
        if index < 0 or queue.queue_id >= ranges[index].first_id + ranges[index].count:
            raise KeyError(queue)
        return ranges[index].number + queue.queue_id - ranges[index].first_id

    def __iter__(self) -> Iterator[MessageQueue]:
        return self._layout.each_read_queue()

    def __len__(self) -> int:
        return self._layout.read_total


@dataclass(frozen=True)
class TopicLayout:
    """The whole layout of a topic: an ordered list of queues by broker name, whether or not those brokers are alive.

    Queue number g is the index in `read_queues`. A deleted topic is a layout without entries and with a higher counter.

    A layout may have 65,536 queues over all brokers. `read_queues` and `write_queues` build all of them and cache them. Code that needs the
    queues of one broker, a count or a number uses `queues_of`, the counts and `number_of`, whose memory depends on the number of entries.
    """

    topic: str
    version: LayoutVersion
    entries: tuple[LayoutEntry, ...]

    @property
    def deleted(self) -> bool:
        return not self.entries

    @property
    def deletion(self) -> "TopicLayout":
        """Return the layout that deletes the topic."""
        return self.deletion_up_to(self.version.counter + 1)

    def deletion_up_to(self, began: int) -> "TopicLayout":
        """Return the next layout, which deletes the topic, except a creation of it with `began` above the argument."""
        counter = self.version.counter + 1
        spared = counter - began
        return TopicLayout(self.topic, LayoutVersion(counter, WRITER_MAX - (spared if spared <= WRITER_MAX else 0)), ())

    @property
    def deletes_up_to(self) -> int:
        """Return, for a deletion, the highest `began` of the layouts that it deletes.

        It is the counter of the deletion that an operator requested. A broker that knows that deletion repeats it with a higher counter
        when it receives a layout of the deleted topic with a higher one; the writer is then lower by the increase of the counter. This
        spares a creation in between of which the broker does not know. A writer that is lower by the whole counter is not that of a
        repetition.
        """
        spared = WRITER_MAX - self.version.writer
        return self.version.counter - (spared if spared < self.version.counter else 0)

    @property
    def began(self) -> int:
        """Return the counter of the topic's oldest queues; 0 without queues.

        It is the same in all layouts of a topic until the topic is deleted, since every change keeps the first queue of a broker, and it is
        higher after the topic is created again.
        """
        return min((entry.counter for entry in self.entries), default=0)

    @cached_property
    def read_queues(self) -> tuple[MessageQueue, ...]:
        """Return all readable queues in layout order. The index is the queue number g that `allocate` uses."""
        return self._queues(write=False)

    @cached_property
    def write_queues(self) -> tuple[MessageQueue, ...]:
        """Return all writable queues in layout order. A keyed send chooses index crc32(key) mod len(write_queues)."""
        return self._queues(write=True)

    @property
    def number_of(self) -> _QueueNumbers:
        """Queue → queue number g (its index in `read_queues`)."""
        return _QueueNumbers(self)

    @cached_property
    def queue_ranges(self) -> dict[str, list[_QueueRange]]:
        """Broker name → its readable queues, by ascending queue id."""
        ranges: dict[str, list[_QueueRange]] = {}
        next_id: dict[str, int] = {}
        number = 0
        for entry in self.entries:
            first = next_id.get(entry.broker_name, 0)
            if entry.read_queue_count:
                ranges.setdefault(entry.broker_name, []).append(_QueueRange(first, entry.read_queue_count, number))
            number += entry.read_queue_count
            next_id[entry.broker_name] = first + entry.id_count
        return ranges

    @cached_property
    def _range_ends(self) -> dict[str, list[int]]:
        """Broker name → for each of its ranges, the end (exclusive) of the range as an index in `queues_of`."""
        return {name: list(accumulate(each.count for each in ranges)) for name, ranges in self.queue_ranges.items()}

    def ends(self, known: "TopicLayout") -> bool:
        """Return whether this layout ends the topic of a lower layout: it deletes the topic, or is of a later creation of it."""
        return not known.deleted and (self.deleted or self.began > known.began)

    def has_named(self, broker_name: str) -> bool:
        """Return whether the broker has queues of the topic, or had some that an operator removed."""
        return any(entry.broker_name == broker_name for entry in self.entries)

    @cached_property
    def brokers(self) -> tuple[str, ...]:
        """Return the brokers that have queues, to write or to read, sorted."""
        return tuple(sorted({entry.broker_name for entry in self.entries if not entry.is_marker}))

    @property
    def read_brokers(self) -> tuple[str, ...]:
        """Return the brokers that have readable queues, in layout order."""
        return tuple(self.queue_ranges)

    @property
    def read_total(self) -> int:
        """Return the number of readable queues of all brokers."""
        return sum(entry.read_queue_count for entry in self.entries)

    @property
    def write_total(self) -> int:
        """Return the number of writable queues of all brokers."""
        return sum(entry.write_queue_count for entry in self.entries)

    def queues_of(self, broker_name: str) -> list[MessageQueue]:
        """Return the readable queues of one broker, in layout order."""
        return [
            MessageQueue(self.topic, broker_name, each.first_id + index)
            for each in self.queue_ranges.get(broker_name, ())
            for index in range(each.count)
        ]

    def queue_id_at(self, broker_name: str, index: int) -> int | None:
        """Return the id of the readable queue with this index in `queues_of`, or None if the broker has fewer."""
        ends = self._range_ends.get(broker_name, [])
        number = bisect_right(ends, index)
        if number == len(ends):
            return None
        found = self.queue_ranges[broker_name][number]
        return found.first_id + found.count - (ends[number] - index)

    def each_read_queue(self, *, by_name: bool = False) -> Iterator[MessageQueue]:
        """Yield all readable queues, in layout order or sorted (`by_name`)."""
        if by_name:
            for name in sorted(self.queue_ranges):
                yield from self.queues_of(name)
            return
        next_id: dict[str, int] = {}
        for entry in self.entries:
            first = next_id.get(entry.broker_name, 0)
            for index in range(entry.read_queue_count):
                yield MessageQueue(self.topic, entry.broker_name, first + index)
            next_id[entry.broker_name] = first + entry.id_count

    @cached_property
    def write_number_of(self) -> dict[MessageQueue, int]:
        """Queue → its index in `write_queues`."""
        return {queue: number for number, queue in enumerate(self.write_queues)}

    def read_count(self, broker_name: str) -> int:
        """Return the number of readable queues of one broker: their ids are 0 … count−1."""
        ends = self._range_ends.get(broker_name)
        return ends[-1] if ends else 0

    def write_count(self, broker_name: str) -> int:
        """Return the number of writable queues of one broker: their ids are 0 … count−1."""
        return sum(entry.write_queue_count for entry in self.entries if entry.broker_name == broker_name)

    def id_count(self, broker_name: str) -> int:
        """Return the number of queue ids of one broker, which is the id of the next queue added there."""
        return sum(entry.id_count for entry in self.entries if entry.broker_name == broker_name)

    def last_removal_counter(self, broker_name: str) -> int:
        """Return the layout counter in which an operator last removed queues of the broker, or 0 if never."""
        return max((entry.counter for entry in self.entries if entry.broker_name == broker_name and entry.is_marker), default=0)

    def with_queues(self, broker_name: str, write_count: int, read_count: int, writer: int) -> "TopicLayout":
        """Return the next layout: this one with so many more writable and readable queues of one broker.

        Existing queue ids that are closed to writers or readers are opened first: the open ids always are 0 … count−1.
        """
        counter = self.version.counter + 1
        entries = []
        for entry in self.entries:
            if entry.broker_name == broker_name:
                write_more = min(write_count, entry.id_count - entry.write_queue_count)
                read_more = min(read_count, entry.id_count - entry.read_queue_count)
                write_count, read_count = write_count - write_more, read_count - read_more
                write, read = entry.write_queue_count + write_more, entry.read_queue_count + read_more
                entry = LayoutEntry(broker_name, write, read, entry.counter)
            entries.append(entry)
        if write_count or read_count:
            entries.append(LayoutEntry(broker_name, write_count, read_count, counter))
        return TopicLayout(self.topic, LayoutVersion(counter, writer), tuple(entries))

    def added_in(self, queue: MessageQueue) -> int:
        """Return the layout counter in which the queue was added. Raise KeyError if the layout has no such queue."""
        first = 0
        for entry in self.entries:
            if entry.broker_name == queue.broker_name:
                if first <= queue.queue_id < first + entry.id_count:
                    return entry.counter
                first += entry.id_count
        raise KeyError(queue)

    def each_added(self, broker_name: str) -> Iterator[tuple[int, int]]:
        """Yield (queue id, layout counter in which it was added) for each readable queue of one broker, in layout order."""
        first = 0
        for entry in self.entries:
            if entry.broker_name == broker_name:
                for index in range(entry.read_queue_count):
                    yield first + index, entry.counter
                first += entry.id_count

    def _queues(self, *, write: bool) -> tuple[MessageQueue, ...]:
        next_id: dict[str, int] = {}
        queues = []
        for entry in self.entries:
            first = next_id.get(entry.broker_name, 0)
            count = entry.write_queue_count if write else entry.read_queue_count
            queues += [MessageQueue(self.topic, entry.broker_name, first + i) for i in range(count)]
            next_id[entry.broker_name] = first + entry.id_count
        return tuple(queues)
