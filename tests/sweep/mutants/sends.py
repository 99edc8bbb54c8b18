"""Rules of sends (ordering.md 9, 10, wire.md): layouts, sequences, keyed sends that stay at their queue."""

from typing import Any

from lockstep.broker.processors import send
from lockstep.broker.processors.send import SendProcessor
from lockstep.broker.tables import sequence_table
from lockstep.broker.tables.sequence_table import ACCEPT, SequenceTable
from lockstep.client.errors import Outcome
from lockstep.client.producer.machines import queue_machine
from lockstep.client.producer.machines.in_flight_frame import InFlightFrame, seal_frame
from lockstep.client.producer.machines.pending import PendingSend
from lockstep.client.producer.machines.queue_machine import QueueMachine
from lockstep.client.producer.machines.routing import QUEUE_WIDE, Route, number_of_key
from lockstep.client.producer.machines.send_fifo import SendFifo
from lockstep.client.producer.machines.sequencer import Sequencer
from lockstep.client.producer.machines.topic_machine import TopicMachine
from lockstep.client.producer.pacing.flow_control import InFlightLimit
from lockstep.nameserver.processor import RouteProcessor
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.command import RETRY_AFTER_FIELD
from lockstep.protocol.errors import BrokerError, OutOfSequenceError
from lockstep.protocol.topics.layouts import LayoutTable
from sweep.mutants.registry import Patches, mutant


@mutant("send", "broker")
def repeats_are_stored(patch: Patches) -> None:
    """A frame that is repeated is stored once."""
    patch.set(SequenceTable, "check_frame", lambda self, scope, frame, *, now_ms: ACCEPT)
    patch.set(send, "check_stamp", lambda body, frame, crc_before: None)


@mutant("alter", "send", aimed="tests/unit/broker/test_send.py::test_sequence_is_checked_before_layout_topic_stop_and_disk")
def layout_before_sequence(patch: Patches) -> None:
    """The sequence is checked before the layout: the response to a repeat does not depend on other changes."""
    in_sequence = SendProcessor._send_in_sequence

    def stale_first(self: SendProcessor, request: Any, header: Any, producer_id: str) -> Any:
        stale = self._stale(header)
        return in_sequence(self, request, header, producer_id) if stale is None else self._refuse_stale(request, stale)

    patch.set(SendProcessor, "_send_in_sequence", stale_first)


@mutant("alter", aimed="tests/unit/broker/test_send.py::test_keyed_send_with_an_older_layout_is_rejected")
def older_layouts_are_accepted(patch: Patches) -> None:
    """A keyed send that was hashed over an older layout is refused."""
    patch.set(SendProcessor, "_stale", lambda self, header: None)


@mutant("send", "broker")
def sequences_are_forgotten_at_a_start(patch: Patches) -> None:
    """The last frame of each producer is known again after a start."""
    from lockstep.broker.state import BrokerState

    patch.set(BrokerState, "frame", lambda self, *_: None)
    patch.set(SequenceTable, "restore", lambda self, plain: None)


@mutant(
    "power",
    aimed="tests/unit/client/test_producer_retries.py::test_lost_suffix_starts_a_new_epoch_with_the_same_records",
)
def a_lost_suffix_does_not_raise_the_producer_epoch(patch: Patches) -> None:
    """A frame whose predecessors the broker has lost begins a new epoch."""
    refused = QueueMachine._refused

    def again(self: QueueMachine, frame: Any, error: Any, fields: Any, now_ms: int) -> Any:
        if not isinstance(error, OutOfSequenceError):
            return refused(self, frame, error, fields, now_ms)
        frame.error = error
        self._backoff.refusals += 1
        self._backoff.refused(fields.get(RETRY_AFTER_FIELD), now_ms)
        self._retry(frame)
        return None

    patch.set(QueueMachine, "_refused", again)


@mutant("send", "power")
def a_given_up_frame_keeps_its_sequence(patch: Patches) -> None:
    """A frame that is given up with its outcome unknown raises the epoch."""
    give_up = Sequencer.give_up

    def keep(self: Sequencer) -> None:
        if self.epoch < 0:
            give_up(self)

    patch.set(Sequencer, "give_up", keep)


@mutant("send", "net")
def a_retry_is_a_new_frame(patch: Patches) -> None:
    """An unanswered frame is written again with its sequence."""
    retry = QueueMachine._retry

    def again(self: QueueMachine, frame: Any) -> None:
        self._sequencer.give_up()
        self._frame = self._sealed(frame.sends, frame.begun_ms)
        retry(self, self._frame)

    patch.set(QueueMachine, "_retry", again)


@mutant("send", "broker")
def a_key_moves_with_its_broker(patch: Patches) -> None:
    """A key's queue is picked over the layout, never over the live brokers."""

    machine_for = TopicMachine.machine_for

    def live(self: TopicMachine, route: Route, now_ms: int, in_flight_count: int = 0) -> QueueMachine:
        if not route.keys or route.keys[0] == QUEUE_WIDE:
            return machine_for(self, route, now_ms, in_flight_count)
        machines = [machine for queue in self.layout.write_queues if (machine := self.of_queue(queue))]
        live = [machine for machine in machines if machine.broker.up and not machine.stalled] or machines
        return live[number_of_key(route.keys[0], len(live))]

    patch.set(TopicMachine, "machine_for", live)


@mutant(
    "send",
    "broker",
    aimed="tests/unit/client/test_producer_refusals.py::test_sends_after_a_failed_send_of_their_key_fail_unsent_and_other_keys_continue",
)
def later_sends_of_a_failed_key_go_on(patch: Patches) -> None:
    """If a keyed send fails, pending later sends of its key fail unsent."""
    patch.set(SendFifo, "take_keys", lambda self, keys: [])
    patch.set(InFlightLimit, "refuse_later", lambda self, queue, keys: iter(()))


@mutant(
    "send",
    "net",
    aimed="tests/unit/client/test_producer_retries.py::test_moved_unkeyed_send_that_may_be_stored_never_fails_as_not_stored",
)
def moved_sends_end_as_not_stored(patch: Patches) -> None:
    """A send that was moved from a queue that may have stored it does not end as not stored."""
    patch.set(PendingSend, "may_be_stored", property(lambda self: False, lambda self, value: None))


@mutant(
    "send",
    "timers",
    aimed="tests/unit/client/test_delayed_send.py::test_delayed_send_refused_after_an_unknown_attempt_has_outcome_unknown",
)
def a_refused_send_ends_as_not_stored(patch: Patches) -> None:
    """A send that may be stored, by an earlier write of its frame, does not end as not stored if it is refused."""

    def outcome(self: InFlightFrame) -> Outcome:
        refused = isinstance(self.error, BrokerError) and not self.error.retriable
        return Outcome.UNKNOWN if self.unknown and not refused else Outcome.NOT_STORED

    patch.set(InFlightFrame, "outcome", property(outcome))


@mutant(
    "send",
    aimed="tests/unit/client/test_producer_retries.py::test_unkeyed_send_without_response_moves_at_half_its_deadline_as_a_possible_duplicate",
)
def moved_messages_get_another_id(patch: Patches) -> None:
    """A message that is sent again has the id that it had in its first frame."""
    patch.set(InFlightFrame, "keep_ids", lambda self: None)


@mutant("alter", "swarm", aimed="tests/unit/protocol/test_layouts.py::test_higher_layout_version_wins_by_counter_then_writer")
def two_writers_of_one_layout_both_win(patch: Patches) -> None:
    """Of two layouts of one counter the higher writer wins, everywhere."""
    adopt = LayoutTable.adopt

    def first(self: LayoutTable, layout: Any) -> Any:
        known = self.get(layout.topic)
        if known is not None and known.version.counter == layout.version.counter:
            return False
        return adopt(self, layout)

    patch.set(LayoutTable, "adopt", first)


@mutant("send", aimed="tests/unit/broker/test_sequence_table.py::test_out_of_sequence_frame_is_rejected")
def an_unknown_scope_is_a_duplicate(patch: Patches) -> None:
    """A frame of an unknown scope that does not begin it is out of sequence, not a duplicate."""
    check = SequenceTable.check_frame

    def known(self: SequenceTable, scope: Any, frame: Any, *, now_ms: int) -> Any:
        verdict = check(self, scope, frame, now_ms=now_ms)
        if verdict is not ACCEPT and verdict.code == ResponseCode.OUT_OF_SEQUENCE:
            from lockstep.broker.tables.sequence_table import DUPLICATE

            return DUPLICATE
        return verdict

    patch.set(SequenceTable, "check_frame", known)


@mutant("alter", aimed="tests/unit/broker/test_nameserver_registration.py::test_layout_of_another_broker_is_adopted_at_once")
def layouts_are_pushed_at_the_next_registration_only(patch: Patches) -> None:
    """Other brokers are notified at once of a layout that one broker registers."""
    patch.set(RouteProcessor, "_notify_brokers", lambda self, topics, source: None)


@mutant("fsync")
def the_least_strict_send_decides(patch: Patches) -> None:
    """The response to a frame waits for the strictest of its sends."""

    def careless(queue: Any, sequencer: Any, encoder: Any, sends: list[PendingSend], now_ms: int, *, any_durability: bool) -> InFlightFrame:
        frame = seal_frame(queue, sequencer, encoder, sends, now_ms, any_durability=any_durability)
        if any(pending.durable is False for pending in sends):
            frame.fields["durable"] = False
        return frame

    patch.set(queue_machine, "seal_frame", careless)


@mutant("send", "net", aimed="tests/unit/broker/test_sequence_table.py::test_out_of_sequence_frame_is_rejected")
def lower_producer_epochs_are_accepted(patch: Patches) -> None:
    """A frame of a producer epoch that is over is refused, however late it comes."""
    other_epoch = sequence_table._other_epoch

    def taken(last: Any, frame: Any) -> Any:
        return ACCEPT if frame.first == 0 else other_epoch(last, frame)

    patch.set(sequence_table, "_other_epoch", taken)


@mutant("send", "broker", aimed="tests/unit/client/test_producer_refusals.py::test_refused_keyed_send_does_not_move_to_another_broker")
def a_keyed_frame_moves(patch: Patches) -> None:
    """A keyed frame is repeated at its own queue only."""

    def unkeyed(queue: Any, sequencer: Any, encoder: Any, sends: list[PendingSend], now_ms: int, *, any_durability: bool) -> InFlightFrame:
        frame = seal_frame(queue, sequencer, encoder, sends, now_ms, any_durability=any_durability)
        frame.keyed = False
        return frame

    patch.set(queue_machine, "seal_frame", unkeyed)


@mutant("send", "net", aimed="tests/unit/client/test_producer.py::test_sends_during_a_frame_in_flight_are_combined_into_one_frame")
def frames_do_not_wait_for_each_other(patch: Patches) -> None:
    """One frame in flight per queue and producer."""
    write, responded = QueueMachine._write, QueueMachine.handle_response

    def unawaited(self: QueueMachine, frame: InFlightFrame, connection: Any, now_ms: int) -> None:
        write(self, frame, connection, now_ms)
        self._frame = None

    def late(self: QueueMachine, frame: InFlightFrame, *response: Any) -> Any:
        before, self._frame = self._frame, frame
        version = responded(self, frame, *response)
        self._frame = self._frame or before
        return version

    patch.set(QueueMachine, "_write", unawaited)
    patch.set(QueueMachine, "handle_response", late)


LAYOUTS_TEST = "tests/unit/client/test_producer_layouts.py"


@mutant("wipe", aimed=f"{LAYOUTS_TEST}::test_keyed_send_is_resent_unchanged_if_the_higher_layout_was_lost")
def a_lost_layout_is_waited_for(patch: Patches) -> None:
    """A keyed send that was refused for a higher layout is repeated unchanged from time to time: that layout may be lost."""
    patch.set(queue_machine, "KEYED_RETRY_MS", 1 << 40)


@mutant("alter", aimed=f"{LAYOUTS_TEST}::test_sends_refused_for_a_newer_layout_are_resent_before_later_sends")
def refused_messages_go_to_the_end(patch: Patches) -> None:
    """Messages that are repeated after a refusal go before those sent later."""
    add = QueueMachine.add
    patch.set(QueueMachine, "add", lambda self, pending, *, ahead=False: add(self, pending))
