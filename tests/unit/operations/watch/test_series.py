"""Series of figures: what is not known is a gap, and memory is limited."""

from hypothesis import given
from hypothesis import strategies as st

from lockstep.operations.watch.series import Series

ADDED = st.lists(
    st.tuples(st.integers(1, 7), st.dictionaries(st.sampled_from("abcde"), st.none() | st.integers(-1_000, 1_000).map(float))), max_size=40
)


@given(ADDED, st.integers(1, 12))
def test_series_has_the_values_of_its_ticks_and_gaps_for_all_others(added: list[tuple[int, dict[str, float | None]]], count: int) -> None:
    series, truth, tick = Series(ticks=10), dict[tuple[str, int], float | None](), -1
    for step, values in added:
        tick += step
        series.add(tick, values.items())
        truth |= {(name, tick): value for name, value in values.items()}
    for name in "abcdef":
        expected = [truth.get((name, at)) for at in range(max(0, tick + 1 - min(count, 10)), tick + 1)]
        assert series.last(name, count) == expected
    assert len(series) <= 5


def test_most_important_series_are_kept_above_the_limit_and_one_without_values_makes_room() -> None:
    series = Series(ticks=3, series_max=2)
    series.add(0, [("a", 1.0), ("b", 2.0), ("c", 3.0)])
    assert ("a" in series, "b" in series, "c" in series) == (True, True, False)
    for tick in (1, 2):
        series.add(tick, [("a", 1.0), ("c", 3.0)])
    assert "b" in series
    series.add(3, [("a", 1.0), ("c", 3.0)])
    assert ("b" in series, series.last("c")) == (False, [None, None, 3.0])


def test_hour_of_four_thousand_series_takes_about_twelve_megabytes() -> None:
    series = Series()
    series.add(0, ((str(number), 1.0) for number in range(5_000)))
    assert len(series) == 4_000
    assert sum(values.itemsize * len(values) for values in series._values.values()) < 12_000_000
