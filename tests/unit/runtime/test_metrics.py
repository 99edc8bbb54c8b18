"""Prometheus' text format: names, labels, and a histogram whose buckets add up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.runtime.metrics import BUCKETS_US, Figures, Timing


def lines(figures: Figures) -> list[str]:
    return figures.render().decode().splitlines()


def test_every_value_carries_the_common_labels_and_its_own() -> None:
    figures = Figures({"node_id": "broker-a"})
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
def test_a_duration_counts_up_to_its_bound(took_us: int, bucket: int) -> None:
    timing = Timing()
    timing.add(took_us)
    assert timing.counts.index(1) == bucket
    assert (sum(timing.counts), timing.total_us) == (1, took_us)


@given(st.lists(st.integers(0, 10**8), max_size=50))
def test_buckets_are_cumulative_and_the_last_one_holds_all(durations: list[int]) -> None:
    timing = Timing()
    for took_us in durations:
        timing.add(took_us)
    figures = Figures({})
    figures.histogram("took_seconds", "Text.", timing)
    buckets = [float(line.split(" ")[1]) for line in lines(figures) if line.startswith("took_seconds_bucket")]
    assert buckets == [sum(took_us <= bound for took_us in durations) for bound in (*BUCKETS_US, 10**9)]
    assert f"took_seconds_count {float(len(durations))}" in lines(figures)
