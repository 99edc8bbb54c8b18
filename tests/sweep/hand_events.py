"""What the wiretap writes of people's and of classic clients' requests: resets, layouts, locks without a session."""

from dataclasses import dataclass

from sweep.history import Event, QueueKey

# -------------------------------------------------------------------------------------------------------- written by the wiretap


@dataclass(frozen=True, slots=True)
class ResetSent(Event):
    """RESET_OFFSETS was written: from now on it may come true, whether or not it is ever answered. ProgressReset is its answer."""

    queue: QueueKey
    offset: int
    request: int
    """Of the whole frame: all its queues, or none."""


@dataclass(frozen=True, slots=True)
class LayoutSent(Event):
    """Somebody asked a broker for a layout."""

    broker: str
    topic: str
    counter: int
    deleted: bool
    """Without queues: the topic, its messages, progress and locks go."""


@dataclass(frozen=True, slots=True)
class ClassicLocked(Event):
    """The broker answered one queue of a classic client's LOCK_BATCH_MQ."""

    queue: QueueKey
    client_id: str
    client: int
    """Process of the client."""
    granted: bool
    asked_t: float


@dataclass(frozen=True, slots=True)
class ClassicUnlockSent(Event):
    queue: QueueKey
    client_id: str


@dataclass(frozen=True, slots=True)
class ClassicUnlocked(Event):
    """The broker answered UNLOCK_BATCH_MQ."""

    queue: QueueKey
    client_id: str
    asked_t: float


# ------------------------------------------------------------------------------------------- written by operators, and by the reading


@dataclass(frozen=True, slots=True)
class FirstSendAcked(Event):
    """A SEND_MESSAGE of a topic that did not exist was acknowledged: the broker had created the topic."""

    queue: QueueKey
    body: bytes


@dataclass(frozen=True, slots=True)
class LayoutsRead(Event):
    """Final reading: each topic that the nameserver lists has its LayoutInForce before this."""

    topics_max: int = 16_384
    """The setting of every broker."""


@dataclass(frozen=True, slots=True)
class LayoutInForce(Event):
    """Final reading: how many readable queues of a live topic each broker has, by the nameserver."""

    topic: str
    counts: tuple[tuple[str, int], ...]
