"""Sessions and locks of queues, on the connections to brokers (wire.py)."""

from dataclasses import dataclass

from sweep.events.wire import AtBroker, OfRequest
from sweep.history import ItemVerdict, QueueKey


@dataclass(frozen=True, slots=True)
class SessionBound(AtBroker):
    """A client received the response to a HEART_BEAT with a session: this connection carries its locks."""

    client_id: str
    connection: int
    """The number of the connection, unique in the run."""
    number: int
    """The session's own number of the connection."""


@dataclass(frozen=True, slots=True)
class ConnectionCut(AtBroker):
    """A connection to a broker is gone. `machine`, `process`: the client's."""

    connection: int


@dataclass(frozen=True, slots=True)
class LeaveSent(AtBroker):
    """A client wrote UNREGISTER_CLIENT of a consumer group, or a HEART_BEAT that does not name the group any more."""

    group: str


@dataclass(frozen=True, slots=True)
class LockSent(AtBroker):
    """A client wrote LOCK with all queues that it holds (with the epoch) or requests (None) at this broker."""

    items: tuple[tuple[QueueKey, int | None], ...]


@dataclass(frozen=True, slots=True)
class ProofReceived(AtBroker):
    """A response (SUCCESS) to SYNC or LOCK reached the client."""

    connection: int
    request_boot_ms: int
    """The client's boot clock when the request was written."""
    request_t: float
    lock: bool
    grace_ms: int | None = None
    """Only in the response to a LOCK."""


@dataclass(frozen=True, slots=True)
class _Grant(OfRequest):
    """OK for one queue of a LOCK."""

    epoch: int
    offset: int
    generation: int
    attempts: int
    renewal: bool
    grace_ms: int
    done: tuple[int, ...]
    """Finished offsets above `offset`, as bounds of ranges."""
    replays: tuple[tuple[str, int, bool], ...]
    """(key, offset, drop) of the parked keys that the owner has to replay from there on, or to drop."""


@dataclass(frozen=True, slots=True)
class LockGranted(_Grant):
    """The broker wrote it."""


@dataclass(frozen=True, slots=True)
class GrantReceived(_Grant):
    """It reached the client."""


@dataclass(frozen=True, slots=True)
class LockRefused(OfRequest):
    """The broker wrote anything but OK for one queue of a LOCK."""

    epoch: int | None
    """The epoch of the request; None if the queue was wanted, not held."""
    verdict: ItemVerdict


@dataclass(frozen=True, slots=True)
class StaleReceived(OfRequest):
    """A client received that an epoch is over: STALE or NOT_YOURS to LOCK, STALE to SYNC, STALE_EPOCH to PULL or PARK_END."""

    epoch: int
    by: str


@dataclass(frozen=True, slots=True)
class _Classic(OfRequest):
    """One queue of a classic client's LOCK_BATCH_MQ or UNLOCK_BATCH_MQ."""

    client_id: str


@dataclass(frozen=True, slots=True)
class ClassicLocked(_Classic):
    """The broker responded to LOCK_BATCH_MQ."""

    granted: bool


@dataclass(frozen=True, slots=True)
class ClassicUnlockSent(_Classic):
    pass


@dataclass(frozen=True, slots=True)
class ClassicUnlocked(_Classic):
    """The broker responded to UNLOCK_BATCH_MQ."""
