"""Pulls, and commits and resets of progress, on the connections to brokers (wire.py)."""

from dataclasses import dataclass

from sweep.events.wire import OfRequest
from sweep.history import ItemVerdict


@dataclass(frozen=True, slots=True)
class PullReceived(OfRequest):
    """A response to PULL reached a client. Records are not decoded."""

    epoch: int | None
    code: int
    offset: int
    """The offset of the request."""
    next_offset: int | None
    gap: tuple[int, int] | None = None
    response_t: float = 0.0
    """When the broker wrote it."""
    key: str | None = None
    """The pull was for the messages of this key only."""


@dataclass(frozen=True, slots=True)
class ProgressResponded(OfRequest):
    """The broker responded to QUERY_CONSUMER_OFFSET of a member of a concurrent group."""

    generation: int
    offset: int


@dataclass(frozen=True, slots=True)
class _Commit(OfRequest):
    """One item of SYNC, or of LOCK with an offset, or UPDATE_CONSUMER_OFFSET."""

    epoch: int | None
    generation: int | None
    """Concurrent groups commit under it."""
    offset: int | None
    """None: a release that only fences."""
    attempts: int
    released: bool
    by: str
    """"SYNC", "LOCK" or "UPDATE"."""
    done: tuple[int, ...]
    """Finished offsets above `offset`, as bounds of ranges."""


@dataclass(frozen=True, slots=True)
class CommitSent(_Commit):
    boot_ms: int


@dataclass(frozen=True, slots=True)
class CommitResponded(_Commit):
    verdict: ItemVerdict


@dataclass(frozen=True, slots=True)
class CommitReceived(_Commit):
    verdict: ItemVerdict


@dataclass(frozen=True, slots=True)
class ResetSent(OfRequest):
    """RESET_OFFSETS was written: from now on it may be executed for all its queues, or none, whether or not its response arrives."""

    offset: int


@dataclass(frozen=True, slots=True)
class ProgressReset(OfRequest):
    """The broker confirmed the reset of the group's progress: its generation has risen."""

    offset: int
    before: int = -1
    """The group's progress before; −1 if it had none."""
