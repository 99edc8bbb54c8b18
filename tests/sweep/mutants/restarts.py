"""Rules of a broker's start: durability before the port opens, the duration of graces and of the hold, and recovery from state records and
snapshots.
"""

from typing import Any

from lockstep.broker import journal, running
from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.groups.lock_sync import LockSync
from lockstep.broker.groups.tables.lock_table import QueueKey
from lockstep.broker.groups.tables.progress_table import ProgressTable
from lockstep.broker.groups.tables.session_table import Session, SessionTable
from lockstep.broker.processors.lock import LockProcessor
from lockstep.broker.store import Store
from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.protocol.bodies import LockResult
from lockstep.runtime.requests.request import PendingResponse
from sweep.mutants.registry import Patches, mutant


@mutant("loss")
def the_term_is_not_synced(patch: Patches) -> None:
    """The term of a start is on the disk before the port opens, in the log and beside it."""
    enter, sync = running.RunningBroker.enter_term, Store.sync
    entering: set[int] = set()

    async def entered(self: Any, recovery: Any) -> None:
        entering.add(id(self.store))
        try:
            await enter(self, recovery)
        finally:
            entering.discard(id(self.store))

    async def written(self: Store) -> None:
        if id(self) not in entering:
            await sync(self)
            return
        self.writer._unconfirmed_end = None
        self.writer.end_turn()
        self.writer._waiters.confirm(self._log.written)

    async def unmarked(self: Store, *, accepted: int, tried: tuple[int, ...]) -> None:
        pass

    patch.set(running.RunningBroker, "enter_term", entered)
    patch.set(Store, "sync", written)
    patch.set(Store, "mark_terms", unmarked)


@mutant("loss")
def the_hold_ends_after_this_starts_grace(patch: Patches) -> None:
    """The hold after an assumed loss lasts for the longest grace that was announced to a client, not for the grace of this start."""
    tick = Coordination.tick

    def early(self: Coordination, now_ms: int) -> int:
        state = self.state
        if state.grants_suspended and self._opened_ms is not None and now_ms >= self._opened_ms + state.config.disconnect_grace_ms:
            state.record(("broker.hold", False))
            for group in state.groups:
                state.pending.notify_group_free(group)
        return tick(self, now_ms)

    patch.set(Coordination, "tick", early)


@mutant("loss")
def newcomers_are_granted_queues_during_the_hold(patch: Patches) -> None:
    """During the hold after an assumed loss no session is granted a queue, including sessions that are new since the start."""
    recorded, acquire = SessionTable.restore_session, LockSync._acquire
    known: dict[int, set[str]] = {}

    def remembered(self: SessionTable, session_id: str, client_id: str, now_ms: int) -> None:
        known.setdefault(id(self), set()).add(session_id)
        recorded(self, session_id, client_id, now_ms)

    def unheld(self: LockSync, session: Session, key: QueueKey, *facts: Any) -> LockResult:
        state = self._state
        holding = state.grants_suspended
        if session.id not in known.get(id(state.sessions), ()):
            state.grants_suspended = False
        try:
            return acquire(self, session, key, *facts)
        finally:
            state.grants_suspended = holding

    patch.set(SessionTable, "restore_session", remembered)
    patch.set(LockSync, "_acquire", unheld)


@mutant("late_ports")
def graces_count_from_the_recovery(patch: Patches) -> None:
    """The graces of recorded sessions count from the moment at which the port opens."""

    def opened(self: Coordination, now_ms: int) -> None:
        self._opened_ms = now_ms

    patch.set(Coordination, "port_opened", opened)


@mutant("forgotten_commits")
def a_sync_response_does_not_wait_for_the_disk(patch: Patches) -> None:
    """The response to a SYNC with items is sent when the log is confirmed."""
    sync = vars(LockProcessor)["sync"]

    def early(self: LockProcessor, request: Any) -> Any:
        outcome = sync(self, request)
        return outcome.command if isinstance(outcome, PendingResponse) else outcome

    early.__dict__.update(sync.__dict__)
    patch.set(LockProcessor, "sync", early)


@mutant("split_records")
def split_state_records_are_in_the_wrong_order(patch: Patches) -> None:
    """The changes of a turn that do not fit one state record are replayed in the order in which they were made."""
    bodies = journal._bodies

    def swapped(changes: list[bytes], bytes_max: int) -> list[bytes]:
        body, half = bodies(changes, 1 << 30), len(changes) // 2
        return body if len(body[0]) <= bytes_max or not half else swapped(changes[half:], bytes_max) + swapped(changes[:half], bytes_max)

    patch.set(journal, "_bodies", swapped)


@mutant("unwatched_queues")
def since_is_not_in_the_snapshot(patch: Patches) -> None:
    """The snapshot holds the layout at which a group began: a queue that was added later begins at its first message."""
    snapshot = ProgressTable.snapshot

    def without(self: ProgressTable) -> dict[str, Any]:
        return snapshot(self) | {"since": []}

    patch.set(ProgressTable, "snapshot", without)


@mutant("loss", aimed="tests/unit/broker/test_refused_starts.py::test_start_with_a_taken_port_changes_nothing")
def a_failed_start_counts_as_a_crash(patch: Patches) -> None:
    """A start that fails before it has changed a file leaves a cleanly stopped store clean."""
    patch.set(StoreDirectory, "revert_open", lambda self: None)
