"""Done ranges are sets of offsets: each function agrees with a set."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.done_ranges import RANGES_MAX, Ranges, above, below, check_ranges, contains, joined, pairs, skip, union

OFFSETS = st.integers(0, 60)
SETS = st.frozensets(OFFSETS)


def ranges_of(offsets: frozenset[int] | set[int]) -> Ranges:
    return joined((offset, offset + 1) for offset in sorted(offsets))


def offsets_of(ranges: Ranges) -> set[int]:
    return {offset for first, end in pairs(ranges) for offset in range(first, end)}


@given(SETS)
def test_ranges_are_ascending_and_have_exactly_the_offsets(offsets: frozenset[int]) -> None:
    ranges = ranges_of(offsets)
    assert all(low < high for low, high in pairwise(ranges))
    assert offsets_of(ranges) == offsets
    assert {offset for offset in range(62) if contains(ranges, offset)} == offsets


@given(SETS, SETS)
def test_union_has_the_offsets_of_both(one: frozenset[int], other: frozenset[int]) -> None:
    assert union(ranges_of(one), ranges_of(other)) == ranges_of(one | other)


@given(SETS, OFFSETS)
def test_above_and_below_split_at_an_offset(offsets: frozenset[int], at: int) -> None:
    ranges = ranges_of(offsets)
    assert above(ranges, at) == ranges_of({offset for offset in offsets if offset >= at})
    assert below(ranges, at) == ranges_of({offset for offset in offsets if offset < at})


@given(SETS, OFFSETS)
def test_skip_returns_the_next_unfinished_offset(offsets: frozenset[int], at: int) -> None:
    assert skip(ranges_of(offsets), at) == min(offset for offset in range(at, 62) if offset not in offsets)


@given(SETS)
def test_received_ranges_are_valid_only_above_the_offset_and_within_the_queue(offsets: frozenset[int]) -> None:
    ranges = ranges_of(offsets)
    if ranges:
        assert check_ranges(ranges, ranges[0] - 1, ranges[-1]) is None
        assert "expected ascending bounds above" in str(check_ranges(ranges, ranges[0], ranges[-1]))
        assert "expected ascending bounds above" in str(check_ranges(ranges, ranges[0] - 1, ranges[-1] - 1))
        assert "expected pairs" in str(check_ranges(ranges[:-1], -1, 100))
    assert check_ranges((), 0, 0) is None


def test_bounds_that_do_not_ascend_are_invalid() -> None:
    for wrong in ((5, 5), (5, 4), (5, 6, 6, 7), (5, 8, 7, 9)):
        assert "expected ascending bounds" in str(check_ranges(wrong, 1, 100)), wrong


def test_the_highest_ranges_above_the_limit_are_dropped() -> None:
    many = joined((2 * number, 2 * number + 1) for number in range(RANGES_MAX + 10))
    assert len(many) == 2 * RANGES_MAX
    assert many[-2:] == (2 * (RANGES_MAX - 1), 2 * RANGES_MAX - 1)
    assert check_ranges(many, -1, 1 << 40) is None
    assert "at most 128" in str(check_ranges((*many, 9_999, 10_000), -1, 1 << 40))
    assert union(many, (1, 2)) == (0, 3, *many[4:])
    assert len(union(many[2:], (-2, -1, 10_000, 10_001))) == 2 * RANGES_MAX


def test_a_range_that_is_full_still_grows() -> None:
    """The last range that fits is joined with what touches it, however many ranges there are."""
    many = [(2 * number, 2 * number + 1) for number in range(RANGES_MAX)]
    assert joined([*many, (many[-1][1], 5_000)])[-1] == 5_000
