"""The latency of appends: quantiles of histograms, their course over an hour, and its picture."""

from xml.etree.ElementTree import Element, fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.operations.brokers.append_latency import BUCKETS, bound_name, counted, quantile
from lockstep.operations.pictures.latency import CELL, LABEL, ROW, latency_picture
from lockstep.operations.watch.latency import COLUMN_TICKS, COLUMNS, LatencyHistory

SVG = "{http://www.w3.org/2000/svg}"
COUNTS = st.lists(st.integers(0, 1_000), min_size=BUCKETS, max_size=BUCKETS)


@given(COUNTS, COUNTS)
def test_what_was_counted_is_the_difference_of_two_states(first: list[int], more: list[int]) -> None:
    then = [one + other for one, other in zip(first, more, strict=True)]
    assert counted(first, then) == more
    assert counted(first[1:], then) is None, "another version has other buckets"
    if any(more):
        assert counted(then, first) is None, "the broker was started again"


@given(COUNTS, st.integers(1, 100))
def test_quantile_is_the_first_bucket_with_so_many_at_or_below_it(counts: list[int], percent: int) -> None:
    found, whole = quantile(counts, percent), sum(counts)
    if not whole:
        assert found is None
        return
    assert found is not None
    assert sum(counts[: found + 1]) * 100 >= whole * percent > sum(counts[:found]) * 100


def test_buckets_are_named_by_their_bounds() -> None:
    assert [bound_name(bucket) for bucket in (None, 0, 4, 12, BUCKETS - 2, BUCKETS - 1)] == [
        *(None, "≤ 50 µs", "≤ 1 ms", "≤ 1 s", "≤ 5 s", "> 5 s")
    ]


@given(st.lists(st.tuples(st.integers(0, 200), st.dictionaries(st.sampled_from("ab"), COUNTS)), max_size=40))
def test_columns_hold_what_was_counted_in_them_in_the_last_hour(steps: list[tuple[int, dict[str, list[int]]]]) -> None:
    history, tick, expected = LatencyHistory(), 0, dict[tuple[str, int], list[int]]()
    for passed, counts in steps:
        tick += passed
        history.add(tick, counts)
        for broker, found in counts.items():
            place = broker, tick // COLUMN_TICKS
            expected[place] = [one + other for one, other in zip(expected.get(place, [0] * BUCKETS), found, strict=True)]
    last = tick // COLUMN_TICKS if steps else -1
    for broker in "ab":
        assert history.of(broker) == [expected.get((broker, number)) for number in range(max(0, last + 1 - COLUMNS), last + 1)]


def test_broker_that_is_gone_for_an_hour_is_forgotten() -> None:
    history = LatencyHistory()
    history.add(0, {"a": [1] * BUCKETS})
    history.add(COLUMN_TICKS * COLUMNS, {})
    assert history._columns == {}


def cells(picture: str) -> list[tuple[int, int, str]]:
    """Return (column, row from the top, class) of each cell."""
    root: Element = fromstring(picture)
    found = []
    for path in root.iter(f"{SVG}path"):
        for cell in path.get("d", "").removeprefix("M").split("M"):
            x, y = map(int, cell.partition("h")[0].split())
            found.append(((x - LABEL) // CELL, y // ROW, path.get("class", "").split()[0]))
    return sorted(found)


def of(**counts: int) -> list[int]:
    """Return a column; the name of a bucket is "b" and its number."""
    return [counts.get(f"b{bucket}", 0) for bucket in range(BUCKETS)]


def test_picture_has_a_cell_for_each_bucket_of_a_column_darker_where_more_ended() -> None:
    picture = latency_picture([of(b2=98, b3=1, b5=1), None, of(), of(b4=1)], 10, "broker-a")
    assert cells(picture) == [(6, 0, "heat-1"), (6, 2, "heat-1"), (6, 3, "heat-5"), (9, 1, "heat-5")]
    root = fromstring(picture)
    assert [each.text for each in root.iter(f"{SVG}text")] == ["≤ 200 µs", "≤ 500 µs", "≤ 1 ms", "≤ 2 ms"]
    assert root.findtext(f"{SVG}desc") == "the fastest ≤ 200 µs, the slowest ≤ 2 ms"


@pytest.mark.parametrize("columns", [[], [None], [of()]])
def test_picture_without_appends_is_empty(columns: list[list[int] | None]) -> None:
    picture = latency_picture(columns, 10, "broker-a")
    assert cells(picture) == []
    assert fromstring(picture).findtext(f"{SVG}desc") == "no appends"
