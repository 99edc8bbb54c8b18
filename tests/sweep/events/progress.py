"""Pulls, and commits and resets of progress, on the connections to brokers."""

from dataclasses import dataclass, field

from sweep.history import Event, ItemVerdict, QueueKey


@dataclass(frozen=True, slots=True)
class _Commit(Event):
    """One item of SYNC, or of LOCK with an offset, or UPDATE_CONSUMER_OFFSET."""

    queue: QueueKey
    epoch: int | None
    generation: int | None
    """Concurrent groups commit under it."""
    offset: int | None
    """None: a release that only fences."""
    attempts: int
    released: bool
    by: str
    """"SYNC", "LOCK" or "UPDATE"."""
    session: str | None
    done: tuple[int, ...] = field(default=(), kw_only=True)
    """Finished offsets above `offset`, as bounds of ranges."""


@dataclass(frozen=True, slots=True)
class CommitSent(_Commit):
    """The item was written by a client."""

    boot_ms: int


@dataclass(frozen=True, slots=True)
class CommitResponded(_Commit):
    """The broker wrote the item's response."""

    client: int
    verdict: ItemVerdict
    request_t: float
    """When the request was written."""


@dataclass(frozen=True, slots=True)
class CommitReceived(_Commit):
    """The item's response reached the client."""

    verdict: ItemVerdict
    request_t: float


@dataclass(frozen=True, slots=True)
class PullReceived(Event):
    """A response to PULL reached a client. Records are not decoded."""

    queue: QueueKey
    epoch: int | None
    code: int
    offset: int
    """The offset of the request."""
    next_offset: int | None
    request_t: float
    gap: tuple[int, int] | None = None
    response_t: float = 0.0
    """When the broker wrote it."""
    key: str | None = None
    """The pull was for the messages of this key only."""


@dataclass(frozen=True, slots=True)
class ProgressResponded(Event):
    """The broker responded to QUERY_CONSUMER_OFFSET of a member of a concurrent group."""

    queue: QueueKey
    generation: int
    offset: int
    session: str | None
    client: int
    """Process of the client."""
    request_t: float


@dataclass(frozen=True, slots=True)
class ResetSent(Event):
    """RESET_OFFSETS was written: from now on it may be executed, whether or not its response arrives. ProgressReset is its response."""

    queue: QueueKey
    offset: int
    request: int
    """The request of the whole frame, which resets all its queues, or none."""


@dataclass(frozen=True, slots=True)
class ProgressReset(Event):
    """A broker confirmed a reset of the group's progress: its generation has risen."""

    queue: QueueKey
    offset: int
    before: int = -1
    """The group's progress before; −1 if it had none."""
    request: int = 0
    """The request of ResetSent."""
