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
    """Native concurrent consumers: where a group without progress begins; the broker resolves it, as a LOCK's start policy."""
    timestamp_ms: int | None = None
    since: int | None = None
    """With `where`: the lowest `since` that the client has heard from any broker."""


@dataclass(frozen=True, slots=True)
class ProgressReply:
    """The answer to QUERY_CONSUMER_OFFSET. A query without `where` is answered the offset alone."""

    offset: int
    generation: int | None = None
    since: int | None = None
    gap_first: int | None = None
    gap_end: int | None = None


@dataclass(frozen=True, slots=True)
class UpdateConsumerOffsetHeader:
    """UPDATE_CONSUMER_OFFSET (15): classic clients; native ones commit by SYNC."""

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int


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
    """Store time, ms since 1970: asks for the first message stored at or after it, else the next offset. RocketMQ 5: boundaryType lower."""


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
