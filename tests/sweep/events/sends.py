"""Layouts and messages that are sent, sent back or dead-lettered, on the connections to brokers."""

from dataclasses import dataclass

from sweep.history import Event, QueueKey


@dataclass(frozen=True, slots=True)
class FrameWritten(Event):
    """A producer wrote SEND_RECORDS."""

    queue: QueueKey
    bodies: tuple[bytes, ...]
    layout: tuple[int, int] | None
    """(counter, writer) of the layout that chose the queue of a keyed send."""
    producer: str | None
    sequence: tuple[int, int, int]
    """(partition, epoch, first sequence)."""
    request: int
    """Unique in the run; FrameResponded names it."""
    durable: bool | None = None
    """Whether the broker was asked to wait for the disk; False: only until the frame is written; None: as the broker is configured."""


@dataclass(frozen=True, slots=True)
class FrameResponded(Event):
    """The broker responded to SEND_RECORDS."""

    queue: QueueKey
    code: int
    offset: int
    """The offset of the first record; −1 if it was not stored now or its place is not known."""
    position: int
    """The log offset of the first record; −1 in the same cases."""
    count: int
    request: int
    request_t: float


@dataclass(frozen=True, slots=True)
class DelayedSendWritten(Event):
    """A producer wrote SEND_MESSAGE with a delay level."""

    queue: QueueKey
    body: bytes
    level: int
    request: int
    """Unique in the run; DelayedSendResponded names it."""


@dataclass(frozen=True, slots=True)
class DelayedSendResponded(Event):
    queue: QueueKey
    code: int
    request: int


@dataclass(frozen=True, slots=True)
class SendBackSent(Event):
    """A consumer wrote CONSUMER_SEND_MSG_BACK."""

    group: str
    broker: str
    position: int
    level: int
    """0: the delay depends on the number of retries; below 0: dead-letter it now."""
    retries_max: int | None
    request: int


@dataclass(frozen=True, slots=True)
class SendBackResponded(Event):
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
class DeadLetterResponded(Event):
    queue: QueueKey
    epoch: int
    offset: int
    advance: bool
    code: int
    request: int
    client: int


@dataclass(frozen=True, slots=True)
class LayoutSent(Event):
    """A client sent a layout to a broker."""

    broker: str
    topic: str
    counter: int
    deleted: bool
    """The layout has no queues: the topic, its messages, progress and locks are deleted."""
