"""Metrics for Prometheus. Counting an event costs an addition; everything else is read from the tables during a scrape.

A scrape may read millions of entries and return thousands of rows. It does so in slices of a fixed size, each in its own turn of the loop:
requests are served in between, so the rows of one response are from different turns.
"""

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from lockstep.runtime.extras import with_advice

if TYPE_CHECKING:
    from prometheus_client.core import Metric

T = TypeVar("T")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS_US = (50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000)
"""Upper bounds in µs, from a write into the page cache to a disk that hangs."""


class DurationHistogram:
    """A histogram of durations. `bounds` are the upper bounds of its buckets, in µs."""

    __slots__ = ("bounds", "counts", "max_us", "total_us")

    def __init__(self, bounds: Sequence[int] = BUCKETS_US) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """The count per bucket; the last one is for longer durations."""
        self.total_us = self.max_us = 0

    def observe(self, took_us: int) -> None:
        self.counts[bisect_left(self.bounds, took_us)] += 1
        self.total_us += took_us
        if took_us > self.max_us:
            self.max_us = took_us


def load() -> None:
    """Import the modules that a scrape needs; otherwise the first scrape would spend 15 ms of a turn on it."""
    try:
        import prometheus_client.core  # noqa: F401
    except ModuleNotFoundError as error:
        raise with_advice(error) from None


Sample = tuple[Sequence[str], float]
"""(label values, value)"""
Rows = Iterable[Sample]


SLICE_ITEMS = 500
"""The number of table entries read in one turn of the loop: about a millisecond."""
SLICE_ROWS = 100
"""The number of rows rendered in one turn of the loop: about a millisecond."""


class Slices:
    """Divides a long piece of work among turns of the loop: call `step` for each item of it."""

    __slots__ = ("_count_max", "_left")

    def __init__(self, count_max: int = SLICE_ITEMS) -> None:
        self._count_max = self._left = count_max

    async def step(self, count: int = 1) -> None:
        """Count `count` items as done. When the slice is full, other tasks run: iterate over a copy."""
        self._left -= count
        if self._left <= 0:
            self._left = self._count_max
            await asyncio.sleep(0)


async def in_slices(items: Iterable[T], count_max: int = SLICE_ITEMS) -> AsyncIterator[Sequence[T]]:
    """Yield the items in slices, of a copy, and run other tasks between two of them: cheaper than a step for each item."""
    copy = list(items)
    for first in range(0, len(copy), count_max):
        if first:
            await asyncio.sleep(0)
        yield copy[first : first + count_max]


class MetricFamilies:
    """Metric families with a set of labels that all of them carry."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._names = tuple(labels)
        self._values = tuple(labels.values())
        self._families: list[Iterator[Metric]] = []
        """For each family its parts: families of the same name with some of the rows."""

    def gauge(self, name: str, help_text: str, labels: Sequence[str] = (), rows: Rows = ()) -> None:
        """Add a value that goes up and down. `rows` are consumed during `render`: their source must not change until then."""
        self._add(False, name, help_text, labels, rows)

    def counter(self, name: str, help_text: str, labels: Sequence[str] = (), rows: Rows = ()) -> None:
        """Add a value that only rises; `_total` is appended to the name. `rows` are as in `gauge`."""
        self._add(True, name, help_text, labels, rows)

    def histogram(self, name: str, help_text: str, timing: DurationHistogram) -> None:
        """Add a histogram, in seconds."""
        from prometheus_client.core import HistogramMetricFamily

        buckets, below = [], 0
        for bound, count in zip([*(f"{bound / 1e6:g}" for bound in timing.bounds), "+Inf"], timing.counts, strict=True):
            below += count
            buckets.append((bound, below))
        family = HistogramMetricFamily(name, help_text, labels=self._names)
        family.add_metric(self._values, buckets, timing.total_us / 1e6)
        self._families.append(iter([family]))

    async def render(self) -> bytes:
        """Return Prometheus' text format, followed by this process's memory, CPU time and open files."""
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

        texts: list[bytes] = []
        for family in self._families:
            head = b""
            for part in family:
                text = _text(part)
                if not head:  # the lines of help and type precede all rows once
                    head = b"".join(text.splitlines(keepends=True)[:2])
                    texts.append(head)
                texts.append(text[len(head) :])
                await asyncio.sleep(0)
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        return b"".join([*texts, generate_latest(registry)])

    def _add(self, rises: bool, name: str, help_text: str, labels: Sequence[str], rows: Rows) -> None:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        def parts() -> "Iterator[Metric]":
            left, first = iter(rows), True
            while (part := list(islice(left, SLICE_ROWS))) or first:
                family = (CounterMetricFamily if rises else GaugeMetricFamily)(name, help_text, labels=(*self._names, *labels))
                for values, value in part:
                    family.add_metric((*self._values, *values), value)
                yield family
                first = False

        self._families.append(parts())


def _text(family: "Metric") -> bytes:
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(_FixedCollector([family]))
    return generate_latest(registry)


class _FixedCollector:
    """A collector for a registry that returns the given families."""

    def __init__(self, families: Sequence["Metric"]) -> None:
        self._families = families

    def collect(self) -> Iterable["Metric"]:
        return self._families
