"""Compute rates and percentiles. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """The measurements of one phase: rate in messages/s, latencies in µs. None if the phase does not measure it."""

    phase: str
    body_bytes: int
    messages: int
    rate: float | None = None
    p50_us: float | None = None
    p99_us: float | None = None


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` % of the values don't exceed (nearest rank). Raise ValueError without values."""
    if not values:
        raise ValueError("no values to take a percentile of")
    rank = -(-len(values) * percent // 100)
    return sorted(values)[max(int(rank), 1) - 1]


def latency_figure(phase: str, body_bytes: int, latencies_us: Sequence[float]) -> Figure:
    return Figure(phase, body_bytes, len(latencies_us), None, percentile(latencies_us, 50), percentile(latencies_us, 99))


def rate_figure(phase: str, body_bytes: int, messages: int, elapsed_us: float) -> Figure:
    return Figure(phase, body_bytes, messages, messages / elapsed_us * 1_000_000)
