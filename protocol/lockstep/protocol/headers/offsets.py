"""Offsets: progress of groups, bounds of queues, search by time, one message by its log offset."""

from dataclasses import dataclass

from lockstep.protocol.bodies import ConsumeFromWhere


@dataclass(frozen=True, slots=True)
class QueryConsumerOffsetHeader:
    """QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str
    topic: str
    queue_id: int
    where: ConsumeFromWhere | None = None
    """Native concurrent consumers: the position at which a group without progress starts. The broker resolves it like a LOCK's start
    policy."""
    timestamp_ms: int | None = None
    since: int | None = None
    """With `where`: the lowest `since` that the client has received from any broker."""


@dataclass(frozen=True, slots=True)
class ProgressReply:
    """The response to QUERY_CONSUMER_OFFSET. Without `where` in the query it has only the offset."""

    offset: int
    generation: int | None = None
    since: int | None = None
    gap_first: int | None = None
    gap_end: int | None = None


@dataclass(frozen=True, slots=True)
class UpdateConsumerOffsetHeader:
    """UPDATE_CONSUMER_OFFSET (15) of classic clients. Native clients commit by SYNC."""

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int
    idle_days: int | None = None
    """Lockstep's own: the broker forgets the group after so many days without a member and without a commit, if its own setting is
    longer or off."""


@dataclass(frozen=True, slots=True)
class QueueHeader:
    """GET_MAX_OFFSET (30), GET_MIN_OFFSET (31)."""

    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class SearchOffsetHeader:
    """SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    topic: str
    queue_id: int
    timestamp: int
    """Store time, ms since 1970. The response is the first message stored at or after it, or else the next offset. RocketMQ 5:
    boundaryType lower."""


@dataclass(frozen=True, slots=True)
class OffsetReply:
    offset: int


@dataclass(frozen=True, slots=True)
class ViewMessageHeader:
    """VIEW_MESSAGE_BY_ID (33)."""

    offset: int
    """Physical offset in the broker's log."""


@dataclass(frozen=True, slots=True)
class TopicHeader:
    """GET_ROUTEINFO_BY_TOPIC (105), TOPIC_OFFSETS (30004)."""

    topic: str
    accept_standard_json_only: bool | None = None
    """RocketMQ's clients: the ids of brokers in the route are to be quoted."""
