"""The history of one run of a cluster: typed events in the order in which they happened. Pure: checkers read nothing else.

    wire_recorder.py   writes the requests, responses and arrivals on the connections: grants, commits, STALE, proofs, sends
    universe, run      write processes, faults, pauses, brokers that opened, the calm, and the final reading of every log
    workload           writes sends and their results, calls of listeners, consumers' starts and stops, reported gaps

`t` is global virtual time in seconds. `boot_ms` is the boot clock of the event's own machine, drift and all: rules about a deadline are
checked on the clock by which the process has to keep them. Two events of equal `t` are in the order in which they happened.
`machine` and `process` name the process of the event: a …Sent or …Received event belongs to the client, a …Responded event
to the broker.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import Enum
from typing import NamedTuple, TypeVar

SHOWN_BYTES = 80
"""The part of a body that is printed."""


class QueueKey(NamedTuple):
    """A queue of a group; `group` is empty for the stored queue itself."""

    group: str
    broker: str
    topic: str
    queue: int

    @property
    def stored(self) -> "QueueKey":
        """Return the queue without the group."""
        return QueueKey("", self.broker, self.topic, self.queue) if self.group else self

    def __str__(self) -> str:
        return f"{self.group + ' ' if self.group else ''}{self.topic}@{self.broker}:{self.queue}"


class SendOutcome(Enum):
    """The outcome of a failed send, as its producer got it."""

    NOT_STORED = "not stored"
    UNKNOWN = "unknown"


class RecallOutcome(Enum):
    """The outcome of a recall, as its producer got it."""

    RECALLED = "recalled"
    TOO_LATE = "too late"
    NOT_FOUND = "not found"
    REFUSED = "refused"
    """For another reason."""
    UNKNOWN = "unknown"


class ItemVerdict(Enum):
    """The response of a broker to one item with an epoch or an offset."""

    OK = "ok"
    STALE = "stale"
    NOT_YOURS = "not yours"
    """LOCK: the offset was committed, and the queue has another owner."""
    REFUSED = "refused"
    HELD = "held"
    WAIT = "wait"


class CallResult(Enum):
    """How a call of a listener ended. A call of a process that dies has no end: ProcessEnded closes it."""

    SUCCESS = "success"
    """The messages of the call may be committed."""
    COUNTED = "counted"
    """Manual commit: done, and committed by a later SUCCESS (COMMIT) only."""
    SUSPEND = "suspend"
    ROLLBACK = "rollback"
    ERROR = "error"
    CANCELLED = "cancelled"
    """The consumer cancelled the call: it ran past its drain limit."""
    CANCEL_IGNORED = "cancel ignored"
    """The same, but the listener swallowed the cancellation and succeeded: it counts only if the release had not been sent yet."""


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
    if isinstance(value, bytes) and len(value) > SHOWN_BYTES:
        return f"{value[:SHOWN_BYTES]!r} and so on, {len(value)} bytes"
    if type(value) is tuple:
        return f"({', '.join(_plain(each) for each in value)})"
    return str(value.value) if isinstance(value, Enum) else f"{value:.6f}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class PlaceReached(Event):
    """A rare place was reached; places are counted by `name` over a sweep."""

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
        """Return all events of exactly this type, in order."""
        return self._by_type.get(kind, [])  # type: ignore[return-value]

    def lines(self, queue: QueueKey | None = None, *, since: float = 0.0, until: float = float("inf")) -> list[str]:
        """Return one line for each event of `queue` (with or without its group), and for each event of no queue."""
        shown = []
        for event in self.events:
            own = getattr(event, "queue", None)
            if since <= event.t <= until and (queue is None or own is None or own in (queue, queue.stored)):
                shown.append(str(event))
        return shown
