"""The settings of a producer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from lockstep.client.config import StartConfig
from lockstep.client.producer.machines.latency_fault import LatencyFaults
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.frame import FRAME_BYTES_MAX
from lockstep.protocol.messages.compression import COMPRESS_OVER_BYTES
from lockstep.protocol.messages.sequence import COUNT_MAX
from lockstep.runtime.configuration.settings import Range, check_settings

Require = Literal["written", "stored", "durable"]
DURABLE: Mapping[str, bool | None] = {"written": False, "stored": None, "durable": True}
"""The value on the wire for each `require`."""


def check_terms(timeout_ms: int | None, require: str) -> None:
    """Raise LocalProtocolError if an argument of a send is invalid: a misspelt "durable" must not be taken for "stored"."""
    if timeout_ms is not None and not (type(timeout_ms) is int and timeout_ms >= 1):
        raise LocalProtocolError(f"timeout_ms is {timeout_ms!r}: expected an integer of at least 1, or None for the producer's setting")
    if require not in DURABLE:
        raise LocalProtocolError(f'require is {require!r}: expected "written", "stored" or "durable"')


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(StartConfig):
    """Deadlines, batch sizes, the in-flight limit and the start of one producer.

    Raises:
        ConfigError: A setting has the wrong type or is out of range.
    """

    send_timeout_ms: Annotated[int, Range(1)] = 3_000
    """Deadline of an unkeyed send, retries included: half of it on the first queue, the rest on any queue. RocketMQ: sendMsgTimeout."""
    keyed_send_timeout_ms: Annotated[int, Range(1)] = 30_000
    """Deadline of a send that belongs to one queue (ordering.md 9.1): long enough for a broker to restart."""
    attempt_timeout_ms: Annotated[int, Range(1)] = 1_000
    """A frame without a response is written again after this time: the same bytes with the same sequence."""
    batch_bytes_max: Annotated[int, Range(1, FRAME_BYTES_MAX // 2, "half a frame")] = 256 * 1024
    """Records that gather while a frame is in flight are written together up to this size: as much as a broker parses of one connection in
    one turn of its loop."""
    batch_count_max: Annotated[int, Range(1, COUNT_MAX)] = 2_000
    """The same limit in messages."""
    in_flight_count_max: Annotated[int, Range(1)] = 10_000
    """Messages that are sent and not acknowledged; `send` waits while there are as many."""
    in_flight_bytes_max: Annotated[int, Range(1)] = 32 * 1024 * 1024
    """The same limit in bytes. One batch may exceed it."""
    waiting_count_max: Annotated[int, Range(1)] = 10_000
    """Messages that may wait for the in-flight limit, or for their topic's route, when sends have waited for a second: more than this, and
    more than are stored before the deadline at the rate of the last second, are refused. RocketMQ: backPressureForAsyncSendNum."""
    waiting_bytes_max: Annotated[int, Range(1)] = 32 * 1024 * 1024
    """The same limit in bytes."""
    unsent_bytes_max: Annotated[int, Range(1)] = 1024 * 1024
    """One-way sends wait while the connection has more unsent bytes than this."""
    request_count_max: Annotated[int, Range(1)] = 2_000
    """Requests that may wait for their replies; further ones are refused."""
    auto_create_topics: bool = True
    """Ask the brokers to create a missing topic at its first send. They refuse unless they are configured to allow it."""
    topic_queue_count: Annotated[int, Range(1)] = 4
    """Queues on each broker of a topic that is created this way. RocketMQ: defaultTopicQueueNums."""
    compress_over_bytes: Annotated[int | None, Range(1)] = COMPRESS_OVER_BYTES
    """Bodies of at least this size are stored compressed (zlib) if that makes them smaller; None disables compression. RocketMQ's consumers
    can read them. Compressing takes this process about 15 ms per megabyte of JSON. RocketMQ: compressMsgBodyOverHowmuch."""
    latency_faults: LatencyFaults | None = None
    """With LatencyFaults(), unkeyed sends avoid brokers that responded slowly, for a while. RocketMQ: sendLatencyFaultEnable."""

    def __post_init__(self) -> None:
        check_settings(self)
