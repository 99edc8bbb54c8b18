"""The check of a pull: by epoch, by generation, or by neither (ordering.md 2.3, 2.5, 12.3)."""

from dataclasses import dataclass

from lockstep.broker.groups.group_state import GroupState
from lockstep.broker.groups.legacy_clients import LegacyClients
from lockstep.broker.groups.lock_sync import LockSync
from lockstep.broker.groups.tables.lock_table import QueueKey
from lockstep.protocol.errors import NoPermissionError


@dataclass(frozen=True, slots=True)
class PullCheck:
    """Whether a pull may be served, and what else it may do."""

    stale: bool = False
    """Its epoch or generation is not valid: respond STALE_EPOCH."""
    may_commit: bool = False
    """It has no epoch, and its commit bit may be obeyed."""
    moved_to: int | None = None
    """The group's progress was reset to this offset, and a classic client has to be told: respond PULL_OFFSET_MOVED."""
    gap: tuple[int, int] | None = None
    """[first, end) that was removed before the group consumed it, if PullReply has to report it."""


class PullFence:
    """The fence of PULL_MESSAGE. A pull that has waited is checked again before its response."""

    def __init__(self, state: GroupState, lock_sync: LockSync, legacy: LegacyClients) -> None:
        self._state = state
        self._lock_sync = lock_sync
        self._legacy = legacy

    def admit(self, connection: int, key: QueueKey, epoch: int | None, generation: int | None = None, offset: int = 0) -> PullCheck | None:
        """Check a pull from `offset`, and take what is reported to its client with the response: a gap, a reset.

        Return None if the pull carries an epoch on a connection without a session, which is being closed.

        Raise NoPermissionError if the group may not consume.
        """
        state = self._state
        if not state.settings.may_consume(key[0]):
            raise NoPermissionError(f"group {key[0]} may not consume: allow it with `lockstep group update {key[0]} --consume`")
        session = state.sessions.session_on(connection)
        if epoch is not None:
            if session is None:
                state.pending.close_connection(connection, "PULL with an epoch on a connection without a session")
                return None
            stale = not state.locks.accepts_epoch(key, session.id, epoch)
        elif generation is not None:
            progress = state.progress.get(key)
            stale = progress is None or progress.generation != generation
        else:
            was_reset, moved_to = self._legacy.announce_reset(connection, key, offset)
            return PullCheck(may_commit=not was_reset and self._legacy.may_commit(connection, key), moved_to=moved_to)
        if stale:
            return PullCheck(stale=True)
        return PullCheck(gap=None if session is None else self._lock_sync.take_unreported_gap(key, session))
