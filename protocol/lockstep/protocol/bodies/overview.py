"""The figures of a whole broker, for tools that show them as they change. RocketMQ: BrokerStatsManager, ClusterListSubCommand."""

from dataclasses import dataclass

from lockstep.protocol.bodies.brokers import BrokerStatus


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """One topic at one broker."""

    topic: str
    queues: int
    """Queues that have ever had a message."""
    messages: int
    """Messages stored since the topic's first queue was made. It survives restarts."""
    size: int
    """Bytes stored since the broker's start."""
    stored: int
    """Messages that are stored: those that retention has removed are not."""


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """One group at one broker."""

    group: str
    ordered: bool | None
    """None if the group has no contract here, because it has no members."""
    broadcasting: bool | None
    members: int
    held: int | None
    """Queues whose lock a member holds; None for a group without locks."""
    grants: int
    """Grants of queues since the broker's start."""
    failing: int
    """Queues in which a call has failed at the committed offset."""
    parked: int
    """Parked keys."""
    parked_since_ms: int | None
    """When the first of them was set aside, in ms since 1970."""
    consume_enable: bool


@dataclass(frozen=True, slots=True)
class FlowFigures:
    """One group in one topic at one broker."""

    topic: str
    group: str
    lag: int | None
    """Messages that are stored and not finished; None if the group has no progress in the topic, or has left it (ordering.md 11.6)."""
    oldest_ms: int | None
    """Milliseconds since the oldest of them was stored, as far as it was looked up, which may be 15 s ago; None if it was not."""
    given: int
    """Messages that were returned to its consumers since the broker's start."""
    given_size: int
    """Their bytes, as stored."""
    filtered: int
    """Messages that its subscription did not match, since the broker's start."""


@dataclass(frozen=True, slots=True)
class DelayFigures:
    """The messages that wait in one delay queue of one broker, for their delay or for a retry, or those with a delay of any length."""

    delay_ms: int
    """The delay of the queue, or ANY_DELAY (protocol/delays.py)."""
    waiting: int
    first_due_ms: int | None
    """Milliseconds until the first of them is due, negative if it is overdue; None if it was not looked up."""
    due: tuple[int, ...] | None
    """How many are due within each time of DUE_WITHIN_MS (protocol/delays.py) and not within the one before it, and how many later; None
    if that was not looked up."""
    last_due_ms: int | None = None
    """Milliseconds until all of them are due, up to 65 s more than that; None if it was not looked up."""


@dataclass(frozen=True, slots=True)
class Overview:
    """OVERVIEW (30014): the figures of a broker, from several turns of its loop: sums may be off by what happened meanwhile."""

    status: BrokerStatus
    connections: int
    held_pulls: int
    unsynced_bytes: int
    append_counts: tuple[int, ...]
    """Appends by the bucket of their duration, as in `lockstep_append_latency_seconds`."""
    append_total_us: int
    topics: tuple[TopicFigures, ...]
    groups: tuple[GroupFigures, ...]
    flows: tuple[FlowFigures, ...]
    delays: tuple[DelayFigures, ...]
    """Delay queues in which messages wait."""
