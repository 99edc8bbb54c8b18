"""What a producer may be told."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict

from lockstep.client.producer.latency_fault import LatencyFaults
from lockstep.protocol.compression import COMPRESS_OVER_BYTES
from lockstep.protocol.errors import ConfigError, LocalProtocolError
from lockstep.protocol.frame import FRAME_BYTES_MAX
from lockstep.protocol.sequence import COUNT_MAX

Require = Literal["written", "stored", "durable"]
DURABLE: Mapping[str, bool | None] = {"written": False, "stored": None, "durable": True}
"""Require → `durable` on the wire."""


def check_terms(timeout_ms: int | None, require: str) -> None:
    """What one send may ask for beside its queue; LocalProtocolError: a misspelt "durable" must not pass for "stored"."""
    if timeout_ms is not None and not (type(timeout_ms) is int and timeout_ms >= 1):
        raise LocalProtocolError(f"timeout_ms is {timeout_ms!r}: expected an integer of at least 1, or None for the producer's setting")
    if require not in DURABLE:
        raise LocalProtocolError(f'require is {require!r}: expected "written", "stored" or "durable"')


class ProducerOptions(TypedDict, total=False):
    """The keywords of Producer beside its group and nameserver: ProducerConfig's fields."""

    send_timeout_ms: int
    keyed_send_timeout_ms: int
    attempt_timeout_ms: int
    batch_bytes_max: int
    batch_count_max: int
    in_flight_count_max: int
    in_flight_bytes_max: int
    unsent_bytes_max: int
    auto_create_topics: bool
    topic_queue_count: int
    compress_over_bytes: int | None
    latency_faults: LatencyFaults | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Deadlines, batch sizes and the in-flight limit of one producer."""

    send_timeout_ms: int = 3_000
    """Deadline of an unkeyed send, retries included: half of it on the first queue, the rest anywhere. RocketMQ: sendMsgTimeout."""
    keyed_send_timeout_ms: int = 30_000
    """Deadline of a send that belongs to one queue (ordering.md 9.1): long enough for a broker's restart."""
    attempt_timeout_ms: int = 1_000
    """An unanswered frame is written again after this: the same bytes, the same sequence."""
    batch_bytes_max: int = 256 * 1024
    """Records that gather while a frame is in flight go out together up to this size: what a broker parses of one connection in a turn."""
    batch_count_max: int = 2_000
    in_flight_count_max: int = 10_000
    """Messages between `send` and their acknowledgement; `send` waits beyond it."""
    in_flight_bytes_max: int = 32 * 1024 * 1024
    """Bytes of the same. One batch may go over it."""
    unsent_bytes_max: int = 1024 * 1024
    """One-way sends wait while the connection has more than this unsent."""
    auto_create_topics: bool = True
    """Ask the brokers for a missing topic at its first send; they refuse unless they are set to allow it."""
    topic_queue_count: int = 4
    """Queues on each broker of a topic that is created so. RocketMQ: defaultTopicQueueNums."""
    compress_over_bytes: int | None = COMPRESS_OVER_BYTES
    """Bodies of this size and above are stored compressed (zlib) where that makes them smaller; None: none is. RocketMQ's consumers read
    them. It takes this process some 15 ms a megabyte of JSON. RocketMQ: compressMsgBodyOverHowmuch."""
    latency_faults: LatencyFaults | None = None
    """LatencyFaults(): unkeyed sends leave out brokers that answered slowly, for a while. RocketMQ: sendLatencyFaultEnable."""

    def __post_init__(self) -> None:
        if not (self.latency_faults is None or isinstance(self.latency_faults, LatencyFaults)):
            raise ConfigError(f"latency_faults is {self.latency_faults!r}: expected LatencyFaults(), or None for none")
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if name == "latency_faults" or (value is None and name == "compress_over_bytes"):
                continue
            if name != "auto_create_topics" and not (type(value) is int and value >= 1):
                raise ConfigError(f"{name} is {value!r}: expected an integer of at least 1")
        if self.batch_bytes_max > FRAME_BYTES_MAX // 2:
            raise ConfigError(f"batch_bytes_max is {self.batch_bytes_max}: at most {FRAME_BYTES_MAX // 2}, half a frame")
        if self.batch_count_max > COUNT_MAX:
            raise ConfigError(f"batch_count_max is {self.batch_count_max}: at most {COUNT_MAX}")
