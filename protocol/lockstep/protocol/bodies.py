"""Structured bodies, natively msgpack maps (codec/msgpack_body.py): heartbeats, routes, locks, sync, status."""

from dataclasses import dataclass, field
from enum import Enum, IntEnum

from lockstep.protocol.queue import MessageQueue, TopicLayout

# ---------------------------------------------------------------------------------------------------------------- membership


class MessageModel(Enum):
    """How the members of a group share its messages. CLUSTERING: each queue has one owner. BROADCASTING: every member consumes
    everything."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeType(Enum):
    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"


class ConsumeFromWhere(Enum):
    """Where a group without progress begins. RocketMQ: ConsumeFromWhere."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic of a group. RocketMQ: SubscriptionData. The broker derives the tag hashes from the expression itself."""

    topic: str
    expression: str = field(default="*", metadata={"wire": "subString"})
    expression_type: str = "TAG"
    sub_version: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """What one client says of one group in HEART_BEAT; everything but `sub_version` is the group's contract. RocketMQ: ConsumerData."""

    group: str = field(metadata={"wire": "groupName"})
    subscriptions: tuple[Subscription, ...] = field(metadata={"wire": "subscriptionDataSet"})
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    consume_timestamp_ms: int | None = None
    ordered: bool = False
    allocate: str = "by_broker"
    """A strategy's word (allocate.py: word_of). "by_broker" is ruled by each broker's own list, the others by one list for all queues."""
    order_by: str = "queue"
    retry: str = field(default="", metadata={"wire": "retryPolicy"})
    """What becomes of a failed call, in words: brokers compare it and tell it, nobody reads it."""

    @property
    def broadcasting(self) -> bool:
        """Each member consumes every queue, and keeps its progress itself."""
        return self.message_model is MessageModel.BROADCASTING

    @property
    def locks(self) -> bool:
        """A queue has one owner at a time, by a lock at its broker."""
        return self.ordered and not self.broadcasting


@dataclass(frozen=True, slots=True)
class ProducerGroup:
    group: str = field(metadata={"wire": "groupName"})


@dataclass(frozen=True, slots=True)
class HeartbeatBody:
    """HEART_BEAT (34). A client whose heartbeat carries no session is *classic* and is served by RocketMQ's own rules."""

    client_id: str = field(metadata={"wire": "clientID"})
    consumers: tuple[ConsumerGroup, ...] = field(default=(), metadata={"wire": "consumerDataSet"})
    producers: tuple[ProducerGroup, ...] = field(default=(), metadata={"wire": "producerDataSet"})
    session: str | None = None
    """32 hex digits, random per client start."""
    connection: int = 0
    """Rises with each connect of this session to this broker: the session is bound to the connection with the highest."""


@dataclass(frozen=True, slots=True)
class ListVersion:
    """Version of a group's member list: (term of the broker, counter). Compared as a pair."""

    term: int
    counter: int


@dataclass(frozen=True, slots=True)
class Limits:
    frame_bytes_max: int
    header_bytes_max: int
    body_bytes_max: int


@dataclass(frozen=True, slots=True)
class MemberList:
    """The members whom one broker lists for a group, sorted. Answer to GET_CONSUMER_LIST_BY_GROUP (38) and part of HEART_BEAT's."""

    members: tuple[str, ...] = field(metadata={"wire": "consumerIdList"})
    version: ListVersion | None = None
    classic: bool = False
    """A classic member is present: RocketMQ's allocation rule is in force."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group in HEART_BEAT's answer."""

    list: MemberList
    since: dict[str, int]
    """Topic → layout counter at which the group's start policy was resolved: a queue added by a later counter starts at 0."""
    last_decides: bool = False
    """`subscription_policy` classic: the subscription with the highest version counts for all, so members raise theirs as RocketMQ's do."""


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    broker_name: str
    term: int
    features: tuple[str, ...]
    limits: Limits
    disconnect_grace_ms: int
    session_timeout_ms: int
    groups: dict[str, GroupView]


# --------------------------------------------------------------------------------------------------------------------- locks


class LockVerdict(IntEnum):
    """How one item of LOCK or SYNC was answered."""

    OK = 0
    STALE = 1
    """The epoch is not the current one: drop the queue and what was prefetched."""
    NOT_YOURS = 2
    """The broker's list gives the queue to another member."""
    HELD = 3
    """Yours by the list, but another session still holds it: QUEUE_FREE comes."""
    REFUSED = 4
    """The value can't be: an offset beyond the end, an unknown queue or topic, no contract. `remark` says which."""
    WAIT = 5
    """Nobody is granted the queue now: the broker holds after an assumed loss, a recorded holder has the grace, groups begin in too many
    queues at once, or this LOCK asks for more starts by time than are looked up at once. QUEUE_FREE comes."""


@dataclass(frozen=True, slots=True)
class LockItem:
    """One queue that the client holds (with its epoch) or wants (without)."""

    group: str
    topic: str
    queue_id: int
    epoch: int | None = None
    offset: int | None = None
    """Finished work to commit with a renewal: next offset to consume."""
    attempts: int = 0
    """Failed calls of the batch that begins at `offset`."""


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """Where a group without progress begins in a topic; the first LOCK of a group for a topic carries it."""

    group: str
    topic: str
    where: ConsumeFromWhere
    timestamp_ms: int | None = None
    since: int | None = None
    """The lowest `since` that the client has heard from any broker."""


@dataclass(frozen=True, slots=True)
class ReconcileBody:
    """LOCK_BATCH_MQ (41) of a client with a session: everything it holds or wants at this broker, over all its groups.

    What the session holds and the list does not name with its current epoch is freed, or acquired anew if wanted.
    """

    items: tuple[LockItem, ...]
    starts: tuple[StartPolicy, ...] = ()


@dataclass(frozen=True, slots=True)
class LockResult:
    """One queue's answer, in the order of the request's items."""

    group: str
    topic: str
    queue_id: int
    verdict: LockVerdict
    epoch: int = 0
    offset: int = 0
    """Committed offset: where the first pull begins."""
    attempts: int = 0
    generation: int = 0
    since: int = 0
    gap_first: int | None = None
    gap_end: int | None = None
    remark: str | None = None


@dataclass(frozen=True, slots=True)
class ReconcileReply:
    items: tuple[LockResult, ...]
    versions: dict[str, ListVersion]
    """Group → version of this broker's member list."""
    disconnect_grace_ms: int
    session_timeout_ms: int


@dataclass(frozen=True, slots=True)
class QueueRef:
    """A queue as classic bodies name it. RocketMQ: MessageQueue."""

    topic: str
    broker_name: str
    queue_id: int

    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


@dataclass(frozen=True, slots=True)
class LockBatchBody:
    """LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42) of a client without a session. RocketMQ: LockBatchRequestBody."""

    client_id: str
    consumer_group: str
    mq_set: tuple[QueueRef, ...]


@dataclass(frozen=True, slots=True)
class LockBatchReply:
    """The queues now held by the asking client."""

    lock_ok_mq_set: tuple[QueueRef, ...] = field(metadata={"wire": "lockOKMQSet"})


@dataclass(frozen=True, slots=True)
class SyncItem:
    """Commit and/or release of one queue. `offset` None: a release without an offset, which only fences the listener."""

    group: str
    topic: str
    queue_id: int
    epoch: int | None = None
    generation: int | None = None
    offset: int | None = None
    attempts: int = 0
    release: bool = False
    error: str | None = None
    """Why the last of the `attempts` calls failed, for people: at most REASON_LENGTH_MAX characters are kept."""


@dataclass(frozen=True, slots=True)
class SyncBody:
    """SYNC (30001). Without items: proof of life, answered at once."""

    items: tuple[SyncItem, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncResult:
    """One item's answer, in the order of the request's items; names the epoch it is about."""

    verdict: LockVerdict
    epoch: int | None = None
    remark: str | None = None


@dataclass(frozen=True, slots=True)
class SyncReply:
    items: tuple[SyncResult, ...]
    versions: dict[str, ListVersion]
    """Every group of this session → version of its member list: heals a lost notice."""


@dataclass(frozen=True, slots=True)
class FreeQueue:
    group: str
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class QueueFreeBody:
    """QUEUE_FREE (30002), broker → client, one-way: LOCK now, these are yours by the list and free."""

    queues: tuple[FreeQueue, ...]


# -------------------------------------------------------------------------------------------------------------------- routes


@dataclass(frozen=True, slots=True)
class DataVersion:
    timestamp: int
    counter: int


@dataclass(frozen=True, slots=True)
class RegisterBody:
    """REGISTER_BROKER (103)."""

    listeners: dict[str, str]
    """Listener name → advertised host:port; `internal` is always there."""
    layouts: tuple[TopicLayout, ...]
    """The layouts that the broker stores (of the whole cluster): all, or in a registration of several parts those of this part."""
    data_version: DataVersion
    part: int = 0
    parts: int = 1
    """A registration has as many requests, sent one after the other on one connection. It counts with the last one."""
    full: bool = False
    """The broker takes no more topics: the answer carries only newer layouts of topics that it has."""


@dataclass(frozen=True, slots=True)
class RefusedLayout:
    """A layout that the nameserver has left out of a registration."""

    topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class RegisterReply:
    """REGISTER_BROKER's answer. In LAYOUTS_CHANGED (30008): what another broker has brought (to brokers), or a broker has (to members)."""

    layouts: tuple[TopicLayout, ...]
    """Layouts of which the broker sent none or a lower one, at most 4,096 of them; it adopts them and registers again. Empty in the answer
    to any part but the last."""
    refused: tuple[RefusedLayout, ...] = ()
    """Layouts of this request that were left out, the first 1,024 of a registration. The registration counts all the same."""
    refused_more: int = 0
    """How many layouts of this request were left out and are not named."""


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    name: str
    cluster: str
    address: str
    """host:port of the listener on which the nameserver was asked, else `internal`."""
    registered: bool
    """False: the last address known of a broker that is not registered now."""
    term: int


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """GET_ROUTEINFO_BY_TOPIC (105): the whole layout plus the addresses known now. RocketMQ: TopicRouteData."""

    layout: TopicLayout
    brokers: tuple[BrokerAddress, ...]


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """GET_BROKER_CLUSTER_INFO (106)."""

    brokers: tuple[BrokerAddress, ...]


@dataclass(frozen=True, slots=True)
class TopicList:
    """GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206): without deleted and system topics."""

    topics: tuple[str, ...] = field(metadata={"wire": "topicList"})


# -------------------------------------------------------------------------------------------------------------------- status


@dataclass(frozen=True, slots=True)
class OffsetRange:
    queue_id: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """TOPIC_OFFSETS (30004): bounds of all the topic's queues at this broker."""

    queues: tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class QueueStatus:
    topic: str
    queue_id: int
    owner: str | None
    """Client id; None: free."""
    epoch: int
    generation: int
    committed_offset: int
    """−1: the group has no progress here."""
    max_offset: int
    attempts: int
    committed_ago_ms: int | None
    classic_lease_left_ms: int | None
    """Only for a classic holder; a session's lock lives as long as the session."""
    failing_ms: int | None = None
    """How long ago this broker process was first told of a failed call at the committed offset; None: of none."""
    error: str | None = None
    """Why the last one failed."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    client_id: str
    session: str | None
    """The first 8 hex digits: the whole is a secret. None: classic."""
    address: str
    connected: bool
    heard_ago_ms: int
    subscriptions: tuple[Subscription, ...] | None = None
    """Its own, where the contract has others (`subscription_policy` classic, classic clients). None: the contract's, as far as is known
    since the broker's start."""


class SubscriptionPolicy(Enum):
    """What becomes of a member whose subscriptions are not those of the group."""

    STRICT = "strict"
    """It is refused, both sides named."""
    CLASSIC = "classic"
    """RocketMQ: the member that came last decides for all; the others' messages are lost to them."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200), asked for and answered. RocketMQ: SubscriptionGroupConfig. Outlives its members."""

    group: str = field(metadata={"wire": "groupName"})
    subscription_policy: SubscriptionPolicy = SubscriptionPolicy.STRICT
    consume_enable: bool = True
    """False: nobody of the group is given messages; who pulls is told NO_PERMISSION."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    group: str
    version: ListVersion
    contract: ConsumerGroup | None
    members: tuple[MemberStatus, ...]
    queues: tuple[QueueStatus, ...]
    settings: GroupSettings | None = None
    """None: nobody has set any."""
    overruled_count: int = 0
    """Since the start: members whose subscriptions replaced other ones (`subscription_policy` classic)."""


@dataclass(frozen=True, slots=True)
class GroupStatusReply:
    """GROUP_STATUS (30005): `groups` holds every group's name where none was asked for, else `status` is there."""

    groups: tuple[str, ...]
    status: GroupStatus | None = None


@dataclass(frozen=True, slots=True)
class QueueOffset:
    queue_id: int
    offset: int
    generation: int | None = None
    """Of a reset that is a member's going back: what it knows; where another one is in force it is refused. None: whatever it is."""


@dataclass(frozen=True, slots=True)
class ResetBody:
    """RESET_OFFSETS (30007): a group goes on elsewhere, running or not. Each queue gets a new generation, and its grant ends."""

    group: str
    topic: str
    queues: tuple[QueueOffset, ...]
    """Next offset to consume, within what the queue holds; queues that are not named stay as they are."""


@dataclass(frozen=True, slots=True)
class ResetReply:
    queues: tuple[QueueOffset, ...]
    """Where the group was, in the order of the request; −1: it had no progress."""


@dataclass(frozen=True, slots=True)
class NameserverStanding:
    """How a nameserver stands to a broker, as the broker sees it."""

    address: str
    standing: str
    """pending, unreachable, learning, accepted, refused"""
    remark: str = ""
    """Of a refusal."""


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """GET_BROKER_RUNTIME_INFO (28): what a broker says of itself."""

    broker_name: str
    cluster: str
    store_id: str
    """The first 8 hex digits: the whole is a proof of identity at nameservers."""
    term: int
    listeners: dict[str, str]
    """Listener name → the address that others are told."""
    wall_ms: int
    """Its clock, ms since 1970."""
    up_ms: int
    """Since its port opened."""
    log_bytes: int
    disk_total_bytes: int
    disk_free_bytes: int
    disk_reserve_bytes: int
    """Sends are refused where less would be free."""
    nameservers: tuple[NameserverStanding, ...]
    descriptor_limit: int | None = None
    """File descriptors that its process may have."""
    damaged_messages: int = 0
    """Stored and lost to damage of the log; consumers are told of the gaps."""
    damaged_bytes: int = 0
    """Of the log in which no good record was found."""
    topics_deleted: int = 0
    """Deleted topics that it remembers."""
    topics_deleted_max: int = 0
    """How many it may remember; 0: an earlier version, which does not say."""


@dataclass(frozen=True, slots=True)
class CreateTopicReply:
    """UPDATE_AND_CREATE_TOPIC (17): the layout in force at this broker."""

    layout: TopicLayout
