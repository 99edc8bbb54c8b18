"""Layouts and messages that are sent, sent back or dead-lettered, on the connections to brokers (wire.py)."""

from dataclasses import dataclass

from sweep.events.wire import OfRequest
from sweep.history import Event


@dataclass(frozen=True, slots=True)
class LayoutSent(Event):
    """A client sent a layout to a broker."""

    broker: str
    topic: str
    counter: int
    deleted: bool
    """The layout has no queues: the topic, its messages, progress and locks are deleted."""


@dataclass(frozen=True, slots=True)
class FrameWritten(OfRequest):
    """A producer wrote SEND_RECORDS."""

    bodies: tuple[bytes, ...]
    layout: tuple[int, int] | None
    """(counter, writer) of the layout that chose the queue of a keyed send."""
    producer: str | None
    sequence: tuple[int, int, int]
    """(partition, epoch, first sequence)."""
    durable: bool | None = None
    """Whether the broker was asked to wait for the disk; False: only until the frame is written; None: as the broker is configured."""


@dataclass(frozen=True, slots=True)
class FrameResponded(OfRequest):
    """The broker responded to SEND_RECORDS."""

    code: int
    offset: int
    """The offset of the first record; −1 if it was not stored now or its place is not known."""
    position: int
    """The log offset of the first record; −1 in the same cases."""
    stamp_ms: int = 0
    """The store time of the frame, by the clock of the broker."""


@dataclass(frozen=True, slots=True)
class TimersWritten(FrameWritten):
    """A producer wrote a frame of messages that wait. `queue` is the queue to which they will be delivered."""

    began: int = 0
    """The layout counter by which the topic was created."""


@dataclass(frozen=True, slots=True)
class TimersResponded(FrameResponded):
    """The broker responded to it. `offset` is that in the room where they wait."""


@dataclass(frozen=True, slots=True)
class HalvesWritten(FrameWritten):
    """A producer wrote a frame of half messages. `queue` is the queue to which they will be delivered."""

    began: int = 0
    """The layout counter by which the topic was created."""


@dataclass(frozen=True, slots=True)
class HalvesResponded(FrameResponded):
    """The broker responded to it. `offset` is that in the room of half messages."""


@dataclass(frozen=True, slots=True)
class EndResponded(Event):
    """The broker responded to END_TRANSACTION."""

    broker: str
    client: int
    outcome: int
    message_ids: tuple[str, ...]
    code: int


@dataclass(frozen=True, slots=True)
class RecallResponded(Event):
    """The broker responded to RECALL_MESSAGE."""

    broker: str
    client: int
    code: int


@dataclass(frozen=True, slots=True)
class _SendBack(Event):
    """CONSUMER_SEND_MSG_BACK."""

    group: str
    broker: str
    client: int
    request: int
    position: int
    level: int
    """0: the delay depends on the number of retries; below 0: dead-letter it now."""
    retries_max: int | None


@dataclass(frozen=True, slots=True)
class SendBackSent(_SendBack):
    pass


@dataclass(frozen=True, slots=True)
class SendBackResponded(_SendBack):
    code: int


@dataclass(frozen=True, slots=True)
class _DeadLetter(OfRequest):
    """DEAD_LETTER of an ordered consumer."""

    epoch: int
    offset: int
    attempts: int
    advance: bool


@dataclass(frozen=True, slots=True)
class DeadLetterSent(_DeadLetter):
    pass


@dataclass(frozen=True, slots=True)
class DeadLetterResponded(_DeadLetter):
    code: int
