"""Limits on what all connections together may hold, and on the work of one loop turn."""

from typing import Any

from lockstep.broker.group_admin import GroupAdmin
from lockstep.broker.group_limits import GroupLimits
from lockstep.broker.group_state import GroupState
from lockstep.broker.membership import Membership
from lockstep.broker.processors import pull
from lockstep.broker.store.disk import DiskWatch
from lockstep.broker.tables.activity_table import ActivityTable
from lockstep.broker.tables.group_table import Group
from lockstep.broker.tables.long_poll_table import LongPollTable
from sweep.mutants.registry import Patches, mutant


@mutant("swarm", aimed="tests/unit/broker/test_pull.py::test_above_a_limit_the_oldest_held_pull_is_answered_as_at_its_deadline")
def any_number_of_pulls_is_held(patch: Patches) -> None:
    """A broker holds so many pulls, and so many of a group at a queue; above that the oldest is answered."""
    patch.set(LongPollTable, "take_excess", lambda self, pull: None)


@mutant(
    "swarm",
    aimed="tests/unit/broker/test_pull.py::test_one_message_that_wakes_thousands_is_given_to_so_many_a_turn_in_the_order_in_which_they_came",
)
def whoever_was_woken_is_served_in_one_turn(patch: Patches) -> None:
    """One loop turn serves so many of the pulls that were woken; the others have the next turns."""
    woken: Any = LongPollTable.take_woken
    patch.set(LongPollTable, "take_woken", lambda self, count: woken(self, 1 << 30))


@mutant(
    "swarm",
    aimed="tests/unit/broker/test_group_limits.py::test_one_group_more_than_the_limit_is_refused_by_name_and_those_that_are_there_go_on",
)
def any_number_of_groups_is_known(patch: Patches) -> None:
    """A broker knows so many groups; one more is refused."""
    patch.set(GroupState, "register_group", lambda self, group: self.activity.record_activity(group))


@mutant("swarm", aimed="tests/unit/broker/test_group_limits.py::test_progress_of_all_groups_together_has_a_limit")
def any_number_of_queues_has_progress(patch: Patches) -> None:
    """A broker keeps progress of so many queues of groups; no group begins in more."""
    patch.set(GroupLimits, "check_progress_room", lambda self, group, topic, count: None)


@mutant(
    "swarm",
    aimed="tests/unit/broker/test_group_limits.py::test_a_group_without_a_member_and_a_commit_is_forgotten_after_its_days_with_what_was_known_of_it",
)
def idle_groups_are_kept(patch: Patches) -> None:
    """A group without a member and a commit is forgotten after its days."""
    patch.set(GroupAdmin, "is_idle", lambda self, group: False)


@mutant(
    "swarm",
    aimed="tests/unit/broker/test_group_limits.py::test_a_group_without_a_member_and_a_commit_is_forgotten_after_its_days_with_what_was_known_of_it",
)
def activity_in_memory(patch: Patches) -> None:
    """The last day of a group's activity is recorded, and that a group was forgotten."""
    patch.set(ActivityTable, "_record", lambda self, change: self.apply(change))


@mutant("swarm", aimed="tests/unit/broker/test_group_limits.py::test_a_group_that_is_in_use_is_never_forgotten")
def groups_in_use_are_forgotten(patch: Patches) -> None:
    """A group with a member, a held queue or settings is never forgotten."""
    patch.set(GroupAdmin, "in_use", lambda self, group: False)


@mutant(
    "swarm", aimed="tests/unit/broker/store/test_append.py::test_below_half_the_disk_reserve_new_state_is_rejected_and_changes_are_written"
)
def what_begins_takes_the_reserve(patch: Patches) -> None:
    """Below half the disk reserve nothing begins: the rest is for changes of existing state."""
    patch.set(DiskWatch, "check_new_state", lambda self, what, now_ms: None)


@mutant(
    "swarm",
    aimed="tests/unit/broker/test_waiting_memory.py::test_long_expressions_of_held_pulls_have_a_sum_above_which_the_oldest_of_them_is_answered",
)
def expressions_of_held_pulls_are_not_counted(patch: Patches) -> None:
    """Long subscription expressions of held pulls have a sum; above it the oldest of those pulls is answered."""
    patch.set(pull, "expression_bytes", lambda expression: 0)


MEMBERS = "tests/unit/broker/test_member_limits.py"


@mutant("swarm", aimed=f"{MEMBERS}::test_one_member_more_than_the_limit_is_refused_by_name_and_those_that_are_there_go_on")
def any_number_of_members_joins(patch: Patches) -> None:
    """All groups together have so many members; one more is refused."""
    patch.set(GroupLimits, "check_member_room", lambda self, group, client_id: self.check_disk_room(f"member {client_id} of group {group}"))


@mutant("swarm", aimed=f"{MEMBERS}::test_what_is_subscribed_to_has_a_sum_in_which_equal_subscriptions_count_once")
def subscriptions_have_no_sum(patch: Patches) -> None:
    """What all groups and members subscribe to has a size in memory; above it no new subscription is taken."""
    patch.set(GroupLimits, "check_subscription_room", lambda self, group, client_id, asked: None)


@mutant("swarm", aimed=f"{MEMBERS}::test_a_connection_has_as_many_classic_members_as_one_client_may_have_groups")
def a_connection_has_any_number_of_members(patch: Patches) -> None:
    """A connection has so many classic members, with subscriptions of so many bytes."""
    patch.set(Membership, "_check_connection_room", lambda self, connection, name, client_id, offered: 0)


@mutant("swarm", aimed=f"{MEMBERS}::test_versions_of_topics_without_a_subscriber_are_forgotten")
def versions_of_topics_are_kept(patch: Patches) -> None:
    """A group forgets the versions of topics to which none of its members subscribes."""
    patch.set(Group, "prune_sub_versions", lambda self: None)
