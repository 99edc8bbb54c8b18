"""Requests of RocketMQ's tools about consumer groups and clients, and request–reply. Their bodies are JSON (broker/classic)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProducerGroupHeader:
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


@dataclass(frozen=True, slots=True)
class ConsumeStatsHeader:
    """GET_CONSUME_STATS (208)."""

    consumer_group: str
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class ResetOffsetHeader:
    """INVOKE_BROKER_TO_RESET_OFFSET (222). RocketMQ: ResetOffsetRequestHeader."""

    topic: str
    group: str
    timestamp: int
    """The group goes on at the first message that was stored then or later. Negative: at the end."""
    is_force: bool = False
    """False: a queue whose offset is lower already stays as it is."""
    queue_id: int = -1
    """RocketMQ 5: this queue alone. Negative: all queues of the topic."""
    offset: int = -1
    """RocketMQ 5: this offset instead of a time. Negative: none."""


@dataclass(frozen=True, slots=True)
class ResetClientHeader:
    """RESET_CONSUMER_CLIENT_OFFSET (220), broker → client, one-way."""

    topic: str
    group: str
    timestamp: int
    is_force: bool


@dataclass(frozen=True, slots=True)
class ConsumerStatusHeader:
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223), and broker → client GET_CONSUMER_STATUS_FROM_CLIENT (221)."""

    topic: str
    group: str
    client_addr: str | None = None
    """A client id. None: all members."""


@dataclass(frozen=True, slots=True)
class TopicNameHeader:
    """QUERY_TOPIC_CONSUME_BY_WHO (300)."""

    topic: str


@dataclass(frozen=True, slots=True)
class TopicGroupHeader:
    """QUERY_CONSUME_TIME_SPAN (303), QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    topic: str
    group: str


@dataclass(frozen=True, slots=True)
class GroupNameHeader:
    """QUERY_TOPICS_BY_CONSUMER (343)."""

    group: str


@dataclass(frozen=True, slots=True)
class RunningInfoHeader:
    """GET_CONSUMER_RUNNING_INFO (307), tool → broker → client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False
    """Return the stacks of running calls as well."""
    topic: str | None = None
    """The queue to report on, in requests to members of lockstep's SDK."""
    queue_id: int | None = None


@dataclass(frozen=True, slots=True)
class CorrectionOffsetHeader:
    """QUERY_CORRECTION_OFFSET (308)."""

    topic: str
    compare_group: str
    filter_groups: str | None = None
    """Groups that do not count, joined by commas."""


@dataclass(frozen=True, slots=True)
class ConsumeDirectlyHeader:
    """CONSUME_MESSAGE_DIRECTLY (309), tool → broker → client."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    """The offsetMsgId of the message."""
    broker_name: str | None = None
    """Added by the broker."""
    topic: str | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None


@dataclass(frozen=True, slots=True)
class CloneOffsetHeader:
    """CLONE_GROUP_OFFSET (314)."""

    src_group: str
    dest_group: str
    topic: str | None = None
    """None: all topics of the source group."""
    offline: bool = False


@dataclass(frozen=True, slots=True)
class BrokerConsumeStatsHeader:
    """GET_BROKER_CONSUME_STATS (317)."""

    is_order: bool = False
    """Ordered groups alone. RocketMQ: ordered topics."""


@dataclass(frozen=True, slots=True)
class ConsumeQueueHeader:
    """QUERY_CONSUME_QUEUE (321)."""

    topic: str
    queue_id: int
    index: int
    """A queue offset. Negative: the last `count` messages."""
    count: int = 10
    consumer_group: str | None = None


@dataclass(frozen=True, slots=True)
class PushReplyHeader:
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326), broker → client. The body is that of the reply. RocketMQ: ReplyMessageRequestHeader."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str
    reconsume_times: int
    unit_mode: bool
    born_host: str
    store_host: str
    store_timestamp: int
