"""Rules of pending sends, and of producers with many queues (ordering.md 10)."""

from lockstep.client.producer.machines.broker_state import BrokerResponses
from lockstep.client.producer.machines.in_flight_frame import InFlightFrame
from lockstep.client.producer.machines.queue_machine import QueueMachine
from lockstep.client.producer.machines.topic_machine import TopicMachine
from lockstep.client.producer.pacing.expiry import Expiry
from lockstep.client.producer.pacing.flow_control import InFlightLimit
from lockstep.client.producer.pacing.waiting_room import WaitingRoom
from sweep.mutants.registry import Patches, mutant

DEADLINES_TEST = "tests/unit/client/test_send_deadlines.py"
CAPACITY_TEST = (
    "tests/unit/client/test_above_capacity.py::test_sends_above_a_brokers_capacity_never_end_unknown_and_are_stored_at_most_once"
)
MIXED_TEST = "tests/unit/client/test_mixed_deadlines.py"
GATE_TEST = "tests/unit/client/test_in_flight_limit.py"


@mutant("send", aimed=f"{DEADLINES_TEST}::test_send_ends_by_its_deadline_whatever_it_waits_for")
def the_in_flight_limit_has_no_deadline(patch: Patches) -> None:
    """A send ends at its deadline also while it waits for the in-flight limit or its route."""
    patch.set(Expiry, "add", lambda self, deadline_ms, waiting: None)


@mutant("send", aimed=f"{DEADLINES_TEST}::test_keyed_send_that_expires_at_the_in_flight_limit_fails_only_later_sends_of_its_key")
def later_sends_survive_an_expired_send_of_their_key(patch: Patches) -> None:
    """A keyed send that expires while it waits for the in-flight limit fails the pending sends of its key after it."""
    patch.set(InFlightLimit, "_fail_later", InFlightLimit._leave)


@mutant("send", aimed="tests/unit/client/test_many_queues.py::test_cost_of_each_event_is_linear_in_the_queues")
def each_queue_wakes_all_the_others(patch: Patches) -> None:
    """An event of one queue causes no work for the other queues."""
    count = TopicMachine._count_stalled

    def wakes_all(self: TopicMachine, machine: QueueMachine) -> None:
        before = machine in self._stalled.get(machine.broker.name, ())
        count(self, machine)
        if machine.stalled != before:
            self.due += self.machines

    patch.set(TopicMachine, "_count_stalled", wakes_all)


@mutant("send", aimed="tests/unit/client/test_waiting_room.py::test_no_more_wait_than_a_slow_broker_stores_before_their_deadline")
def any_number_of_sends_may_wait(patch: Patches) -> None:
    """A send that can't be sent before its deadline, because too many wait, is refused when it is called."""
    patch.set(WaitingRoom, "has_place", lambda self, count, byte_count, timeout_ms: True)


@mutant("send", aimed=CAPACITY_TEST)
def sends_are_written_however_little_time_is_left(patch: Patches) -> None:
    """A send of which half the time has passed is written only if its response is expected before its deadline."""
    patch.set(BrokerResponses, "expected_ms", property(lambda self: 0))


@mutant("send", aimed=f"{GATE_TEST}::test_admitted_waiter_that_has_not_run_is_refused_if_an_earlier_send_of_its_key_fails")
def admitted_sends_are_not_refused(patch: Patches) -> None:
    """A keyed send that was admitted is refused as long as it has not run when one of its key ahead of it fails."""
    patch.set(InFlightLimit, "_refused_at", lambda self, waiter: None)


@mutant("send", aimed=f"{MIXED_TEST}::test_expiry_of_one_send_does_not_abort_the_frame_of_the_others")
def a_frame_ends_with_its_earliest_deadline(patch: Patches) -> None:
    """A send whose deadline comes while its frame is unanswered ends alone; the frame continues for the others."""
    begin = InFlightFrame.begin

    def begins(self: InFlightFrame, now_ms: int) -> None:
        self.deadline_ms = self.earliest_ms
        begin(self, now_ms)

    patch.set(InFlightFrame, "begin", begins)
