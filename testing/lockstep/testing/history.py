"""What happened in one run of a cluster: typed events in the order in which they happened. Pure: checkers read nothing else.

    who writes what    wiretap.py   what was written, answered and received on the connections: grants, commits, STALE, proofs, sends
                       universe     processes, faults, pauses, brokers that opened, the calm, the final reading of every log
                       workload     sends and their results, calls of listeners, consumers' starts and stops, gaps that were told

`t` is global virtual time in seconds. `boot_ms` is the boot clock of the event's own machine, drift and all: rules about a deadline are
checked on the clock by which the process has to keep them. Two events of equal `t` stand in the order in which they happened.
`machine` and `process` name the process where the event was seen: a …Sent or …Received event is the client's, an …Answered one the
broker's.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import Enum
from typing import NamedTuple, TypeVar

WORLD = 0
"""`process` of events that belong to no process."""


class QueueKey(NamedTuple):
    """A queue as a group sees it; `group` is empty where the stored queue itself is meant."""

    group: str
    broker: str
    topic: str
    queue: int

    @property
    def stored(self) -> "QueueKey":
        """The queue without the group."""
        return QueueKey("", self.broker, self.topic, self.queue) if self.group else self

    def __str__(self) -> str:
        return f"{self.group + ' ' if self.group else ''}{self.topic}@{self.broker}:{self.queue}"


class Outcome(Enum):
    """What a failed send left behind, as its producer was told."""

    NOT_STORED = "not stored"
    UNKNOWN = "unknown"


class Answer(Enum):
    """How a broker answered one item that named an epoch or an offset."""

    OK = "ok"
    STALE = "stale"
    NOT_YOURS = "not yours"
    """LOCK: the offset was committed, and the queue is another's."""
    REFUSED = "refused"
    HELD = "held"
    WAIT = "wait"


class CallResult(Enum):
    """How a call of a listener ended. A call of a process that dies has no end: ProcessEnded closes it."""

    SUCCESS = "success"
    """What the call was given may be committed."""
    COUNTED = "counted"
    """Manual commit: done, and committed by a later SUCCESS (COMMIT) only."""
    SUSPEND = "suspend"
    ROLLBACK = "rollback"
    ERROR = "error"
    CANCELLED = "cancelled"
    """The consumer gave the call up: it ran past its drain limit."""


@dataclass(frozen=True, slots=True)
class Event:
    t: float
    machine: str
    process: int

    def __str__(self) -> str:
        facts = " ".join(f"{field.name}={_plain(getattr(self, field.name))}" for field in fields(self)[3:])
        where = f"{self.machine}#{self.process} " if self.machine else ""
        return f"{self.t:.6f} {where}{type(self).__name__} {facts}"


def _plain(value: object) -> str:
    return str(value.value) if isinstance(value, Enum) else f"{value:.6f}" if isinstance(value, float) else str(value)


# ------------------------------------------------------------------------------------------------------- written by the universe


@dataclass(frozen=True, slots=True)
class ProcessStarted(Event):
    """`process` is new in the whole run."""

    role: str = ""
    """"broker", "nameserver", "consumer", "producer", "admin"."""


@dataclass(frozen=True, slots=True)
class ProcessEnded(Event):
    how: str = "exit"
    """"exit": its main ended; "kill": kill −9, its sockets are closed by the machine; "power": the machine is gone, nobody is told."""


@dataclass(frozen=True, slots=True)
class PowerCut(Event):
    """The machine lost its power and what was not synced, whether or not a process ran on it. ProcessEnded of each one beside it."""


@dataclass(frozen=True, slots=True)
class PauseBegan(Event):
    """The process stands still: SIGSTOP. Its clocks go on."""


@dataclass(frozen=True, slots=True)
class PauseEnded(Event):
    pass


@dataclass(frozen=True, slots=True)
class ClockSet(Event):
    """From now on the machine's boot clock, now at `boot_ms`, goes at `rate`: written at its boot and whenever the rate changes."""

    boot_ms: float = 0.0
    rate: float = 1.0


@dataclass(frozen=True, slots=True)
class BrokerOpened(Event):
    """The port is open."""

    broker: str = ""
    term: int = 0
    flush: str = "async"
    """"sync" or "async"."""
    flush_interval_ms: int = 500
    grace_ms: int = 3_000
    session_timeout_ms: int = 20_000


@dataclass(frozen=True, slots=True)
class Fault(Event):
    """Something was done to the cluster, or undone. `machine` is the one it was done to, empty where it is a link.

    `kind` begins with "disk" where a disk became slow or began to fail: what a broker may lose has no limit in time then. "wipe": the
    store was emptied. "heal": something was undone.
    """

    kind: str = ""
    target: str = ""
    facts: str = ""


@dataclass(frozen=True, slots=True)
class Calm(Event):
    """From now on nothing is done to the cluster and everything runs."""


@dataclass(frozen=True, slots=True)
class Stored(Event):
    """Final reading: one message as its broker's log has it, after the last restart. `queue.group` is empty."""

    queue: QueueKey
    offset: int
    body: bytes
    key: str | None = None


@dataclass(frozen=True, slots=True)
class ReadingEnded(Event):
    """The final reading of one queue is whole: offsets `first` … `end` − 1 are what its broker says that it has."""

    queue: QueueKey
    first: int
    end: int


# ------------------------------------------------------------------------------------------------------- written by the workload


@dataclass(frozen=True, slots=True)
class SendBegan(Event):
    """`send` was called. `body` is unique in the run, whatever the number of tries."""

    body: bytes
    key: str | None
    """Sharding key; None: an unkeyed send."""
    topic: str = ""
    tags: str = ""


@dataclass(frozen=True, slots=True)
class SendAcked(Event):
    body: bytes
    queue: QueueKey
    """Group empty."""
    offset: int
    """−1: the broker answered DUPLICATE and does not know the place any more."""
    status: str = "SEND_OK"


@dataclass(frozen=True, slots=True)
class SendFailed(Event):
    body: bytes
    outcome: Outcome
    error: str = ""


@dataclass(frozen=True, slots=True)
class ConsumerStarted(Event):
    """`start()` of a group's consumer is about to be called."""

    group: str
    expressions: tuple[tuple[str, str], ...]
    """(topic, tag expression: "*" or tags with ||)."""
    ordered: bool = True
    drain_ms: int = 30_000
    """Limit of a call that runs when its queue is taken away."""
    stop_ms: int = 8_000
    """The same when the consumer stops."""
    threaded: bool = False
    """A plain listener: it starts in a thread, some time after the decision."""


@dataclass(frozen=True, slots=True)
class ConsumerStopBegan(Event):
    """`stop()` was called."""

    group: str


@dataclass(frozen=True, slots=True)
class ConsumerStopped(Event):
    """`stop()` returned, or the consumer died."""

    group: str


@dataclass(frozen=True, slots=True)
class CallBegan(Event):
    """The listener's first statement."""

    queue: QueueKey
    epoch: int
    """`context.fence.epoch`; 0 in a concurrent group."""
    messages: tuple[tuple[int, bytes], ...]
    """(queue offset, body), as given."""
    call: int
    """Unique in the run."""
    boot_ms: int
    attempt: int = 0

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
    boot_ms: int


@dataclass(frozen=True, slots=True)
class QueueGapSeen(Event):
    """A consumer was told that [first, end) was removed before its group consumed it."""

    queue: QueueKey
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class ProgressReset(Event):
    """Somebody moved the group's progress by hand: its generation rises."""

    queue: QueueKey
    offset: int


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


@dataclass(frozen=True, slots=True)
class Reached(Event):
    """A rare place was reached; `name` is counted over a sweep."""

    name: str
    facts: str = ""


E = TypeVar("E", bound=Event)


class History:
    """The events of one run. Times never fall."""

    __slots__ = ("_by_type", "events")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._by_type: dict[type[Event], list[Event]] = {}

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def append(self, event: Event) -> None:
        assert not self.events or event.t >= self.events[-1].t, f"{event} after {self.events[-1]}"
        self.events.append(event)
        self._by_type.setdefault(type(event), []).append(event)

    def of(self, kind: type[E]) -> list[E]:
        """All events of exactly this type, in order."""
        return self._by_type.get(kind, [])  # type: ignore[return-value]

    def lines(self, queue: QueueKey | None = None, *, since: float = 0.0, until: float = float("inf")) -> list[str]:
        """One line an event, for people: what concerns `queue` (with or without its group) and everything that concerns no queue."""
        shown = []
        for event in self.events:
            own = getattr(event, "queue", None)
            if since <= event.t <= until and (queue is None or own is None or own in (queue, queue.stored)):
                shown.append(str(event))
        return shown
