"""Structured bodies, natively msgpack maps (codec/msgpack_body.py): heartbeats, locks, routes, status."""

from dataclasses import dataclass, field
from enum import Enum, IntEnum

from lockstep.protocol.queue import MessageQueue, TopicLayout

# ---------------------------------------------------------------------------------------------------------------- membership


class MessageModel(Enum):
    """How the members of a group share its messages.

    CLUSTERING: each queue has one owner. BROADCASTING: every member consumes every message.
    """

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeType(Enum):
    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"


class ConsumeFromWhere(Enum):
    """The position at which a group without progress starts. RocketMQ: ConsumeFromWhere."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic of a group's contract. RocketMQ: SubscriptionData. The broker computes the tag hashes from the expression."""

    topic: str
    expression: str = field(default="*", metadata={"wire": "subString"})
    expression_type: str = "TAG"
    sub_version: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A client's declaration of one group in HEART_BEAT. RocketMQ: ConsumerData.

    All fields but `sub_version` are the group's contract.
    """

    group: str = field(metadata={"wire": "groupName"})
    subscriptions: tuple[Subscription, ...] = field(metadata={"wire": "subscriptionDataSet"})
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    consume_timestamp_ms: int | None = None
    ordered: bool = False
    allocate: str = "by_broker"
    """A strategy as allocate.py: strategy_spec writes it. `by_broker` uses each broker's own member list, the others use one list for all
    queues."""
    order_by: str = "queue"
    retry: str = field(default="", metadata={"wire": "retryPolicy"})
    """The policy for failed calls, as text: brokers compare and report it, and do not parse it."""

    @property
    def broadcasting(self) -> bool:
        """Whether each member consumes every queue and stores its own progress."""
        return self.message_model is MessageModel.BROADCASTING

    @property
    def locks(self) -> bool:
        """Whether a queue has one owner at a time, guarded by a lock at its broker."""
        return self.ordered and not self.broadcasting


@dataclass(frozen=True, slots=True)
class ProducerGroup:
    group: str = field(metadata={"wire": "groupName"})


@dataclass(frozen=True, slots=True)
class HeartbeatBody:
    """HEART_BEAT (34). A client whose heartbeat has no session is a *classic* client and is served by RocketMQ's rules."""

    client_id: str = field(metadata={"wire": "clientID"})
    consumers: tuple[ConsumerGroup, ...] = field(default=(), metadata={"wire": "consumerDataSet"})
    producers: tuple[ProducerGroup, ...] = field(default=(), metadata={"wire": "producerDataSet"})
    session: str | None = None
    """32 hex digits, random for each start of the client."""
    connection: int = 0
    """Increases with each connect of this session to this broker: the session is bound to the connection with the highest number."""


@dataclass(frozen=True, slots=True)
class ListVersion:
    """The version of a group's member list: (term of the broker, counter), compared as a pair."""

    term: int
    counter: int


@dataclass(frozen=True, slots=True)
class Limits:
    frame_bytes_max: int
    header_bytes_max: int
    body_bytes_max: int


@dataclass(frozen=True, slots=True)
class MemberList:
    """The members that one broker lists for a group, sorted. The response to GET_CONSUMER_LIST_BY_GROUP (38) and part of HEART_BEAT's."""

    members: tuple[str, ...] = field(metadata={"wire": "consumerIdList"})
    version: ListVersion | None = None
    classic: bool = False
    """Whether the group has a classic member, so that RocketMQ's allocation rule applies."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group in the response to HEART_BEAT."""

    list: MemberList
    since: dict[str, int]
    """Topic → the layout counter at which the group's start policy was resolved: a queue that a later layout adds starts at 0."""
    last_decides: bool = False
    """Whether `subscription_policy` is classic: the subscription with the highest version applies to all members, so they raise theirs as
    RocketMQ's do."""


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
    """The result of one item of LOCK or SYNC."""

    OK = 0
    STALE = 1
    """The epoch is not the current one: drop the queue and its prefetched messages."""
    NOT_YOURS = 2
    """The broker's member list assigns the queue to another member."""
    HELD = 3
    """The member list assigns the queue to this member, but another session still holds it. Wait for QUEUE_FREE."""
    REFUSED = 4
    """The value is invalid: an offset beyond the end, an unknown queue or topic, no contract. `remark` has the reason."""
    WAIT = 5
    """The broker grants the queue to no member now. Wait for QUEUE_FREE. The reasons: the broker waits after a possible loss of locks, a
    recorded holder has the grace period, groups start in too many queues at once, or this LOCK asks for more starts by time than the
    broker looks up at once."""


@dataclass(frozen=True, slots=True)
class LockItem:
    """One queue that the client holds (with its epoch) or requests (without)."""

    group: str
    topic: str
    queue_id: int
    epoch: int | None = None
    offset: int | None = None
    """Progress to commit with a renewal: the next offset to consume."""
    attempts: int = 0
    """Failed calls of the batch that begins at `offset`."""


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """The position at which a group without progress starts in a topic; the group's first LOCK for a topic carries it."""

    group: str
    topic: str
    where: ConsumeFromWhere
    timestamp_ms: int | None = None
    since: int | None = None
    """The lowest `since` that the client has received from any broker."""


@dataclass(frozen=True, slots=True)
class SessionLockBody:
    """LOCK_BATCH_MQ (41) of a client with a session: all queues that it holds or requests at this broker, over all its groups.

    Queues that the session holds, but that are missing here or have another epoch, are released, and acquired again if requested.
    """

    items: tuple[LockItem, ...]
    starts: tuple[StartPolicy, ...] = ()


@dataclass(frozen=True, slots=True)
class LockResult:
    """The result of one queue, in the order of the request's items."""

    group: str
    topic: str
    queue_id: int
    verdict: LockVerdict
    epoch: int = 0
    offset: int = 0
    """The committed offset, at which the first pull begins."""
    attempts: int = 0
    generation: int = 0
    since: int = 0
    gap_first: int | None = None
    gap_end: int | None = None
    remark: str | None = None


@dataclass(frozen=True, slots=True)
class SessionLockReply:
    items: tuple[LockResult, ...]
    versions: dict[str, ListVersion]
    """Group → version of this broker's member list."""
    disconnect_grace_ms: int
    session_timeout_ms: int


@dataclass(frozen=True, slots=True)
class QueueRef:
    """A queue as in the bodies of classic clients. RocketMQ: MessageQueue."""

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
    """The queues that the requesting client holds now."""

    lock_ok_mq_set: tuple[QueueRef, ...] = field(metadata={"wire": "lockOKMQSet"})


@dataclass(frozen=True, slots=True)
class SyncItem:
    """Commits or releases one queue, or both. Without `offset` it is a release that only fences the listener."""

    group: str
    topic: str
    queue_id: int
    epoch: int | None = None
    generation: int | None = None
    offset: int | None = None
    attempts: int = 0
    release: bool = False
    error: str | None = None
    """Why the last of the `attempts` calls failed, for operators. At most REASON_LENGTH_MAX characters are kept."""


@dataclass(frozen=True, slots=True)
class SyncBody:
    """SYNC (30001). Without items it only proves that the client is alive, and the broker responds at once."""

    items: tuple[SyncItem, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The result of one item, in the order of the request's items, with the epoch to which it applies."""

    verdict: LockVerdict
    epoch: int | None = None
    remark: str | None = None


@dataclass(frozen=True, slots=True)
class SyncReply:
    items: tuple[SyncResult, ...]
    versions: dict[str, ListVersion]
    """Every group of this session → version of its member list. It makes up for a lost notification."""


@dataclass(frozen=True, slots=True)
class FreeQueue:
    group: str
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class QueueFreeBody:
    """QUEUE_FREE (30002), broker → client, one-way: the client should send LOCK, because these queues are assigned to it and free."""

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
    """Listener name → advertised host:port. `internal` is always included."""
    layouts: tuple[TopicLayout, ...]
    """The layouts that the broker stores, for the whole cluster. If the registration has several parts, those of this part."""
    data_version: DataVersion
    part: int = 0
    parts: int = 1
    """The number of requests of this registration, sent one after the other on one connection. It takes effect with the last one."""
    full: bool = False
    """Whether the broker accepts no more topics. The response then has only newer layouts of topics that the broker already has."""


@dataclass(frozen=True, slots=True)
class RefusedLayout:
    """A layout that the nameserver left out of a registration."""

    topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class RegisterReply:
    """The response to REGISTER_BROKER.

    Also the body of LAYOUTS_CHANGED (30008): the layouts that another broker registered (sent to brokers), or that a broker has (sent to
    members).
    """

    layouts: tuple[TopicLayout, ...]
    """Layouts that the broker did not send, or sent in a lower version, at most 4,096. The broker adopts them and registers again. Empty in
    the response to any part but the last."""
    refused: tuple[RefusedLayout, ...] = ()
    """Layouts of this request that were left out, at most the first 1,024 of a registration. The registration is valid nevertheless."""
    refused_more: int = 0
    """How many more layouts of this request were left out."""


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    name: str
    cluster: str
    address: str
    """host:port of the listener on which the nameserver received the request, or of `internal` if the broker has no such listener."""
    registered: bool
    """False for the last known address of a broker that is not registered now."""
    term: int


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """GET_ROUTEINFO_BY_TOPIC (105): the whole layout and the addresses known now. RocketMQ: TopicRouteData."""

    layout: TopicLayout
    brokers: tuple[BrokerAddress, ...]


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """GET_BROKER_CLUSTER_INFO (106)."""

    brokers: tuple[BrokerAddress, ...]


@dataclass(frozen=True, slots=True)
class TopicList:
    """GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206), without deleted and system topics."""

    topics: tuple[str, ...] = field(metadata={"wire": "topicList"})


# -------------------------------------------------------------------------------------------------------------------- status


@dataclass(frozen=True, slots=True)
class OffsetRange:
    queue_id: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """TOPIC_OFFSETS (30004): the bounds of all queues of the topic at this broker."""

    queues: tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class QueueStatus:
    topic: str
    queue_id: int
    owner: str | None
    """Client id, or None if the queue is free."""
    epoch: int
    generation: int
    committed_offset: int
    """−1 if the group has no progress here."""
    max_offset: int
    attempts: int
    committed_ago_ms: int | None
    classic_lease_left_ms: int | None
    """Only for a classic holder; a session's lock lives as long as the session."""
    failing_ms: int | None = None
    """How long ago the first failed call at the committed offset was reported to this broker process; None if none was."""
    error: str | None = None
    """Why the last call failed."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    client_id: str
    session: str | None
    """The first 8 hex digits: the whole session id is a secret. None for a classic client."""
    address: str
    connected: bool
    heard_ago_ms: int
    subscriptions: tuple[Subscription, ...] | None = None
    """The member's subscriptions if they differ from the contract's (`subscription_policy` classic, classic clients). None if they are the
    contract's, as far as the broker knows since its start."""


class SubscriptionPolicy(Enum):
    """How a broker treats a member whose subscriptions differ from the group's."""

    STRICT = "strict"
    """Refuse the member; the error shows both sides."""
    CLASSIC = "classic"
    """As RocketMQ: the latest member's subscriptions apply to all; the other members lose messages that only they subscribed to."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200), request and response. They outlive the members. RocketMQ: SubscriptionGroupConfig."""

    group: str = field(metadata={"wire": "groupName"})
    subscription_policy: SubscriptionPolicy = SubscriptionPolicy.STRICT
    consume_enable: bool = True
    """False: no member of the group receives messages; a pull fails with NO_PERMISSION."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    group: str
    version: ListVersion
    contract: ConsumerGroup | None
    members: tuple[MemberStatus, ...]
    queues: tuple[QueueStatus, ...]
    settings: GroupSettings | None = None
    """None if no settings were stored."""
    overruled_count: int = 0
    """Since the broker's start: members whose subscriptions replaced others (`subscription_policy` classic)."""


@dataclass(frozen=True, slots=True)
class GroupStatusReply:
    """GROUP_STATUS (30005). `groups` has the names of all groups if the request named none; otherwise `status` is set."""

    groups: tuple[str, ...]
    status: GroupStatus | None = None


@dataclass(frozen=True, slots=True)
class QueueOffset:
    queue_id: int
    offset: int
    generation: int | None = None
    """In a reset by a member that seeks: the generation that the member knows. The reset is refused if another generation is in force.
    None: reset whatever the generation."""


@dataclass(frozen=True, slots=True)
class ResetBody:
    """RESET_OFFSETS (30007): moves a group to other offsets, running or not. Each queue gets a new generation, which ends its grant."""

    group: str
    topic: str
    queues: tuple[QueueOffset, ...]
    """The next offset to consume, within the bounds of the queue. Queues that are not listed stay unchanged."""


@dataclass(frozen=True, slots=True)
class ResetReply:
    queues: tuple[QueueOffset, ...]
    """The group's progress before the reset, in the order of the request; −1 if it had none."""


@dataclass(frozen=True, slots=True)
class NameserverStanding:
    """The state of a broker's registration with one nameserver, as the broker sees it."""

    address: str
    standing: str
    """pending, unreachable, learning, contested, accepted or refused."""
    remark: str = ""
    """The reason of a refusal."""


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """GET_BROKER_RUNTIME_INFO (28): the status of a broker."""

    broker_name: str
    cluster: str
    store_id: str
    """The first 8 hex digits: the whole store id proves the broker's identity to nameservers."""
    term: int
    listeners: dict[str, str]
    """Listener name → the advertised address."""
    wall_ms: int
    """The broker's clock, ms since 1970."""
    up_ms: int
    """Time since its port opened."""
    log_bytes: int
    disk_total_bytes: int
    disk_free_bytes: int
    disk_reserve_bytes: int
    """The broker refuses a send that would leave less free space."""
    nameservers: tuple[NameserverStanding, ...]
    descriptor_limit: int | None = None
    """The limit of file descriptors of its process."""
    damaged_messages: int = 0
    """Messages that were stored and lost to damage of the log. Consumers are notified of the gaps."""
    damaged_bytes: int = 0
    """Bytes of the log in which no valid record was found."""
    topics_deleted: int = 0
    """Deleted topics that the broker remembers."""
    topics_deleted_max: int = 0
    """How many deleted topics it may remember; 0 from an earlier version, which does not report it."""


@dataclass(frozen=True, slots=True)
class CreateTopicReply:
    """UPDATE_AND_CREATE_TOPIC (17): the layout in force at this broker."""

    layout: TopicLayout
