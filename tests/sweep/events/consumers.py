"""The life of push consumers and the calls of their listeners, which the workload writes."""

from dataclasses import dataclass

from sweep.history import CallResult, Event, QueueKey


@dataclass(frozen=True, slots=True)
class ConsumerStarted(Event):
    """`start()` of a group's consumer is about to be called."""

    group: str
    expressions: tuple[tuple[str, str], ...]
    """(topic, tag expression: "*" or tags with ||)."""
    ordered: bool = True
    drain_ms: int = 30_000
    """The limit of a call that runs when its queue is revoked."""
    stop_ms: int = 8_000
    """The same when the consumer stops."""
    threaded: bool = False
    """A plain listener: it starts in a thread, some time after it was scheduled."""
    attempts_max: int | None = None
    """The number of failed calls after which an ordered batch is dead-lettered; None if it never is."""
    where: str = "FIRST_OFFSET"
    """Start policy: "FIRST_OFFSET", "LAST_OFFSET", "TIMESTAMP"."""
    since_t: float = 0.0
    """The time of TIMESTAMP on the universe's clock."""
    lanes: int | None = None
    """order_by="sharding_key": the number of calls at a time. None: each queue has one."""
    parks: int | None = None
    """on_exhausted="park": the number of failed calls after which a key is parked. None: keys are not parked."""


@dataclass(frozen=True, slots=True)
class ConsumerStopBegan(Event):
    """`stop()` was called."""

    group: str


@dataclass(frozen=True, slots=True)
class ConsumerStopped(Event):
    """`stop()` returned, or the consumer died."""

    group: str


@dataclass(frozen=True, slots=True)
class QueueGapSeen(Event):
    """A consumer was notified that [first, end) was removed before its group consumed it."""

    queue: QueueKey
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class CallBegan(Event):
    """The listener was called; written by its first statement."""

    queue: QueueKey
    epoch: int
    """`context.fence.epoch`; 0 in a concurrent group."""
    messages: tuple[tuple[int, bytes], ...]
    """(queue offset, body), as received."""
    call: int
    """Unique in the run."""
    boot_ms: int
    attempt: int = 0
    keys: tuple[str | None, ...] = ()
    """The sharding key of each message."""

    @property
    def first(self) -> int:
        return self.messages[0][0]

    @property
    def last(self) -> int:
        return self.messages[-1][0]


@dataclass(frozen=True, slots=True)
class CallEnded(Event):
    queue: QueueKey
    epoch: int
    call: int
    result: CallResult


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """One message as a concurrent listener received it."""

    offset: int
    body: bytes
    position: int
    """Its place in its broker's log."""
    retries: int
    """How often it was sent back before."""


@dataclass(frozen=True, slots=True)
class ConcurrentCallBegan(Event):
    """A concurrent listener was called; written by its first statement. `queue`'s topic may be `%RETRY%group`."""

    queue: QueueKey
    given: tuple[ReceivedMessage, ...]
    call: int
    """Unique in the run, also among the calls of ordered groups."""


@dataclass(frozen=True, slots=True)
class ConcurrentCallEnded(Event):
    """`done`: the number of the given messages, from the first one on, that the listener has handled."""

    queue: QueueKey
    call: int
    done: int
    result: CallResult
