"""Figures for Prometheus. What is counted here costs an addition; everything else is read from the tables when somebody scrapes."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS_US = (50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000)
"""Upper bounds, from a write into the page cache to a disk that hangs."""


class Timing:
    """A histogram of durations."""

    __slots__ = ("counts", "total_us")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_US) + 1)
        """Per bucket of BUCKETS_US, the last one for what took longer."""
        self.total_us = 0

    def add(self, took_us: int) -> None:
        self.counts[bisect_left(BUCKETS_US, took_us)] += 1
        self.total_us += took_us


Rows = Iterable[tuple[Sequence[str], float]]
"""(label values, value)"""


class Figures:
    """Metric families under one set of labels that all of them carry."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._names = tuple(labels)
        self._values = tuple(labels.values())
        self._families: list[Metric] = []

    def gauge(self, name: str, help_text: str, labels: Sequence[str] = (), rows: Rows = ()) -> None:
        """A value that goes up and down."""
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily(name, help_text, labels=(*self._names, *labels))
        for values, value in rows:
            family.add_metric((*self._values, *values), value)
        self._families.append(family)

    def counter(self, name: str, help_text: str, labels: Sequence[str] = (), rows: Rows = ()) -> None:
        """A value that only rises; `_total` is appended to the name."""
        from prometheus_client.core import CounterMetricFamily

        family = CounterMetricFamily(name, help_text, labels=(*self._names, *labels))
        for values, value in rows:
            family.add_metric((*self._values, *values), value)
        self._families.append(family)

    def histogram(self, name: str, help_text: str, timing: Timing) -> None:
        """In seconds."""
        from prometheus_client.core import HistogramMetricFamily

        buckets, below = [], 0
        for bound, count in zip([*(f"{bound / 1e6:g}" for bound in BUCKETS_US), "+Inf"], timing.counts, strict=True):
            below += count
            buckets.append((bound, below))
        family = HistogramMetricFamily(name, help_text, labels=self._names)
        family.add_metric(self._values, buckets, timing.total_us / 1e6)
        self._families.append(family)

    def render(self) -> bytes:
        """In Prometheus' text format, this process's memory, CPU time and open files behind them."""
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

        registry = CollectorRegistry()
        registry.register(_Given(self._families))
        ProcessCollector(registry=registry)
        return generate_latest(registry)


class _Given:
    """What a registry collects from."""

    def __init__(self, families: Sequence["Metric"]) -> None:
        self._families = families

    def collect(self) -> Iterable["Metric"]:
        return self._families
