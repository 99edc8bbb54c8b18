"""All consume queues of a store, and when their entries are written."""

from collections import OrderedDict
from collections.abc import Iterator

from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.broker.store.log.append import ENTRY_BYTES, TopicField
from lockstep.broker.store.queues.consume_queue import FLUSH_ENTRY_COUNT, KEEP_ENTRY_COUNT_MIN, ConsumeQueue, QueueFiles
from lockstep.runtime.metrics import Slices

StoreQueueKey = tuple[str, int]

FLUSH_QUEUES_PER_SLICE = 4
"""Files written in one loop turn for a snapshot: a millisecond or two if each has to be created first."""
FLUSH_QUEUES_PER_TURN = 16
"""Files written in one loop turn if many queues wait: 0.2 ms, or 10 ms if each has to be created first."""


class QueueTable:
    """A table of (topic, queue id) → ConsumeQueue.

    Entries are kept in memory until a queue has many, all together have too many, or a snapshot is due. With thousands of queues to write,
    they are never all written in one turn of a loop that serves requests.
    """

    def __init__(self, files: QueueFiles, tail_bytes: int) -> None:
        self.files = files
        self._tail_entry_count = tail_bytes // ENTRY_BYTES
        self._queues: dict[StoreQueueKey, ConsumeQueue] = {}
        self._of_topic: dict[str, list[ConsumeQueue]] = {}
        self._topics: dict[str, TopicField] = {}
        self._dirty: OrderedDict[ConsumeQueue, None] = OrderedDict()
        """Queues with entries that only memory has, the longest waiting first."""
        self._waiting = 0
        """Number of those entries."""
        self.get = self._queues.get

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    def topic_field(self, topic: str) -> TopicField:
        field = self._topics.get(topic)
        if field is None:
            field = self._topics[topic] = TopicField(topic)
        return field

    def make_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a new queue, which `add_queue` adds to the table."""
        return ConsumeQueue(topic, queue_id, f"{self.files.directory}/{topic}/{queue_id}", self.topic_field(topic))

    def add_queue(self, queue: ConsumeQueue) -> None:
        assert (queue.topic, queue.queue_id) not in self._queues
        self._queues[queue.topic, queue.queue_id] = queue
        self._of_topic.setdefault(queue.topic, []).append(queue)

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self.make_queue(topic, queue_id)
            self.add_queue(queue)
        return queue

    def queues_of_topic(self, topic: str) -> list[ConsumeQueue]:
        return list(self._of_topic.get(topic, ()))

    def entries_added(self, queue: ConsumeQueue, count: int) -> None:
        """Note that entries were added to a queue."""
        self._dirty[queue] = None
        self._waiting += count

    def flush_full(self, queue: ConsumeQueue) -> None:
        """Write a queue's entries if there are many."""
        if queue.next - queue.flushed >= FLUSH_ENTRY_COUNT:
            self._flush(queue)

    @property
    def waiting_count(self) -> int:
        """Return the number of entries that only memory has."""
        return self._waiting

    def flush_some(self) -> None:
        """Write entries of the queues that have waited longest while all together are too many. Call it once per turn."""
        for _ in range(FLUSH_QUEUES_PER_TURN):
            if self._waiting <= self._tail_entry_count:
                return
            self._flush(next(iter(self._dirty)))

    def flush_all(self) -> None:
        """Write every entry that only memory has, at once."""
        for queue in list(self._dirty):
            self._flush(queue)

    async def flush_gradually(self) -> None:
        """Write every entry that only memory has now, a few queues per turn."""
        slices = Slices(FLUSH_QUEUES_PER_SLICE)
        for queue in list(self._dirty):
            self._flush(queue)
            await slices.step()

    def _flush(self, queue: ConsumeQueue) -> None:
        waiting = queue.next - queue.flushed
        queue.flush(self.files)
        self._dirty.pop(queue, None)
        self._waiting -= waiting
        queue.trim(max(KEEP_ENTRY_COUNT_MIN, self._tail_entry_count // max(1, len(self._queues))))

    def plain(self) -> SnapshotRows:
        """Return the rows of the queues for a snapshot."""
        rows = [(queue.topic, queue.queue_id, queue.min, queue.next) for queue in self._queues.values()]
        return SnapshotRows(len(rows), lambda: rows)

    def drop_topic(self, topic: str) -> None:
        """Hide the messages of a topic. Its queue offsets continue, so that one offset never names two messages."""
        for queue in self.queues_of_topic(topic):
            self._hide_all(queue)

    def hide_below(self, queue: ConsumeQueue, minimum: int) -> None:
        """Hide the messages of a queue below `minimum`.

        If some are left, the files of the others remain until retention has removed the records that their entries name: a start from an
        older snapshot compares them.
        """
        if minimum < queue.next:
            queue.hide_below(minimum)
        else:
            self._hide_all(queue)

    def _hide_all(self, queue: ConsumeQueue) -> None:
        self._dirty.pop(queue, None)
        self._waiting -= queue.next - queue.flushed
        queue.hide_all()
        self.files.remove_below(queue, queue.next * ENTRY_BYTES)
