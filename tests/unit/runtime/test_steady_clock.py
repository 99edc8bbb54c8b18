"""SteadyClock: the boot clock plus recorded steps. A wall clock jump is followed only once it has lasted."""

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.runtime.clock import Clock
from lockstep.runtime.steady_clock import LOOK_MS_MAX, NEAR_MS, STEP_MS, TRUST_MS, SteadyClock

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000


class ManualClocks:
    """A boot clock and a wall clock that the test sets."""

    def __init__(self) -> None:
        self.boot = 5_000
        self.ahead = START_MS

    def boot_ms(self) -> int:
        return self.boot

    def wall_ms(self) -> int:
        return self.boot + self.ahead


def steady(newest_ms: int = 0) -> tuple[ManualClocks, SteadyClock]:
    hands = ManualClocks()
    return hands, SteadyClock(cast(Clock, hands), newest_ms)


def watch(hands: ManualClocks, clock: SteadyClock, for_ms: int, step_ms: int = 1_000) -> int:
    """Follow the wall clock every `step_ms`. Return the time at the end."""
    end = hands.boot + for_ms
    while hands.boot < end:
        hands.boot = min(end, hands.boot + step_ms)
        clock.follow()
    return clock.now_ms()


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS, NEAR_MS + 1, -NEAR_MS - 1])
def test_temporary_wall_clock_jump_has_no_effect(jump_ms: int) -> None:
    hands, clock = steady()
    right_ms = hands.wall_ms()
    assert clock.now_ms() == right_ms
    hands.ahead += jump_ms
    assert watch(hands, clock, 2_500) == right_ms + 2_500
    hands.ahead -= jump_ms
    assert watch(hands, clock, 1_000) == right_ms + 3_500 == hands.wall_ms()


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
def test_lasting_wall_clock_jump_is_followed(jump_ms: int) -> None:
    hands, clock = steady()
    clock.now_ms()
    hands.ahead += jump_ms
    first = clock.now_ms()
    assert watch(hands, clock, TRUST_MS - 1) == first + TRUST_MS - 1
    assert watch(hands, clock, 1) == hands.wall_ms()


def test_suspended_time_does_not_count_toward_a_lasting_jump() -> None:
    hands, clock = steady()
    hands.ahead += HOUR_MS
    clock.now_ms()
    hands.boot += 10 * TRUST_MS
    assert clock.now_ms() == hands.wall_ms() - HOUR_MS
    assert watch(hands, clock, TRUST_MS - LOOK_MS_MAX - 1) == hands.wall_ms() - HOUR_MS
    assert watch(hands, clock, 1) == hands.wall_ms()


def test_second_jump_restarts_the_waiting_time() -> None:
    hands, clock = steady()
    hands.ahead += HOUR_MS
    watch(hands, clock, TRUST_MS - 1_000)
    hands.ahead += HOUR_MS
    assert watch(hands, clock, 1_500) == hands.wall_ms() - 2 * HOUR_MS


@pytest.mark.parametrize("jump_ms", [STEP_MS + 1, NEAR_MS, -STEP_MS - 1, -NEAR_MS])
def test_small_jump_is_followed_at_the_next_check_and_returned(jump_ms: int) -> None:
    hands, clock = steady()
    now_ms = clock.now_ms()
    hands.ahead += jump_ms
    assert clock.now_ms() == now_ms, "a change has to be recorded first"
    assert clock.follow() == jump_ms
    assert clock.now_ms() == now_ms + jump_ms == hands.wall_ms()
    assert clock.follow() == 0


@pytest.mark.parametrize("jump_ms", [STEP_MS, -STEP_MS])
def test_jump_of_at_most_a_quarter_second_is_not_followed_until_it_grows(jump_ms: int) -> None:
    hands, clock = steady()
    now_ms = clock.now_ms()
    hands.ahead += jump_ms
    assert (clock.follow(), clock.now_ms()) == (0, now_ms)
    more_ms = 1 if jump_ms > 0 else -1
    hands.ahead += more_ms
    assert clock.follow() == jump_ms + more_ms


def test_start_with_a_wall_clock_before_the_newest_record_continues_from_the_record() -> None:
    hands, clock = steady(START_MS + HOUR_MS)
    assert clock.now_ms() == START_MS + HOUR_MS
    assert watch(hands, clock, TRUST_MS - 1) == START_MS + HOUR_MS + TRUST_MS - 1
    assert watch(hands, clock, 1) == hands.wall_ms()


@pytest.mark.parametrize("set_ms", [STEP_MS, -STEP_MS, NEAR_MS, -NEAR_MS, 140_000, -140_000])
def test_start_within_the_same_boot_continues_from_the_saved_reading(set_ms: int) -> None:
    """This holds even if the boot clock may have drifted by as much since. `follow` then returns the difference."""
    hands = ManualClocks()
    reading = hands.boot_ms(), hands.wall_ms()
    hands.boot += HOUR_MS
    hands.ahead += set_ms
    clock = SteadyClock(cast(Clock, hands), reading[1], reading[1] - reading[0])
    assert clock.now_ms() == reading[1] + HOUR_MS
    assert clock.follow() == (set_ms if STEP_MS < abs(set_ms) <= NEAR_MS else 0)


def test_start_with_a_wall_clock_after_the_newest_record_uses_it() -> None:
    hands, clock = steady(START_MS - HOUR_MS)
    assert clock.now_ms() == hands.wall_ms()


@given(st.lists(st.tuples(st.integers(1, 5_000), st.integers(-HOUR_MS, HOUR_MS)), max_size=50))
def test_wall_clock_jumps_within_the_waiting_time_change_the_time_only_slightly(steps: list[tuple[int, int]]) -> None:
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
def test_time_equals_the_boot_clock_plus_the_returned_steps(steps: list[tuple[int, int]]) -> None:
    """Timers on it are never early or late despite small jumps. It differs from the wall clock only slightly or by an unfollowed jump."""
    hands, clock = steady()
    began_ms, began_boot = clock.now_ms(), hands.boot
    reported_ms = 0
    for passes_ms, jump_ms in steps:
        hands.ahead += jump_ms
        hands.boot += passes_ms
        assert clock.now_ms() == began_ms + reported_ms + hands.boot - began_boot
        reported_ms += clock.follow()
        assert clock.now_ms() == began_ms + reported_ms + hands.boot - began_boot
        apart_ms = abs(hands.wall_ms() - clock.now_ms())
        assert apart_ms <= STEP_MS or apart_ms > NEAR_MS


def test_jump_between_two_readings_of_one_call_is_not_followed() -> None:
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
