"""A broadcasting group: what the workload writes of its members. A *member* is a consumer machine: its progress lies on its disk."""

from dataclasses import dataclass

from sweep.history import CallResult, Event, QueueKey


@dataclass(frozen=True, slots=True)
class MemberStarted(Event):
    """`start()` of a broadcasting consumer is about to be called."""

    group: str
    ordered: bool
    each: bool
    """`commit="each"` of an ordered listener: the next call of a queue waits until the file has the one before."""
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
    """The consumer told its user that it goes on in the queue at `offset`."""

    queue: QueueKey
    epoch: int
    """Names the grant."""
    offset: int


@dataclass(frozen=True, slots=True)
class MemberCalled(Event):
    """The listener's first statement."""

    queue: QueueKey
    epoch: int
    """The grant; 0: it is over, as the call's context says."""
    messages: tuple[tuple[int, bytes], ...]
    """(queue offset, body), as given."""
    call: int
    """Unique in the run, also among the calls of other groups."""


@dataclass(frozen=True, slots=True)
class MemberReturned(Event):
    """How the listener ended. Of a concurrent one any end but CANCELLED means that its messages don't come again."""

    queue: QueueKey
    call: int
    result: CallResult
