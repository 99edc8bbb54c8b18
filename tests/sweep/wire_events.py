"""What the wiretap writes into the history: which frames the brokers answered, and what reached the clients, and when."""

from dataclasses import dataclass

from sweep.history import Answer, Event, QueueKey

# -------------------------------------------------------------------------------------------------------- written by the wiretap


@dataclass(frozen=True, slots=True)
class SessionBound(Event):
    """A client received the answer to a HEART_BEAT with a session: this connection carries its locks."""

    broker: str
    session: str
    client_id: str
    connection: int
    """The tap's number of the connection, unique in the run."""
    number: int
    """The session's own number of it."""


@dataclass(frozen=True, slots=True)
class ConnectionCut(Event):
    """A connection to a broker is gone. `machine`, `process`: the client's."""

    broker: str
    connection: int
    session: str | None


@dataclass(frozen=True, slots=True)
class LeaveSent(Event):
    """UNREGISTER_CLIENT of a consumer group was written, or a HEART_BEAT that does not name it any more."""

    group: str
    broker: str
    session: str | None


@dataclass(frozen=True, slots=True)
class LockSent(Event):
    """A client wrote LOCK: everything that it holds (with its epoch) or wants (None) at this broker."""

    broker: str
    session: str | None
    items: tuple[tuple[QueueKey, int | None], ...]


@dataclass(frozen=True, slots=True)
class ProofReceived(Event):
    """An answer (SUCCESS) to SYNC or LOCK reached the client."""

    broker: str
    session: str | None
    connection: int
    asked_boot_ms: int
    """The client's boot clock when the request was written."""
    asked_t: float
    lock: bool
    grace_ms: int | None = None
    """A LOCK's answer names it."""


@dataclass(frozen=True, slots=True)
class GrantAnswered(Event):
    """The broker wrote OK for one queue of a LOCK."""

    queue: QueueKey
    epoch: int
    offset: int
    generation: int
    attempts: int
    session: str | None
    client: int
    """Process of the client."""
    renewal: bool
    grace_ms: int
    asked_t: float
    """When the LOCK was written."""


@dataclass(frozen=True, slots=True)
class GrantReceived(Event):
    """The same answer reached the client."""

    queue: QueueKey
    epoch: int
    offset: int
    generation: int
    attempts: int
    session: str | None
    renewal: bool
    grace_ms: int


@dataclass(frozen=True, slots=True)
class LockRefused(Event):
    """The broker wrote anything but OK for one queue of a LOCK."""

    queue: QueueKey
    epoch: int | None
    """As asked; None: the queue was wanted, not held."""
    answer: Answer
    session: str | None
    client: int


@dataclass(frozen=True, slots=True)
class CommitSent(Event):
    """One item of SYNC, or of LOCK with an offset, or UPDATE_CONSUMER_OFFSET, was written by a client."""

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
    boot_ms: int


@dataclass(frozen=True, slots=True)
class CommitAnswered(Event):
    """The broker wrote the item's answer."""

    queue: QueueKey
    epoch: int | None
    generation: int | None
    offset: int | None
    attempts: int
    released: bool
    by: str
    session: str | None
    client: int
    answer: Answer
    asked_t: float
    """When the request was written."""


@dataclass(frozen=True, slots=True)
class CommitReceived(Event):
    """The item's answer reached the client."""

    queue: QueueKey
    epoch: int | None
    generation: int | None
    offset: int | None
    attempts: int
    released: bool
    by: str
    session: str | None
    answer: Answer
    asked_t: float


@dataclass(frozen=True, slots=True)
class StaleReceived(Event):
    """A client was told that an epoch is over: STALE or NOT_YOURS to LOCK, STALE to SYNC, STALE_EPOCH to PULL."""

    queue: QueueKey
    epoch: int
    by: str
    session: str | None


@dataclass(frozen=True, slots=True)
class PullReceived(Event):
    """An answer to PULL reached a client. Records are not decoded."""

    queue: QueueKey
    epoch: int | None
    code: int
    offset: int
    """Asked for."""
    next_offset: int | None
    asked_t: float
    gap: tuple[int, int] | None = None
    answered_t: float = 0.0
    """When the broker wrote it."""


@dataclass(frozen=True, slots=True)
class QueueFreeSent(Event):
    """The broker pushed QUEUE_FREE."""

    queue: QueueKey
    session: str | None
    client: int


@dataclass(frozen=True, slots=True)
class FrameWritten(Event):
    """A producer wrote SEND_RECORDS."""

    queue: QueueKey
    bodies: tuple[bytes, ...]
    layout: tuple[int, int] | None
    """(counter, writer) that a keyed send hashed over."""
    producer: str | None
    sequence: tuple[int, int, int]
    """(partition, epoch, first sequence)."""
    request: int
    """Unique in the run; FrameAnswered names it."""
    durable: bool | None = None
    """What it asked the broker to wait for; False: only until it is written."""


@dataclass(frozen=True, slots=True)
class FrameAnswered(Event):
    """The broker answered SEND_RECORDS."""

    queue: QueueKey
    code: int
    offset: int
    """Of the first record; −1 where it was not stored now or the place is not known."""
    position: int
    """Of the first record in the broker's log; −1 likewise."""
    count: int
    request: int
    asked_t: float
