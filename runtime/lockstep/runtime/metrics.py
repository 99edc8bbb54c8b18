"""Figures for Prometheus. What is counted here costs an addition; everything else is read from the tables at a scrape.

A scrape may look at millions of entries and tell thousands of rows. It does so in slices of a fixed count, each in its own turn of the
loop: requests are served in between, and the rows of one answer are of different turns.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
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


def load() -> None:
    """Imports what a scrape needs: else the first one takes 15 ms of a turn for that."""
    import prometheus_client.core  # noqa: F401


Row = tuple[Sequence[str], float]
"""(label values, value)"""
Rows = Iterable[Row]


SLICE_ITEMS = 500
"""Entries of tables looked at in one turn of the loop: about a millisecond."""
SLICE_ROWS = 100
"""Rows put into text in one turn of the loop: about a millisecond."""


class Slices:
    """Divides a long piece of work among turns of the loop: call `item` for each item of it."""

    __slots__ = ("_count_max", "_left")

    def __init__(self, count_max: int = SLICE_ITEMS) -> None:
        self._count_max = self._left = count_max

    async def item(self, count: int = 1) -> None:
        """`count` items are done. Other tasks run when the slice is full: what the caller iterates over has to be a copy."""
        self._left -= count
        if self._left <= 0:
            self._left = self._count_max
            await asyncio.sleep(0)


class MetricFamilies:
    """Metric families under one set of labels that all of them carry."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._names = tuple(labels)
        self._values = tuple(labels.values())
        self._families: list[Iterator[Metric]] = []
        """Of each its parts: families of the same name with some of its rows."""

    def gauge(self, name: str, help_text: str, labels: Sequence[str] = (), rows: Rows = ()) -> None:
        """A value that goes up and down. `rows` are taken while `render` goes on: what they come from must not change until then."""
        self._add(False, name, help_text, labels, rows)

    def counter(self, name: str, help_text: str, labels: Sequence[str] = (), rows: Rows = ()) -> None:
        """A value that only rises; `_total` is appended to the name. `rows` as of `gauge`."""
        self._add(True, name, help_text, labels, rows)

    def histogram(self, name: str, help_text: str, timing: Timing) -> None:
        """In seconds."""
        from prometheus_client.core import HistogramMetricFamily

        buckets, below = [], 0
        for bound, count in zip([*(f"{bound / 1e6:g}" for bound in BUCKETS_US), "+Inf"], timing.counts, strict=True):
            below += count
            buckets.append((bound, below))
        family = HistogramMetricFamily(name, help_text, labels=self._names)
        family.add_metric(self._values, buckets, timing.total_us / 1e6)
        self._families.append(iter([family]))

    async def render(self) -> bytes:
        """In Prometheus' text format, this process's memory, CPU time and open files behind them."""
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

        texts: list[bytes] = []
        for family in self._families:
            head = b""
            for part in family:
                text = _text(part)
                if not head:  # two lines, of help and type: they stand once above all rows
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
    registry.register(_Given([family]))
    return generate_latest(registry)


class _Given:
    """What a registry collects from."""

    def __init__(self, families: Sequence["Metric"]) -> None:
        self._families = families

    def collect(self) -> Iterable["Metric"]:
        return self._families
