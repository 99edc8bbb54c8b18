"""Pull consumers, which the workload writes. A *reader* is one PullConsumer from its start to its end.

Polled messages are *at hand* until the reader marks them as done: with the next poll (auto-commit), or with commit().
"""

from dataclasses import dataclass

from sweep.history import Event, QueueKey


@dataclass(frozen=True, slots=True)
class ReaderStarted(Event):
    """`start()` is about to be called."""

    reader: int
    """Unique in the run."""
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
class ReaderStopped(Event):
    """`stop()` returned, or the start was refused."""

    reader: int


@dataclass(frozen=True, slots=True)
class ReaderQueueAssigned(Event):
    """The reader was notified of a queue that was assigned to it, and of its first offset there."""

    reader: int
    queue: QueueKey
    generation: int
    offset: int


@dataclass(frozen=True, slots=True)
class ReaderQueueRevoked(Event):
    """The reader was notified that it has lost the queue."""

    reader: int
    queue: QueueKey
    generation: int


@dataclass(frozen=True, slots=True)
class ReaderQueueUnassigned(Event):
    """The queue is not in assignment() any more, so its seeks and pauses are dropped."""

    reader: int
    queue: QueueKey


@dataclass(frozen=True, slots=True)
class PollReturned(Event):
    """A poll returned messages, or an `async for` returned one."""

    reader: int
    queue: QueueKey
    """The queue of the first message."""
    messages: tuple[tuple[int, bytes], ...]
    """(queue offset, body), as received."""
    assigned: bool
    """Whether assignment() names the queue at this moment."""


@dataclass(frozen=True, slots=True)
class PolledMessagesDone(Event):
    """The reader is about to poll or to continue an `async for` with auto-commit, or to call commit(): all messages at hand are done."""

    reader: int
    by: str
    """"poll" or "commit"."""


@dataclass(frozen=True, slots=True)
class ReaderCommitted(Event):
    """commit() returned."""

    reader: int


@dataclass(frozen=True, slots=True)
class ReaderCommitFailed(Event):
    """commit() raised. `stale`: it was StaleEpochError."""

    reader: int
    stale: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class SeekReturned(Event):
    """A seek returned: the next poll of the queue begins at `offset`; if the queue is not held, the first poll after it is."""

    reader: int
    queue: QueueKey
    offset: int


@dataclass(frozen=True, slots=True)
class ReaderQueuePaused(Event):
    """pause() of the queue returned."""

    reader: int
    queue: QueueKey


@dataclass(frozen=True, slots=True)
class ReaderQueueResumed(Event):
    """resume() of the queue is about to be called."""

    reader: int
    queue: QueueKey
