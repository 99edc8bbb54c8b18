"""What happened to the members and the queues of groups at one broker, in order."""

from dataclasses import dataclass
from enum import Enum


class GroupEventKind(Enum):
    """What happened. The first four are events of a member, the others of a queue."""

    JOINED = "joined"
    LEFT = "left"
    DISCONNECTED = "disconnected"
    """The connection of its session was closed. It remains a member, with its queues, for the grace."""
    RECONNECTED = "reconnected"
    GRANTED = "granted"
    RENEWED = "renewed"
    """The queue was free, and is held again under the epoch that it was freed from."""
    FREED = "freed"
    """Its owner let go of it."""
    LOST = "lost"
    """Its owner was gone, or silent for too long."""
    SUPERSEDED = "superseded"
    """Its epoch has ended by a reset. The member keeps the queue until it learns of that."""
    ENDED = "ended"
    """Its epoch has ended, and the queue is free."""


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """One event."""

    number: int
    """Events of a term are numbered from 1."""
    wall_ms: int
    """When it happened by the broker's wall clock, in ms since 1970."""
    kind: GroupEventKind
    group: str
    client_id: str | None
    """The member, or the owner of the queue until now."""
    why: str | None = None
    topic: str | None = None
    """None for events of a member."""
    queue_id: int | None = None
    epoch: int | None = None
    since_ms: int | None = None
    """GRANTED and RENEWED: when the queue became free, if that is known. FREED, LOST, ENDED and DISCONNECTED: when the client was last
    heard."""


@dataclass(frozen=True, slots=True)
class GroupEvents:
    """GROUP_EVENTS (30015): events of one term of a broker, which are kept in memory."""

    term: int
    wall_ms: int
    """The broker's wall clock now."""
    began_ms: int
    """When the broker started, in ms since 1970. It has no earlier events."""
    first: int
    """The number of the oldest event that is kept. Those before it have been dropped."""
    last: int
    """The number of the last event that was looked at: pass it as `after`, with the term, to get those that follow."""
    events: tuple[GroupEvent, ...]
    dropped: dict[str, int]
    """Groups with so many events that some after `first` have been dropped → the number of the last such event."""
