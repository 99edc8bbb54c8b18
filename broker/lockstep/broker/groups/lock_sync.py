"""LOCK and SYNC of clients with a session (ordering.md 2, 3, 4, 7). RocketMQ: RebalanceLockManager, ConsumerManageProcessor.

LOCK names everything that the session holds or wants at this broker. For each item, depending on the recorded lock of its queue:

| the item names       | recorded lock                             | result      | the session holds it afterwards |
|----------------------|-------------------------------------------|-------------|---------------------------------|
| its current epoch    | held by this session                      | OK, renewed | yes, also if it only drains     |
| its current epoch    | free, the list gives it to the session    | OK, renewed | yes                             |
| its current epoch    | free, the list gives it to another        | NOT_YOURS   | no; the offset is committed     |
| another epoch        | held by this session, superseded          | STALE       | until a LOCK does not name it   |
| another epoch        | any other                                 | STALE       | no                              |
| no epoch             | held by another                           | HELD, WAIT  | no                              |
| no epoch             | the list gives it to another              | NOT_YOURS   | no                              |
| no epoch             | free, or held by this session             | OK, granted | yes, under a new epoch          |
| (no item)            | held by this session                      |             | no                              |

First come all renewals, then the session's queues that no item names with the current epoch are freed, then grants are made.
"""

from collections.abc import Mapping

from lockstep.broker.groups.group_state import GroupState
from lockstep.broker.groups.membership import NONE_DENIED
from lockstep.broker.groups.start_policy import NO_OFFSETS, OffsetsByTime, StartPositions, start_policy
from lockstep.broker.groups.tables.group import Group
from lockstep.broker.groups.tables.lock_table import QueueKey
from lockstep.broker.groups.tables.progress_table import Progress
from lockstep.broker.groups.tables.session_table import Session
from lockstep.protocol.bodies import (
    ConsumerGroup,
    ListVersion,
    LockItem,
    LockResult,
    LockVerdict,
    SessionLockBody,
    SessionLockReply,
    StartPolicy,
    SyncBody,
    SyncItem,
    SyncReply,
    SyncResult,
)
from lockstep.protocol.done_ranges import check_ranges, contains, skip
from lockstep.protocol.errors import BrokerError, LocalProtocolError
from lockstep.protocol.headers.offsets import QueryConsumerOffsetHeader
from lockstep.protocol.messages.properties import one_line_reason

ITEMS_MAX = 100_000
"""Items in one LOCK or SYNC. A frame of 16 MiB holds about as many."""


class LockSync:
    """Handles LOCK and SYNC: the locks and the progress of sessions."""

    def __init__(self, state: GroupState, starts: StartPositions) -> None:
        self._state = state
        self._starts = starts
        self._reported_gaps: dict[QueueKey, tuple[int | None, tuple[int, int]]] = {}

    # --------------------------------------------------------------------------------------------------------------- LOCK

    def lock(
        self,
        connection: int,
        body: SessionLockBody,
        now_ms: int,
        by_time: OffsetsByTime = NO_OFFSETS,
        denied: Mapping[str, BrokerError] = NONE_DENIED,
    ) -> SessionLockReply | None:
        """Handle LOCK. `denied`: the groups that the user of the session may not consume, each with its refusal.

        Return None if the connection is not that of a session, and is being closed.
        """
        state = self._state
        session = state.sessions.touch(connection, now_ms)
        if session is None:
            state.pending.close_connection(connection, "LOCK on a connection without a session")
            return None
        keys = [(item.group, item.topic, item.queue_id) for item in body.items]
        if len(keys) > ITEMS_MAX or len(dict.fromkeys(keys)) != len(keys):
            raise LocalProtocolError(f"LOCK of {len(keys)} queues: expected each once, and at most {ITEMS_MAX}")
        results: dict[QueueKey, LockResult] = {}
        for key, item in zip(keys, body.items, strict=True):
            if item.epoch is not None and item.group in denied:
                results[key] = LockResult(*key, LockVerdict.STALE, epoch=item.epoch, remark=denied[item.group].remark)
            elif item.epoch is not None:
                results[key] = self._renew(session, key, item, item.epoch, now_ms)
        for key in state.locks.keys_held_by(session.id):
            lock, result = state.locks.holder(key), results.get(key)
            if lock is not None and lock.superseded and result is not None:
                continue  # the session learns of the reset from this result, if that arrives: a LOCK without this epoch frees the queue
            if result is None or result.verdict in (LockVerdict.STALE, LockVerdict.NOT_YOURS):
                state.free_queue(key, "its owner no longer names it")
        starts = {(start.group, start.topic): start for start in body.starts}
        for key, item in zip(keys, body.items, strict=True):
            if item.epoch is None and item.group in denied:
                results[key] = LockResult(*key, LockVerdict.REFUSED, remark=denied[item.group].remark)
            elif item.epoch is None:
                results[key] = self._acquire(session, key, starts, by_time, now_ms)
        config = state.config
        return SessionLockReply(
            items=tuple(results[key] for key in keys),
            versions=self._versions(session, {item.group: None for item in body.items}),
            disconnect_grace_ms=config.disconnect_grace_ms,
            session_timeout_ms=config.session_timeout_ms,
        )

    def _renew(self, session: Session, key: QueueKey, item: LockItem, epoch: int, now_ms: int) -> LockResult:
        state = self._state
        lock = state.locks.get(key)
        if lock is None or not lock.accepts_epoch(session.id, epoch):
            return LockResult(*key, LockVerdict.STALE, epoch=epoch)
        refused = None if item.offset is None else self._commit_offset(key, item, now_ms)
        if not lock.held:
            group = state.groups.get(item.group)
            if group is None or not self._may_hold(group, session, key):
                return LockResult(*key, LockVerdict.NOT_YOURS, epoch=epoch)
            state.hold_again(key)
        if refused is not None:
            return LockResult(*key, LockVerdict.REFUSED, epoch=epoch, remark=refused)
        return self._grant_result(session, key, epoch)

    def _acquire(
        self, session: Session, key: QueueKey, starts: Mapping[tuple[str, str], StartPolicy], by_time: OffsetsByTime, now_ms: int
    ) -> LockResult:
        state = self._state
        group = state.groups.get(key[0])
        contract = None if group is None else _member_contract(group, session)
        if group is None or contract is None:
            return LockResult(*key, LockVerdict.NOT_YOURS, remark="not a member of the group: heartbeat first")
        reason = self._starts.refusal(group, contract, key, ordered=True) or self._starts.room_refusal(key)
        if reason is not None:
            return LockResult(*key, LockVerdict.REFUSED, remark=reason)
        if not self._starts.resolve(contract, key, starts.get(key[:2]), by_time, now_ms):
            state.pending.notify_queue_free(key)  # notifies its member, which then sends another LOCK
            return LockResult(*key, LockVerdict.WAIT)
        if not self._may_hold(group, session, key):
            return LockResult(*key, LockVerdict.NOT_YOURS)
        if state.suspends(group):
            return LockResult(*key, LockVerdict.WAIT)
        holder = state.locks.holder(key)
        if holder is not None:
            holding = state.sessions.get(holder.session)
            waits = holding is not None and holding.connection is None
            return LockResult(*key, LockVerdict.WAIT if waits else LockVerdict.HELD)
        self._prepare_grant(key)
        return self._grant_result(session, key, state.grant(key, session.id, session.client_id))

    def query_start(
        self, connection: int, header: QueryConsumerOffsetHeader, now_ms: int, by_time: OffsetsByTime = NO_OFFSETS
    ) -> LockResult | None:
        """Handle QUERY_CONSUMER_OFFSET with a start policy: return where a member of a concurrent group begins. Nothing is locked.

        Return None if the connection is not that of a session, and is being closed.
        """
        state = self._state
        session = state.sessions.touch(connection, now_ms)
        if session is None:
            state.pending.close_connection(connection, "QUERY_CONSUMER_OFFSET with a start policy on a connection without a session")
            return None
        key = (header.consumer_group, header.topic, header.queue_id)
        group = state.groups.get(key[0])
        contract = None if group is None else _member_contract(group, session)
        if group is None or contract is None:
            return LockResult(*key, LockVerdict.NOT_YOURS, remark="not a member of the group: heartbeat first")
        reason = self._starts.refusal(group, contract, key, ordered=False) or self._starts.room_refusal(key)
        if reason is not None:
            return LockResult(*key, LockVerdict.REFUSED, remark=reason)
        if not self._starts.resolve(contract, key, start_policy(header), by_time, now_ms):
            return LockResult(*key, LockVerdict.WAIT, remark=f"the begin position of {key[0]} in {key[1]} is not known yet: try again")
        if not self._may_hold(group, session, key):
            return LockResult(*key, LockVerdict.NOT_YOURS)
        self._prepare_grant(key)
        return self._grant_result(session, key, epoch=0)  # nothing is locked

    def is_dead_lettered(self, connection: int, key: QueueKey, epoch: int, offset: int) -> bool | None:
        """Return whether the message is finished, as after a dead letter whose response was lost. None if the epoch is not valid."""
        progress = self._state.progress.get(key)
        if progress is None or not self._state.accepts_epoch(connection, key, epoch):
            return None
        return progress.offset > offset or contains(progress.done, offset)

    def commit_dead_letter(self, key: QueueKey, offset: int, now_ms: int, *, advance: bool = True) -> None:
        """Record that the message at `offset` is finished, because it was dead-lettered. `advance`: so are the messages before it."""
        table = self._state.progress
        progress = table.get(key)
        assert progress is not None, "its epoch is valid"
        if advance or offset == progress.offset:
            table.record_commit(key, skip(progress.done, offset + 1), 0, now_ms)
        else:
            table.record_commit(key, progress.offset, progress.attempts, now_ms, done=(offset, offset + 1))

    def _may_hold(self, group: Group, session: Session, key: QueueKey) -> bool:
        """Return whether the group's list gives the queue to this session. If RocketMQ's rule is in force, any member may have it."""
        if group.members.get(session.client_id) != session.id or not self._state.has_queue(key[1], key[2]):
            return False
        return not self._state.decides_owners(group) or self._state.owner(group, key[1], key[2]) == session.client_id

    def _grant_result(self, session: Session, key: QueueKey, epoch: int) -> LockResult:
        progress = self._state.progress.get(key)
        assert progress is not None, "a grant creates progress, and both are removed together"
        first, end = self.take_unreported_gap(key, session) or (None, None)
        return LockResult(
            *key,
            verdict=LockVerdict.OK,
            epoch=epoch,
            offset=progress.offset,
            attempts=progress.attempts,
            generation=progress.generation,
            since=self._state.progress.since(key[0], key[1]) or 0,
            gap_first=first,
            gap_end=end,
            done=progress.done or None,
            replays=self._state.parks.replays(key) or None,
        )

    def take_unreported_gap(self, key: QueueKey, session: Session) -> tuple[int, int] | None:
        """Return the range that was removed unconsumed, if it has to be reported: with each new grant, and once on each connection.

        Not once in all: the response that reported it may have arrived when the member had just released the queue (ordering.md 7.5).
        """
        progress = self._state.progress.get(key)
        if progress is None or progress.gap is None:
            self._reported_gaps.pop(key, None)
            return None
        report = (session.connection, progress.gap)
        if self._reported_gaps.get(key) == report:
            return None
        self._reported_gaps[key] = report
        return progress.gap

    def _prepare_grant(self, key: QueueKey) -> None:
        """Prepare a new grant: its gap is reported again, and a queue that was added after the start policy was resolved begins."""
        self._reported_gaps.pop(key, None)
        if self._state.progress.get(key) is None:
            self._state.progress.set_progress(key, Progress(self._state.fence.draw(), self._state.progress.first_offset(key[1], key[2])))

    # --------------------------------------------------------------------------------------------------------------- SYNC

    def sync(self, connection: int, body: SyncBody, now_ms: int, denied: Mapping[str, BrokerError] = NONE_DENIED) -> SyncReply | None:
        """Handle SYNC. `denied`: the groups that the user of the session may not consume, each with its refusal.

        Return None if the connection is not that of a session, and is being closed.
        """
        session = self._state.sessions.touch(connection, now_ms)
        if session is None:
            self._state.pending.close_connection(connection, "SYNC on a connection without a session")
            return None
        if len(body.items) > ITEMS_MAX:
            raise LocalProtocolError(f"SYNC of {len(body.items)} items, {ITEMS_MAX} allowed")
        results = tuple(
            self._sync_item(session, item, now_ms)
            if item.group not in denied
            else SyncResult(LockVerdict.STALE, item.epoch, denied[item.group].remark)
            for item in body.items
        )
        return SyncReply(results, self._versions(session, {}))

    def _sync_item(self, session: Session, item: SyncItem, now_ms: int) -> SyncResult:
        state = self._state
        key = (item.group, item.topic, item.queue_id)
        if item.epoch is None:
            return self._sync_generation(key, item, now_ms)
        lock = state.locks.get(key)
        if lock is None or not lock.accepts_epoch(session.id, item.epoch):
            if item.release and lock is not None and lock.held and lock.session == session.id:
                state.free_queue(key, "released after a reset")
            return SyncResult(LockVerdict.STALE, item.epoch)
        if item.offset is not None and (refused := self._commit_offset(key, item, now_ms, item.error)) is not None:
            return SyncResult(LockVerdict.REFUSED, item.epoch, refused)
        if item.release and lock.held:
            state.free_queue(key, "released")
        return SyncResult(LockVerdict.OK, item.epoch)

    def _sync_generation(self, key: QueueKey, item: SyncItem, now_ms: int) -> SyncResult:
        """Commit under the generation, as concurrent groups do. For an ordered group or a locked queue the epoch is required."""
        state = self._state
        group = state.groups.get(key[0])
        if item.generation is None or item.release:
            return SyncResult(LockVerdict.REFUSED, None, "expected an epoch, or a generation and an offset to commit")
        if group is not None and group.contract is not None and group.contract.broadcasting:
            return SyncResult(LockVerdict.REFUSED, None, f"group {key[0]} is broadcasting: each member keeps its own progress")
        if (group is not None and group.contract is not None and group.contract.ordered) or state.locks.holder(key) is not None:
            return SyncResult(LockVerdict.REFUSED, None, f"queues of group {key[0]} are committed under an epoch")
        progress = state.progress.get(key)
        if progress is None or progress.generation != item.generation:
            return SyncResult(LockVerdict.STALE)
        refused = None if item.offset is None else self._commit_offset(key, item, now_ms)
        return SyncResult(LockVerdict.OK if refused is None else LockVerdict.REFUSED, None, refused)

    def _commit_offset(self, key: QueueKey, item: LockItem | SyncItem, now_ms: int, error: str | None = None) -> str | None:
        """Commit the offset of the item, never a lower one. Return why it is refused, or None."""
        offset, done = item.offset, item.done or ()
        assert offset is not None, item
        end = self._state.bounds.end_offset(key[1], key[2])
        if not 0 <= offset <= end or item.attempts < 0:
            return f"offset {offset} of {key[1]} queue {key[2]}, attempts {item.attempts}: the queue ends at {end}"
        if (wrong := check_ranges(done, offset, end)) is not None:
            return f"{key[1]} queue {key[2]}: {wrong}"
        self._state.activity.record_activity(key[0])
        self._state.progress.record_commit(key, offset, item.attempts, now_ms, error and one_line_reason(error), done)
        return None

    def _versions(self, session: Session, named: Mapping[str, None]) -> dict[str, ListVersion]:
        state = self._state
        names = {**named, **{group.name: None for group in state.groups.groups_of_session(session.id)}}
        return {name: state.version(name) for name in names}


def _member_contract(group: Group, session: Session) -> ConsumerGroup | None:
    """Return the contract under which the session is a member of the group, or None if it is no member."""
    return group.contract_of(session.client_id) if group.members.get(session.client_id) == session.id else None
