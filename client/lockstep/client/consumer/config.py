"""The settings of consumers. RocketMQ: the fields of DefaultMQPushConsumer and DefaultLitePullConsumer."""

from dataclasses import dataclass
from typing import Annotated, Literal

from lockstep.client.config import StartConfig
from lockstep.client.consumer.calls.retry import RETRY_UNLIMITED, SUSPEND_MS_MAX, SUSPEND_MS_MIN, OrderedRetry
from lockstep.client.consumer.grants.offset_file import DEFAULT_DIR, check_instance
from lockstep.client.settings import settings_of
from lockstep.protocol.bodies import CONTRACT_VERSION_MAX, ConsumeFromWhere, MessageModel
from lockstep.protocol.delays import RETRIES_MAX
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.topics.allocate import BY_BROKER, Strategy, check_strategy
from lockstep.runtime.configuration.settings import Range, check_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseConsumerConfig(StartConfig):
    """The settings that push and pull consumers have in common."""

    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.FIRST_OFFSET
    """Where a group without progress begins. Part of the group's contract."""
    consume_timestamp_ms: int | None = None
    """With ConsumeFromWhere.TIMESTAMP: a store time in milliseconds since 1970."""
    allocate: Strategy = BY_BROKER
    """How queues are assigned to members: "by_broker"; RocketMQ's "AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"; ByMachineRoom(rooms);
    for concurrent groups also MachineRoomNearby(…) and ByConfig(queues). Part of the group's contract. RocketMQ:
    AllocateMessageQueueStrategy."""
    contract_version: Annotated[int, Range(0, CONTRACT_VERSION_MAX)] = 0
    """Announces another contract while members with the old one run: raise it whenever the subscriptions or another part of the contract
    change. What may change so: docs/guide.md, "Change a running group"."""
    pull_count: Annotated[int, Range(1, 1_000)] = 1_000
    """Messages that one pull requests at most."""
    pull_bytes: Annotated[int, Range(1, 1 << 20)] = 1 << 20
    """Stored bytes that one pull requests at most; the broker has a limit too (wire.md)."""
    queue_count_max: Annotated[int, Range(1, 65_535)] = 1_000
    """Messages of one queue that are fetched ahead. RocketMQ: pullThresholdForQueue."""
    queue_bytes_max: Annotated[int, Range(1, 1 << 30)] = 100 << 20
    """Stored bytes of one queue that are fetched ahead; one pull may exceed it. A compressed body counts compressed, and a message that
    decompresses to less than 64 KiB is kept in both forms. RocketMQ: pullThresholdSizeForQueue."""
    stop_timeout_ms: Annotated[int, Range(0, 600_000)] = 8_000
    """How long a stop waits for running listeners and for the responses to the last commits."""

    def __post_init__(self) -> None:
        check_settings(self)
        object.__setattr__(self, "allocate", check_strategy(self.allocate))
        if self.consume_from_where is ConsumeFromWhere.TIMESTAMP and self.consume_timestamp_ms is None:
            raise ConfigError("consume_from_where TIMESTAMP needs consume_timestamp_ms (store time, ms since 1970)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(BaseConsumerConfig):
    """The settings of a push consumer.

    Raises:
        ConfigError: A setting has the wrong type or is out of range, or two settings contradict each other.
    """

    message_model: MessageModel = MessageModel.CLUSTERING
    """With BROADCASTING, every member consumes every queue, without a lock, and keeps its progress in a file. Part of the group's
    contract."""
    batch_count: Annotated[int, Range(1, 1_024)] = 1
    """Messages per listener call at most. RocketMQ: consumeMessageBatchMaxSize."""
    commit: Literal["interval", "each"] = "interval"
    """"interval": progress is committed by SYNC every 100 ms at most. "each": the next batch of an ordered listener waits until the broker
    has committed the last one."""
    order_by: Literal["queue", "sharding_key"] = "queue"
    """The unit of order of an ordered listener. "queue": one call per queue at a time. "sharding_key": the keys of a queue are independent
    of each other, with up to `concurrency` calls at a time over all queues, and never two of one key. Part of the group's contract."""
    unkeyed: Literal["together", "alone"] = "together"
    """With order_by="sharding_key", messages without a key are consumed in order, as if they had one key ("together"), or in no order
    ("alone"). Part of the group's contract."""
    retry: OrderedRetry = RETRY_UNLIMITED
    """How an ordered listener's failed batch is retried. Part of the group's contract."""
    suspend_current_queue_time_ms: Annotated[int, Range(SUSPEND_MS_MIN, SUSPEND_MS_MAX)] = 1_000
    """Pause after a listener returned SUSPEND_CURRENT_QUEUE_A_MOMENT without a pause in its context."""
    queue_span_max: Annotated[int, Range(1, 1 << 31)] = 2_000
    """Pulling waits while the next offset to pull is further than this from the first unfinished offset. RocketMQ:
    consumeConcurrentlyMaxSpan."""
    drain_timeout_ms: Annotated[int, Range(0, 600_000)] = 30_000
    """How long a running listener may continue after a rebalance has assigned its queue to another member."""
    concurrency: Annotated[int, Range(1, 1_000)] = 20
    """Calls at a time over all queues, of a concurrent listener or with order_by="sharding_key". RocketMQ: consumeThreadMax."""
    max_reconsume_times: Annotated[int, Range(0, 1_000_000)] = RETRIES_MAX
    """Retries of a message that a concurrent listener failed; then it is dead-lettered. RocketMQ: maxReconsumeTimes."""
    offset_dir: str = DEFAULT_DIR
    """Broadcasting: the directory of the progress files, DIR/GROUP/INSTANCE/offsets.json; one for each cluster. RocketMQ:
    localOffsetStoreDir."""
    instance_name: str = "default"
    """Broadcasting: the name of this member of the group on this machine, the same at each start. RocketMQ: instanceName."""
    consume_timeout_ms: Annotated[int, Range(100, 86_400_000)] = 900_000
    """The messages of a concurrent call that runs longer are sent back, and its result no longer counts. RocketMQ: consumeTimeout."""

    def __post_init__(self) -> None:
        BaseConsumerConfig.__post_init__(self)
        if not self.offset_dir:
            raise ConfigError(f"offset_dir is {self.offset_dir!r}: expected a directory")
        check_instance(self.instance_name)
        if self.order_by == "sharding_key":
            if self.broadcasting:
                raise ConfigError('order_by "sharding_key": a broadcasting group consumes in the order of queues; use "queue"')
            if self.commit == "each":
                raise ConfigError('order_by "sharding_key": keys are committed together, at intervals; use commit="interval"')
        elif self.unkeyed == "alone":
            raise ConfigError('unkeyed "alone" needs order_by="sharding_key"')
        if self.broadcasting and self.retry.on_exhausted != "block":
            what = "has no dead-letter topic" if self.retry.on_exhausted == "dlq" else "has no progress at the broker"
            raise ConfigError(f'retry on_exhausted "{self.retry.on_exhausted}": a broadcasting group {what}; use "block"')
        if self.commit == "each" and self.retry.on_exhausted == "park":
            raise ConfigError('retry on_exhausted "park": what is left out is committed with the rest, at intervals; use commit="interval"')

    @property
    def broadcasting(self) -> bool:
        """Return whether `message_model` is BROADCASTING: every member consumes every message."""
        return self.message_model is MessageModel.BROADCASTING

    @property
    def in_lanes(self) -> bool:
        """Return whether an ordered listener gets keys out of the order of their queue: each in its own lane, or parked ones later."""
        return self.order_by == "sharding_key" or self.retry.on_exhausted == "park"


@dataclass(frozen=True, slots=True, kw_only=True)
class PullConsumerConfig(BaseConsumerConfig):
    """The settings of a pull consumer. `allocate` applies to `subscribe`.

    Raises:
        ConfigError: A setting has the wrong type or is out of range, or two settings contradict each other.
    """

    auto_commit: bool = True
    """The messages that a poll returned are done with the next poll; with False, with `commit()`. RocketMQ: autoCommit."""
    poll_count: Annotated[int, Range(1, 10_000)] = 100
    """Messages that one poll returns at most. RocketMQ: pullBatchSize."""
    poll_timeout_ms: Annotated[int, Range(0, 86_400_000)] = 5_000
    """How long a poll waits for a message. RocketMQ: pollTimeoutMillis."""

    def consumer(self) -> ConsumerConfig:
        """Return the settings that it has in common with a push consumer."""
        return ConsumerConfig(**settings_of(self, BaseConsumerConfig))
