"""Rules of wall clocks that jump (runtime/steady_clock.py, store/log/store_clock.py)."""

from collections.abc import Callable
from typing import Any

from lockstep.broker.store import Store
from lockstep.broker.store.log.clock_steps import ClockSteps
from lockstep.broker.store.log.store_clock import PREFIX, StoreClock
from lockstep.broker.store.queues.query import Query
from lockstep.runtime.clock import Clock
from lockstep.runtime.steady_clock import NEAR_MS, STEP_MS, SteadyClock
from sweep.mutants.registry import Patches, mutant


@mutant("clocks")
def stamps_follow_the_wall_clock_and_never_fall(patch: Patches) -> None:
    """A delay counts from the send: a wall clock that was ahead for seconds does not postpone due times."""

    def highest(self: SteadyClock) -> tuple[int, int]:
        boot_ms = self._clock.boot_ms()
        self._offset_ms = max(self._offset_ms, self._clock.wall_ms() - boot_ms)
        return boot_ms, boot_ms + self._offset_ms

    patch.set(SteadyClock, "reading", highest)


@mutant(
    "clocks",
    aimed="tests/unit/broker/test_delayed_delivery.py::test_message_stored_by_a_fast_clock_waits_no_longer_than_its_delay",
)
def messages_stamped_ahead_wait_for_their_stamp(patch: Patches) -> None:
    """Delays of messages stored by a clock that was ahead count from their true store time after the clock was set back."""
    patch.set(StoreClock, "true_ms", lambda self, position, stamp_ms: stamp_ms)


@mutant("clocks", aimed="tests/unit/broker/test_delay_clocks.py::test_every_message_is_on_time_within_one_boot")
def a_clock_set_forward_makes_delayed_messages_due(patch: Patches) -> None:
    """Delays of messages stored before the clock was set forward count from their store time."""
    true_ms = StoreClock.true_ms
    back: Callable[[StoreClock], StoreClock] = lambda self: StoreClock(0, [step for step in self.steps if step.by_ms < 0])  # noqa: E731
    patch.set(StoreClock, "true_ms", lambda self, position, stamp_ms: true_ms(back(self), position, stamp_ms))


@mutant("clocks", aimed="tests/unit/broker/test_delay_clocks.py::test_permanent_forward_jump_of_the_wall_clock_makes_no_delay_early")
def a_step_of_the_clock_is_kept_in_memory(patch: Patches) -> None:
    """Steps of the clock are in the log, so that a start knows them."""
    patch.set(StoreClock, "read_clock_record", lambda self, position, body: body.startswith(PREFIX))


@mutant("clocks", aimed="tests/unit/broker/test_delay_clocks.py::test_many_small_wall_clock_steps_do_not_shift_delays")
def a_small_step_back_is_not_recorded(patch: Patches) -> None:
    """Each step of the clock is in the log, also a small one back: without it delayed messages are late by that step."""
    follow = SteadyClock.follow

    def silent(self: SteadyClock) -> int:
        by_ms = follow(self)
        return 0 if -NEAR_MS <= by_ms < 0 else by_ms

    patch.set(SteadyClock, "follow", silent)


@mutant(
    "clocks",
    aimed="tests/unit/broker/test_delay_clocks.py::test_wall_clock_lead_without_a_step_survives_a_restart",
)
def a_start_follows_a_small_clock_difference(patch: Patches) -> None:
    """A start continues from the reading, however little the wall clock differs: differences of many starts would add up."""
    init = SteadyClock.__init__

    def near(self: SteadyClock, clock: Clock, newest_ms: int = 0, ahead_ms: int | None = None) -> None:
        init(self, clock, newest_ms, ahead_ms)
        self.now_ms()
        if abs(self._ahead_ms) <= STEP_MS:
            self._offset_ms += self._ahead_ms

    patch.set(SteadyClock, "__init__", near)


@mutant("clocks")
def every_start_follows_its_wall_clock(patch: Patches) -> None:
    """A start in the same boot continues by the boot clock: a step of the wall clock before it makes no delayed message early."""
    start = StoreClock.start

    def believe(self: StoreClock, clock: Clock, boot_id: str, ahead_ms: int | None = None) -> int:
        self._reading = None
        return start(self, clock, boot_id)

    patch.set(StoreClock, "start", believe)


@mutant("clocks", aimed="tests/unit/broker/store/test_store_clock.py::test_wall_clock_a_year_ahead_for_seconds_removes_nothing")
def retention_follows_the_wall_clock(patch: Patches) -> None:
    """Retention removes nothing because the wall clock is far ahead for seconds."""
    patch.set(Store, "safe_now_ms", lambda self: self._host.clock.wall_ms())


@mutant(
    "clocks",
    aimed="tests/unit/broker/store/test_store_clock.py::test_search_by_time_skips_no_message_wherever_the_clock_was_set_back",
)
def a_search_by_time_assumes_rising_stamps(patch: Patches) -> None:
    """A search by time skips no message of that time or later if the clock was set back."""
    search: Any = Query.offset_by_time
    patch.set(Query, "offset_by_time", lambda self, queue, timestamp_ms, ranges=(): search(self, queue, timestamp_ms))


@mutant(
    "clocks", aimed="tests/unit/broker/store/test_clock_steps.py::test_omitted_steps_make_a_record_late_by_at_most_late_ms_and_never_early"
)
def a_step_that_is_left_out_is_forgotten(patch: Patches) -> None:
    """Beyond the limit of clock steps one step is merged into another: records count as stored later, never earlier."""

    def forget(self: ClockSteps, index: int) -> None:
        del self.kept[index]

    patch.set(ClockSteps, "_remove", forget)


@mutant("clocks", aimed="tests/unit/broker/store/test_clock_steps.py::test_step_count_is_bounded_over_boots_and_the_newest_step_is_exact")
def steps_of_the_clock_are_kept_without_a_limit(patch: Patches) -> None:
    """The number of steps is limited: each due message and each snapshot reads them."""
    patch.set(ClockSteps, "_remove_one", lambda self: None)


@mutant("clocks", aimed="tests/unit/broker/store/test_clock_steps.py::test_search_by_time_skips_no_message_when_steps_were_omitted")
def a_search_by_time_forgets_the_steps_that_were_left_out(patch: Patches) -> None:
    """If steps back were merged, a search by time allows for falling stamps."""
    ranges = ClockSteps.rising_ranges
    patch.set(ClockSteps, "rising_ranges", lambda self: [each._replace(fall_ms=0) for each in ranges(self)])
