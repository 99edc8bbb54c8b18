"""Stores the messages of one held queue that are fetched, taken by the listener, or not committed yet. RocketMQ: ProcessQueue.

    commit_offset                                            next_offset
         │  taken, not committed │ waiting                        │
    ─────┴──────────first────────┴──next──────────────────────────┴────▶ queue offset
         everything below is done or filtered                     everything below was seen

One list in queue order with two marks: `first` (not committed) ≤ `next` (not taken). Filtered messages are not in the list; progress moves
past them because `next_offset` is the end of the seen offsets. It needs neither a clock nor a lock, because it is used on the event loop
only.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lockstep.protocol.done_ranges import Ranges, above, contains, joined, skip, union
from lockstep.protocol.messages.message import MessageExt


@dataclass(frozen=True, slots=True)
class FlowLimits:
    count_max: int
    bytes_max: int
    span_max: int


class ProcessQueue:
    """Created from a grant: `offset` is the committed offset, `attempts` the failed calls of the batch that begins there, `done` what an
    earlier owner has finished above it."""

    __slots__ = (
        "_batch",
        "_chunks",
        "_done",
        "_failed_offset",
        "_finished",
        "_first",
        "_limits",
        "_messages",
        "_next",
        "attempts",
        "commit_offset",
        "next_offset",
        "size_bytes",
    )

    def __init__(self, offset: int, attempts: int, limits: FlowLimits, done: Ranges = ()) -> None:
        offset = skip(done, offset)
        self._done = done
        """What an earlier owner has finished above the commit offset. Its messages count as filtered, and remain done ranges."""
        self.commit_offset = offset
        """The next offset to consume, which SYNC commits: that of the first unfinished message if there is one, otherwise the end of
        the seen offsets."""
        self.next_offset = offset
        """The next offset to pull."""
        self.size_bytes = 0
        self._limits = limits
        self._messages: list[MessageExt] = []
        self._first = 0
        self._next = 0
        self._batch = 0
        self.attempts = attempts
        """Failed calls of a batch since the last commit."""
        self._failed_offset = offset
        """`attempts` failed calls belong to the batch that begins at this offset and to no other."""
        self._finished: set[int] = set()
        """Finished offsets after an unfinished one: those of a concurrent consumer."""
        self._chunks: deque[tuple[int, int]] = deque()
        """The (end offset, record bytes) of each pull that still has an uncommitted message: the memory of a pull is released as a
        whole."""

    # ------------------------------------------------------------------------------------------------------------- fetched

    @property
    def count(self) -> int:
        """Return the number of messages that are taken or waiting, without finished ones that wait for an earlier one."""
        return len(self._messages) - self._first - len(self._finished)

    @property
    def waiting(self) -> int:
        return len(self._messages) - self._next

    @property
    def taken(self) -> int:
        return self._next - self._first

    @property
    def first_unfinished(self) -> MessageExt | None:
        """Return the first message that is taken or waiting, or None."""
        return self._messages[self._first] if self._first < len(self._messages) else None

    @property
    def span(self) -> int:
        """Return the distance from the first unfinished message to the next pull."""
        return self.next_offset - self._messages[self._first].queue_offset if self.count else 0

    def room(self) -> int:
        """Return how many messages a pull may request now; 0 if a threshold is reached.

        A pull is sent when half of the count is free, so that it returns a worthwhile number while the listener has the other half.
        """
        limits = self._limits
        count = len(self._messages) - self._first - len(self._finished)
        if count > limits.count_max // 2 or self.size_bytes >= limits.bytes_max or self.span > limits.span_max:
            return 0
        return limits.count_max - count

    def put(self, messages: Sequence[MessageExt], next_offset: int, size_bytes: int) -> bool:
        """Add the messages of a pull that ends at `next_offset`, without filtered ones, in queue order. Return whether the commit offset
        moved."""
        if self._done:
            messages = [message for message in messages if not contains(self._done, message.queue_offset)]
            next_offset = skip(self._done, next_offset)
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
        return self._update_commit_offset()

    def move(self, next_offset: int) -> bool:
        """Move to `next_offset`, because retention has removed everything before it. Return whether the commit offset moved."""
        return self.put((), max(next_offset, self.next_offset), 0)

    # --------------------------------------------------------------------------------------------------------------- taken

    def take(self, count: int) -> list[MessageExt]:
        """Take and return the next batch of at most `count` waiting messages; empty if none waits."""
        begin = self._batch = self._next
        batch = self._messages[begin : begin + count]
        self._next = begin + len(batch)
        return batch

    @property
    def batch(self) -> list[MessageExt]:
        """Return the batch that was taken last, if it is not finished."""
        return self._messages[self._batch : self._next]

    def attempts_at(self, offset: int) -> int:
        """Return the number of failed calls of the batch that begins at `offset`. That of the commit offset is stored with the progress."""
        return self.attempts if offset == self._failed_offset else 0

    def commit(self) -> int:
        """Count all taken messages as done, and return the commit offset. If none is taken, nothing changes."""
        end, messages = self._next, self._messages
        if end != self._first:
            self.attempts = 0
            self._first = end
            if end == len(messages):
                messages.clear()
                self._first = self._next = self._batch = 0
            self._update_commit_offset()
        return self.commit_offset

    def finish(self, messages: Sequence[MessageExt]) -> bool:
        """Count these messages as done, in any order: progress moves to the smallest unfinished one. Return whether the commit offset
        moved."""
        held, finished, first = self._messages, self._finished, self._first
        end = first + len(messages)
        if not finished and end <= self._next and held[first:end] == messages:
            self._first = end  # the usual case: they are the first unfinished ones
        else:
            for message in messages:
                if message.queue_offset >= self.commit_offset:
                    finished.add(message.queue_offset)
            while self._first < self._next and held[self._first].queue_offset in finished:
                finished.discard(held[self._first].queue_offset)
                self._first += 1
        if self._first == len(held):
            held.clear()
            self._first = self._next = self._batch = 0
        return self._update_commit_offset()

    def done_ranges(self, offset: int) -> Ranges:
        """Return the ranges of finished offsets above the commit offset, or none if that is not `offset` any more.

        What was filtered between two finished messages is part of a range. The ranges of the grant are among them: if there are too many,
        the highest are left out, whoever finished them, so that of one key no later message is in the ranges without an earlier one.
        """
        if offset != self.commit_offset:
            return ()
        if not self._done:
            return joined(self._finished_pairs()) if self._finished else ()
        self._done = above(self._done, offset)
        return union(self._done, joined(self._finished_pairs()))

    def _finished_pairs(self) -> Iterator[tuple[int, int]]:
        finished, left, first = self._finished, len(self._finished), None
        end = 0
        for message in self._messages[self._first :]:
            offset = message.queue_offset
            if offset in finished:
                first, end, left = offset if first is None else first, offset + 1, left - 1
                if not left:
                    break
            elif first is not None:
                yield first, end
                first = None
        if first is not None:
            yield first, end

    def roll_back(self) -> None:
        """Make all taken messages wait again."""
        self._next = self._first

    def put_back(self) -> int:
        """Make the batch that was taken last wait again after a failure. Return how often it has failed by now."""
        offset = self._messages[self._batch].queue_offset
        self.attempts = self.attempts_at(offset) + 1
        self._failed_offset = offset
        self._next = self._batch
        return self.attempts

    def seek(self, offset: int) -> None:
        """Drop all messages. The next pull requests `offset`, and everything before it counts as done, nothing else."""
        self.drop()
        self._done = ()
        self.commit_offset = self.next_offset = offset

    def drop(self) -> None:
        """Drop all messages, because the grant is gone."""
        self._messages.clear()
        self._chunks.clear()
        self._finished.clear()
        self._first = self._next = self._batch = 0
        self.size_bytes = 0

    def _update_commit_offset(self) -> bool:
        messages, first, chunks = self._messages, self._first, self._chunks
        commit = messages[first].queue_offset if first < len(messages) else self.next_offset
        while chunks and chunks[0][0] <= commit:
            self.size_bytes -= chunks.popleft()[1]
        if commit <= self.commit_offset:
            return False
        self.commit_offset = commit
        return True
