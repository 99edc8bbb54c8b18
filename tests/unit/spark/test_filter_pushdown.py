"""Filters narrow the range that is read, and never exclude a row that matches."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.spark.filter_pushdown import FilterPushdown, pushdown_of


@dataclass(frozen=True)
class EqualTo:
    attribute: tuple[str, ...]
    value: Any


class In(EqualTo): ...


class GreaterThan(EqualTo): ...


class GreaterThanOrEqual(EqualTo): ...


class LessThan(EqualTo): ...


class LessThanOrEqual(EqualTo): ...


class StringContains(EqualTo): ...


HOLDS = {
    EqualTo: lambda row, value: row == value,
    GreaterThan: lambda row, value: row > value,
    GreaterThanOrEqual: lambda row, value: row >= value,
    LessThan: lambda row, value: row < value,
    LessThanOrEqual: lambda row, value: row <= value,
}
COMPARISON = st.tuples(st.sampled_from(list(HOLDS)), st.integers(0, 20))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(st.lists(COMPARISON, max_size=4), st.integers(0, 20))
def test_offset_that_passes_all_filters_is_read(filters: list[tuple[type, int]], offset: int) -> None:
    made = pushdown_of(kind(("offset",), value) for kind, value in filters)
    if all(HOLDS[kind](offset, value) for kind, value in filters):
        assert made.offset_from <= offset < made.offset_until


@given(st.lists(COMPARISON, max_size=4), st.integers(0, 20))
def test_time_that_passes_all_filters_is_read(filters: list[tuple[type, int]], micros: int) -> None:
    made = pushdown_of(kind(("timestamp",), EPOCH + timedelta(microseconds=value * 100)) for kind, value in filters)
    store_ms = micros * 100 // 1_000
    if all(HOLDS[kind](store_ms * 10, value) for kind, value in filters):
        assert made.store_ms_from is None or made.store_ms_from <= store_ms
        assert made.store_ms_until is None or store_ms < made.store_ms_until


def test_partitions_are_the_intersection_of_all_filters() -> None:
    assert pushdown_of([In(("partition",), (1, 2, 3)), In(("partition",), (2, 3, 4))]).numbers == {2, 3}
    assert pushdown_of([EqualTo(("partition",), 2)]).numbers == {2}


@pytest.mark.parametrize(
    "other",
    [EqualTo(("key",), b"x"), StringContains(("value",), "x"), EqualTo(("headers", "key"), "x"), object(), GreaterThan(("offset",), "5")],
)
def test_other_filters_are_not_pushed_down(other: object) -> None:
    assert pushdown_of([other]) == FilterPushdown()
