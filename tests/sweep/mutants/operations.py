"""Rules about operators' changes of groups and topics (ordering.md 7.6)."""

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.groups.group_state import GroupState
from lockstep.broker.groups.group_tables import GroupTables
from lockstep.broker.groups.legacy_clients import LegacyClients
from lockstep.broker.groups.lock_sync import LockSync
from lockstep.broker.groups.start_policy import StartPositions
from lockstep.broker.groups.tables.lock_table import LockTable, QueueKey
from lockstep.broker.groups.tables.progress_table import Progress, ProgressTable
from lockstep.broker.groups.tables.session_table import Session
from lockstep.broker.processors import purge
from lockstep.broker.state import BrokerState
from lockstep.broker.store import Store
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.cli import interrupt
from lockstep.client.instance import Instance
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.groups import group_query
from lockstep.protocol.bodies import LockVerdict
from lockstep.protocol.topics.queue import WRITER_MAX, LayoutVersion, TopicLayout
from sweep.mutants.registry import Patches, mutant

EARLY = "tests/unit/cli/test_early_interrupt.py::"
READING = "tests/unit/operations/groups/test_group_query.py::"
LATE = "tests/unit/client/test_late_topics.py::"
LOCKS = "tests/unit/broker/test_classic_client_locks.py::"
RESETS = "tests/unit/broker/test_classic_client_resets.py::"
LIVES = "tests/unit/broker/test_recreated_topics.py::"
PURGES = "tests/unit/broker/test_purge.py::"


@mutant("reset")
def a_reset_frees_the_queue_at_once(patch: Patches) -> None:
    """No other client is granted a queue that was reset before its holder is notified."""
    patch.set(GroupState, "supersede_grant", lambda self, key: self.end_grant(key, "a reset"))


@mutant("reset")
def a_reset_keeps_the_grant(patch: Patches) -> None:
    """A reset ends the grant: earlier results are STALE."""
    patch.set(GroupState, "supersede_grant", lambda self, key: None)


@mutant("reset")
def a_reset_keeps_the_generation(patch: Patches) -> None:
    """A reset begins a new generation."""
    set_ = ProgressTable.set_progress

    def same(self: ProgressTable, key: QueueKey, progress: Progress) -> None:
        before = self.get(key)
        set_(self, key, progress if before is None else replace(progress, generation=before.generation))

    patch.set(ProgressTable, "set_progress", same)


@mutant("reset")
def resets_in_memory(patch: Patches) -> None:
    """A reset is recorded before its response is sent."""

    def unrecorded(self: ProgressTable, key: QueueKey, progress: Progress) -> None:
        self.apply(("progress.set", *key, progress.generation, progress.offset, progress.attempts, None, None))

    patch.set(ProgressTable, "set_progress", unrecorded)


@mutant("reset_restart")
def superseded_locks_in_memory(patch: Patches) -> None:
    """The holder of a reset queue is recorded: after a restart of the broker no other member is granted the queue either."""
    supersede = LockTable.record_superseded

    def unrecorded(self: LockTable, key: QueueKey, epoch: int) -> None:
        lock = self.holder(key)
        assert lock is not None
        supersede(self, key, epoch)
        self._journal.record(("lock.granted", *key, epoch, lock.session, lock.client_id), lambda _: None)

    snapshot = LockTable.snapshot
    patch.set(LockTable, "record_superseded", unrecorded)
    patch.set(LockTable, "snapshot", lambda self: [[*row[:-1], False] for row in snapshot(self)])


@mutant("reset_restart")
def a_lost_stale_frees_the_queue(patch: Patches) -> None:
    """A holder knows of a reset when its LOCK does not name the queue, not when the response with STALE was written."""
    renew = LockSync._renew

    def heard(self: LockSync, session: Session, key: QueueKey, item: Any, epoch: int, now_ms: int) -> Any:
        response = renew(self, session, key, item, epoch, now_ms)
        locks, lock = self._state.locks, self._state.locks.get(key)
        if response.verdict is LockVerdict.STALE and lock is not None and lock.superseded and lock.session == session.id:
            locks._put(key, replace(lock, superseded=False))
        return response

    patch.set(LockSync, "_renew", heard)


@mutant("begin")
def each_queue_records_its_own_start(patch: Patches) -> None:
    """The first LOCK resolves a group's start policy for all queues of its broker."""
    resolve = ProgressTable.record_start

    def one(self: ProgressTable, group: str, topic: str, **facts: Any) -> None:
        wanted = sys._getframe(1).f_locals["key"][2]
        only = [pair for pair in facts.pop("offsets") if pair[0] == wanted]
        resolve(self, group, topic, offsets=only, **facts)
        del self._since[topic][group]

    patch.set(ProgressTable, "record_start", one)


@mutant("begin")
def the_start_of_a_group_is_not_recorded(patch: Patches) -> None:
    """The first offsets of a group are recorded before the response to its first LOCK: a crash before the first commit skips nothing."""

    def unrecorded(self: ProgressTable, group: str, topic: str, *, since: int, generation: int, offsets: Any) -> None:
        self.apply(("progress.resolved", group, topic, since, generation, [list(pair) for pair in offsets]))

    patch.set(ProgressTable, "record_start", unrecorded)


@mutant("begin")
def every_group_begins_at_the_first_message(patch: Patches) -> None:
    """A group begins by its start policy."""
    patch.set(StartPositions, "_start_offset", lambda self, queue_id, policy, by_time: self._state.bounds.bounds(policy.topic, queue_id)[0])


@mutant("begin")
def an_added_queue_begins_at_its_end(patch: Patches) -> None:
    """A queue that was added after a group had begun starts at 0."""

    def at_end(self: LockSync, key: QueueKey) -> None:
        state = self._state
        if state.progress.get(key) is None:
            state.progress.set_progress(key, Progress(state.fence.draw(), state.bounds.end_offset(key[1], key[2])))

    patch.set(LockSync, "_prepare_grant", at_end)


@mutant("delete", aimed="tests/unit/broker/test_topic_table.py::test_missed_deletion_is_applied_with_the_layout_that_recreated_the_topic")
def a_missed_deletion_is_not_applied(patch: Patches) -> None:
    """A broker that gets only the layout of a topic that was created again drops the messages of the deleted one."""
    patch.set(TopicTable, "_put_created_again", TopicTable._put)


@mutant("delete", aimed=LIVES + "test_repeated_deletion_keeps_a_topic_created_after_the_first")
def a_repeated_deletion_deletes_later_messages(patch: Patches) -> None:
    """A deletion that is repeated with a higher counter deletes no more than the deletion that an operator requested."""
    patch.set(
        TopicLayout, "deletion_up_to", lambda self, began: TopicLayout(self.topic, LayoutVersion(self.version.counter + 1, WRITER_MAX), ())
    )


@mutant("delete", aimed=LIVES + "test_messages_of_a_deleted_topic_are_never_in_the_recreated_one")
def the_highest_counter_wins_over_a_later_creation(patch: Patches) -> None:
    """A broker with a topic that was created again does not take a layout from before its deletion, whatever its counter."""
    take = TopicTable._put_if_higher

    def takes(self: TopicTable, layout: Any) -> bool:
        here = self.find_layout(layout.topic)
        if here is not None and layout.entries and layout.began < here.began and self.layouts.is_newer(layout):
            self._put(layout)
            self._changed(layout.topic)
            return True
        return take(self, layout)

    patch.set(TopicTable, "_put_if_higher", takes)


@mutant("delete")
def a_deleted_topic_keeps_its_messages(patch: Patches) -> None:
    """Deleting a topic deletes its messages."""
    patch.set(Store, "drop_topic", lambda self, topic: None)


@mutant("purge", aimed=PURGES + "test_purge_removes_what_is_below_in_the_named_queues_and_survives_a_kill")
def purges_in_memory(patch: Patches) -> None:
    """What was purged stays away after a restart."""
    patch.set(BrokerState, "purge", lambda self, topic, minimums: self._purge(("topic.purged", topic, list(minimums.items()))))


@mutant("purge", aimed=PURGES + "test_purge_is_refused_while_a_group_has_not_consumed_it_and_changes_nothing")
def purges_do_not_ask_groups(patch: Patches) -> None:
    """A purge is refused while a group has not consumed what it removes."""
    patch.set(purge, "unconsumed_groups", lambda state, topic, minimums: [])


@mutant("classic_power")
def classic_clients_wait_for_the_grace_only(patch: Patches) -> None:
    """After an assumed loss no classic client is granted a queue for 30 s."""
    opened = Coordination.port_opened

    def unheld(self: Coordination, now_ms: int) -> None:
        self.state.classic_suspended = False
        opened(self, now_ms)

    patch.set(Coordination, "port_opened", unheld)


@mutant(
    "classic_power",
    aimed=LOCKS + "test_session_is_granted_no_queue_of_a_group_with_classic_members_while_one_may_trust_a_lost_lock",
)
def sessions_do_not_wait_for_classic_members(patch: Patches) -> None:
    """After an assumed loss no session is granted a queue of a group with classic members for 30 s."""
    patch.set(GroupTables, "suspends", lambda self, group: self.grants_suspended)


@mutant("classic_power", aimed=RESETS + "test_reader_above_a_lost_suffix_goes_back_to_the_groups_progress")
def a_loss_is_not_told_to_classic_clients(patch: Patches) -> None:
    """After an assumed loss a classic reader that is not at the group's progress is moved there."""
    apply = ProgressTable.apply

    def known(self: ProgressTable, change: Any) -> None:
        apply(self, change)
        if change[0] == "progress.renewed":
            for topics in self._groups.values():
                for queues in topics.values():
                    queues.update({queue_id: replace(each, unannounced=False) for queue_id, each in queues.items()})

    patch.set(ProgressTable, "apply", known)


@mutant("early_groups")
def groups_that_wait_for_a_topic_begin_at_its_end(patch: Patches) -> None:
    """A group that subscribes to a topic before it is created begins at its first message."""
    patch.set(StartPositions, "begin_at_first", lambda self, group, topic: None)


@mutant("early_groups")
def members_that_wait_for_a_topic_are_unknown_to_brokers(patch: Patches) -> None:
    """A member links every registered broker while a topic that it subscribes to does not exist."""

    async def nothing(self: Instance) -> None:
        return None

    patch.set(Instance, "link_all", nothing)


@mutant("early_groups", aimed=LATE + "test_member_gets_the_first_message_of_a_topic_that_was_deleted_before")
def a_topic_that_is_created_again_begins_at_0(patch: Patches) -> None:
    """Nobody begins at messages of a deleted topic in the one that is created again."""

    real = Coordination.queues_added

    def forgetful(self: Coordination, topic: str, added: Mapping[int, bool]) -> None:
        real(self, topic, {number: removed for number, removed in added.items() if removed})

    patch.set(Coordination, "queues_added", forgetful)


@mutant("classic")
def classic_locks_never_lapse(patch: Patches) -> None:
    """A classic client's lock is over 60 s after its last LOCK_BATCH_MQ."""
    patch.set(LegacyClients, "_expired", lambda self, key, now_ms: False)


@mutant("classic")
def any_client_takes_over_a_classic_lock(patch: Patches) -> None:
    """No other client is granted a queue while a classic client's lock on it is valid."""
    patch.set(LegacyClients, "_expired", lambda self, key, now_ms: True)


@mutant(
    "classic",
    aimed="tests/unit/broker/test_classic_client_locks.py::test_update_offset_of_a_held_queue_is_rejected_with_its_holder_and_counted",
)
def offsets_are_accepted_from_any_client(patch: Patches) -> None:
    """A commit without an epoch is not applied while another client holds the queue."""
    patch.set(LegacyClients, "may_commit", lambda self, connection, key: True)


@mutant("swarm", aimed=READING + "test_reading_groups_takes_one_request_per_group_and_broker_and_one_per_topic")
def groups_are_read_one_after_the_other(patch: Patches) -> None:
    """A command that reads many groups requests 16 of them at the same time."""
    patch.set(group_query, "READS_MAX", 1)


@mutant("swarm", aimed=READING + "test_reading_groups_takes_one_request_per_group_and_broker_and_one_per_topic")
def each_admin_request_opens_a_connection(patch: Patches) -> None:
    """A command that reads many groups has one connection for each address."""
    patch.set(AdminClient, "keep_connections", lambda self: nullcontext())


@mutant("swarm", aimed=EARLY + "test_signal_swallowed_by_an_import_ends_the_command_before_it_starts")
def a_dropped_interrupt_is_forgotten(patch: Patches) -> None:
    """A command does not begin when SIGINT has come while it was loaded."""
    patch.set(interrupt, "received_early", lambda handler: False)


@mutant("swarm", aimed=EARLY + "test_signal_between_the_installation_of_two_handlers_ends_the_command")
def the_loop_drops_an_interrupt(patch: Patches) -> None:
    """A SIGINT that only the loop's handler has received ends the command."""
    patch.set(interrupt._Interrupt, "_on_loop_signal", lambda self: None)
