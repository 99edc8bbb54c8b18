"""Limits on the effects of one peer: an error ends one request, and requests, connections, remarks and log lines are limited."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from lockstep.broker.groups import heartbeats
from lockstep.broker.groups.effects import DrainFault
from lockstep.broker.groups.heartbeats import HeartbeatCache
from lockstep.broker.groups.pending_effects import PendingEffects
from lockstep.broker.journal import Change, Journal
from lockstep.broker.processors.pull import PullProcessor
from lockstep.broker.store.log.commit_log import CommitLog
from lockstep.broker.store.log.log_writer import LogWriter
from lockstep.protocol.codec import plain
from lockstep.protocol.frame import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from lockstep.runtime import admin_port
from lockstep.runtime.admin_port import AdminPort
from lockstep.runtime.connections import endpoint
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.descriptors import Descriptors
from lockstep.runtime.logs.log_limit import EventLimit
from lockstep.runtime.requests import dispatch
from lockstep.runtime.requests.dispatch import Dispatcher
from lockstep.runtime.requests.lanes import Lane
from lockstep.runtime.requests.request import Request
from lockstep.runtime.turn import Turn, TurnBudget
from sweep.mutants.registry import Patches, mutant

ONE_BUG = "tests/unit/broker/test_unexpected_errors.py"
JOURNAL = "tests/unit/broker/test_journal.py"
DESCRIPTORS = "tests/unit/runtime/test_descriptors.py"
PRESSURE = "tests/unit/runtime/test_endpoint_pressure.py"
LONG_TURNS = "tests/unit/broker/test_long_turns.py"
FAULTS = "tests/unit/broker/test_callback_errors.py"
HEARTBEATS = "tests/unit/broker/test_heartbeat_work.py"
WAITING = "tests/unit/broker/test_pending_request_memory.py"
ADMIN_PORT = "tests/unit/runtime/test_admin_port.py"


@mutant("swarm", aimed=f"{ONE_BUG}::test_failing_pull_does_not_affect_others_of_its_turn")
def an_error_of_a_pull_ends_its_turn(patch: Patches) -> None:
    """An error in one pull is the response to that pull; the other pulls of the turn are served."""

    def raise_again(self: Request, error: Exception) -> None:
        raise error

    patch.set(Request, "fail", raise_again)


@mutant("swarm", aimed=f"{ONE_BUG}::test_partially_applied_change_ends_the_broker_without_a_response")
def the_broker_continues_after_a_partial_change(patch: Patches) -> None:
    """A broker whose tables disagree with its log ends, and sends no response from them."""
    patch.set(LogWriter, "fail_inconsistent", lambda self, error: None)


@mutant("swarm", aimed="tests/unit/broker/test_journal.py::test_change_that_cannot_be_encoded_is_rejected_before_it_is_applied")
def changes_are_applied_before_they_are_encoded(patch: Patches) -> None:
    """A change that can't be encoded is not applied."""
    do: Any = Journal.record

    def late(self: Journal, change: Change, apply: Callable[[Change], object]) -> None:
        apply(change)
        do(self, change, lambda _: None)

    patch.set(Journal, "record", late)


@mutant("swarm", aimed="tests/unit/runtime/test_dispatch.py::test_body_beyond_its_limit_is_not_decoded")
def every_body_may_fill_a_frame(patch: Patches) -> None:
    """The body of a request has the limit that its handler declares, and is not decoded beyond it."""
    add: Any = Dispatcher._add
    patch.set(Dispatcher, "_add", lambda self, mark, handler, name: add(self, replace(mark, body_bytes_max=FRAME_BYTES_MAX), handler, name))


@mutant("swarm", aimed="tests/unit/protocol/test_msgpack.py::test_element_count_is_limited_by_the_size_and_by_500000")
def elements_are_not_counted(patch: Patches) -> None:
    """The number of elements in all lists and maps of one body is limited."""
    patch.set(plain, "_counter", lambda elements_max: lambda container: container)


@mutant("swarm", aimed=f"{DESCRIPTORS}::test_every_file_operation_can_use_the_reserved_descriptors")
def files_have_no_reserve(patch: Patches) -> None:
    """A file is opened with a reserved descriptor if connections hold all others."""
    patch.set(Descriptors, "open", lambda self, function, *args: function(*args))


@mutant("swarm", aimed="tests/unit/broker/store/test_shortage.py::test_next_log_file_is_open_before_it_is_needed")
def the_next_file_is_opened_when_it_is_needed(patch: Patches) -> None:
    """The next file of the log is open before it is needed: rolling needs no descriptor."""
    patch.set(CommitLog, "prepare", lambda self: None)


@mutant(
    "swarm", aimed="tests/unit/broker/store/test_shortage.py::test_without_a_descriptor_sends_are_rejected_while_state_records_have_room"
)
def sends_fill_the_last_file(patch: Patches) -> None:
    """Without a descriptor for the next file, the end of the newest one is reserved for state records."""
    reserve: Any = CommitLog.reserve
    patch.set(CommitLog, "reserve", lambda self, size, *, leave=0: reserve(self, size))


@mutant("swarm", aimed=f"{DESCRIPTORS}::test_reserved_descriptors_open_files_while_connections_use_the_rest")
def connections_are_accepted_while_the_reserve_is_short(patch: Patches) -> None:
    """While a reserved descriptor is in use no connection is added."""
    patch.set(Descriptors, "is_short", lambda self: False)


@mutant("swarm", aimed="tests/unit/runtime/test_safe_text.py::test_remark_of_a_peer_is_escaped_in_logs_errors_and_on_terminals")
def remarks_are_not_escaped(patch: Patches) -> None:
    """Control characters and line breaks of a peer's remark are escaped when it is received."""
    patch.set(endpoint, "printable", lambda text: text)


@mutant("swarm", aimed="tests/unit/runtime/test_log_limit.py::test_ten_events_of_a_name_pass_per_second_and_the_rest_is_counted")
def every_event_is_logged(patch: Patches) -> None:
    """Repeated errors of a peer are logged ten times a second, and counted."""
    patch.set(EventLimit, "allows", lambda self, event, now_ms: True)


@mutant("swarm", aimed=f"{ADMIN_PORT}::test_oldest_connection_with_an_incomplete_request_is_closed_for_a_new_one")
def the_newest_connection_is_cut(patch: Patches) -> None:
    """If the admin port is full, the oldest connection without a complete request is closed, never the newest."""
    made: Any = admin_port._Connection.connection_made

    def cut(self: Any, transport: Any) -> None:
        made(self, transport) if len(self._open) < admin_port.INCOMPLETE_MAX else transport.abort()

    patch.set(admin_port._Connection, "connection_made", cut)


@mutant("swarm", aimed=f"{ADMIN_PORT}::test_concurrent_scrapes_share_one_rendering")
def each_scrape_renders_the_figures(patch: Patches) -> None:
    """Requests for /metrics that come at the same time share one rendering."""
    metrics: Any = AdminPort._metrics

    async def begin_again(self: AdminPort) -> Any:
        self._scrape = None
        return await metrics(self)

    patch.set(AdminPort, "_metrics", begin_again)


@mutant("swarm", aimed=f"{PRESSURE}::test_loop_turn_handles_a_limited_number_of_frames_and_the_rest_in_order")
def a_turn_handles_any_number_of_frames(patch: Patches) -> None:
    """A turn of the loop handles a limited number of frames of one connection."""
    handle: Any = Endpoint._handle_frames

    def all_of_them(self: Any) -> None:
        self._turn_frames = -(1 << 30)
        handle(self)

    patch.set(Endpoint, "_handle_frames", all_of_them)


@mutant("swarm", aimed=f"{LONG_TURNS}::test_free_queues_of_a_new_member_are_computed_in_slices")
def all_free_queues_are_handled_in_one_turn(patch: Patches) -> None:
    """A turn of the loop handles a slice of the free queues and a slice of the effects."""
    drain = PendingEffects.drain
    patch.set(PendingEffects, "drain", lambda self, count_max=None, *, notices=True: drain(self, notices=notices))


@mutant("swarm", aimed=f"{ADMIN_PORT}::test_host_header_must_be_an_address_or_a_name_of_this_machine")
def the_admin_port_has_any_name(patch: Patches) -> None:
    """The admin port accepts addresses and names of its machine as host, not another name that resolves to it."""
    patch.set(admin_port, "is_own_host", lambda field, names: True)


@mutant("swarm", aimed=f"{WAITING}::test_waiting_pull_keeps_no_more_memory_than_a_normal_one")
def requests_keep_their_frame(patch: Patches) -> None:
    """A pending request keeps the header and the body that its handler declares, and nothing else of its frame."""
    decode: Any = dispatch._Route.decode

    def keep(self: Any, command: Any) -> tuple[Any, Any]:
        header, body = decode(self, command)
        return header, body or command

    patch.set(dispatch._Route, "decode", keep)


@mutant("swarm", aimed=f"{WAITING}::test_header_above_the_limit_of_its_request_is_rejected")
def every_header_may_fill_its_frame(patch: Patches) -> None:
    """The header of a request has the limit that its handler declares, and is not decoded beyond it."""
    add: Any = Dispatcher._add
    longest = {"header_bytes_max": HEADER_BYTES_MAX}
    patch.set(Dispatcher, "_add", lambda self, mark, handler, name: add(self, replace(mark, **longest), handler, name))


@mutant("swarm", aimed=f"{WAITING}::test_bytes_waiting_in_a_lane_are_limited")
def lanes_count_requests_alone(patch: Patches) -> None:
    """Both the number and the bytes of the requests pending in a lane are limited."""
    add: Any = Lane.add

    def unweighed(self: Lane, request: Request, work: Any) -> None:
        request.size = 0
        add(self, request, work)

    patch.set(Lane, "add", unweighed)


@mutant("swarm", aimed=f"{FAULTS}::test_pulls_of_a_failing_turn_get_a_response_and_the_next_turn_serves")
def an_error_leaves_a_callback_unscheduled(patch: Patches) -> None:
    """After an error in a callback of the loop its requests get a response, and the callback is scheduled again when there is work."""

    def run(self: Any) -> None:
        self._work()
        self._handle = None

    patch.set(Turn, "_run", run)


@mutant("swarm", aimed=f"{FAULTS}::test_held_pulls_get_a_response_if_waking_them_fails")
def held_pulls_are_lost_with_their_table(patch: Patches) -> None:
    """If the table of held pulls fails, the response to each held pull is SYSTEM_ERROR."""
    patch.set(PullProcessor, "_fail_held", lambda self, error, except_for=None: None)


@mutant("swarm", aimed=f"{FAULTS}::test_error_at_the_end_of_a_store_turn_ends_the_process")
def the_broker_continues_after_a_partial_turn(patch: Patches) -> None:
    """An error after the log was written, while responses are sent, ends the process."""
    close: Any = LogWriter._close_turn

    def suppressed(self: LogWriter, wrote: bool) -> None:
        with suppress(LookupError):
            close(self, wrote)

    patch.set(LogWriter, "_close_turn", suppressed)


@mutant("swarm", aimed=f"{FAULTS}::test_error_while_building_notices_loses_no_close_and_no_stale_pull")
def an_error_in_notifications_drops_all_effects(patch: Patches) -> None:
    """An error while notifications are made does not affect the closes and the stale pulls of the same call."""
    drain: Any = PendingEffects.drain

    def whole(self: PendingEffects, *arguments: Any, **named: Any) -> Any:
        effects = drain(self, *arguments, **named)
        return [] if any(isinstance(each, DrainFault) for each in effects) else effects

    patch.set(PendingEffects, "drain", whole)


@mutant("swarm", aimed=f"{LONG_TURNS}::test_concurrent_status_requests_share_the_turns")
def each_lane_request_has_a_turn_of_its_own(patch: Patches) -> None:
    """All lanes share one budget in each turn of the loop."""

    async def take(self: TurnBudget, count: int = 1) -> None:
        return

    patch.set(TurnBudget, "take", take)


@mutant("swarm", aimed=f"{HEARTBEATS}::test_unchanged_heartbeat_is_decoded_and_parsed_once")
def every_heartbeat_is_parsed(patch: Patches) -> None:
    """A HEART_BEAT that has not changed is neither decoded nor parsed again."""
    read: Any = HeartbeatCache.read

    def again(self: HeartbeatCache, raw: bytes) -> Any:
        self._known.clear()
        return read(self, raw)

    patch.set(HeartbeatCache, "read", again)


@mutant("swarm", aimed=f"{HEARTBEATS}::test_heartbeat_above_a_limit_is_rejected_by_name")
def a_heartbeat_names_any_number_of_topics(patch: Patches) -> None:
    """A HEART_BEAT names a limited number of topics in its subscriptions, so that one turn of the loop can handle them."""
    patch.set(heartbeats, "TOPICS_PER_CLIENT_MAX", 1 << 30)
