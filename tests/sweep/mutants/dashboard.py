"""Rules of the dashboard and of what it knows of the last hour."""

import sys
from dataclasses import replace
from typing import Any

from lockstep.broker.figures import figures
from lockstep.dashboard import Dashboard
from lockstep.dashboard.access import guard
from lockstep.dashboard.access.guard import Guard
from lockstep.dashboard.access.sessions import BrowserSession, Sessions
from lockstep.dashboard.changes import pages
from lockstep.dashboard.changes.forms import Form, Planned
from lockstep.dashboard.changes.outcomes import Outcomes
from lockstep.dashboard.changes.replays import Replays
from lockstep.dashboard.search.message_search import MessageSearch
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.brokers import rates
from lockstep.operations.groups import ownership
from lockstep.operations.messages.find import Criteria
from lockstep.operations.pictures import owners, series
from lockstep.operations.watch import watch
from lockstep.operations.watch.cache import Cache
from lockstep.operations.watch.events import EventHistory
from lockstep.operations.watch.live_tail import LiveTail, LiveTails
from lockstep.operations.watch.series import Series
from lockstep.operations.watch.tail_plan import TailPlan
from lockstep.runtime.metrics import Slices
from lockstep.runtime.security.rights import Rights
from sweep.mutants.registry import Patches, mutant

WATCH = "tests/unit/operations/watch/"
CHANGES = "tests/unit/dashboard/test_changes.py::"
LOGIN = "tests/unit/dashboard/test_dashboard_login.py::"
MESSAGE_PAGES = "tests/unit/dashboard/test_message_pages.py::"
PICTURES = "tests/unit/operations/pictures/test_pictures.py::"
RATES = "tests/unit/operations/brokers/test_rates.py::"
TAIL = "tests/unit/dashboard/test_tail_page.py::"


@mutant(aimed=WATCH + "test_series.py::test_series_has_the_values_of_its_ticks_and_gaps_for_all_others")
def a_missing_sample_is_zero(patch: Patches) -> None:
    """A figure that is not known is a gap."""
    add = Series.add
    patch.set(Series, "add", lambda self, tick, values: add(self, tick, [(name, value or 0.0) for name, value in values]))


@mutant(aimed="tests/unit/operations/groups/test_ownership.py::test_what_a_broker_does_not_tell_is_unknown_and_not_the_same_as_before")
def an_absent_broker_is_as_before(patch: Patches) -> None:
    """What a broker that is not reached would say is unknown."""
    patch.set(ownership, "known_parts", lambda period, unknown: [period])


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
    """A form has the token of the session for which it was made."""
    patch.set(pages, "_has_token", lambda session, form: True)


@mutant(aimed=CHANGES + "test_change_needs_the_name_and_the_plan_that_was_shown")
def an_old_plan_is_carried_out(patch: Patches) -> None:
    """A change is carried out only if its plan is still the one that was shown."""
    patch.set(Planned, "digest", property(lambda self: "the same"))


@mutant(aimed=CHANGES + "test_change_needs_the_name_and_the_plan_that_was_shown")
def the_name_is_not_asked_for(patch: Patches) -> None:
    """A change needs the name of what it changes, typed once more."""
    patch.set(Form, "confirmed", None)


@mutant(aimed=CHANGES + "test_confirmed_plan_is_carried_out_once")
def a_second_click_carries_a_plan_out_again(patch: Patches) -> None:
    """A plan that was confirmed is carried out once, however often its form comes."""
    known = Outcomes.__contains__
    patch.set(Outcomes, "__contains__", lambda self, nonce: sys._getframe(1).f_code.co_name != "_post" and known(self, nonce))
    patch.set(Outcomes, "begin", lambda self, nonce: self._outcomes.setdefault(nonce, None))


@mutant(aimed=CHANGES + "test_dead_letters_are_replayed_with_progress")
def two_replays_of_a_group_run(patch: Patches) -> None:
    """A group has one replay at a time."""
    patch.set(Replays, "_has", lambda self, group: False)


@mutant(aimed=RATES + "test_rate_over_a_gap_is_unknown")
def a_start_of_a_broker_has_a_rate(patch: Patches) -> None:
    """Between two looks at a broker that was started in between there is no rate."""
    init = rates._Pair.__init__

    def same_start(self: rates._Pair, before: Any, now: Any) -> None:
        if before is not None:
            up_ms = min(before.status.up_ms, now.status.up_ms - 1)
            before = replace(before, status=replace(before.status, term=now.status.term, up_ms=up_ms))
        init(self, before, now)

    patch.set(rates._Pair, "__init__", same_start)


@mutant(aimed=RATES + "test_falling_counter_has_no_rate")
def a_restart_is_a_negative_rate(patch: Patches) -> None:
    """A counter that has fallen has no rate."""
    patch.set(rates._Pair, "rate", lambda self, before, now: None if self.before is None else (now - (before or 0)) * 1000 / self.took_ms)


@mutant(aimed=WATCH + "test_watch.py::test_sums_wait_for_a_broker_that_is_gone_for_a_while_and_then_go_on_without_it")
def a_dead_brokers_lag_counts_as_none(patch: Patches) -> None:
    """In the course of a sum a broker that has just stopped to respond is a gap, not a fall."""
    figures = watch.figures
    patch.set(watch, "figures", lambda found, topics, awaited=(): figures(found, topics))


@mutant(aimed=PICTURES + "test_course_has_a_gap_where_the_figure_is_not_known")
def gaps_are_closed(patch: Patches) -> None:
    """The course of a figure is interrupted where the figure is not known."""
    runs = series._runs
    patch.set(series, "_runs", lambda values: filter(None, [[point for run in runs(values) for point in run]]))


@mutant(aimed=PICTURES + "test_bars_say_whose_they_are_how_long_the_owner_was_silent_and_why_they_ended")
def the_grace_is_not_drawn(patch: Patches) -> None:
    """The time from the last sign of an owner that was lost is drawn apart from the time before it."""
    bar = owners._bar
    patch.set(owners, "_bar", lambda scale, span, *drawn: bar(scale, replace(span, alive_until_ms=None), *drawn))


@mutant(aimed=WATCH + "test_watch.py::test_events_are_followed_over_the_restart_of_a_broker")
def events_of_one_broker_are_lost(patch: Patches) -> None:
    """Each broker numbers its own events: equal numbers of two brokers are two events."""
    of = EventHistory.of
    patch.set(EventHistory, "of", lambda self, group: list({placed.event.number: placed for placed in of(self, group)}.values()))


@mutant(aimed=WATCH + "test_events.py::test_time_between_the_last_look_and_the_next_start_is_unknown")
def a_place_among_events_outlives_the_term(patch: Patches) -> None:
    """A reader of events names the term of its place, so that it gets all events of the next start."""
    after = EventHistory.after
    patch.set(EventHistory, "after", lambda self, broker: (after(self, broker)[0], None))


@mutant(aimed="tests/unit/broker/test_group_limits.py::test_scrape_reads_at_most_a_slice_of_entries_per_turn")
def an_overview_is_read_in_one_turn(patch: Patches) -> None:
    """One turn of the loop reads a limited part of the figures of a broker."""
    patch.set(figures, "Slices", lambda *_: Slices(1 << 30))


@mutant(aimed=CHANGES + "test_without_permission_there_is_no_form_and_no_change")
def changes_without_the_flag(patch: Patches) -> None:
    """Nothing can be changed unless the dashboard was started with --allow-changes."""
    init = Dashboard.__init__
    patch.set(Dashboard, "__init__", lambda self, nameserver, **options: init(self, nameserver, **{**options, "changes": True}))


@mutant(aimed=CHANGES + "test_form_must_come_from_a_page_of_the_dashboard")
def a_form_without_an_origin_is_taken(patch: Patches) -> None:
    """A form of which the browser does not say where it comes from is refused."""
    own, fields = guard._is_own_form, guard._fields
    patch.set(
        guard, "_is_own_form", lambda scope, host: own(scope, host) or not fields(scope, b"origin") + fields(scope, b"sec-fetch-site")
    )


@mutant(aimed=MESSAGE_PAGES + "test_without_bodies_none_is_shown_and_none_is_searched")
def hidden_bodies_are_searched(patch: Patches) -> None:
    """Where bodies are hidden, a text in them can't be searched for: the result would tell it."""
    criteria = MessageSearch._criteria

    def searching(self: MessageSearch, wanted: Any, topic: str | None) -> Criteria:
        return replace(criteria(self, wanted, topic), body=wanted.get("body") or None)

    patch.set(MessageSearch, "_criteria", searching)


@mutant(aimed=MESSAGE_PAGES + "test_search_that_reached_its_limit_says_how_far_it_came_and_goes_on")
def a_cut_result_looks_whole(patch: Patches) -> None:
    """A search that has ended before it has seen all messages says so."""
    values = MessageSearch._values
    patch.set(MessageSearch, "_values", lambda self, *found: {**values(self, *found), "ended_early": False})


@mutant(aimed=TAIL + "test_what_comes_too_fast_is_passed_over_and_counted")
def messages_that_are_passed_over_are_not_counted(patch: Patches) -> None:
    """A live tail counts the messages that it passes over without reading them."""

    def silently(self: TailPlan[Any], queue: Any, offset: int) -> None:
        self._next[queue] = offset

    patch.set(TailPlan, "_pass_over", silently)


@mutant(aimed=WATCH + "test_tail_plan.py::test_messages_of_a_queue_stay_in_order_when_its_brokers_clock_is_set_back")
def a_clock_set_back_reverses_a_tail(patch: Patches) -> None:
    """A live tail shows the messages of a queue in their order, also if the broker's clock was set back."""
    take = TailPlan.take

    def forgetting(self: TailPlan[Any], batches: Any) -> Any:
        self._shown_ms.clear()
        return take(self, batches)

    patch.set(TailPlan, "take", forgetting)


@mutant(aimed=TAIL + "test_all_who_look_share_one_reader_which_ends_when_nobody_looks")
def each_viewer_has_a_reader_of_its_own(patch: Patches) -> None:
    """All who look at one topic with one filter share a reader."""
    look = LiveTails.look
    patch.set(LiveTails, "look", lambda self, *wanted: look(LiveTails(self._tasks, self._row), *wanted))


@mutant(aimed=TAIL + "test_all_who_look_share_one_reader_which_ends_when_nobody_looks")
def a_reader_goes_on_when_nobody_looks(patch: Patches) -> None:
    """The reader of a live tail ends some time after the last look."""
    read = LiveTail.round

    async def looked_at(self: LiveTail[Any]) -> None:
        await read(self)
        self.looked_ms = self._clock.monotonic_ms()

    patch.set(LiveTail, "round", looked_at)


@mutant(aimed=LOGIN + "test_who_may_not_see_the_whole_cluster_is_told_why_and_gets_no_session")
def who_sees_a_part_of_the_cluster_may_log_in(patch: Patches) -> None:
    """A session is for who may see all that the shared pages show."""
    patch.set(Rights, "sees_all", property(lambda self: True))


@mutant(aimed=LOGIN + "test_change_is_made_as_the_user_who_has_logged_in_and_refused_in_the_words_of_the_broker")
def changes_are_made_as_the_dashboards_user(patch: Patches) -> None:
    """What a user asks for and changes is done as that user."""
    patch.set(AdminClient, "as_user", lambda self, credentials: self)


@mutant(aimed=LOGIN + "test_session_ends_with_the_user_or_the_rights")
def a_session_is_not_checked_again(patch: Patches) -> None:
    """A session ends when its user is gone."""

    async def unasked(self: Sessions, session: BrowserSession) -> None:
        session.checked_ms = 0

    patch.set(Sessions, "_look", unasked)
