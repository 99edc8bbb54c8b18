"""Rules of the events of groups (GROUP_EVENTS)."""

from dataclasses import replace
from typing import Any

from lockstep.broker.groups.group_events import GroupEventLog
from lockstep.broker.groups.group_state import GroupState
from lockstep.broker.processors import group_events
from lockstep.protocol.bodies import GroupEventKind
from sweep.mutants.registry import Patches, mutant

EVENTS = "tests/unit/broker/test_group_events.py::"


@mutant(aimed=EVENTS + "test_loss_of_a_connection_its_return_and_its_end_are_told_with_the_last_sign")
def a_silent_owner_is_at_work(patch: Patches) -> None:
    """The end of a grant is told with the time at which its owner was last heard."""
    add: Any = GroupState._add_queue_event

    def without_time(self: GroupState, *event: Any) -> None:
        add(self, *event)
        self.events._unstamped[-1] = replace(self.events._unstamped[-1], since_ms=None)

    patch.set(GroupState, "_add_queue_event", without_time)


@mutant(aimed=EVENTS + "test_time_without_a_member_that_could_take_the_queue_does_not_count")
def a_newcomer_waited_before_it_joined(patch: Patches) -> None:
    """A hand-over does not begin before its new owner joined."""
    stamp = GroupEventLog.stamp

    def forgetting(self: GroupEventLog, now_ms: int, wall_ms: int) -> None:
        self._joined.clear()
        stamp(self, now_ms, wall_ms)

    patch.set(GroupEventLog, "stamp", forgetting)


@mutant(aimed=EVENTS + "test_group_whose_queues_move_all_the_time_does_not_displace_the_events_of_another")
def one_group_displaces_the_events_of_all(patch: Patches) -> None:
    """The events of one group have a limit of their own."""
    keep = GroupEventLog._keep

    def unlimited(self: GroupEventLog, event: Any) -> None:
        self._per_group_max = self._events_max
        keep(self, event)

    patch.set(GroupEventLog, "_keep", unlimited)


@mutant(aimed=EVENTS + "test_loss_of_a_connection_its_return_and_its_end_are_told_with_the_last_sign")
def a_lost_queue_is_told_as_released(patch: Patches) -> None:
    """A queue whose owner was gone or silent is told from one that its owner let go of."""
    free = GroupState.free_queue
    patch.set(
        GroupState,
        "free_queue",
        lambda self, key, why, kind=None, heard_ms=None: free(self, key, why, kind=GroupEventKind.FREED, heard_ms=heard_ms),
    )


@mutant(aimed="tests/unit/broker/test_group_event_requests.py::test_reader_that_names_another_term_gets_all_events")
def events_of_another_term_are_continued(patch: Patches) -> None:
    """Events of each term are numbered from 1: a reader that names another term gets all."""
    patch.set(group_events, "begins_after", lambda header, term: header.after)
