"""Pull consumers, which the workload writes. A *reader* is one PullConsumer from its start to its end.

Polled messages are *at hand* until the reader marks them as done: with the next poll (auto-commit), or with commit().
"""

from dataclasses import dataclass

from sweep.history import Event, QueueKey


@dataclass(frozen=True, slots=True)
class _OfReader(Event):
    reader: int
    """Unique in the run."""


@dataclass(frozen=True, slots=True)
class _OfQueue(_OfReader):
    queue: QueueKey


@dataclass(frozen=True, slots=True)
class ReaderStarted(_OfReader):
    """`start()` is about to be called."""

    group: str
    topic: str
    by_hand: bool
    """assign(), not subscribe()."""
    auto: bool
    """auto_commit."""
    expression: str = "*"
    """Tags that it subscribes to."""
    each: bool = False
    """It reads by `async for`."""
    where: str = "FIRST_OFFSET"
    """Start policy: as ConsumerStarted has it."""
    since_t: float = 0.0


@dataclass(frozen=True, slots=True)
class ReaderQueueAssigned(_OfQueue):
    """The reader was notified of a queue that was assigned to it, and of its first offset there."""

    generation: int
    offset: int


@dataclass(frozen=True, slots=True)
class ReaderQueueRevoked(_OfQueue):
    """The reader was notified that it has lost the queue."""

    generation: int


@dataclass(frozen=True, slots=True)
class ReaderQueueUnassigned(_OfQueue):
    """The queue is not in assignment() any more, so its seeks and pauses are dropped."""


@dataclass(frozen=True, slots=True)
class PollReturned(_OfQueue):
    """A poll returned messages, or an `async for` returned one. `queue`: that of the first message."""

    messages: tuple[tuple[int, bytes], ...]
    """(queue offset, body), as received."""
    assigned: bool
    """Whether assignment() names the queue at this moment."""


@dataclass(frozen=True, slots=True)
class PolledMessagesDone(_OfReader):
    """The reader is about to poll or to continue an `async for` with auto-commit, or to call commit(): all messages at hand are done."""

    by: str
    """"poll" or "commit"."""


@dataclass(frozen=True, slots=True)
class ReaderCommitted(_OfReader):
    """commit() returned."""


@dataclass(frozen=True, slots=True)
class ReaderCommitFailed(_OfReader):
    """commit() raised. `stale`: it was StaleEpochError."""

    stale: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class SeekReturned(_OfQueue):
    """A seek returned: the next poll of the queue begins at `offset`; if the queue is not held, the first poll after it is."""

    offset: int


@dataclass(frozen=True, slots=True)
class ReaderQueuePaused(_OfQueue):
    """pause() of the queue returned."""


@dataclass(frozen=True, slots=True)
class ReaderQueueResumed(_OfQueue):
    """resume() of the queue is about to be called."""
