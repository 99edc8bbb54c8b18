"""Queues and the layouts that order them (ordering: a key never moves by accident)."""

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue: (topic, broker name, queue id). Sorted by topic, then broker, then id. RocketMQ: MessageQueue."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"


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
    """Some queues of one broker, added in layout `counter`. A broker may stand in several entries; its queue ids continue through them."""

    broker_name: str
    write_queue_count: int
    read_queue_count: int
    counter: int


@dataclass(frozen=True)
class TopicLayout:
    """The whole layout of a topic: an ordered list of queues by broker name, whether or not those brokers live.

    Queue number g is the position in `queues`. A deleted topic is a layout without entries and a higher counter.
    """

    topic: str
    version: LayoutVersion
    entries: tuple[LayoutEntry, ...]

    @property
    def deleted(self) -> bool:
        return not self.entries

    @property
    def began(self) -> int:
        """The counter of its oldest queues; 0 without any."""
        return min((entry.counter for entry in self.entries), default=0)

    def began_after(self, counter: int) -> bool:
        """Whether the topic must have been deleted behind the layout `counter`: no queue is as old as the next change after that one."""
        return self.began > counter + 1

    @cached_property
    def read_queues(self) -> tuple[MessageQueue, ...]:
        """Every readable queue in layout order; the index is the queue number g that `allocate` deals out."""
        return self._queues(write=False)

    @cached_property
    def write_queues(self) -> tuple[MessageQueue, ...]:
        """Every writable queue in layout order; a keyed send picks crc32(key) mod len(write_queues) of them."""
        return self._queues(write=True)

    @cached_property
    def number_of(self) -> dict[MessageQueue, int]:
        """Queue → queue number g (its position in `read_queues`)."""
        return {queue: number for number, queue in enumerate(self.read_queues)}

    def read_count(self, broker_name: str) -> int:
        """Readable queues of one broker: ids 0 … count−1."""
        return sum(entry.read_queue_count for entry in self.entries if entry.broker_name == broker_name)

    def write_count(self, broker_name: str) -> int:
        """Writable queues of one broker: ids 0 … count−1."""
        return sum(entry.write_queue_count for entry in self.entries if entry.broker_name == broker_name)

    def added_in(self, queue: MessageQueue) -> int:
        """The layout counter in which the queue was added; KeyError where the layout has no such queue."""
        first = 0
        for entry in self.entries:
            if entry.broker_name == queue.broker_name:
                count = max(entry.read_queue_count, entry.write_queue_count)
                if first <= queue.queue_id < first + count:
                    return entry.counter
                first += count
        raise KeyError(queue)

    def _queues(self, *, write: bool) -> tuple[MessageQueue, ...]:
        next_id: dict[str, int] = {}
        queues = []
        for entry in self.entries:
            first = next_id.get(entry.broker_name, 0)
            count = entry.write_queue_count if write else entry.read_queue_count
            queues += [MessageQueue(self.topic, entry.broker_name, first + i) for i in range(count)]
            next_id[entry.broker_name] = first + max(entry.write_queue_count, entry.read_queue_count)
        return tuple(queues)
