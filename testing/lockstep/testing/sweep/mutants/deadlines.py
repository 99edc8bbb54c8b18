"""Rules of sends that wait, and of producers with many queues (ordering.md 8)."""

from lockstep.client.producer.expiry import Expiry
from lockstep.client.producer.gate import Gate
from lockstep.client.producer.queue_sender import QueueSender
from lockstep.client.producer.topic_sender import TopicSender
from lockstep.testing.sweep.mutants.registry import Patches, mutant

DEADLINES_TEST = "tests/unit/client/test_send_deadlines.py"


@mutant("send", aimed=f"{DEADLINES_TEST}::test_a_send_ends_by_its_deadline_whatever_it_waits_for")
def the_in_flight_limit_has_no_deadline(patch: Patches) -> None:
    """A send ends at its deadline also while it waits for the in-flight limit or its route."""
    patch.set(Expiry, "add", lambda self, deadline_ms, waiting: None)


@mutant("send", aimed=f"{DEADLINES_TEST}::test_a_keyed_send_that_expires_at_the_limit_fails_what_waits_behind_it_and_no_other_key")
def what_expires_at_the_limit_fails_alone(patch: Patches) -> None:
    """A keyed send that expires while it waits for the in-flight limit fails those of its key that wait behind it."""
    refuse = Gate._refuse
    patch.set(Gate, "_refuse", lambda self, places, behind: None if behind else refuse(self, places, behind))


@mutant("send", aimed="tests/unit/client/test_many_queues.py::test_what_happens_costs_each_queue_once")
def each_queue_wakes_all_the_others(patch: Patches) -> None:
    """What happens to one queue costs the other queues nothing."""
    changed = TopicSender.stalled_changed

    def wakes_all(self: TopicSender, sender: QueueSender) -> None:
        changed(self, sender)
        for other in self._by_queue.values():
            other.wake()

    patch.set(TopicSender, "stalled_changed", wakes_all)
