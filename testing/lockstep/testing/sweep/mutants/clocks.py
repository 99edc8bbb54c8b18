"""Rules of wall clocks that jump (runtime/steady.py, store/stamps.py)."""

from typing import Any

from lockstep.broker.store import Store
from lockstep.broker.store.query import Query
from lockstep.broker.store.stamps import Stamps
from lockstep.runtime.steady import SteadyClock
from lockstep.testing.sweep.mutants.registry import Patches, mutant


@mutant("clocks")
def stamps_follow_the_wall_clock_and_never_fall(patch: Patches) -> None:
    """A delay counts from now: a wall clock that was ahead for seconds does not push due times."""

    def highest(self: SteadyClock) -> int:
        self._last_ms = max(self._last_ms, self._clock.wall_ms())
        return self._last_ms

    patch.set(SteadyClock, "now_ms", highest)


@mutant("clocks", aimed="tests/unit/broker/test_delays.py::test_what_was_stored_by_a_clock_that_is_set_back_waits_no_longer_than_its_delay")
def what_was_stamped_ahead_waits_for_its_stamp(patch: Patches) -> None:
    """What was stored by a clock that was ahead counts from when it was stored, after the clock was set back."""
    patch.set(Stamps, "true_ms", lambda self, position, stamp_ms: stamp_ms)


@mutant("clocks", aimed="tests/unit/broker/store/test_stamps.py::test_a_wall_clock_that_is_a_year_ahead_for_seconds_removes_nothing")
def retention_believes_the_wall_clock(patch: Patches) -> None:
    """Nothing is old because the wall clock is far ahead for seconds."""
    patch.set(Store, "safe_now_ms", lambda self: self._host.clock.wall_ms())


@mutant(
    "clocks",
    aimed="tests/unit/broker/store/test_stamps.py::test_a_search_by_time_skips_nothing_that_was_stored_then_wherever_the_clock_was_set_back",
)
def a_search_by_time_takes_stamps_for_rising(patch: Patches) -> None:
    """A search by time skips nothing of that time or later where the clock was set back."""
    search: Any = Query.offset_by_time
    patch.set(Query, "offset_by_time", lambda self, queue, timestamp_ms, falls=(): search(self, queue, timestamp_ms))
