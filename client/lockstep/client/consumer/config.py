"""What a user may set on a consumer, with the ranges that are checked at construction. RocketMQ: DefaultMQPushConsumer's fields."""

from dataclasses import dataclass, field, fields
from typing import Literal, TypedDict

from lockstep.client.consumer.offset_file import DEFAULT_DIR, check_instance
from lockstep.protocol.allocate import BY_BROKER, Strategy, check_strategy
from lockstep.protocol.bodies import ConsumeFromWhere, MessageModel
from lockstep.protocol.delays import RETRIES_MAX
from lockstep.protocol.errors import ConfigError

SUSPEND_MS_MIN = 10
SUSPEND_MS_MAX = 30_000
"""Every pause between two calls of one batch lies in 10 ≤ ms ≤ 30,000. RocketMQ: ConsumeMessageOrderlyService."""

BLOCKED_AFTER_ATTEMPTS = 3
"""With unlimited attempts, QueueBlocked is reported at this many failed calls and at each doubling."""


def clamp_suspend_ms(suspend_ms: float) -> int:
    return int(min(max(suspend_ms, SUSPEND_MS_MIN), SUSPEND_MS_MAX))


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pause before the n-th further try: first_ms · factor^(n−1), at most max_ms, clamped to 10 … 30,000 ms."""

    first_ms: int = 1_000
    factor: float = 2.0
    max_ms: int = SUSPEND_MS_MAX

    def __post_init__(self) -> None:
        if self.first_ms < 1 or self.factor < 1 or self.max_ms < self.first_ms:
            raise ConfigError(f"{self}: expected first_ms ≥ 1, factor ≥ 1, max_ms ≥ first_ms")

    def pause_ms(self, attempts: int) -> int:
        """`attempts` = failed calls so far, ≥ 1."""
        exponent = min(attempts - 1, 64)  # beyond this any factor > 1 has long met max_ms; bounds the power
        return clamp_suspend_ms(min(self.first_ms * self.factor**exponent, self.max_ms))


@dataclass(frozen=True, slots=True)
class OrderedRetry:
    """What happens to a batch that fails: the listener raised, or returned SUSPEND or something that is neither None nor a status.

    `max_attempts` None: tried for ever with back-off, as RocketMQ does. A number with `on_exhausted="block"`: after that many failed calls
    the queue stands still and QueueBlocked is told; the next grant (restart, move) or `consumer.resume()` gives it one call more. Attempts
    are stored with the progress: neither a move nor a restart resets them. Nothing is skipped. With `on_exhausted="dlq"` the broker copies
    the batch's messages to the topic `%DLQ%group` and moves the group's progress behind them; the queue goes on.

    Part of the group's contract: its members must agree on it.
    """

    max_attempts: int | None = None
    backoff: Backoff = field(default_factory=Backoff)
    on_exhausted: Literal["block", "dlq"] = "block"

    def __post_init__(self) -> None:
        if self.max_attempts is not None and self.max_attempts < 1:
            raise ConfigError(f"max_attempts {self.max_attempts}: expected None (unlimited) or ≥ 1")
        if self.on_exhausted not in ("block", "dlq"):
            raise ConfigError(f'on_exhausted {self.on_exhausted!r}: expected "block" or "dlq"')
        if self.on_exhausted == "dlq" and self.max_attempts is None:
            raise ConfigError('on_exhausted "dlq" needs max_attempts: unlimited attempts are never exhausted')

    def __str__(self) -> str:
        """The group's retry policy, on which its members must agree."""
        pause = f"pause {self.backoff.first_ms} ms x{self.backoff.factor:g} up to {self.backoff.max_ms} ms"
        return f"unlimited, {pause}" if self.max_attempts is None else f"{self.max_attempts} attempts, {pause}, then {self.on_exhausted}"

    def is_blocked(self, attempts: int) -> bool:
        """Returns whether a queue counts as blocked after this many failed calls of its first batch: QueueBlocked was reported."""
        return attempts >= (BLOCKED_AFTER_ATTEMPTS if self.max_attempts is None else self.max_attempts)

    def exhausted(self, attempts: int) -> bool:
        return self.max_attempts is not None and attempts >= self.max_attempts

    def blocks(self, attempts: int) -> bool:
        """After this many failed calls the queue stands still."""
        return self.on_exhausted == "block" and self.exhausted(attempts)

    def gives_up(self, attempts: int) -> bool:
        """After this many failed calls the batch is dead-lettered."""
        return self.on_exhausted == "dlq" and self.exhausted(attempts)

    def tells(self, attempts: int) -> bool:
        """Whether QueueBlocked is told after this many failed calls."""
        if self.max_attempts is not None:
            return attempts >= self.max_attempts
        step, rest = divmod(attempts, BLOCKED_AFTER_ATTEMPTS)
        return rest == 0 and step > 0 and step & (step - 1) == 0


class ConsumerOptions(TypedDict, total=False):
    """The keywords of PushConsumer beside its group and nameserver: ConsumerConfig's fields."""

    consume_from_where: ConsumeFromWhere
    consume_timestamp_ms: int | None
    message_model: MessageModel
    allocate: Strategy
    batch_count: int
    commit: Literal["interval", "each"]
    retry: OrderedRetry
    suspend_current_queue_time_ms: int
    pull_count: int
    pull_bytes: int
    queue_count_max: int
    queue_bytes_max: int
    queue_span_max: int
    drain_timeout_ms: int
    stop_timeout_ms: int
    concurrency: int
    max_reconsume_times: int
    consume_timeout_ms: int
    offset_dir: str
    instance_name: str


_RANGES = {
    "batch_count": (1, 1_024),
    "suspend_current_queue_time_ms": (SUSPEND_MS_MIN, SUSPEND_MS_MAX),
    "pull_count": (1, 1_000),
    "pull_bytes": (1, 1 << 20),
    "queue_count_max": (1, 65_535),
    "queue_bytes_max": (1, 1 << 30),
    "queue_span_max": (1, 1 << 31),
    "drain_timeout_ms": (0, 600_000),
    "stop_timeout_ms": (0, 600_000),
    "concurrency": (1, 1_000),
    "max_reconsume_times": (0, 1_000_000),
    "consume_timeout_ms": (100, 86_400_000),
}


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """A push consumer's settings. Each integer has a range (`_RANGES`); ConfigError names the one that is outside."""

    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.FIRST_OFFSET
    consume_timestamp_ms: int | None = None
    """With ConsumeFromWhere.TIMESTAMP: store time, ms since 1970."""
    message_model: MessageModel = MessageModel.CLUSTERING
    """BROADCASTING: every member consumes every queue, without a lock, and keeps its progress in a file. Part of the group's contract."""
    allocate: Strategy = BY_BROKER
    """Whose a queue is: "by_broker"; RocketMQ's "AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"; ByMachineRoom(rooms); for concurrent groups
    also MachineRoomNearby(…) and ByConfig(queues). Part of the group's contract. RocketMQ: AllocateMessageQueueStrategy."""
    batch_count: int = 1
    """Messages a listener call at most. RocketMQ: consumeMessageBatchMaxSize."""
    commit: Literal["interval", "each"] = "interval"
    """"interval": by SYNC at most every 100 ms. "each": an orderly listener's next batch waits until the commit is answered."""
    retry: OrderedRetry = field(default_factory=OrderedRetry)
    suspend_current_queue_time_ms: int = 1_000
    """Pause after a listener returned SUSPEND_CURRENT_QUEUE_A_MOMENT and named no pause of its own."""
    pull_count: int = 1_000
    pull_bytes: int = 1 << 20
    """What one pull asks for at most; the broker caps it (wire.md)."""
    queue_count_max: int = 1_000
    """Messages of one queue held here at most. RocketMQ: pullThresholdForQueue."""
    queue_bytes_max: int = 100 << 20
    """Stored bytes of one queue held here, exceeded by one pull at most: compressed bodies count as they are stored, and a message keeps
    what it has decompressed below 64 KiB. RocketMQ: pullThresholdSizeForQueue."""
    queue_span_max: int = 2_000
    """Pulling waits while next pull offset − first unfinished offset exceeds this. RocketMQ: consumeConcurrentlyMaxSpan."""
    drain_timeout_ms: int = 30_000
    """How long a running listener may go on when a rebalance takes its queue away."""
    stop_timeout_ms: int = 8_000
    """The same when the consumer stops."""
    concurrency: int = 20
    """A concurrent listener's calls at a time, over all queues. RocketMQ: consumeThreadMax."""
    max_reconsume_times: int = RETRIES_MAX
    """Retries of a message that a concurrent listener failed; then it is dead-lettered. RocketMQ: maxReconsumeTimes."""
    offset_dir: str = DEFAULT_DIR
    """Broadcasting: where the progress files are, DIR/GROUP/INSTANCE/offsets.json; one for each cluster. RocketMQ: localOffsetStoreDir."""
    instance_name: str = "default"
    """Broadcasting: which member of the group this is on this machine, the same at each start. RocketMQ: instanceName."""
    consume_timeout_ms: int = 900_000
    """A concurrent call that runs longer has its messages sent back, and its result counts no more. RocketMQ: consumeTimeout."""

    def __post_init__(self) -> None:
        for f in fields(self):
            low, high = _RANGES.get(f.name, (None, None))
            value = getattr(self, f.name)
            if low is not None and high is not None and not (type(value) is int and low <= value <= high):
                raise ConfigError(f"{f.name} {value!r}: expected an integer in {low:,} … {high:,}")
        if not isinstance(self.message_model, MessageModel):
            raise ConfigError(f"message_model {self.message_model!r}: expected MessageModel.CLUSTERING or MessageModel.BROADCASTING")
        if not isinstance(self.offset_dir, str) or not self.offset_dir:
            raise ConfigError(f"offset_dir {self.offset_dir!r}: expected a directory")
        check_instance(self.instance_name)
        if not isinstance(self.consume_from_where, ConsumeFromWhere):
            names = ", ".join(point.name for point in ConsumeFromWhere)
            raise ConfigError(f"consume_from_where {self.consume_from_where!r}: expected a ConsumeFromWhere: {names}")
        if not isinstance(self.retry, OrderedRetry):
            raise ConfigError(f"retry {self.retry!r}: expected OrderedRetry(max_attempts=…)")
        if self.broadcasting and self.retry.on_exhausted == "dlq":
            raise ConfigError('retry on_exhausted "dlq": a broadcasting group has no dead-letter topic; use "block"')
        object.__setattr__(self, "allocate", check_strategy(self.allocate))
        if self.commit not in ("interval", "each"):
            raise ConfigError(f'commit {self.commit!r}: expected "interval" or "each"')
        if self.consume_from_where is ConsumeFromWhere.TIMESTAMP and self.consume_timestamp_ms is None:
            raise ConfigError("consume_from_where TIMESTAMP needs consume_timestamp_ms (store time, ms since 1970)")

    @property
    def broadcasting(self) -> bool:
        return self.message_model is MessageModel.BROADCASTING
