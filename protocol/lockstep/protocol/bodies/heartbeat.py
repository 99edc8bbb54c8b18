"""Membership: HEART_BEAT and the member lists of groups."""

from dataclasses import dataclass, field
from enum import Enum

CONTRACT_VERSION_MAX = (1 << 31) - 1
"""The highest version that a group's contract may have."""


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


TAG, SQL92 = "TAG", "SQL92"
"""The types of subscription expressions: tags (tags.py), and conditions on properties (sql92). RocketMQ: ExpressionType."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic of a group's contract. RocketMQ: SubscriptionData. The broker filters by the expression."""

    topic: str
    expression: str = field(default="*", metadata={"wire": "subString"})
    expression_type: str = TAG
    sub_version: int = 0

    @property
    def shown(self) -> str:
        """Return the expression for people, after its type if it is not one of tags."""
        return self.expression if self.expression_type in ("", TAG) else f"{self.expression_type} {self.expression}"


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
    """The policy for failed calls, as text. Brokers compare and report it, and read from it only whether members park keys."""

    contract_version: int = 0
    """A higher one than any in force announces a change while members run (ordering.md 11.5)."""

    @property
    def broadcasting(self) -> bool:
        """Return whether each member consumes every queue and stores its own progress."""
        return self.message_model is MessageModel.BROADCASTING

    @property
    def parks(self) -> bool:
        """Return whether its members park keys, and replay and drop them (ordering.md 15): the end of the policy says so."""
        return self.retry.endswith("then park")

    @property
    def locks(self) -> bool:
        """Return whether a queue has one owner at a time, guarded by a lock at its broker."""
        return self.ordered and not self.broadcasting


@dataclass(frozen=True, slots=True)
class ProducerGroup:
    group: str = field(metadata={"wire": "groupName"})
    checks: bool | None = field(default=None, metadata={"native": True})
    """Whether this client answers CHECK_TRANSACTION_STATE for the group."""


@dataclass(frozen=True, slots=True)
class HeartbeatBody:
    """HEART_BEAT (34). A client that sends heartbeats without a session is a *classic* client and is served by RocketMQ's rules."""

    client_id: str = field(metadata={"wire": "clientID"})
    consumers: tuple[ConsumerGroup, ...] = field(default=(), metadata={"wire": "consumerDataSet"})
    producers: tuple[ProducerGroup, ...] = field(default=(), metadata={"wire": "producerDataSet"})
    session: str | None = None
    """32 hex digits, random for each start of the client."""
    connection: int = 0
    """Increases with each connect of this session to this broker: the session is bound to the connection with the highest number."""


@dataclass(frozen=True, slots=True)
class CheckClientConfigBody:
    """CHECK_CLIENT_CONFIG (46) of RocketMQ's clients: asks whether the broker can filter by a subscription."""

    client_id: str
    group: str
    subscription_data: Subscription


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
    version: ListVersion | None = field(default=None, metadata={"native": True})
    classic: bool = field(default=False, metadata={"native": True})
    """Whether the group has a classic member, so that RocketMQ's allocation rule applies."""
    shares: tuple[tuple[str, ...], ...] = field(default=(), metadata={"native": True})
    """Sets of members that share topics which not all members share (ordering.md 11.5). Sorted."""
    topic_shares: dict[str, int] = field(default_factory=dict, metadata={"native": True})
    """Topic → number of its set in `shares`. A topic that is not here is shared by all members."""

    def members_of(self, topic: str) -> tuple[str, ...]:
        """Return the members that share the queues of a topic, sorted."""
        number = self.topic_shares.get(topic)
        return self.members if number is None or not 0 <= number < len(self.shares) else self.shares[number]


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group in the response to HEART_BEAT."""

    list: MemberList
    since: dict[str, int]
    """Topic → the layout counter at which the group's start policy was resolved: a queue that a later layout adds starts at 0. Of a
    broadcasting group: the topic's layout counter now, 0 if it does not exist. A member that has just joined resolves its policy there."""
    last_decides: bool = False
    """Whether `subscription_policy` is classic: the subscription with the highest version applies to all members, so they raise theirs as
    RocketMQ's do."""


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    broker_name: str
    term: int
    limits: Limits
    disconnect_grace_ms: int
    session_timeout_ms: int
    groups: dict[str, GroupView]
    delay_levels_ms: tuple[int, ...] = ()
    """The broker's table of delay levels: the delay of each level, level 1 first. Empty: the broker does not say."""
