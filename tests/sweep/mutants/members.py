"""Rules of brokers about notifications, members with draining queues, and fences over a start (ordering.md 1 to 8)."""

from typing import Any

from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.groups.lock_sync import LockSync
from lockstep.broker.groups.pending_effects import PendingEffects
from lockstep.broker.groups.tables.lock_table import FencingCounter, Lock, QueueKey
from lockstep.broker.groups.tables.session_table import BoundSession, Session, SessionRefusal, SessionTable
from lockstep.broker.processors.lock import LockProcessor
from lockstep.protocol.bodies import LockResult, LockVerdict
from lockstep.runtime.requests.request import PendingResponse
from sweep.mutants.registry import Patches, mutant


@mutant("churn", aimed="tests/unit/broker/test_locks.py::test_draining_queue_is_renewed_although_the_list_gives_it_to_another_member")
def draining_queues_are_not_renewed(patch: Patches) -> None:
    """The holder of a queue keeps it while it drains, although the list assigns it to another member."""
    renew = LockSync._renew

    def moved(self: LockSync, session: Session, key: QueueKey, item: Any, epoch: int, now_ms: int) -> LockResult:
        response = renew(self, session, key, item, epoch, now_ms)
        group = self._state.groups.get(key[0])
        if response.verdict is LockVerdict.OK and (group is None or not self._may_hold(group, session, key)):
            return LockResult(*key, LockVerdict.NOT_YOURS, epoch=epoch)
        return response

    patch.set(LockSync, "_renew", moved)


@mutant("fsync", aimed="tests/unit/broker/test_lock_processors.py::test_empty_sync_gets_its_response_before_a_waiting_one")
def proof_of_life_waits_for_the_disk(patch: Patches) -> None:
    """The response to an empty SYNC is sent at once, also before one that waits for the disk."""
    sync = vars(LockProcessor)["sync"]

    def waiting(self: LockProcessor, request: Any) -> Any:
        outcome = sync(self, request)
        return PendingResponse(outcome) if outcome is not None and not isinstance(outcome, PendingResponse) else outcome

    waiting.__dict__.update(sync.__dict__)
    patch.set(LockProcessor, "sync", waiting)


@mutant("churn", aimed="tests/unit/broker/test_locks.py::test_rising_epoch_ends_held_pulls")
def held_pulls_are_not_ended_by_a_new_epoch(patch: Patches) -> None:
    """When an epoch rises, held pulls of an older one end at once."""
    patch.set(PendingEffects, "end_held_pulls", lambda self, key: None)


@mutant("power", aimed="tests/unit/broker/test_coordination.py::test_end_of_the_suspension_notifies_every_member_of_free_queues")
def the_end_of_the_hold_is_not_notified(patch: Patches) -> None:
    """When the hold after an assumed loss ends, the member of each free queue is notified."""
    patch.set(PendingEffects, "notify_group_free", lambda self, group: None)


@mutant(
    "churn",
    aimed="tests/unit/broker/test_membership_sessions.py::test_second_live_session_of_a_client_id_is_rejected",
)
def two_sessions_share_a_client_id(patch: Patches) -> None:
    """A second living session of one client id is refused."""
    bind = SessionTable.bind

    def both(self: SessionTable, session_id: str, client_id: str, **facts: Any) -> BoundSession | SessionRefusal:
        self._by_client.pop(client_id, None)
        return bind(self, session_id, client_id, **facts)

    patch.set(SessionTable, "bind", both)


@mutant("broker", "power")
def every_start_has_the_same_term(patch: Patches) -> None:
    """Fencing numbers of a start are above all earlier ones."""

    def first(self: FencingCounter, term: int) -> None:
        self.term = 1
        self._counter = 0

    patch.set(FencingCounter, "start_term", first)


@mutant("late", aimed="tests/unit/broker/test_locks.py::test_freed_epoch_is_valid_for_commit_release_pull_and_renewal_until_superseded")
def a_freed_epoch_commits_nothing(patch: Patches) -> None:
    """Finished work counts as long as the queue was not granted to another client since, whether or not it is held."""
    patch.set(Lock, "accepts_epoch", lambda self, session, epoch: self.held and self.session == session and self.epoch == epoch)


@mutant("late", aimed="tests/unit/broker/test_sync_requests.py::test_commit_beyond_the_end_is_rejected_and_changes_nothing")
def commits_beyond_the_end_are_taken(patch: Patches) -> None:
    """A commit beyond the end of its queue is refused."""

    def unchecked(self: LockSync, key: QueueKey, offset: int, attempts: int, now_ms: int) -> None:
        self._state.progress.record_commit(key, offset, attempts, now_ms)

    patch.set(LockSync, "_commit_offset", unchecked)


@mutant("power", aimed="tests/unit/broker/test_coordination.py::test_progress_beyond_the_end_of_a_cut_queue_is_lowered_and_its_grant_ended")
def progress_stays_beyond_a_cut_queue(patch: Patches) -> None:
    """Progress beyond the recovered end is set back, and its grant ended: other messages will get these offsets."""
    patch.set(Coordination, "_repair_progress", lambda self: None)
