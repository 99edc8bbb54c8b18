"""Offsets: progress of groups, bounds of queues, search by time, one message by its log offset, lists of messages that wait."""

from dataclasses import dataclass, field

from lockstep.protocol.bodies import ConsumeFromWhere

TIMESTAMP_MAX = 2**63 - 1


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
    """GET_MAX_OFFSET (30), GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class SearchOffsetHeader:
    """SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    topic: str
    queue_id: int
    timestamp: int
    """Store time, ms since 1970."""
    boundary_type: str | None = None
    """`lower`, or None: the first message stored at or after the time, or else the next offset. `upper`: the last message stored at or
    before it, or else the first one. Clients of RocketMQ 5 name it."""


@dataclass(frozen=True, slots=True)
class OffsetReply:
    offset: int


@dataclass(frozen=True, slots=True)
class MinOffsetReply:
    """The response to GET_MIN_OFFSET."""

    offset: int
    added: int | None = None
    """Lockstep's own: the offset of the first message after the queue was added to the topic. None if that is 0."""


@dataclass(frozen=True, slots=True)
class StoreTimeReply:
    """The response to GET_EARLIEST_MSG_STORETIME."""

    timestamp: int
    """Store time of the queue's first message, ms since 1970; −1 if it has none."""


@dataclass(frozen=True, slots=True)
class QueryMessageHeader:
    """QUERY_MESSAGE (12)."""

    topic: str | None = None
    """Lockstep's own: None searches all topics."""
    key: str = ""
    """A word of the property KEYS, a UNIQ_KEY, or the id of a transaction. It must not be empty."""
    max_num: int = 32
    begin_timestamp: int = 0
    end_timestamp: int = TIMESTAMP_MAX
    """Store times, ms since 1970, both included."""
    unique_key: bool = field(default=False, metadata={"wire": "_UNIQUE_KEY_QUERY"})
    """Whether `key` is a UNIQ_KEY, not one of the KEYS."""
    cursor: int | None = None
    """Lockstep's own: the `next_cursor` of the response before."""
    scan_bytes_max: int | None = None
    """Lockstep's own: after how many bytes of the log the broker responds with what it has found."""
    waiting: bool | None = None
    """Lockstep's own: find also the records of messages that wait for their delay or retry. Their `topic` is the one to which they go."""
    recalled: bool | None = None
    """Lockstep's own: find also the records of messages that were recalled, as long as the broker knows that."""


@dataclass(frozen=True, slots=True)
class QueryMessageReply:
    """The response to QUERY_MESSAGE; its body has the records, the newest first. RocketMQ's clients get the first two fields."""

    index_last_update_timestamp: int
    """When the search began, ms since 1970."""
    index_last_update_phyoffset: int
    """The end of the log then."""
    next_cursor: int | None = None
    """Where to continue if not everything was searched."""
    scanned_bytes: int | None = None
    """Bytes of the log that this request has searched."""
    remaining_bytes: int | None = None
    """Bytes that are left to be searched."""
    unread_bytes: int | None = None
    """Scanned bytes that the disk could not read, if there were any."""


@dataclass(frozen=True, slots=True)
class ListWaitingHeader:
    """LIST_WAITING (30025). The response's body is a WaitingPage."""

    topic: str | None = None
    """None: of all topics."""
    due_before_ms: int | None = None
    """Only messages that are due before this time, ms since 1970."""
    key: str | None = None
    """Only messages with this word in the property KEYS."""
    sharding_key: str | None = None
    recall_handle: str | None = None
    """Only the message of this handle (recall.py)."""
    cursor: str | None = None
    """`WaitingPage.cursor` of the response before."""
    limit: int = 100
    """The largest number of rows: 1 to 1,000."""


@dataclass(frozen=True, slots=True)
class ViewMessageHeader:
    """VIEW_MESSAGE_BY_ID (33)."""

    offset: int
    """Physical offset in the broker's log."""
    recalled: bool | None = None
    """Lockstep's own: return the record of a message that was recalled, and no other."""


@dataclass(frozen=True, slots=True)
class TopicHeader:
    """GET_ROUTEINFO_BY_TOPIC (105), TOPIC_OFFSETS (30004)."""

    topic: str
    accept_standard_json_only: bool | None = None
    """RocketMQ's clients: the ids of brokers in the route are to be quoted."""
