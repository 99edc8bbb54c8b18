"""SteadyClock: the boot clock and recorded steps; a jump of the wall clock is followed when it has lasted, and not before."""

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.runtime.clock import Clock
from lockstep.runtime.steady_clock import LOOK_MS_MAX, NEAR_MS, STEP_MS, TRUST_MS, SteadyClock

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000


class Hands:
    """A boot clock and a wall clock that are moved by hand."""

    def __init__(self) -> None:
        self.boot = 5_000
        self.ahead = START_MS

    def boot_ms(self) -> int:
        return self.boot

    def wall_ms(self) -> int:
        return self.boot + self.ahead


def steady(newest_ms: int = 0) -> tuple[Hands, SteadyClock]:
    hands = Hands()
    return hands, SteadyClock(cast(Clock, hands), newest_ms)


def watch(hands: Hands, clock: SteadyClock, for_ms: int, step_ms: int = 1_000) -> int:
    """Look every `step_ms`; return the time that it shows at the end."""
    end = hands.boot + for_ms
    while hands.boot < end:
        hands.boot = min(end, hands.boot + step_ms)
        clock.follow()
    return clock.now_ms()


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS, NEAR_MS + 1, -NEAR_MS - 1])
def test_a_jump_that_returns_leaves_no_trace(jump_ms: int) -> None:
    hands, clock = steady()
    right_ms = hands.wall_ms()
    assert clock.now_ms() == right_ms
    hands.ahead += jump_ms
    assert watch(hands, clock, 2_500) == right_ms + 2_500
    hands.ahead -= jump_ms
    assert watch(hands, clock, 1_000) == right_ms + 3_500 == hands.wall_ms()


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
def test_a_jump_that_lasts_is_followed(jump_ms: int) -> None:
    hands, clock = steady()
    clock.now_ms()
    hands.ahead += jump_ms
    first = clock.now_ms()
    assert watch(hands, clock, TRUST_MS - 1) == first + TRUST_MS - 1
    assert watch(hands, clock, 1) == hands.wall_ms()


def test_time_in_which_the_process_was_suspended_is_no_time_that_was_looked_at() -> None:
    hands, clock = steady()
    hands.ahead += HOUR_MS
    clock.now_ms()
    hands.boot += 10 * TRUST_MS
    assert clock.now_ms() == hands.wall_ms() - HOUR_MS
    assert watch(hands, clock, TRUST_MS - LOOK_MS_MAX - 1) == hands.wall_ms() - HOUR_MS
    assert watch(hands, clock, 1) == hands.wall_ms()


def test_another_jump_counts_from_its_own_begin() -> None:
    hands, clock = steady()
    hands.ahead += HOUR_MS
    watch(hands, clock, TRUST_MS - 1_000)
    hands.ahead += HOUR_MS
    assert watch(hands, clock, 1_500) == hands.wall_ms() - 2 * HOUR_MS


@pytest.mark.parametrize("jump_ms", [STEP_MS + 1, NEAR_MS, -STEP_MS - 1, -NEAR_MS])
def test_a_small_jump_is_followed_at_the_next_look_and_returned_either_way(jump_ms: int) -> None:
    hands, clock = steady()
    now_ms = clock.now_ms()
    hands.ahead += jump_ms
    assert clock.now_ms() == now_ms, "a change has to be recorded first"
    assert clock.follow() == jump_ms
    assert clock.now_ms() == now_ms + jump_ms == hands.wall_ms()
    assert clock.follow() == 0


@pytest.mark.parametrize("jump_ms", [STEP_MS, -STEP_MS])
def test_a_jump_of_a_quarter_of_a_second_is_carried_until_more_is_added_to_it(jump_ms: int) -> None:
    hands, clock = steady()
    now_ms = clock.now_ms()
    hands.ahead += jump_ms
    assert (clock.follow(), clock.now_ms()) == (0, now_ms)
    more_ms = 1 if jump_ms > 0 else -1
    hands.ahead += more_ms
    assert clock.follow() == jump_ms + more_ms


def test_a_start_behind_the_newest_record_goes_on_from_it_until_that_has_lasted() -> None:
    hands, clock = steady(START_MS + HOUR_MS)
    assert clock.now_ms() == START_MS + HOUR_MS
    assert watch(hands, clock, TRUST_MS - 1) == START_MS + HOUR_MS + TRUST_MS - 1
    assert watch(hands, clock, 1) == hands.wall_ms()


@pytest.mark.parametrize("set_ms", [STEP_MS, -STEP_MS, NEAR_MS, -NEAR_MS, 140_000, -140_000])
def test_a_start_goes_on_from_a_reading_of_the_same_boot_wherever_the_wall_clock_is(set_ms: int) -> None:
    """Also if the boot clock may have drifted by as much since: then `follow` returns it."""
    hands = Hands()
    reading = hands.boot_ms(), hands.wall_ms()
    hands.boot += HOUR_MS
    hands.ahead += set_ms
    clock = SteadyClock(cast(Clock, hands), reading[1], reading)
    assert clock.now_ms() == reading[1] + HOUR_MS
    assert clock.follow() == (set_ms if STEP_MS < abs(set_ms) <= NEAR_MS else 0)


def test_a_start_ahead_of_the_newest_record_believes_its_wall_clock() -> None:
    hands, clock = steady(START_MS - HOUR_MS)
    assert clock.now_ms() == hands.wall_ms()


@given(st.lists(st.tuples(st.integers(1, 5_000), st.integers(-HOUR_MS, HOUR_MS)), max_size=50))
def test_whatever_the_wall_clock_does_within_the_time_of_trust_no_more_than_a_little_is_seen_of_it(steps: list[tuple[int, int]]) -> None:
    hands, clock = steady()
    began = hands.boot
    shown = [clock.now_ms()]
    for passes_ms, ahead_ms in steps:
        hands.boot += passes_ms
        if hands.boot - began > TRUST_MS:
            break
        hands.ahead = START_MS + ahead_ms
        shown.append(clock.now_ms())
        assert shown == sorted(shown)
    assert shown[-1] - shown[0] <= TRUST_MS + NEAR_MS * len(steps)


@given(st.lists(st.tuples(st.integers(1, 5_000), st.integers(-HOUR_MS, HOUR_MS) | st.integers(-3_000, 3_000)), max_size=50))
def test_the_time_is_the_boot_clock_and_what_was_returned(steps: list[tuple[int, int]]) -> None:
    """Timers on it are never early or late, however many small jumps there were; and it follows the wall clock, or strays."""
    hands, clock = steady()
    began_ms, began_boot = clock.now_ms(), hands.boot
    told_ms = 0
    for passes_ms, jump_ms in steps:
        hands.ahead += jump_ms
        hands.boot += passes_ms
        assert clock.now_ms() == began_ms + told_ms + hands.boot - began_boot
        told_ms += clock.follow()
        assert clock.now_ms() == began_ms + told_ms + hands.boot - began_boot
        apart_ms = abs(hands.wall_ms() - clock.now_ms())
        assert apart_ms <= STEP_MS or apart_ms > NEAR_MS


def test_the_wall_clock_that_jumps_between_two_looks_of_one_call_is_not_followed() -> None:
    hands, clock = steady()
    looks = 0
    wall_ms = hands.wall_ms

    def jumping() -> int:
        nonlocal looks
        looks += 1
        return wall_ms() + (0 if looks == 1 else HOUR_MS)

    hands.wall_ms = jumping  # type: ignore[method-assign]
    assert clock.follow() == 0
    assert clock.now_ms() < wall_ms() + HOUR_MS
