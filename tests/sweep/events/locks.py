"""Sessions and locks of queues, on the connections to brokers."""

from dataclasses import dataclass, field

from sweep.history import Event, ItemVerdict, QueueKey


@dataclass(frozen=True, slots=True)
class SessionBound(Event):
    """A client received the response to a HEART_BEAT with a session: this connection carries its locks."""

    broker: str
    session: str
    client_id: str
    connection: int
    """The number of the connection, unique in the run."""
    number: int
    """The session's own number of the connection."""


@dataclass(frozen=True, slots=True)
class ConnectionCut(Event):
    """A connection to a broker is gone. `machine`, `process`: the client's."""

    broker: str
    connection: int
    session: str | None


@dataclass(frozen=True, slots=True)
class LeaveSent(Event):
    """A client wrote UNREGISTER_CLIENT of a consumer group, or a HEART_BEAT that does not name the group any more."""

    group: str
    broker: str
    session: str | None


@dataclass(frozen=True, slots=True)
class LockSent(Event):
    """A client wrote LOCK with all queues that it holds (with the epoch) or requests (None) at this broker."""

    broker: str
    session: str | None
    items: tuple[tuple[QueueKey, int | None], ...]


@dataclass(frozen=True, slots=True)
class ProofReceived(Event):
    """A response (SUCCESS) to SYNC or LOCK reached the client."""

    broker: str
    session: str | None
    connection: int
    request_boot_ms: int
    """The client's boot clock when the request was written."""
    request_t: float
    lock: bool
    grace_ms: int | None = None
    """Only in the response to a LOCK."""


@dataclass(frozen=True, slots=True)
class _Grant(Event):
    """OK for one queue of a LOCK."""

    queue: QueueKey
    epoch: int
    offset: int
    generation: int
    attempts: int
    session: str | None
    done: tuple[int, ...] = field(default=(), kw_only=True)
    """Finished offsets above `offset`, as bounds of ranges."""
    replays: tuple[tuple[str, int, bool], ...] = field(default=(), kw_only=True)
    """(key, offset, drop) of the parked keys that the owner has to replay from there on, or to drop."""


@dataclass(frozen=True, slots=True)
class LockGranted(_Grant):
    """The broker wrote OK for one queue of a LOCK."""

    client: int
    """Process of the client."""
    renewal: bool
    grace_ms: int
    request_t: float
    """When the LOCK was written."""


@dataclass(frozen=True, slots=True)
class GrantReceived(_Grant):
    """The same response reached the client."""

    renewal: bool
    grace_ms: int


@dataclass(frozen=True, slots=True)
class LockRefused(Event):
    """The broker wrote anything but OK for one queue of a LOCK."""

    queue: QueueKey
    epoch: int | None
    """The epoch of the request; None if the queue was wanted, not held."""
    verdict: ItemVerdict
    session: str | None
    client: int


@dataclass(frozen=True, slots=True)
class StaleReceived(Event):
    """A client received that an epoch is over: STALE or NOT_YOURS to LOCK, STALE to SYNC, STALE_EPOCH to PULL."""

    queue: QueueKey
    epoch: int
    by: str
    session: str | None


@dataclass(frozen=True, slots=True)
class QueueFreeSent(Event):
    """The broker pushed QUEUE_FREE."""

    queue: QueueKey
    session: str | None
    client: int


@dataclass(frozen=True, slots=True)
class ClassicLocked(Event):
    """The broker responded to one queue of a classic client's LOCK_BATCH_MQ."""

    queue: QueueKey
    client_id: str
    client: int
    """Process of the client."""
    granted: bool
    request_t: float


@dataclass(frozen=True, slots=True)
class ClassicUnlockSent(Event):
    queue: QueueKey
    client_id: str


@dataclass(frozen=True, slots=True)
class ClassicUnlocked(Event):
    """The broker responded to UNLOCK_BATCH_MQ."""

    queue: QueueKey
    client_id: str
    request_t: float
