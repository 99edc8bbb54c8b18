"""Prometheus' text format: names, labels, and a histogram whose buckets add up."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.runtime.metrics import BUCKETS_US, SLICE_ROWS, DurationHistogram, MetricFamilies, Slices


def lines(figures: MetricFamilies) -> list[str]:
    return asyncio.run(figures.render()).decode().splitlines()


def test_each_metric_value_has_the_common_labels_and_its_own() -> None:
    figures = MetricFamilies({"node_id": "broker-a"})
    figures.gauge("lag", "Text.", ("topic",), [(("orders",), 3), (('a"b',), 0)])
    figures.counter("messages_in", "Text.", ("topic",), [(("orders",), 7)])
    found = lines(figures)
    assert 'lag{node_id="broker-a",topic="orders"} 3.0' in found
    assert 'lag{node_id="broker-a",topic="a\\"b"} 0.0' in found
    assert 'messages_in_total{node_id="broker-a",topic="orders"} 7.0' in found
    assert "# TYPE messages_in_total counter" in found
    assert any(line.startswith("process_resident_memory_bytes ") for line in found)


@pytest.mark.parametrize(
    ("took_us", "bucket"),
    [(0, 0), (BUCKETS_US[0], 0), (BUCKETS_US[0] + 1, 1), (BUCKETS_US[-1], len(BUCKETS_US) - 1), (BUCKETS_US[-1] + 1, len(BUCKETS_US))],
)
def test_duration_is_counted_in_the_bucket_of_its_upper_bound(took_us: int, bucket: int) -> None:
    timing = DurationHistogram()
    timing.observe(took_us)
    assert timing.counts.index(1) == bucket
    assert (sum(timing.counts), timing.total_us) == (1, took_us)


@given(st.lists(st.integers(0, 10**8), max_size=50))
def test_histogram_buckets_are_cumulative(durations: list[int]) -> None:
    timing = DurationHistogram()
    for took_us in durations:
        timing.observe(took_us)
    figures = MetricFamilies({})
    figures.histogram("took_seconds", "Text.", timing)
    found = lines(figures)
    buckets = [float(line.split(" ")[1]) for line in found if line.startswith("took_seconds_bucket")]
    assert buckets == [sum(took_us <= bound for took_us in durations) for bound in (*BUCKETS_US, 10**9)]
    assert f"took_seconds_count {float(len(durations))}" in found


@pytest.mark.parametrize("count", [0, 1, SLICE_ROWS, 3 * SLICE_ROWS + 1])
def test_rendering_in_slices_equals_prometheus_client(count: int) -> None:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    figures, registry = MetricFamilies({"node": "a"}), CollectorRegistry()
    families = []
    for name, kind, add in (("lag", GaugeMetricFamily, figures.gauge), ("given", CounterMetricFamily, figures.counter)):
        rows = [((f"t{number}\\\n",), number / 3) for number in range(count)]
        add(name, "Of\nthem.", ("topic",), rows)
        family = kind(name, "Of\nthem.", labels=("node", "topic"))
        for values, value in rows:
            family.add_metric(("a", *values), value)
        families.append(family)

    class Given:
        def collect(self) -> list[object]:
            return families

    registry.register(Given())  # type: ignore[arg-type]
    text = generate_latest(registry).decode()
    assert "\n".join(lines(figures)).startswith(text.rstrip("\n"))


async def test_loop_turn_renders_at_most_one_slice_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    from prometheus_client.core import GaugeMetricFamily

    turns = [0]
    add = GaugeMetricFamily.add_metric

    def counted(self: GaugeMetricFamily, *row: object) -> None:
        turns[-1] += 1
        add(self, *row)  # type: ignore[arg-type]

    monkeypatch.setattr(GaugeMetricFamily, "add_metric", counted)
    figures = MetricFamilies({})
    figures.gauge("lag", "Text.", ("topic",), [((f"t{number}",), 1) for number in range(10 * SLICE_ROWS)])
    rendering = asyncio.ensure_future(figures.render())
    while not rendering.done():
        turns.append(0)
        await asyncio.sleep(0)
    assert max(turns) == SLICE_ROWS
    assert sum(turns) >= 10 * SLICE_ROWS


async def test_slices_yield_to_the_loop_after_a_number_of_items() -> None:
    done = 0

    async def work() -> None:
        nonlocal done
        slices = Slices(10)
        for _ in range(100):
            await slices.step()
            done += 1

    task = asyncio.ensure_future(work())
    seen = [0]
    while not task.done():
        await asyncio.sleep(0)
        seen.append(done)
    assert max(after - before for before, after in pairwise(seen)) == 10
