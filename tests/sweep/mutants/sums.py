"""Limits on the memory of all connections together, and on the work of one loop turn."""

from typing import Any

from lockstep.broker.groups.group_admin import GroupAdmin
from lockstep.broker.groups.group_limits import GroupLimits
from lockstep.broker.groups.group_state import GroupState
from lockstep.broker.groups.membership import GroupMembers
from lockstep.broker.groups.tables.activity_table import ActivityTable
from lockstep.broker.groups.tables.group import Group
from lockstep.broker.processors import pull
from lockstep.broker.store.health.disk import DiskWatch
from lockstep.broker.tables.long_poll_table import LongPollTable
from lockstep.protocol.sql92 import predicate
from sweep.mutants.registry import Patches, mutant


@mutant("swarm", aimed="tests/unit/broker/test_pull.py::test_oldest_held_pull_above_the_limit_is_ended_as_at_its_deadline")
def any_number_of_pulls_is_held(patch: Patches) -> None:
    """The pulls that a broker holds, in all and of one group at a queue, are limited; beyond a limit the oldest ends."""
    patch.set(LongPollTable, "take_excess", lambda self, pull: None)


@mutant(
    "swarm",
    aimed="tests/unit/broker/test_pull.py::test_pulls_woken_by_one_message_are_served_in_order_up_to_a_limit_per_turn",
)
def all_woken_pulls_are_served_in_one_turn(patch: Patches) -> None:
    """One loop turn serves a limited number of woken pulls; the next turns serve the others."""
    woken: Any = LongPollTable.take_woken
    patch.set(LongPollTable, "take_woken", lambda self, count: woken(self, 1 << 30))


@mutant("swarm", aimed="tests/unit/broker/test_pull.py::test_what_a_filter_examines_counts_for_the_turn")
def what_a_filter_examines_is_free(patch: Patches) -> None:
    """The records that a predicate examines count for the turn, also if it lets none of them pass."""
    patch.set(pull, "examining_cost", lambda wanted, result: 0)


@mutant("swarm", aimed="tests/unit/protocol/test_sql92.py::test_condition_is_true_false_or_unknown")
def an_unknown_condition_is_false_under_not(patch: Patches) -> None:
    """The negation of an unknown condition is unknown, so that the message does not pass."""
    patch.set(predicate, "_not", lambda inner: lambda properties: not inner(properties))


@mutant(
    "swarm",
    aimed="tests/unit/broker/test_group_limits.py::test_group_above_the_limit_is_rejected_by_name_and_known_groups_continue",
)
def any_number_of_groups_is_known(patch: Patches) -> None:
    """A broker keeps a limited number of groups; another one is refused."""
    patch.set(GroupState, "register_group", lambda self, group: self.activity.record_activity(group))


@mutant("swarm", aimed="tests/unit/broker/test_group_limits.py::test_progress_of_all_groups_is_limited")
def any_number_of_queues_has_progress(patch: Patches) -> None:
    """A broker keeps progress of a limited number of queues of groups; no group begins in more."""
    patch.set(GroupLimits, "check_progress_room", lambda self, group, topic, count: None)


@mutant(
    "swarm",
    aimed="tests/unit/broker/test_group_limits.py::test_idle_group_is_forgotten_with_all_its_state_after_group_idle_days",
)
def idle_groups_are_kept(patch: Patches) -> None:
    """A group without a member and a commit is removed after its days of inactivity."""
    patch.set(GroupAdmin, "is_idle", lambda self, group: False)


@mutant(
    "swarm",
    aimed="tests/unit/broker/test_group_limits.py::test_idle_group_is_forgotten_with_all_its_state_after_group_idle_days",
)
def activity_in_memory(patch: Patches) -> None:
    """The last day of a group's activity, and the removal of a group, are recorded."""
    patch.set(ActivityTable, "_record", lambda self, change: self.apply(change))


@mutant("swarm", aimed="tests/unit/broker/test_group_limits.py::test_group_in_use_is_never_forgotten")
def groups_in_use_are_forgotten(patch: Patches) -> None:
    """A group with a member, a held queue or settings is never removed."""
    patch.set(GroupAdmin, "in_use", lambda self, group: False)


@mutant(
    "swarm", aimed="tests/unit/broker/store/test_append.py::test_below_half_the_disk_reserve_new_state_is_rejected_and_changes_are_written"
)
def new_state_uses_the_reserve(patch: Patches) -> None:
    """Below half the disk reserve no new state is created: the rest is for changes of existing state."""
    patch.set(DiskWatch, "check_new_state", lambda self, what, now_ms: None)


@mutant(
    "swarm",
    aimed="tests/unit/broker/test_pending_request_memory.py::test_expressions_of_held_pulls_are_limited_and_the_oldest_is_evicted",
)
def expressions_of_held_pulls_are_not_counted(patch: Patches) -> None:
    """The bytes of long subscription expressions of held pulls are limited; beyond the limit the oldest of those pulls ends."""
    patch.set(pull, "expression_bytes", lambda expression: 0)


MEMBERS = "tests/unit/broker/test_member_limits.py"


@mutant("swarm", aimed=f"{MEMBERS}::test_member_above_the_limit_is_rejected_by_name_and_known_members_continue")
def any_number_of_members_joins(patch: Patches) -> None:
    """The number of members of all groups together is limited; another one is refused."""
    patch.set(GroupLimits, "check_member_room", lambda self, group, client_id: self.check_disk_room(f"member {client_id} of group {group}"))


@mutant("swarm", aimed=f"{MEMBERS}::test_subscription_bytes_are_limited_and_equal_subscriptions_count_once")
def subscriptions_have_no_sum(patch: Patches) -> None:
    """The memory of the subscriptions of all groups and members is limited; beyond the limit a new subscription is refused."""
    patch.set(GroupLimits, "check_subscription_room", lambda self, group, client_id, requested: None)


@mutant("swarm", aimed=f"{MEMBERS}::test_classic_members_per_connection_are_limited")
def a_connection_has_any_number_of_members(patch: Patches) -> None:
    """The number of classic members of a connection, and the bytes of their subscriptions, are limited."""
    patch.set(GroupMembers, "_check_connection_room", lambda self, connection, name, client_id, offered: 0)


@mutant("swarm", aimed=f"{MEMBERS}::test_subscription_versions_of_topics_without_a_subscriber_are_forgotten")
def versions_of_topics_are_kept(patch: Patches) -> None:
    """A group drops the versions of topics to which none of its members subscribes."""
    patch.set(Group, "prune_sub_versions", lambda self: None)
