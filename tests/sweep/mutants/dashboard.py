"""Rules of the dashboard and of what it knows of the last hour."""

from typing import Any

from lockstep.admin import ownership
from lockstep.admin.watch import watch
from lockstep.admin.watch.cache import Cache
from lockstep.admin.watch.series import Series
from lockstep.dashboard import guard
from lockstep.dashboard.changes.change import Change, Plan
from lockstep.dashboard.changes.pages import Changes
from lockstep.dashboard.changes.replays import Replays
from lockstep.dashboard.guard import Guard
from sweep.mutants.registry import Patches, mutant

WATCH = "tests/unit/admin/watch/"
CHANGES = "tests/unit/dashboard/test_changes.py::"


@mutant(aimed=WATCH + "test_series.py::test_series_has_the_values_of_its_ticks_and_gaps_for_all_others")
def a_missing_sample_is_zero(patch: Patches) -> None:
    """A figure that is not known is a gap."""
    add = Series.add
    patch.set(Series, "add", lambda self, tick, values: add(self, tick, [(name, value or 0.0) for name, value in values]))


@mutant(aimed="tests/unit/admin/test_ownership.py::test_what_a_broker_does_not_tell_is_unknown_and_not_the_same_as_before")
def an_absent_broker_is_as_before(patch: Patches) -> None:
    """What a broker that is not reached would say is unknown."""
    patch.set(ownership, "_known_parts", lambda period, unknown: [period])


@mutant(aimed=WATCH + "test_watch.py::test_silent_broker_delays_no_other_one")
def a_silent_broker_is_waited_for(patch: Patches) -> None:
    """A broker that does not respond delays the figures of no other one."""
    patch.set(watch, "RESPONSE_MS", 60_000)


@mutant(aimed=WATCH + "test_cache.py::test_all_who_look_at_once_share_one_request")
def each_viewer_asks(patch: Patches) -> None:
    """All who look at a page at once cost one question."""

    async def look(self: Cache[Any, Any], key: Any) -> Any:
        self._answers.pop(key, None)
        return await shared(self, key)

    shared = Cache.look
    patch.set(Cache, "look", look)


@mutant(aimed="tests/unit/dashboard/test_guard.py::test_host_must_be_an_address_or_a_name_of_the_dashboard")
def any_host_is_answered(patch: Patches) -> None:
    """A request is answered under an address or a name of the dashboard only."""
    patch.set(guard, "is_own_host", lambda field, names: True)


@mutant(aimed="tests/unit/dashboard/test_guard.py::test_every_response_forbids_scripts_of_others_frames_and_sniffing")
def refusals_have_no_policy(patch: Patches) -> None:
    """Every response carries the policy for scripts and frames, a refusal too."""
    call = Guard.__call__

    async def bare(self: Guard, scope: Any, receive: Any, send: Any) -> None:
        async def stripped(message: Any) -> None:
            if message.get("status") == 421:
                message["headers"] = message["headers"][:2]
            await send(message)

        await call(self, scope, receive, stripped)

    patch.set(Guard, "__call__", bare)


@mutant(aimed=CHANGES + "test_form_must_come_from_a_page_of_the_dashboard")
def a_form_from_elsewhere_is_taken(patch: Patches) -> None:
    """A form is accepted from the dashboard's own pages only."""
    patch.set(guard, "_is_own_form", lambda scope, host: True)


@mutant(aimed=CHANGES + "test_form_without_the_token_changes_nothing")
def the_token_is_not_asked_for(patch: Patches) -> None:
    """A form has the token of the process that made it."""
    patch.set(Changes, "_has_token", lambda self, form: True)


@mutant(aimed=CHANGES + "test_change_needs_the_name_and_the_plan_that_was_shown")
def an_old_plan_is_carried_out(patch: Patches) -> None:
    """A change is carried out only if its plan is still the one that was shown."""
    patch.set(Plan, "digest", property(lambda self: "the same"))


@mutant(aimed=CHANGES + "test_change_needs_the_name_and_the_plan_that_was_shown")
def the_name_is_not_asked_for(patch: Patches) -> None:
    """A change needs the name of what it changes, typed once more."""
    patch.set(Change, "confirmed", None)


@mutant(aimed=CHANGES + "test_dead_letters_are_replayed_with_progress")
def two_replays_of_a_group_run(patch: Patches) -> None:
    """A group has one replay at a time."""
    patch.set(Replays, "_has", lambda self, group: False)
