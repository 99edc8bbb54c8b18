"""The laws of order find exactly the violations."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.order import fence_falls, overtakings, skips


@pytest.mark.parametrize(
    ("work", "first", "backward", "found"),
    [
        ([], 0, True, []),
        ([1, 2, 3, 2, 3, 4], None, True, []),
        ([1, 2, 3, 2, 4], None, True, [(2, 4, 3)]),
        ([1, 2, 2], None, True, []),
        ([1, 2, 2], None, False, [(2, 2, 3)]),
        ([3, 4, 6, 7], None, False, [(4, 6, 5)]),
        ([1, 2], 0, True, [(None, 1, 0)]),
        ([0, 1], 0, True, []),
        ([0], 1, False, [(None, 0, 1)]),
    ],
)
def test_skips_finds_positions_that_are_neither_next_nor_a_repetition(
    work: list[int], first: int | None, backward: bool, found: list[tuple[int | None, int, int]]
) -> None:
    assert [(skip.before, skip.after, skip.expected) for skip in skips(work, int, first=first, backward=backward)] == found


@given(st.lists(st.integers(0, 6)))
def test_fence_falls_finds_fences_below_an_earlier_one(fences: list[int]) -> None:
    work = list(enumerate(fences))
    fallen = [other for _, other in fence_falls(work, lambda one: one[1])]
    assert fallen == [one for at, one in enumerate(work) if any(before > one[1] for before in fences[:at])]
    assert all(one[1] == max(fences[: other[0]]) for one, other in fence_falls(work, lambda one: one[1]))


Spans = list[tuple[int, int | None]]
SPANS = st.lists(
    st.tuples(st.integers(0, 20), st.none() | st.integers(0, 10)).map(lambda one: (one[0], None if one[1] is None else one[0] + one[1])),
    max_size=8,
)


@given(SPANS)
def test_overtakings_finds_messages_sent_after_a_later_one_was_acknowledged(spans: Spans) -> None:
    work = list(enumerate(spans))
    found = {one[0] for one, _ in overtakings(work, lambda one: one[1][0], lambda one: one[1][1])}
    assert found == {at for (at, one), (_, other) in combinations(work, 2) if other[1] is not None and other[1] < one[0]}


@given(SPANS, st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7))))
def test_excused_pair_does_not_hide_other_pairs(spans: Spans, excused: set[tuple[int, int]]) -> None:
    work = list(enumerate(spans))
    yielded = list(overtakings(work, lambda one: one[1][0], lambda one: one[1][1], lambda one, other: (one[0], other[0]) in excused))
    pairs = [(one[0], other[0]) for one, other in yielded]
    guilty = [
        (at, then)
        for (at, one), (then, other) in combinations(work, 2)
        if other[1] is not None and other[1] < one[0] and (at, then) not in excused
    ]
    assert set(pairs) <= set(guilty)
    assert {at for at, _ in pairs} == {at for at, _ in guilty}
