"""Pull consumers: what the workload writes of them. A *reader* is one PullConsumer, from its start to its end.

A *holding* is one grant of one queue to one reader: QueueGiven … QueueTaken. What a poll gave is *at hand* until its reader says that it
is done: with the next poll (auto-commit), or with commit().
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
class QueueGiven(Event):
    """The reader was told that it has the queue, and where it begins."""

    reader: int
    queue: QueueKey
    generation: int
    offset: int


@dataclass(frozen=True, slots=True)
class QueueTaken(Event):
    """The reader was told that it has the queue no more."""

    reader: int
    queue: QueueKey
    generation: int


@dataclass(frozen=True, slots=True)
class QueueUnassigned(Event):
    """The queue is not in assignment() any more: what was asked of it is forgotten."""

    reader: int
    queue: QueueKey


@dataclass(frozen=True, slots=True)
class Polled(Event):
    """A poll returned messages, or an `async for` one."""

    reader: int
    queue: QueueKey
    """Of the first message."""
    messages: tuple[tuple[int, bytes], ...]
    """(queue offset, body), as given."""
    assigned: bool
    """assignment() names the queue at this moment."""


@dataclass(frozen=True, slots=True)
class DoneSaid(Event):
    """A reader with auto-commit is about to poll, or to go on in an `async for`, or commit() to be called: everything at hand is done."""

    reader: int
    by: str
    """"poll" or "commit"."""


@dataclass(frozen=True, slots=True)
class Committed(Event):
    """commit() returned."""

    reader: int


@dataclass(frozen=True, slots=True)
class CommitFailed(Event):
    """commit() raised. `stale`: it was StaleEpochError."""

    reader: int
    stale: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class Sought(Event):
    """A seek returned: the next poll of the queue gives what stands at `offset`, or, where the queue is not held, when it is."""

    reader: int
    queue: QueueKey
    offset: int


@dataclass(frozen=True, slots=True)
class ReadingPaused(Event):
    """pause() of the queue returned."""

    reader: int
    queue: QueueKey


@dataclass(frozen=True, slots=True)
class ReadingResumed(Event):
    """resume() of the queue is about to be called."""

    reader: int
    queue: QueueKey
