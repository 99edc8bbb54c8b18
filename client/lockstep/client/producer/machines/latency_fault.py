"""Latency fault tolerance: unkeyed sends avoid a broker that responded slowly, for a while. Pure.

RocketMQ: MQFaultStrategy, LatencyFaultToleranceImpl (sendLatencyFaultEnable). Disabled by default, as in RocketMQ: then a frame that failed
goes to another broker, and only the failure of its queue is remembered.

    response after (ms)    50   100   550   1,000   2,000   3,000   15,000
    avoided for (s)         0     0    30      60     120     180      600

A failure counts as a response after 30 s. If every broker is to be avoided, the better half of them is used.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.configuration.settings import Range, check_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyFaults:
    """How long unkeyed sends avoid a broker after a slow response, by its latency.

    RocketMQ 5 has latencies_ms=(50, 100, 550, 1800, 3000, 5000, 15000), left_out_ms=(0, 0, 2000, 5000, 6000, 10000, 30000) and
    failed_ms=10000.

    Raises:
        ConfigError: The rows differ in length, or a row has a negative number or decreases.
    """

    latencies_ms: tuple[int, ...] = (50, 100, 550, 1_000, 2_000, 3_000, 15_000)
    """Latencies in milliseconds, in increasing order. RocketMQ: latencyMax."""
    left_out_ms: tuple[int, ...] = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
    """For each latency: how long a broker that took at least so long is avoided, in milliseconds. RocketMQ: notAvailableDuration."""
    failed_ms: Annotated[int, Range(0)] = 30_000
    """The latency that a failure counts as, in milliseconds."""

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.latencies_ms or len(self.latencies_ms) != len(self.left_out_ms):
            raise ConfigError(f"{len(self.latencies_ms)} latencies_ms and {len(self.left_out_ms)} left_out_ms: expected a time for each")
        for name, row in (("latencies_ms", self.latencies_ms), ("left_out_ms", self.left_out_ms)):
            if any(type(number) is not int or number < 0 for number in row) or list(row) != sorted(row):
                raise ConfigError(f"{name} is {row}: expected integers of at least 0 that do not decrease")

    def left_out_for_ms(self, latency_ms: int) -> int:
        """Return how long a broker is avoided after a response that took this long, in milliseconds."""
        return max((out for bound, out in zip(self.latencies_ms, self.left_out_ms, strict=True) if latency_ms >= bound), default=0)


@dataclass(slots=True)
class _Seen:
    latency_ms: int
    until_ms: int
    """The broker is avoided before this time."""


class BrokerLatencies:
    """The latencies of one producer's brokers."""

    __slots__ = ("_faults", "_seen", "version")

    def __init__(self, faults: LatencyFaults) -> None:
        self._faults = faults
        self._seen: dict[str, _Seen] = {}
        self.version = 0
        """Rises when a response or failure changes which brokers are avoided. That a broker's time is over is only in `next_change_ms`."""

    def responded(self, broker_name: str, latency_ms: int, now_ms: int) -> None:
        """Record that a frame was stored there after this time. Only the last response counts."""
        was = self._seen.get(broker_name)
        was_out = was is not None and was.until_ms > now_ms
        self._seen[broker_name] = seen = _Seen(latency_ms, now_ms + self._faults.left_out_for_ms(latency_ms))
        if was_out or seen.until_ms > now_ms:
            self.version += 1

    def failed(self, broker_name: str, now_ms: int) -> None:
        """Record that a frame was not stored there in time, or was refused."""
        self.responded(broker_name, self._faults.failed_ms, now_ms)

    def usable(self, broker_names: Iterable[str], now_ms: int) -> frozenset[str]:
        """Return the brokers that are not avoided. If all are, return the better half: by latency, then by the end of their time."""
        names = list(dict.fromkeys(broker_names))
        free = [name for name in names if not self._is_out(name, now_ms)]
        if not free:
            names.sort(key=lambda name: (self._seen[name].latency_ms, self._seen[name].until_ms))
            free = names[: max(1, len(names) // 2)]
        return frozenset(free)

    def next_change_ms(self, now_ms: int) -> int | None:
        """Return when the time of the next avoided broker is over; None if no broker is avoided."""
        return min((seen.until_ms for seen in self._seen.values() if seen.until_ms > now_ms), default=None)

    def _is_out(self, name: str, now_ms: int) -> bool:
        seen = self._seen.get(name)
        return seen is not None and seen.until_ms > now_ms
