"""What a consumer tells beside messages: frozen values for `consumer.on_event(callback)`; each is logged too."""

from dataclasses import dataclass

from lockstep.protocol.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class QueueAssigned:
    """Consumption begins at `offset` under `epoch`: the broker granted the queue. Of a concurrent group `epoch` is the generation."""

    queue: MessageQueue
    epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class QueueRevoked:
    """The queue is no longer this consumer's. `fenced`: by a higher epoch, not by a release of its own."""

    queue: MessageQueue
    epoch: int
    fenced: bool


@dataclass(frozen=True, slots=True)
class QueueGap:
    """Messages `first` ≤ offset < `end` were removed by retention before the group consumed them."""

    queue: MessageQueue
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class QueueBlocked:
    """The batch that begins at `offset` has failed `attempts` times; everything behind it in the queue waits."""

    queue: MessageQueue
    offset: int
    attempts: int
    error: str


@dataclass(frozen=True, slots=True)
class MessageDeadLettered:
    """The message at `offset` failed for the last time, and is in the group's dead-letter topic; the queue goes on behind it."""

    queue: MessageQueue
    offset: int
    attempts: int
    error: str


ConsumerEvent = QueueAssigned | QueueRevoked | QueueGap | QueueBlocked | MessageDeadLettered
