"""Concurrent groups, delayed sends and dead letters: what the workload, the wiretap and the final reading write of them.

A *copy* is what the broker itself stores of a message: for a further try in `%RETRY%group`, for good in `%DLQ%group`.
"""

from dataclasses import dataclass

from sweep.history import CallResult, Event, QueueKey


@dataclass(frozen=True, slots=True)
class Given:
    """One message as a concurrent listener gets it."""

    offset: int
    body: bytes
    position: int
    """Its place in its broker's log."""
    retries: int
    """How often it was sent back before."""


# ------------------------------------------------------------------------------------------------------- written by the workload


@dataclass(frozen=True, slots=True)
class SharedCallBegan(Event):
    """A concurrent listener's first statement. `queue`'s topic may be `%RETRY%group`."""

    queue: QueueKey
    given: tuple[Given, ...]
    call: int
    """Unique in the run, also among the calls of ordered groups."""


@dataclass(frozen=True, slots=True)
class SharedCallEnded(Event):
    """`done`: so many of the given messages, from the first one on, the listener has handled. Its consumer may know better."""

    queue: QueueKey
    call: int
    done: int
    result: CallResult


@dataclass(frozen=True, slots=True)
class DelayedAcked(Event):
    """A delayed send returned: the message waits at this broker for its time."""

    body: bytes
    queue: QueueKey
    """Where it will go. Group empty."""
    status: str = "SEND_OK"


@dataclass(frozen=True, slots=True)
class WallJumped(Event):
    """A machine's wall clock was set by `jump_s`."""

    jump_s: float


# -------------------------------------------------------------------------------------------------------- written by the wiretap


@dataclass(frozen=True, slots=True)
class DelayedWritten(Event):
    """A producer wrote SEND_MESSAGE with a delay level."""

    queue: QueueKey
    body: bytes
    level: int
    request: int
    """Unique in the run; DelayedAnswered names it."""


@dataclass(frozen=True, slots=True)
class DelayedAnswered(Event):
    queue: QueueKey
    code: int
    request: int


@dataclass(frozen=True, slots=True)
class ProgressAnswered(Event):
    """The broker told a member of a concurrent group where to go on: QUERY_CONSUMER_OFFSET."""

    queue: QueueKey
    generation: int
    offset: int
    session: str | None
    client: int
    """Process of the client."""
    asked_t: float


@dataclass(frozen=True, slots=True)
class SentBack(Event):
    """A consumer wrote CONSUMER_SEND_MSG_BACK."""

    group: str
    broker: str
    position: int
    level: int
    """0: by the number of its retries; < 0: dead-letter it now."""
    retries_max: int | None
    request: int


@dataclass(frozen=True, slots=True)
class SendBackAnswered(Event):
    group: str
    broker: str
    code: int
    request: int
    client: int


@dataclass(frozen=True, slots=True)
class DeadLetterSent(Event):
    """An ordered consumer wrote DEAD_LETTER."""

    queue: QueueKey
    epoch: int
    offset: int
    attempts: int
    advance: bool
    request: int


@dataclass(frozen=True, slots=True)
class DeadLetterAnswered(Event):
    queue: QueueKey
    epoch: int
    offset: int
    advance: bool
    code: int
    request: int
    client: int


# ------------------------------------------------------------------------------------------------------- written by the universe


@dataclass(frozen=True, slots=True)
class CopyStored(Event):
    """Final reading: one record of `%RETRY%group` or `%DLQ%group`. `queue.group` is empty."""

    queue: QueueKey
    offset: int
    body: bytes
    retries: int
    """Its reconsume times: of the message that was sent back, + 1."""
    origin: str
    """ORIGIN_MESSAGE_ID: broker and log place of the message that was sent."""
