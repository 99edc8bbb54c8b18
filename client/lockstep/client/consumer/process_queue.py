"""The messages of one held queue: fetched, taken by the listener, not yet committed. RocketMQ: ProcessQueue.

    commit_offset                                            next_offset
         │  taken, not committed │ waiting                        │
    ─────┴──────────first────────┴──next──────────────────────────┴────▶ queue offset
         everything below is done or filtered                     everything below was seen

One list in queue order with two marks: `first` (not committed) ≤ `next` (not taken). Filtered messages are not in the list; progress moves
over them because `next_offset` knows how far was seen. No time, no lock: the event loop is the lock.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lockstep.protocol.message import MessageExt


@dataclass(frozen=True, slots=True)
class FlowLimits:
    count_max: int
    bytes_max: int
    span_max: int


class ProcessQueue:
    """Created from a grant: `offset` is the committed offset, `attempts` the failed calls of the batch that begins there."""

    __slots__ = (
        "_attempts",
        "_batch",
        "_chunks",
        "_failed_offset",
        "_finished",
        "_first",
        "_limits",
        "_messages",
        "_next",
        "commit_offset",
        "next_offset",
        "size_bytes",
    )

    def __init__(self, offset: int, attempts: int, limits: FlowLimits) -> None:
        self.commit_offset = offset
        """Next offset to consume: what SYNC commits. The first unfinished message's where there is one, else all that was seen."""
        self.next_offset = offset
        """Next offset to pull."""
        self.size_bytes = 0
        self._limits = limits
        self._messages: list[MessageExt] = []
        self._first = 0
        self._next = 0
        self._batch = 0
        self._attempts = attempts
        self._failed_offset = offset
        """`_attempts` failed calls belong to the batch that begins at this offset and to no other."""
        self._finished: set[int] = set()
        """Offsets that are done behind one that is not: a concurrent consumer's."""
        self._chunks: deque[tuple[int, int]] = deque()
        """(end offset, record bytes) of each pull that still holds an uncommitted message: a pull's memory goes as a whole."""

    # ------------------------------------------------------------------------------------------------------------- fetched

    @property
    def count(self) -> int:
        """Messages held: taken and waiting; not those that are done and wait for an earlier one."""
        return len(self._messages) - self._first - len(self._finished)

    @property
    def waiting(self) -> int:
        return len(self._messages) - self._next

    @property
    def taken(self) -> int:
        return self._next - self._first

    @property
    def span(self) -> int:
        """Distance from the first unfinished message to the next pull."""
        return self.next_offset - self._messages[self._first].queue_offset if self.count else 0

    def room(self) -> int:
        """How many messages a pull may ask for now; 0: a threshold is met.

        A pull leaves when half of the count is free, so that it brings a worthwhile number while the listener has the other half.
        """
        count = self.count
        if count > self._limits.count_max // 2 or self.size_bytes >= self._limits.bytes_max or self.span > self._limits.span_max:
            return 0
        return self._limits.count_max - count

    def put(self, messages: Sequence[MessageExt], next_offset: int, size_bytes: int) -> bool:
        """What a pull at `next_offset` brought, filtered ones already gone, in queue order. True: the commit offset moved."""
        if self._first:
            del self._messages[: self._first]
            self._next -= self._first
            self._batch -= self._first
            self._first = 0
        if messages:
            self._messages += messages
            self._chunks.append((next_offset, size_bytes))
            self.size_bytes += size_bytes
        self.next_offset = next_offset
        return self._settle()

    def move(self, next_offset: int) -> bool:
        """The broker said that nothing is left between here and `next_offset` (retention). True: the commit offset moved."""
        return self.put((), max(next_offset, self.next_offset), 0)

    # --------------------------------------------------------------------------------------------------------------- taken

    def take(self, count: int) -> list[MessageExt]:
        """The next batch of at most `count` waiting messages, which counts as taken; empty where none waits."""
        begin = self._batch = self._next
        batch = self._messages[begin : begin + count]
        self._next = begin + len(batch)
        return batch

    @property
    def batch_attempts(self) -> int:
        """Failed calls so far of the batch taken last."""
        return self._attempts if self._attempts and self._messages[self._batch].queue_offset == self._failed_offset else 0

    @property
    def committed_attempts(self) -> int:
        """Failed calls of the batch that begins at the commit offset: what is stored with the progress."""
        return self._attempts if self._attempts and self.commit_offset == self._failed_offset else 0

    def commit(self) -> int:
        """All that is taken is done; the commit offset. Nothing taken: no change."""
        if self._next == self._first:
            return self.commit_offset
        self._first = self._next
        self._attempts = 0
        if self._first == len(self._messages):
            self._messages.clear()
            self._first = self._next = self._batch = 0
        self._settle()
        return self.commit_offset

    def finish(self, messages: Iterable[MessageExt]) -> bool:
        """These are done, in whatever order: progress goes to the smallest unfinished one. True: the commit offset moved."""
        held, finished = self._messages, self._finished
        for message in messages:
            if message.queue_offset >= self.commit_offset:
                finished.add(message.queue_offset)
        while self._first < self._next and held[self._first].queue_offset in finished:
            finished.discard(held[self._first].queue_offset)
            self._first += 1
        if self._first == len(held):
            held.clear()
            self._first = self._next = self._batch = 0
        return self._settle()

    def roll_back(self) -> None:
        """All that is taken waits again."""
        self._next = self._first

    def put_back(self) -> int:
        """The batch taken last has failed and waits again; how often it has failed by now."""
        attempts = self.batch_attempts + 1
        self._attempts = attempts
        self._failed_offset = self._messages[self._batch].queue_offset
        self._next = self._batch
        return attempts

    def seek(self, offset: int) -> None:
        """Everything held is forgotten; the next pull asks for `offset`, which everything before is taken to be done up to."""
        self.drop()
        self.commit_offset = self.next_offset = offset

    def drop(self) -> None:
        """The grant is gone, and with it everything held."""
        self._messages.clear()
        self._chunks.clear()
        self._finished.clear()
        self._first = self._next = self._batch = 0
        self.size_bytes = 0

    def _settle(self) -> bool:
        commit = self._messages[self._first].queue_offset if self._first < len(self._messages) else self.next_offset
        chunks = self._chunks
        while chunks and chunks[0][0] <= commit:
            self.size_bytes -= chunks.popleft()[1]
        if commit <= self.commit_offset:
            return False
        self.commit_offset = commit
        return True
