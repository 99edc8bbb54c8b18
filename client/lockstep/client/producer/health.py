"""The state of a producer as frozen values: `producer.health()`."""

from dataclasses import dataclass
from enum import Enum


class ProducerState(Enum):
    """The state of a producer: NEW, STARTING, RUNNING, CLOSING, CLOSED, and from there STARTING again. With `start_in_background` it is
    STARTING until a nameserver has responded, and accepts sends meanwhile."""

    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    CLOSING = "closing"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class ProducerHealth:
    """The state of a producer at one moment."""

    group: str
    state: ProducerState
    awaited: str | None
    """While it is STARTING: why the last attempt failed, and what is awaited."""
    down_brokers: tuple[str, ...]
    """The brokers of its topics that are not connected; after a first request, of the cluster."""
    in_flight_count: int
    in_flight_bytes: int
    request_count: int
    """Requests that wait for their replies."""
    dropped_reply_count: int
    """Replies since its start that were dropped: they came too late, or after another one."""

    @property
    def alive(self) -> bool:
        """Return whether it accepts sends, or is about to: for a liveness probe. Servers that are down do not change it."""
        return self.state in (ProducerState.STARTING, ProducerState.RUNNING)

    @property
    def ok(self) -> bool:
        """Return whether a nameserver has responded and every broker of its topics is connected: for a readiness probe or an alert."""
        return self.state is ProducerState.RUNNING and not self.down_brokers
