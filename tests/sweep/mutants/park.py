"""Rules of parked keys (docs/invariants.md P-K1 to P-K3)."""

from typing import Any

from lockstep.broker.groups.parking import Parking
from lockstep.broker.groups.tables.lock_table import QueueKey
from lockstep.broker.groups.tables.park_table import ParkFilter, ParkTable
from lockstep.broker.processors.pull import PullProcessor
from lockstep.broker.processors.pull_request import Pull
from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.broker.store import ReadResult
from lockstep.client.consumer.calls.lane_runner import LaneRunner
from lockstep.client.consumer.calls.lanes import Lanes
from lockstep.client.consumer.calls.parking.effects import SendParkEnd
from lockstep.client.consumer.calls.parking.machine import ParkMachine
from lockstep.client.consumer.calls.parking.park_request import ParkOutcome, ParkRequest
from lockstep.client.consumer.calls.parking.replay import Replay
from lockstep.protocol.bodies import ParkedKey, ParkState
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.headers.park import ParkEndReply
from lockstep.protocol.messages.message import MessageExt
from sweep.mutants.registry import Patches, mutant

WORLD = "park"
FLOWS = "tests/unit/broker/test_park_flows.py::test_message_is_in_exactly_one_flow_by_the_rule_that_is_for_it"


@mutant(WORLD)
def a_parked_key_goes_on(patch: Patches) -> None:
    """Pulls of the main flow leave parked keys out."""
    patch.set(Parking, "filter", lambda self, queue: None)


@mutant(WORLD)
def held_messages_of_a_parked_key_are_called(patch: Patches) -> None:
    """A member drops the messages of a key that it has fetched before it parks the key."""
    patch.set(Lanes, "leave_out", lambda self, key: [])


@mutant(WORLD)
def left_out_messages_hold_progress_back(patch: Patches) -> None:
    """Progress passes the messages of parked keys."""
    patch.set(LaneRunner, "_leave_out", lambda self, left_out: None)


@mutant(WORLD)
def replay_ends_where_progress_is(patch: Patches) -> None:
    """A replay ends only above everything that the main flow has passed while the key was hidden."""
    end = ParkTable.end_replay

    def anywhere(self: ParkTable, queue: QueueKey, key: str, least: int) -> ParkEndReply:
        passed, self._passed = self._passed, {}
        reply = end(self, queue, key, 0)
        self._passed = passed
        return reply

    patch.set(ParkTable, "end_replay", anywhere)


@mutant(WORLD)
def a_held_pull_does_not_count(patch: Patches) -> None:
    """What a held pull has passed counts as well."""
    send = PullProcessor._send

    def and_counts(
        self: PullProcessor, pull: Pull, code: ResponseCode, result: ReadResult | None = None, remark: str | None = None
    ) -> None:
        header: Any = pull.request.header
        if result is not None and header.key is None:
            queue = (header.consumer_group, header.topic, header.queue_id)
            self._coordination.state.parks.note_passed(queue, result.next_offset)
        send(self, pull, code, result, remark)

    patch.set(Parking, "note_passed", lambda self, queue, hidden, end: self.filter(queue) is hidden)
    patch.set(PullProcessor, "_send", and_counts)


@mutant(WORLD, aimed="tests/unit/broker/test_parking.py::test_replay_ends_where_nothing_has_passed_its_key_for_good")
def done_ranges_hide_a_parked_key(patch: Patches) -> None:
    """The next owner passes over done ranges: a replay does not end below them."""

    def progress_only(self: Parking, queue: QueueKey) -> int:
        progress = self._state.progress.get(queue)
        return 0 if progress is None else progress.offset

    patch.set(Parking, "least_end", progress_only)


@mutant(WORLD)
def the_row_goes_with_the_end(patch: Patches) -> None:
    """The row of a key remains until progress has passed the end of its replay."""
    end = ParkTable.end_replay

    def and_goes(self: ParkTable, queue: QueueKey, key: str, least: int) -> ParkEndReply:
        reply = end(self, queue, key, least)
        row = self.get(queue, key)
        if row is not None and row.state is ParkState.ENDED:
            self._record(("park.removed", *queue, key))
        return reply

    patch.set(ParkTable, "end_replay", and_goes)


@mutant(WORLD)
def parked_rows_in_memory(patch: Patches) -> None:
    """Parked keys outlive a restart of the broker."""
    patch.set(ParkTable, "_record", lambda self, change: self.apply(change))
    patch.set(ParkTable, "snapshot", lambda self: SnapshotRows(0, lambda: iter(())))


@mutant(WORLD)
def new_messages_overtake_a_replay(patch: Patches) -> None:
    """New messages of a key that is replayed wait for the end of the replay."""
    made, applied, split = ParkFilter.__init__, ParkTable.apply, ParkMachine.split

    def shows(self: ParkFilter, rows: dict[str, ParkedKey]) -> None:
        made(self, {key: row for key, row in rows.items() if row.state is not ParkState.REPLAYING})

    def and_filters_anew(self: ParkTable, change: Any) -> None:
        applied(self, change)
        self._filters.clear()

    def passes_on(self: ParkMachine, messages: list[MessageExt]) -> tuple[list[MessageExt], list[MessageExt]]:
        hidden = self.hidden
        self.hidden = {key: upto for key, upto in hidden.items() if key not in self.replays}
        found = split(self, messages)
        self.hidden = hidden
        return found

    patch.set(ParkFilter, "__init__", shows)
    patch.set(ParkTable, "apply", and_filters_anew)
    patch.set(ParkMachine, "split", passes_on)


@mutant(WORLD, aimed="tests/unit/broker/test_park_table.py::test_repeated_park_changes_nothing_unless_the_key_has_moved_on")
def a_repeated_park_sets_next_back(patch: Patches) -> None:
    """A repeated PARK changes nothing."""

    def back(self: ParkTable, queue: QueueKey, key: str, offset: int, attempts: int, error: str, now_ms: int) -> None:
        if self.get(queue, key) is None:
            self._check_room(queue, key)
        self._put(ParkedKey(*queue, key, offset, ParkState.PARKED, attempts, error, now_ms))

    patch.set(ParkTable, "park", back)


@mutant(aimed=FLOWS)
def answered_pulls_of_the_main_flow_do_not_count(patch: Patches) -> None:
    """The broker notes how far pulls have left parked keys out."""
    patch.set(ParkTable, "note_passed", lambda self, queue, end: None)


@mutant(aimed=FLOWS)
def a_pull_whose_hidden_keys_have_changed_is_answered(patch: Patches) -> None:
    """A pull whose hidden keys have changed since it was read is read again."""
    note = Parking.note_passed
    patch.set(Parking, "note_passed", lambda self, queue, hidden, end: note(self, queue, self.filter(queue), end))


@mutant(aimed=FLOWS)
def messages_are_taken_while_a_replay_ends(patch: Patches) -> None:
    """The owner takes no message of the main flow while the end of a replay has no response."""
    patch.set(ParkMachine, "may_take", property(lambda self: True))


@mutant(aimed=FLOWS)
def a_repeated_end_names_the_first_pull(patch: Patches) -> None:
    """Each repeated request to end a replay names the next pull as of then."""
    request = ParkMachine._request_end
    first: dict[Replay, int | None] = {}

    def as_first(self: ParkMachine, replay: Replay) -> None:
        request(self, replay)
        sent = self.effects[-1]
        assert isinstance(sent, SendParkEnd)
        self.effects[-1] = SendParkEnd(replay, sent.next, first.setdefault(replay, sent.pulled))

    patch.set(ParkMachine, "_request_end", as_first)


@mutant(aimed=FLOWS)
def a_park_is_sent_once(patch: Patches) -> None:
    """A PARK is repeated until it has a response, and its message is not called meanwhile."""
    outcome = ParkRequest.outcome
    patch.set(ParkRequest, "outcome", lambda self, error: outcome(self, error) or ParkOutcome.NOT_NOW)


@mutant(aimed=FLOWS)
def done_ranges_pass_a_key_that_may_be_parked(patch: Patches) -> None:
    """No done ranges are committed while a PARK has no response."""
    patch.set(ParkMachine, "done_ranges", lambda self, offset: self._messages.done_ranges(offset))
