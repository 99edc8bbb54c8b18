"""The events that a consumer reports: frozen values for `consumer.on_event(callback)`. Each is logged too."""

from dataclasses import dataclass

from lockstep.protocol.topics.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class QueueAssigned:
    """The queue was granted to this consumer: consumption begins at `offset`."""

    queue: MessageQueue
    offset: int
    epoch: int | None
    """The fencing token of the grant (Fence.epoch), which rises with each grant of the queue; in broadcasting the member's own. None in a
    concurrent group, which does not lock queues."""
    generation: int | None
    """The generation of the group's progress in the queue, which rises with each reset; None in broadcasting."""


@dataclass(frozen=True, slots=True)
class QueueRevoked:
    """The queue is no longer this consumer's. `fenced`: another grant or a reset ended this one, not a release by this consumer."""

    queue: MessageQueue
    fenced: bool
    epoch: int | None
    generation: int | None
    """As in QueueAssigned."""


@dataclass(frozen=True, slots=True)
class QueueGap:
    """Messages `first` ≤ offset < `end` are missing: they were removed by retention or a purge, or lost to damage, before the group had
    consumed them. Or the queue ends at `first` and this member was at `end`, because its broker has lost them (such as by a restored
    backup): new messages will have these offsets."""

    queue: MessageQueue
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class QueueBlocked:
    """The batch that begins at `offset` has failed `attempts` times. Later messages wait: those of the queue, or with
    order_by="sharding_key" those of its key."""

    queue: MessageQueue
    offset: int
    attempts: int
    error: str
    key: str | None = None
    """The sharding key of the message at `offset`."""


@dataclass(frozen=True, slots=True)
class MessageDeadLettered:
    """The message at `offset` failed for the last time, and is in the group's dead-letter topic. The queue continues after it."""

    queue: MessageQueue
    offset: int
    attempts: int
    error: str


@dataclass(frozen=True, slots=True)
class KeyParked:
    """The message at `offset` has failed for the last time, and its key was set aside: its messages from here on wait for a replay."""

    queue: MessageQueue
    key: str
    offset: int
    attempts: int
    error: str


@dataclass(frozen=True, slots=True)
class KeyResumed:
    """All messages of a parked key below `offset` are accepted, or in the dead-letter topic. The key continues in the main flow."""

    queue: MessageQueue
    key: str
    offset: int


ConsumerEvent = QueueAssigned | QueueRevoked | QueueGap | QueueBlocked | MessageDeadLettered | KeyParked | KeyResumed
