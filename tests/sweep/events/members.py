"""The members of a broadcasting group, which the workload writes. Each is a consumer machine: its progress is on its disk."""

from dataclasses import dataclass

from sweep.history import CallResult, Event, QueueKey


@dataclass(frozen=True, slots=True)
class MemberStarted(Event):
    """`start()` of a broadcasting consumer is about to be called."""

    group: str
    ordered: bool
    each: bool
    """`commit="each"` of an ordered listener: the next call of a queue waits until the file has the progress of the one before."""
    stop_ms: int
    timeout_ms: int
    """A concurrent call that runs longer is dropped."""
    where: str = "FIRST_OFFSET"
    """Start policy."""


@dataclass(frozen=True, slots=True)
class MemberStopBegan(Event):
    """`stop()` was called."""

    group: str


@dataclass(frozen=True, slots=True)
class MemberStopped(Event):
    """`stop()` returned, the consumer died, or its start was refused."""

    group: str


@dataclass(frozen=True, slots=True)
class MemberAssigned(Event):
    """The consumer notified its user that it continues in the queue at `offset`."""

    queue: QueueKey
    epoch: int
    """Names the grant."""
    offset: int


@dataclass(frozen=True, slots=True)
class MemberRevoked(Event):
    """The consumer notified its user that the queue is no longer its own: responses to pulls of this grant are not read any more."""

    queue: QueueKey
    epoch: int


@dataclass(frozen=True, slots=True)
class MemberCallBegan(Event):
    """The listener was called; written by its first statement."""

    queue: QueueKey
    epoch: int
    """The epoch of the grant; 0 if the grant is over by the call's context."""
    messages: tuple[tuple[int, bytes], ...]
    """(queue offset, body), as received."""
    call: int
    """Unique in the run, also among the calls of other groups."""


@dataclass(frozen=True, slots=True)
class MemberCallEnded(Event):
    """The result of the listener. The messages of a concurrent one are not repeated unless it is CANCELLED."""

    queue: QueueKey
    call: int
    result: CallResult
