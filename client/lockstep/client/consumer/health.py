"""The state of a consumer as frozen values: `consumer.health()`."""

from dataclasses import dataclass
from enum import Enum

from lockstep.protocol.topics.queue import MessageQueue


class ConsumerState(Enum):
    """The state of a consumer. FAILED: `wait_closed()` raises the error."""

    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class BrokerHealth:
    """One broker of the subscribed topics."""

    name: str
    connected: bool
    proven_ago_ms: int | None
    """Milliseconds since the last proof of life; None before the first. Calls may start while it is less than the grace − 500 ms."""
    grace_ms: int


@dataclass(frozen=True, slots=True)
class LaneHealth:
    """The keys of one queue, with order_by="sharding_key"."""

    count: int
    """The number of keys with messages that are fetched or called."""
    oldest_offset: int | None
    """The first unfinished offset, which holds up the committed offset; None if every fetched message is finished."""
    oldest_key: str | None
    """The sharding key of the message there."""
    attempts: int
    """The highest number of failed calls of a batch that is not finished."""
    blocked_keys: tuple[str | None, ...]
    """The first keys whose attempts are exhausted, at most 8; None stands for messages without a key."""


@dataclass(frozen=True, slots=True)
class QueueHealth:
    """One queue that is wanted, held or being released."""

    queue: MessageQueue
    state: str
    """A state of ownership.py: wanted, held, draining, releasing, released, unsure, gone (an old listener still runs)."""
    offset: int
    """The next offset to consume, according to the results so far."""
    committed_offset: int
    """The next offset to consume that the broker has confirmed."""
    attempts: int
    fetched_count: int
    running_ms: int | None
    """Milliseconds for which the oldest running call has run; None if no call runs."""
    blocked: bool
    """Its first batch, or with order_by="sharding_key" that of any key, has failed so often that QueueBlocked was reported: `max_attempts`
    times, or 3 times if attempts are unlimited."""
    epoch: int | None
    """The fencing token of its grant; None in a concurrent group. 0 before the first grant."""
    generation: int | None
    """The generation of the group's progress; None before the first grant and in broadcasting."""
    lanes: LaneHealth | None = None
    """The keys of the queue, with order_by="sharding_key"."""


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """The state of a consumer at one moment."""

    group: str
    client_id: str | None
    state: ConsumerState
    paused: bool
    failure: str | None
    brokers: tuple[BrokerHealth, ...]
    queues: tuple[QueueHealth, ...]
    awaited: str | None = None
    """While it is STARTING: why the last attempt failed, and what is awaited."""

    @property
    def alive(self) -> bool:
        """Return whether it consumes, or tries to: for a liveness probe. It is False before the start, and from the stop or the failure
        on. A broker that is down does not change it, because a restart of this process would not help."""
        return self.failure is None and self.state in (ConsumerState.STARTING, ConsumerState.RUNNING)

    @property
    def ok(self) -> bool:
        """Return whether it is running, every broker is connected and proven, and no queue is blocked: for a readiness probe or an
        alert."""
        proven = all(b.connected and b.proven_ago_ms is not None and b.proven_ago_ms < b.grace_ms for b in self.brokers)
        return self.state is ConsumerState.RUNNING and proven and not any(queue.blocked for queue in self.queues)
