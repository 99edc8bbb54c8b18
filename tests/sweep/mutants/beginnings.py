"""Limits on the groups, topics, progress and locks that a request may create, and the deletion of groups."""

from typing import Any

from lockstep.broker.delivery.group_topics import GroupTopics
from lockstep.broker.groups.group_admin import GroupAdmin
from lockstep.broker.groups.group_limits import GroupLimits
from lockstep.broker.groups.group_state import GroupState
from lockstep.broker.groups.group_tables import GroupTables
from lockstep.broker.groups.start_policy import StartPositions
from lockstep.broker.groups.tables.lock_table import LockTable
from lockstep.broker.groups.tables.settings_table import SettingsTable
from lockstep.broker.store import Store
from lockstep.broker.tables.topic_table import TopicTable
from sweep.mutants.registry import Patches, mutant

SEND_BACKS = "tests/unit/broker/test_send_back_limits.py"
DELETED = "tests/unit/broker/test_group_delete.py"
GROUPS = "tests/unit/broker/test_group_limits.py"


@mutant("swarm", aimed=f"{SEND_BACKS}::test_group_above_the_limit_is_rejected_by_name_and_gets_no_topic")
def messages_sent_back_count_no_group(patch: Patches) -> None:
    """A message that is sent back counts its group, and is refused above the limit of groups."""
    patch.set(GroupLimits, "check_group_room", lambda self, group: None)
    patch.set(GroupState, "register_group", lambda self, group: None)


@mutant("swarm", aimed=f"{SEND_BACKS}::test_rejected_topic_leaves_no_group")
def topics_of_groups_have_no_limit(patch: Patches) -> None:
    """The limit of topics of groups is below that of a nameserver."""
    patch.set(TopicTable, "_check_names", lambda self, topic: None)


@mutant("swarm", aimed="tests/unit/broker/test_delayed_delivery.py::test_delayed_retry_waits_while_the_cluster_is_at_its_topic_limit")
def a_retry_without_room_for_its_topic_is_dropped(patch: Patches) -> None:
    """A delayed message waits while its topic can't be created."""
    patch.set(GroupTopics, "_create_for_delayed", GroupTopics.create)


@mutant("swarm", aimed=f"{SEND_BACKS}::test_below_half_the_disk_reserve_only_an_acknowledged_message_gets_its_topic")
def topics_of_groups_use_the_reserve(patch: Patches) -> None:
    """Below half the disk reserve no request creates the topic of a group."""
    patch.set(GroupTopics, "create", vars(GroupTopics)["_create_for_delayed"])


@mutant("swarm", aimed=f"{SEND_BACKS}::test_full_disk_creates_and_writes_nothing")
def a_topic_is_created_for_a_copy_that_is_refused(patch: Patches) -> None:
    """Below the disk reserve a message that is sent back is refused before anything is created for it."""
    patch.set(Store, "check_append", lambda self, size: None)


@mutant("swarm", aimed=f"{GROUPS}::test_group_without_members_counts_while_the_broker_has_its_topic")
def idle_groups_do_not_count_their_topics(patch: Patches) -> None:
    """A group counts while its retry or dead-letter topic exists and it is not idle."""
    tidy: Any = GroupState.forget_if_empty

    def without_topics(self: GroupState, group: str) -> None:
        counted: Any = self.own_queue_count
        self.own_queue_count = lambda topic: 0  # type: ignore[method-assign]
        try:
            tidy(self, group)
        finally:
            self.own_queue_count = counted  # type: ignore[method-assign]

    patch.set(GroupState, "forget_if_empty", without_topics)


@mutant("swarm", aimed=f"{GROUPS}::test_group_with_one_commit_starts_in_no_other_queue_above_the_limit")
def a_start_counts_one_queue_for_all_of_its_topic(patch: Patches) -> None:
    """A start counts all the queues in which it begins."""
    patch.set(GroupTables, "missing_progress_count", lambda self, group, topic: 1)


@mutant(
    "swarm",
    aimed="tests/unit/broker/test_cost_of_changes.py::test_starting_queues_per_interval_are_limited_and_members_retry",
)
def groups_begin_in_any_number_of_queues_at_once(patch: Patches) -> None:
    """Groups begin in a limited number of queues at a time; the members of others repeat their request."""
    patch.set(StartPositions, "_reserve_starts", lambda self, count, now_ms: True)


@mutant("swarm", aimed=f"{GROUPS}::test_locks_of_non_members_are_limited")
def any_number_of_locks_is_kept(patch: Patches) -> None:
    """A broker keeps a limited number of locks; a request beyond the limit locks none of its queues."""
    patch.set(GroupLimits, "check_lock_room", lambda self, key, count: None)


@mutant("swarm", aimed=f"{GROUPS}::test_rejected_request_leaves_no_state")
def a_refused_reset_counts_its_group(patch: Patches) -> None:
    """A refused request creates no group."""
    reset: Any = GroupAdmin.reset_progress

    def begun_first(self: GroupAdmin, body: Any) -> Any:
        self._state.register_group(body.group)
        return reset(self, body)

    patch.set(GroupAdmin, "reset_progress", begun_first)


@mutant("swarm", aimed=f"{DELETED}::test_group_with_members_is_not_deleted_and_they_are_named")
def groups_in_use_are_deleted(patch: Patches) -> None:
    """A group with a member or a held queue is not deleted."""
    patch.set(GroupAdmin, "check_unused", lambda self, group: None)


@mutant("swarm", aimed=f"{DELETED}::test_deleted_groups_no_longer_count_for_the_group_limit")
def a_group_is_not_deleted(patch: Patches) -> None:
    """A group is deleted on request: groups with settings never expire."""
    patch.set(GroupAdmin, "delete_group", lambda self, group, *, with_progress: 0)


@mutant("swarm", aimed=f"{DELETED}::test_deletion_removes_all_state_of_a_group_in_one_durable_change")
def settings_outlive_their_group(patch: Patches) -> None:
    """The settings of a group are deleted with it."""
    patch.set(SettingsTable, "drop_group", lambda self, group: None)


@mutant("swarm", aimed=f"{DELETED}::test_deletion_removes_all_state_of_a_group_in_one_durable_change")
def a_deletion_in_memory(patch: Patches) -> None:
    """The deletion of a group is recorded."""

    def unrecorded(self: GroupState, group: str) -> None:
        self.activity.apply(("group.forgotten", group))
        self.drop_group(group)

    patch.set(GroupState, "forget_group", unrecorded)


@mutant("swarm", aimed=f"{DELETED}::test_deletion_without_the_flag_keeps_progress_as_in_rocketmq")
def progress_is_deleted_with_the_settings(patch: Patches) -> None:
    """Without cleanOffset a deletion keeps the group's progress."""
    delete: Any = GroupAdmin.delete_group
    patch.set(GroupAdmin, "delete_group", lambda self, group, *, with_progress: delete(self, group, with_progress=True))


@mutant("swarm", aimed=f"{GROUPS}::test_groups_removed_with_their_topic_leave_no_grant_count")
def grants_are_counted_of_groups_that_are_gone(patch: Patches) -> None:
    """The counts of a group are removed with it."""

    def kept(self: LockTable, group: str) -> None:
        granted = self.grant_counts[group]
        drop_group(self, group)
        self.grant_counts[group] = granted

    drop_group: Any = LockTable.drop_group
    patch.set(LockTable, "drop_group", kept)
