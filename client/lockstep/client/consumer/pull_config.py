"""What a user may set on a pull consumer. RocketMQ: DefaultLitePullConsumer's fields."""

from dataclasses import dataclass, fields
from typing import TypedDict

from lockstep.client.consumer.config import ConsumerConfig
from lockstep.protocol.allocate import BY_BROKER, Strategy
from lockstep.protocol.bodies import ConsumeFromWhere
from lockstep.protocol.errors import ConfigError


class PullConsumerOptions(TypedDict, total=False):
    """The keywords of PullConsumer beside its group and nameserver: PullConsumerConfig's fields."""

    consume_from_where: ConsumeFromWhere
    consume_timestamp_ms: int | None
    allocate: Strategy
    auto_commit: bool
    poll_count: int
    poll_timeout_ms: int
    pull_count: int
    pull_bytes: int
    queue_count_max: int
    queue_bytes_max: int
    stop_timeout_ms: int


_OWN = ("auto_commit", "poll_count", "poll_timeout_ms")


@dataclass(frozen=True, slots=True)
class PullConsumerConfig:
    """A pull consumer's settings. ConfigError names the one that is out of range."""

    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.FIRST_OFFSET
    consume_timestamp_ms: int | None = None
    """With ConsumeFromWhere.TIMESTAMP: store time, ms since 1970."""
    allocate: Strategy = BY_BROKER
    """Whose a queue is, with `subscribe`; as a push consumer's."""
    auto_commit: bool = True
    """What a poll gave is done with the next poll. False: with `commit()`. RocketMQ: autoCommit."""
    poll_count: int = 100
    """Messages that one poll gives at most. RocketMQ: pullBatchSize."""
    poll_timeout_ms: int = 5_000
    """How long a poll waits for a message. RocketMQ: pollTimeoutMillis."""
    pull_count: int = 1_000
    pull_bytes: int = 1 << 20
    """What one pull asks for at most; the broker caps it (wire.md)."""
    queue_count_max: int = 1_000
    """Messages of one queue held here at most: nothing is fetched beyond. RocketMQ: pullThresholdForQueue."""
    queue_bytes_max: int = 100 << 20
    """Stored bytes of one queue held here, exceeded by one pull at most: compressed bodies count as they are stored, and a message keeps
    what it has decompressed below 64 KiB. RocketMQ: pullThresholdSizeForQueue."""
    stop_timeout_ms: int = 8_000
    """How long a stop waits for the answers to its last commits."""

    def __post_init__(self) -> None:
        self.consumer()
        if type(self.auto_commit) is not bool:
            raise ConfigError(f"auto_commit {self.auto_commit!r}: expected True or False")
        for name, high in (("poll_count", 10_000), ("poll_timeout_ms", 86_400_000)):
            value = getattr(self, name)
            if not (type(value) is int and (name == "poll_timeout_ms" or value) and 0 <= value <= high):
                raise ConfigError(f"{name} {value!r}: expected an integer in {int(name == 'poll_count')} … {high:,}")

    def consumer(self) -> ConsumerConfig:
        """The settings that it has in common with a push consumer. ConfigError."""
        return ConsumerConfig(**{each.name: getattr(self, each.name) for each in fields(self) if each.name not in _OWN})
