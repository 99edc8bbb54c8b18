"""The difference of two clocks: never more exact than the measurement."""

from hypothesis import given
from hypothesis import strategies as st

from lockstep.operations.watch.clock_offset import RENEWED_MS, ClockOffset


def measured(*exchanges: tuple[int, int, int]) -> ClockOffset:
    clock = ClockOffset()
    for exchange in exchanges:
        clock.measure(*exchange)
    return clock


def test_difference_that_the_duration_of_the_request_explains_is_none() -> None:
    assert ClockOffset().ms == 0
    assert [measured((0, 100, theirs)).ms for theirs in (0, 50, 100)] == [0, 0, 0]
    assert (measured((0, 100, 1_050)).ms, measured((0, 100, 1_050)).least_ms) == (1_000, 949)
    assert (measured((5_000, 5_100, 50)).ms, measured((5_000, 5_100, 50)).least_ms) == (-5_000, 4_949)


def test_better_measurement_counts_until_it_is_old_or_proved_wrong() -> None:
    exact, rough = (1_000, 1_002, 6_001), (2_000, 2_400, 7_300)
    assert measured(exact, rough).ms == 5_000
    assert measured(rough, exact).ms == 5_000
    assert measured(exact, (3_000, 3_400, 3_200)).ms == 0, "the clock was set"
    later = RENEWED_MS + 2_000
    assert measured(exact, (later, later + 400, later + 5_300)).ms == 5_100
    assert measured(exact, (900, 800, 0)).ms == 5_000, "this machine's clock was set back meanwhile"


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=1, max_size=20), st.integers(-100_000, 100_000))
def test_difference_is_as_exact_as_the_best_request(ways: list[tuple[int, int]], ahead_ms: int) -> None:
    clock = ClockOffset()
    for number, (there, back) in enumerate(ways):
        sent_ms = number * 1_000
        clock.measure(sent_ms, sent_ms + there + back, sent_ms + there + ahead_ms)
    best = min(there + back for there, back in ways)
    assert abs(clock.ms - ahead_ms) <= best + 2
    assert clock.least_ms <= abs(ahead_ms)
