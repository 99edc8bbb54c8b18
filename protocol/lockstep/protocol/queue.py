"""Queues and the layouts that order them (ordering.md 9)."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue: (topic, broker name, queue id). Sorted by topic, then broker, then id. RocketMQ: MessageQueue."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"


WRITER_MAX = (1 << 32) - 1
"""The writer of a deletion that an operator asked for: of the layouts with one counter the deletion is the highest."""
BEGAN_FIRST_DELETIONS_MAX = 3
"""A deletion with at most this counter is the first one of its topic: the lowest counter of a second one is 4 (created, deleted, created
again, deleted). So all layouts before it have `began` 1.

After it was forgotten, a creation has `began` 1 too, also beside a layout of the deleted topic. Not so beside a creation by a broker that
knew the deletion and was away while it was forgotten: that one has a higher `began`, and counts as the later one."""


@dataclass(frozen=True, slots=True, order=True)
class LayoutVersion:
    """Which of two layouts is newer: compared as a pair, so that two writers of one counter still have one winner."""

    counter: int
    """1 at creation, +1 at each change."""
    writer: int
    """32 random bits of who wrote it."""

    @property
    def successor(self) -> "LayoutVersion":
        """The lowest version above this one."""
        return LayoutVersion(self.counter, self.writer + 1)


@dataclass(frozen=True, slots=True)
class LayoutEntry:
    """Some queues of one broker, added in layout `counter`. A broker may have several entries; its queue ids continue through them.

    An entry without queues is a marker: in layout `counter` an operator took queues of this broker away.
    """

    broker_name: str
    write_queue_count: int
    read_queue_count: int
    counter: int

    @property
    def id_count(self) -> int:
        """How many queue ids the entry covers."""
        return max(self.write_queue_count, self.read_queue_count)

    @property
    def is_marker(self) -> bool:
        """Whether it records a removal instead of queues."""
        return not self.id_count


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive readable queues of one broker."""

    first_id: int
    count: int
    number: int
    """The queue number of the first one."""


class _QueueNumbers(Mapping[MessageQueue, int]):
    """Readable queue → queue number g, by arithmetic over the layout's entries: no queue is built for a lookup."""

    __slots__ = ("_layout",)

    def __init__(self, layout: "TopicLayout") -> None:
        self._layout = layout

    def __getitem__(self, queue: MessageQueue) -> int:
        runs = self._layout.runs.get(queue.broker_name, ()) if queue.topic == self._layout.topic else ()
        place = bisect_right(runs, queue.queue_id, key=lambda run: run.first_id) - 1
        if place < 0 or queue.queue_id >= runs[place].first_id + runs[place].count:
            raise KeyError(queue)
        return runs[place].number + queue.queue_id - runs[place].first_id

    def __iter__(self) -> Iterator[MessageQueue]:
        return self._layout.each_read_queue()

    def __len__(self) -> int:
        return self._layout.read_total


@dataclass(frozen=True)
class TopicLayout:
    """The whole layout of a topic: an ordered list of queues by broker name, whether or not those brokers live.

    Queue number g is the position in `read_queues`. A deleted topic is a layout without entries and a higher counter.

    A layout may have 65,536 queues over all brokers. `read_queues` and `write_queues` build all of them and keep them: code that needs the
    queues of one broker, a count or a number uses `queues_of`, the counts and `number_of`, which cost memory by entries.
    """

    topic: str
    version: LayoutVersion
    entries: tuple[LayoutEntry, ...]

    @property
    def deleted(self) -> bool:
        return not self.entries

    @property
    def deletion(self) -> "TopicLayout":
        """The layout that deletes the topic."""
        return self.deletion_to(self.version.counter + 1)

    def deletion_to(self, began: int) -> "TopicLayout":
        """The next layout, which deletes the topic, but no creation of it that began after `began`."""
        counter = self.version.counter + 1
        spared = counter - began
        return TopicLayout(self.topic, LayoutVersion(counter, WRITER_MAX - (spared if spared <= WRITER_MAX else 0)), ())

    @property
    def deletes_to(self) -> int:
        """Of a deletion: the highest `began` of layouts that it deletes.

        It is the counter of the deletion that an operator asked for. A broker that knows that one repeats it with a higher counter when it
        meets a layout of the deleted topic that has a higher one; its writer is lower by how much the counter has grown. So a creation in
        between, which the broker has not heard of, is spared. A deletion of an earlier version has 32 random bits as writer: they are
        lower by more than the whole counter, unless by a chance of counter / 2^32.
        """
        spared = WRITER_MAX - self.version.writer
        return self.version.counter - (spared if spared < self.version.counter else 0)

    @property
    def began(self) -> int:
        """The counter of its oldest queues; 0 without any.

        The same in all layouts of a topic until it is deleted, since every change keeps the first queue of a broker, and higher in those
        after it is created again.
        """
        return min((entry.counter for entry in self.entries), default=0)

    @cached_property
    def read_queues(self) -> tuple[MessageQueue, ...]:
        """Every readable queue in layout order; the index is the queue number g that `allocate` deals out."""
        return self._queues(write=False)

    @cached_property
    def write_queues(self) -> tuple[MessageQueue, ...]:
        """Every writable queue in layout order; a keyed send picks crc32(key) mod len(write_queues) of them."""
        return self._queues(write=True)

    @property
    def number_of(self) -> _QueueNumbers:
        """Queue → queue number g (its position in `read_queues`)."""
        return _QueueNumbers(self)

    @cached_property
    def runs(self) -> dict[str, list[_Run]]:
        """Broker name → its readable queues, by rising queue id."""
        runs: dict[str, list[_Run]] = {}
        next_id: dict[str, int] = {}
        number = 0
        for entry in self.entries:
            first = next_id.get(entry.broker_name, 0)
            if entry.read_queue_count:
                runs.setdefault(entry.broker_name, []).append(_Run(first, entry.read_queue_count, number))
            number += entry.read_queue_count
            next_id[entry.broker_name] = first + entry.id_count
        return runs

    @cached_property
    def _run_ends(self) -> dict[str, list[int]]:
        """Broker name → of each of its runs, the place in `queues_of` behind its last queue."""
        return {name: list(accumulate(run.count for run in runs)) for name, runs in self.runs.items()}

    @property
    def read_brokers(self) -> tuple[str, ...]:
        """The brokers that have readable queues, in layout order."""
        return tuple(self.runs)

    @property
    def read_total(self) -> int:
        """Readable queues of all brokers."""
        return sum(entry.read_queue_count for entry in self.entries)

    @property
    def write_total(self) -> int:
        """Writable queues of all brokers."""
        return sum(entry.write_queue_count for entry in self.entries)

    def queues_of(self, broker_name: str) -> list[MessageQueue]:
        """The readable queues of one broker, in layout order."""
        return [
            MessageQueue(self.topic, broker_name, run.first_id + place)
            for run in self.runs.get(broker_name, ())
            for place in range(run.count)
        ]

    def queue_id_at(self, broker_name: str, place: int) -> int | None:
        """The id of the readable queue of one broker that has this place in `queues_of`; None: it has fewer."""
        ends = self._run_ends.get(broker_name, [])
        number = bisect_right(ends, place)
        if number == len(ends):
            return None
        run = self.runs[broker_name][number]
        return run.first_id + run.count - (ends[number] - place)

    def each_read_queue(self, *, by_name: bool = False) -> Iterator[MessageQueue]:
        """Every readable queue, one at a time: in layout order, or sorted (`by_name`)."""
        if by_name:
            for name in sorted(self.runs):
                yield from self.queues_of(name)
            return
        next_id: dict[str, int] = {}
        for entry in self.entries:
            first = next_id.get(entry.broker_name, 0)
            for place in range(entry.read_queue_count):
                yield MessageQueue(self.topic, entry.broker_name, first + place)
            next_id[entry.broker_name] = first + entry.id_count

    @cached_property
    def write_number_of(self) -> dict[MessageQueue, int]:
        """Queue → its position in `write_queues`."""
        return {queue: number for number, queue in enumerate(self.write_queues)}

    def read_count(self, broker_name: str) -> int:
        """Readable queues of one broker: ids 0 … count−1."""
        ends = self._run_ends.get(broker_name)
        return ends[-1] if ends else 0

    def write_count(self, broker_name: str) -> int:
        """Writable queues of one broker: ids 0 … count−1."""
        return sum(entry.write_queue_count for entry in self.entries if entry.broker_name == broker_name)

    def id_count(self, broker_name: str) -> int:
        """Queue ids of one broker: the next queue that is added there gets this id."""
        return sum(entry.id_count for entry in self.entries if entry.broker_name == broker_name)

    def taken_away_in(self, broker_name: str) -> int:
        """The layout counter in which an operator last took queues of the broker away; 0: none were."""
        return max((entry.counter for entry in self.entries if entry.broker_name == broker_name and entry.is_marker), default=0)

    def with_queues(self, broker_name: str, write_count: int, read_count: int, writer: int) -> "TopicLayout":
        """The next layout: this one, and so many more queues of one broker to write and to read.

        Queue ids that are there and closed to writers, or to readers, are opened first: those that are open always are 0 … count−1.
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
        """The layout counter in which the queue was added; KeyError where the layout has no such queue."""
        first = 0
        for entry in self.entries:
            if entry.broker_name == queue.broker_name:
                if first <= queue.queue_id < first + entry.id_count:
                    return entry.counter
                first += entry.id_count
        raise KeyError(queue)

    def each_added(self, broker_name: str) -> Iterator[tuple[int, int]]:
        """(queue id, layout counter in which it was added) of each readable queue of one broker, in layout order."""
        first = 0
        for entry in self.entries:
            if entry.broker_name == broker_name:
                for place in range(entry.read_queue_count):
                    yield first + place, entry.counter
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
