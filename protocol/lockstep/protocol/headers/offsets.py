"""Offsets: progress of groups, bounds of queues, search by time, one message by its log offset."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueryConsumerOffsetHeader:
    """QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str
    topic: str
    queue_id: int


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
