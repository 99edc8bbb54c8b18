"""Pulls that wait for the disk: the connections take turns, and a limited number of pulls is read at a time."""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Coroutine
from typing import Any

from lockstep.broker.groups.tables.lock_table import QueueKey
from lockstep.broker.processors.pull_request import Pull
from lockstep.broker.tables.long_poll_table import HELD_PER_CONNECTION_MAX
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.requests.request import RetryLaterError

COLD_COUNT_MAX = 4
"""Cold reads at a time: they wait for one disk, and other work needs threads too."""
COLD_PER_CONNECTION_MAX = HELD_PER_CONNECTION_MAX
"""Pulls of one connection that wait for a cold read; one more is refused with SYSTEM_BUSY."""
COLD_RETRY_MS = 200


class ColdReads:
    """Queues of pulls by connection, and the readers that serve them."""

    def __init__(self, tasks: Tasks, read: Callable[[Pull], Coroutine[Any, Any, None]]) -> None:
        """`read` serves one pull; its error fails that pull."""
        self._tasks = tasks
        self._read = read
        self.waiting: OrderedDict[Endpoint, deque[Pull]] = OrderedDict()
        self.reader_count = 0
        self._queues: Counter[QueueKey] = Counter()
        """Pulls that wait or are read, by (group, topic, queue id)."""

    def count_of(self, queue: QueueKey) -> int:
        """Return how many pulls of a group at a queue wait for the disk, or are read."""
        return self._queues.get(queue, 0)  # a Counter calls a method for each key that it does not have

    def add(self, pull: Pull) -> None:
        """Read the pull when it is its turn. Raise RetryLaterError if too many pulls of its connection wait."""
        waiting = self.waiting.setdefault(pull.request.endpoint, deque())
        if len(waiting) >= COLD_PER_CONNECTION_MAX:
            raise RetryLaterError(f"{len(waiting)} pulls of this connection wait for the disk", COLD_RETRY_MS)
        waiting.append(pull)
        self._queues[pull.queue] += 1
        if self.reader_count < COLD_COUNT_MAX:
            self.reader_count += 1
            self._tasks.spawn(self._run(), "cold reads")

    def drop(self, endpoint: Endpoint) -> None:
        """Forget the pulls of a connection that has closed."""
        for pull in self.waiting.pop(endpoint, ()):
            self._ended(pull)

    async def _run(self) -> None:
        """Read pulls until none is left: one of at most COLD_COUNT_MAX readers."""
        try:
            while self.waiting:
                endpoint, waiting = self.waiting.popitem(last=False)
                pull = waiting.popleft()
                if waiting:
                    self.waiting[endpoint] = waiting
                try:
                    await self._read(pull)
                except Exception as error:
                    pull.request.fail(error)
                finally:
                    self._ended(pull)
        finally:
            self.reader_count -= 1

    def _ended(self, pull: Pull) -> None:
        self._queues[pull.queue] -= 1
        if not self._queues[pull.queue]:
            del self._queues[pull.queue]
