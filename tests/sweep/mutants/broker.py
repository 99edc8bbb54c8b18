"""Rules of brokers about sessions, locks, progress and recovery (ordering.md 1 to 8)."""

from dataclasses import replace
from typing import Any

from lockstep.broker import running
from lockstep.broker.groups.contract_changes import ContractChanges
from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.groups.effect_runner import EffectRunner
from lockstep.broker.groups.effects import Notify
from lockstep.broker.groups.group_state import GroupState
from lockstep.broker.groups.lock_sync import LockSync
from lockstep.broker.groups.membership import GroupMembers
from lockstep.broker.groups.pending_effects import PendingEffects
from lockstep.broker.groups.pull_fence import PullCheck, PullFence
from lockstep.broker.groups.tables.group_table import GroupTable
from lockstep.broker.groups.tables.lock_table import Lock, LockTable, QueueKey
from lockstep.broker.groups.tables.progress_table import Progress, ProgressTable
from lockstep.broker.groups.tables.session_table import BoundSession, Session, SessionRefusal, SessionTable
from lockstep.broker.store import Store
from lockstep.protocol.bodies import LockVerdict
from sweep.mutants.registry import Patches, mutant


@mutant("net", "pause")
def epochs_are_not_checked(patch: Patches) -> None:
    """Commit, release and renewal need the recorded epoch."""
    patch.set(Lock, "accepts_epoch", lambda self, session, epoch: True)


@mutant("net", "pause", aimed="tests/sim/test_aimed.py::test_pull_under_an_older_epoch_is_stale")
def pulls_are_not_checked(patch: Patches) -> None:
    """The response to a pull under an invalid epoch is STALE_EPOCH."""
    check = PullFence.admit

    def unchecked(self: PullFence, *facts: Any) -> PullCheck | None:
        found = check(self, *facts)
        return None if found is None else replace(found, stale=False)

    patch.set(PullFence, "admit", unchecked)


@mutant("pause", aimed="tests/sim/test_aimed.py::test_connection_of_an_evicted_client_is_closed")
def silent_connection_left_open(patch: Patches) -> None:
    """A session that was silent for its timeout loses its connection too."""
    close = PendingEffects.close_connection

    def lenient(self: PendingEffects, connection: int, reason: str) -> None:
        if "session timeout" not in reason:
            close(self, connection, reason)

    patch.set(PendingEffects, "close_connection", lenient)


@mutant(
    "pause", "churn", aimed="tests/unit/broker/test_membership_sessions.py::test_closed_session_keeps_locks_and_membership_for_the_grace"
)
def no_grace(patch: Patches) -> None:
    """A session whose connection closed keeps its locks for the grace."""
    due = SessionTable.due_ms

    def at_once(self: SessionTable, session: Session) -> int:
        return session.closed_ms + 100 if session.connection is None else due(self, session)

    patch.set(SessionTable, "due_ms", at_once)


@mutant("broker", "power")
def no_grace_after_a_start(patch: Patches) -> None:
    """After a start recorded sessions have the grace to come back."""
    patch.set(GroupMembers, "restore_members", lambda self, now_ms: None)


@mutant(
    "pause",
    "broker",
    aimed="tests/unit/broker/test_membership_sessions.py::test_suspension_of_the_broker_does_not_count_as_silence",
)
def standstill_counts_as_silence(patch: Patches) -> None:
    """Time in which the broker itself was paused does not count as silence of its clients."""
    patch.set(SessionTable, "exclude_pause", lambda self, pause_ms, now_ms: None)


@mutant("late", aimed="tests/sim/test_aimed.py::test_late_lock_on_an_older_connection_releases_no_queue")
def older_connection_still_served(patch: Patches) -> None:
    """A session is bound to its newest connection; the older one is closed unread."""
    heard, bind = SessionTable.touch, SessionTable.bind
    old: dict[int, dict[int, Session]] = {}

    def both_heard(self: SessionTable, connection: int, now_ms: int) -> Session | None:
        session = heard(self, connection, now_ms) or old.get(id(self), {}).get(connection)
        if session is not None:
            session.received_ms = now_ms
        return session

    def both_bound(self: SessionTable, session_id: str, client_id: str, **facts: Any) -> BoundSession | SessionRefusal:
        bound = bind(self, session_id, client_id, **facts)
        if not isinstance(bound, BoundSession):
            return bound
        old.setdefault(id(self), {})[facts["connection"]] = bound.session
        return BoundSession(bound.session, None)

    patch.set(SessionTable, "touch", both_heard)
    patch.set(SessionTable, "bind", both_bound)


@mutant(
    "late", aimed="tests/unit/broker/test_membership_sessions.py::test_late_heartbeat_of_an_older_connection_closes_it_without_a_response"
)
def any_heartbeat_binds(patch: Patches) -> None:
    """A HEART_BEAT with a lower connection number does not take the session over."""
    bind = SessionTable.bind

    def whatever(
        self: SessionTable, session_id: str, client_id: str, *, connection: int, number: int, now_ms: int
    ) -> BoundSession | SessionRefusal:
        session = self._by_id.get(session_id)
        if session is not None and session.connection != connection:
            number = session.number + 1
        return bind(self, session_id, client_id, connection=connection, number=number, now_ms=now_ms)

    patch.set(SessionTable, "bind", whatever)


@mutant("late")
def omitted_locks_are_kept(patch: Patches) -> None:
    """Queues that a session holds and its LOCK does not name with their epoch are freed."""
    held_by = LockTable.keys_held_by

    def nothing(self: LockTable, session: str) -> list[QueueKey]:
        import sys

        return [] if sys._getframe(1).f_code.co_name == "lock" else held_by(self, session)

    patch.set(LockTable, "keys_held_by", nothing)


@mutant("churn", "net", aimed="tests/unit/broker/test_app.py::test_released_queue_is_offered_to_its_owner_by_the_member_list")
def any_member_may_lock_any_queue(patch: Patches) -> None:
    """The response to a LOCK for a queue of another member, by the broker's list, is NOT_YOURS."""
    patch.set(LockSync, "_may_hold", lambda self, group, session, key: True)


@mutant(
    "net",
    "pause",
    aimed="tests/unit/broker/test_locks.py::test_freed_epoch_is_valid_for_commit_release_pull_and_renewal_until_superseded",
)
def freed_epochs_never_come_back(patch: Patches) -> None:
    """A freed epoch is valid until a higher one exists: its own session holds the queue again by naming it."""
    renew = LockSync._renew

    def never(self: LockSync, session: Session, key: QueueKey, item: Any, epoch: int, now_ms: int) -> Any:
        lock = self._state.locks.get(key)
        if lock is not None and not lock.held:
            lock = None
        response = renew(self, session, key, item, epoch, now_ms)
        return replace(response, verdict=LockVerdict.STALE) if lock is None else response

    patch.set(LockSync, "_renew", never)


@mutant("net", "pause")
def own_acquire_keeps_the_epoch(patch: Patches) -> None:
    """Every acquire raises the epoch, also for the same session."""
    grant = GroupState.grant

    def same(self: GroupState, key: QueueKey, session: str | None, client_id: str) -> int:
        lock = self.locks.get(key)
        if lock is None or lock.session != session or session is None:
            return grant(self, key, session, client_id)
        self.locks.record_grant(key, lock.epoch, session, client_id)
        return lock.epoch

    patch.set(GroupState, "grant", same)


@mutant("power", "disk")
def an_ended_grant_stays_valid(patch: Patches) -> None:
    """An assumed loss ends every grant and raises its epoch."""
    patch.set(LockTable, "record_end_of_all", lambda self, epoch: None)


@mutant("power", "disk")
def generations_stay(patch: Patches) -> None:
    """After an assumed loss every generation rises."""
    patch.set(ProgressTable, "renew_generations", lambda self, generation: None)


@mutant("recontract", aimed="tests/unit/broker/test_membership_contracts.py::test_only_member_may_change_the_contract_and_its_grants_end")
def a_changed_contract_keeps_its_grants(patch: Patches) -> None:
    """When a contract is dropped or changed its grants end."""
    patch.set(GroupState, "end_group_grants", lambda self, group: None)


@mutant("recontract")
def contracts_are_not_compared(patch: Patches) -> None:
    """A member with another contract is refused while others have the old one."""
    patch.set(ContractChanges, "_conflict", lambda self, group, session, requested: None)


@mutant(
    "broker", "power", aimed="tests/unit/broker/test_coordination.py::test_member_list_after_a_start_has_recorded_and_connected_members"
)
def members_in_memory(patch: Patches) -> None:
    """Members are recorded."""
    patch.set(GroupTable, "_record", lambda self, change: self.apply(change))


@mutant("broker", "power")
def locks_in_memory(patch: Patches) -> None:
    """Grants are recorded before their response is sent."""
    patch.set(LockTable, "_record", lambda self, change: self.apply(change))


@mutant("broker", "late", aimed="tests/sim/test_aimed.py::test_lock_renewed_after_a_release_is_restored_by_a_restart")
def renewed_locks_in_memory(patch: Patches) -> None:
    """The renewal of a freed epoch is recorded."""
    patch.set(LockTable, "record_held_again", lambda self, key: self.apply(("lock.held", *key)))


@mutant("broker", "power")
def progress_in_memory(patch: Patches) -> None:
    """Commits are recorded before their response is sent."""

    def commit(self: ProgressTable, key: QueueKey, offset: int, attempts: int, now_ms: int) -> None:
        before = self._existing(key)
        if offset > before.offset:
            self._put(key, Progress(before.generation, offset, attempts))

    patch.set(ProgressTable, "record_commit", commit)


@mutant("late", "pause", aimed="tests/unit/broker/test_coordination.py::test_requests_without_a_change_write_nothing")
def lower_commits_are_stored(patch: Patches) -> None:
    """A lower offset changes nothing."""

    def commit(self: ProgressTable, key: QueueKey, offset: int, attempts: int, now_ms: int) -> None:
        self._record(("progress.committed", *key, offset, attempts))

    patch.set(ProgressTable, "record_commit", commit)


@mutant("late", "pause", aimed="tests/sim/test_aimed.py::test_member_that_lost_a_lock_remains_a_member")
def a_lost_lock_removes_the_member(patch: Patches) -> None:
    """A lost lock does not change membership."""
    renew = LockSync._renew

    def remove(self: LockSync, session: Session, key: QueueKey, item: Any, epoch: int, now_ms: int) -> Any:
        response = renew(self, session, key, item, epoch, now_ms)
        if response.verdict is LockVerdict.STALE:
            self._state.leave_group(key[0], session.client_id, "a lost lock")
        return response

    patch.set(LockSync, "_renew", remove)


@mutant("handover")
def no_queue_free(patch: Patches) -> None:
    """The member to which a free queue belongs is notified."""
    patch.set(PendingEffects, "notify_queue_free", lambda self, key: None)
    patch.set(PendingEffects, "notify_topic_free", lambda self, group, topic: None)


@mutant("alter", aimed="tests/unit/client/test_new_layouts.py::test_messages_in_new_queues_are_consumed_within_seconds")
def new_layouts_are_not_notified(patch: Patches) -> None:
    """Subscribers of a topic are notified of its new layout."""
    patch.set(PendingEffects, "notify_layout_changed", lambda self, topic: None)


@mutant(
    "handover", aimed="tests/unit/broker/test_effect_runner.py::test_effects_reach_their_connections_and_closed_connections_are_skipped"
)
def list_changes_are_not_notified(patch: Patches) -> None:
    """Members are notified of a change of their list."""
    do = EffectRunner._execute

    def untold(self: EffectRunner, effect: Any) -> None:
        if not isinstance(effect, Notify):
            do(self, effect)

    patch.set(EffectRunner, "_execute", untold)


@mutant("power", "disk")
def no_hold_after_a_loss(patch: Patches) -> None:
    """After an assumed loss no queue is granted for the grace."""
    opened = Coordination.port_opened

    def unheld(self: Coordination, now_ms: int) -> None:
        self.state.grants_suspended = False
        opened(self, now_ms)

    patch.set(Coordination, "port_opened", unheld)


@mutant("power", aimed="tests/unit/broker/test_coordination.py::test_start_during_the_suspension_restarts_it")
def a_second_start_forgets_the_hold(patch: Patches) -> None:
    """The hold begins and ends with a record: a start that finds no end begins it again."""
    started = Coordination.enter_term

    def forgetful(self: Coordination, term: int, *, assumed_loss: bool, now_ms: int) -> None:
        self.state.grants_suspended = False
        started(self, term, assumed_loss=assumed_loss, now_ms=now_ms)

    patch.set(Coordination, "enter_term", forgetful)


@mutant("power", "disk")
def boot_id_is_ignored(patch: Patches) -> None:
    """Another boot id after an unclean stop under async flush means that a suffix may be lost."""
    patch.set(Store, "may_have_forgotten", lambda self, boot_id: False)


@mutant(
    "power",
    aimed="tests/unit/broker/test_app_restarts.py::test_boot_id_is_stored_after_the_term_is_durable_and_before_the_port_opens",
)
def boot_id_is_stored_first(patch: Patches) -> None:
    """The boot id is stored last: a second crash during recovery must not hide the first."""
    enter = running.RunningBroker.enter_term

    async def marked(self: Any, recovery: Any) -> None:
        store = self.store
        lost = store.may_have_forgotten(self._host.boot_id()) or recovery.lost_synced
        await store.mark_boot(self._host.boot_id())
        patch_loss[id(store)] = lost
        await enter(self, recovery)

    patch_loss: dict[int, bool] = {}
    may_have = Store.may_have_forgotten
    patch.set(Store, "may_have_forgotten", lambda self, boot_id: patch_loss.pop(id(self), None) or may_have(self, boot_id))
    patch.set(running.RunningBroker, "enter_term", marked)


@mutant("wipe")
def terms_restart_after_a_wipe(patch: Patches) -> None:
    """term = max(last + 1, seconds since 2020): fences don't fall after a wiped store."""
    patch.set(running, "next_term", lambda last_term, wall_ms: last_term + 1)


@mutant("regrace")
def a_longer_grace_is_forgotten(patch: Patches) -> None:
    """A start with a shorter grace keeps its sessions for the longest one that was announced."""
    started = Coordination.enter_term

    def forgetful(self: Coordination, term: int, *, assumed_loss: bool, now_ms: int) -> None:
        self.state.promised_grace_ms = 0
        started(self, term, assumed_loss=assumed_loss, now_ms=now_ms)

    patch.set(Coordination, "enter_term", forgetful)


@mutant("retention", aimed="tests/unit/broker/test_start_offsets.py::test_grown_gap_is_reported_again")
def retention_does_not_move_groups(patch: Patches) -> None:
    """Groups that had not read the messages that retention removes are moved past them and notified."""
    patch.set(Coordination, "skip_removed", lambda self, minimums: iter(()))
