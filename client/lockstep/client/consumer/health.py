"""`consumer.health()`: what a consumer knows of itself, as frozen values."""

from dataclasses import dataclass
from enum import Enum

from lockstep.protocol.queue import MessageQueue


class ConsumerState(Enum):
    """What a consumer is doing. FAILED: it has died; `wait_closed()` raises why."""

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
    """Age of the proof of life; None: nothing was proven yet. Calls start while it is below grace − 500 ms."""
    grace_ms: int


@dataclass(frozen=True, slots=True)
class QueueHealth:
    """One queue that is wanted, held or on its way out."""

    queue: MessageQueue
    state: str
    """A state of ownership.py: wanted, held, draining, releasing, released, unsure, gone (an old listener still runs)."""
    offset: int
    """Next offset to consume, as far as results are in."""
    committed_offset: int
    """The same, as far as the broker has answered."""
    attempts: int
    fetched_count: int
    running_ms: int | None
    """How long the listener has been at it; None: no call runs."""
    blocked: bool
    """Its first batch has failed so often that QueueBlocked was reported: `max_attempts` times, or 3 times if attempts are unlimited."""
    epoch: int | None
    """The fencing token of its grant; None in a concurrent group. 0 before the first grant."""
    generation: int | None
    """The generation of the group's progress; None before the first grant and in broadcasting."""


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """What a consumer knows of itself at one moment: `consumer.health()`."""

    group: str
    client_id: str | None
    state: ConsumerState
    paused: bool
    failure: str | None
    brokers: tuple[BrokerHealth, ...]
    queues: tuple[QueueHealth, ...]

    @property
    def ok(self) -> bool:
        """Running, every broker connected and proven, no queue blocked."""
        proven = all(b.connected and b.proven_ago_ms is not None and b.proven_ago_ms < b.grace_ms for b in self.brokers)
        return self.state is ConsumerState.RUNNING and proven and not any(queue.blocked for queue in self.queues)
