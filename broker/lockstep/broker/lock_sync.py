"""LOCK and SYNC of clients with a session (ordering.md 2, 3, 4, 7). RocketMQ: RebalanceLockManager, ConsumerManageProcessor.

LOCK names everything that the session wants to hold at this broker. The verdict of each item depends on the record of its queue:

| the item names       | recorded                                  | verdict     | the session then holds it       |
|----------------------|-------------------------------------------|-------------|---------------------------------|
| its current epoch    | held by this session                      | OK, renewed | yes, also when it only drains   |
| its current epoch    | free, and still the session's by the list | OK, renewed | yes                             |
| its current epoch    | free, the list gives it to another        | NOT_YOURS   | no; the offset is committed     |
| another epoch        | held by this session, superseded          | STALE       | until a LOCK does not name it   |
| another epoch        | anything else                             | STALE       | no                              |
| no epoch             | held by another                           | HELD, WAIT  | no                              |
| no epoch             | the list gives it to another              | NOT_YOURS   | no                              |
| no epoch             | free, or held by this very session        | OK, granted | yes, under a new epoch          |
| nothing              | held by this session                      |             | no                              |

All renewals come first, then every queue that is not named with its current epoch is freed, then grants are made.
"""

from collections.abc import Mapping

from lockstep.broker.group_state import GroupState
from lockstep.broker.message_copy import one_line
from lockstep.broker.tables.group_table import Group
from lockstep.broker.tables.lock_table import QueueKey
from lockstep.broker.tables.progress_table import Progress
from lockstep.broker.tables.session_table import Session
from lockstep.protocol.allocate import MANUAL
from lockstep.protocol.bodies import (
    ConsumeFromWhere,
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
from lockstep.protocol.errors import BrokerError, LocalProtocolError
from lockstep.protocol.headers.offsets import QueryConsumerOffsetHeader
from lockstep.protocol.names import RETRY_PREFIX

ITEMS_MAX = 100_000
"""Items in one LOCK or SYNC: a frame of 16 MiB holds about as many."""
TIMES_MAX = 65_536
"""Queues of which one LOCK looks up the offset at a time: about 16 MB. The others wait for the member's next LOCK."""

BEGINS_MAX = 16_384
"""Queues in which groups begin within BEGINS_MS: as many as the largest topic has, which take about 50 ms. Members ask again for the
others.
"""
BEGINS_MS = 100

OffsetsByTime = Mapping[QueueKey, int]
"""(group, topic, queue id) → offset at the time that the group's start policy names."""
NO_TIMES: OffsetsByTime = {}


class LockSync:
    """Locks and progress of sessions."""

    def __init__(self, state: GroupState) -> None:
        self._state = state
        self._reported_gaps: dict[QueueKey, tuple[int | None, tuple[int, int]]] = {}
        self._start_window_ms = 0
        self._start_count = 0
        """Queues in which groups have begun since then."""

    # --------------------------------------------------------------------------------------------------------------- LOCK

    def lock(self, connection: int, body: SessionLockBody, now_ms: int, by_time: OffsetsByTime = NO_TIMES) -> SessionLockReply | None:
        """Carry out a LOCK. Return None if the connection is not its session's and is being closed."""
        state = self._state
        session = state.sessions.touch(connection, now_ms)
        if session is None:
            state.close_connection(connection, "LOCK on a connection without a session")
            return None
        keys = [(item.group, item.topic, item.queue_id) for item in body.items]
        if len(keys) > ITEMS_MAX or len(dict.fromkeys(keys)) != len(keys):
            raise LocalProtocolError(f"LOCK of {len(keys)} queues: expected each once, and at most {ITEMS_MAX}")
        answers: dict[QueueKey, LockResult] = {}
        for key, item in zip(keys, body.items, strict=True):
            if item.epoch is not None:
                answers[key] = self._renew(session, key, item, item.epoch, now_ms)
        for key in state.locks.keys_held_by(session.id):
            lock, answer = state.locks.holder(key), answers.get(key)
            if lock is not None and lock.superseded and answer is not None:
                continue  # the session learns of the reset from this response, if it arrives: a LOCK without this epoch frees the queue
            if answer is None or answer.verdict in (LockVerdict.STALE, LockVerdict.NOT_YOURS):
                state.free_queue(key)
        starts = {(start.group, start.topic): start for start in body.starts}
        for key, item in zip(keys, body.items, strict=True):
            if item.epoch is None:
                answers[key] = self._acquire(session, key, starts, by_time, now_ms)
        config = state.config
        return SessionLockReply(
            items=tuple(answers[key] for key in keys),
            versions=self._versions(session, {item.group: None for item in body.items}),
            disconnect_grace_ms=config.disconnect_grace_ms,
            session_timeout_ms=config.session_timeout_ms,
        )

    def _renew(self, session: Session, key: QueueKey, item: LockItem, epoch: int, now_ms: int) -> LockResult:
        state = self._state
        lock = state.locks.get(key)
        if lock is None or not lock.accepts_epoch(session.id, epoch):
            return LockResult(*key, LockVerdict.STALE, epoch=epoch)
        refused = None if item.offset is None else self._commit_offset(key, item.offset, item.attempts, now_ms)
        if not lock.held:
            group = state.groups.get(item.group)
            if group is None or not self._may_hold(group, session, key):
                return LockResult(*key, LockVerdict.NOT_YOURS, epoch=epoch)
            state.locks.record_held_again(key)
        if refused is not None:
            return LockResult(*key, LockVerdict.REFUSED, epoch=epoch, remark=refused)
        return self._grant_result(session, key, epoch)

    def _acquire(
        self, session: Session, key: QueueKey, starts: Mapping[tuple[str, str], StartPolicy], by_time: OffsetsByTime, now_ms: int
    ) -> LockResult:
        state = self._state
        group = state.groups.get(key[0])
        if group is None or group.contract is None or group.members.get(session.client_id) != session.id:
            return LockResult(*key, LockVerdict.NOT_YOURS, remark="not a member of the group: heartbeat first")
        reason = self._refusal(group, group.contract, key, ordered=True) or self._room_refusal(key)
        if reason is not None:
            return LockResult(*key, LockVerdict.REFUSED, remark=reason)
        if not self._resolve_start(group.contract, key, starts.get(key[:2]), by_time, now_ms):
            state.notify_queue_free(key)  # to its member, which then sends another LOCK
            return LockResult(*key, LockVerdict.WAIT)
        if not self._may_hold(group, session, key):
            return LockResult(*key, LockVerdict.NOT_YOURS)
        if state.grants_suspended:
            return LockResult(*key, LockVerdict.WAIT)
        holder = state.locks.holder(key)
        if holder is not None:
            holding = state.sessions.get(holder.session)
            waits = holding is not None and holding.connection is None
            return LockResult(*key, LockVerdict.WAIT if waits else LockVerdict.HELD)
        self._prepare_grant(key)
        return self._grant_result(session, key, state.grant(key, session.id, session.client_id))

    def query_start(
        self, connection: int, header: QueryConsumerOffsetHeader, now_ms: int, by_time: OffsetsByTime = NO_TIMES
    ) -> LockResult | None:
        """Return the offset at which a member of a concurrent group goes on (QUERY_CONSUMER_OFFSET with a start policy). This takes no
        lock.

        Return None if the connection is not its session's and is being closed.
        """
        state = self._state
        session = state.sessions.touch(connection, now_ms)
        if session is None:
            state.close_connection(connection, "QUERY_CONSUMER_OFFSET with a start policy on a connection without a session")
            return None
        key = (header.consumer_group, header.topic, header.queue_id)
        group = state.groups.get(key[0])
        if group is None or group.contract is None or group.members.get(session.client_id) != session.id:
            return LockResult(*key, LockVerdict.NOT_YOURS, remark="not a member of the group: heartbeat first")
        reason = self._refusal(group, group.contract, key, ordered=False) or self._room_refusal(key)
        if reason is not None:
            return LockResult(*key, LockVerdict.REFUSED, remark=reason)
        if not self._resolve_start(group.contract, key, start_policy(header), by_time, now_ms):
            return LockResult(*key, LockVerdict.WAIT, remark=f"where group {key[0]} begins in {key[1]} is not known yet: try again")
        if not self._may_hold(group, session, key):
            return LockResult(*key, LockVerdict.NOT_YOURS)
        self._prepare_grant(key)
        progress = state.progress.get(key)
        assert progress is not None
        return self._grant_result(session, key, progress.generation)

    def is_dead_lettered(self, connection: int, key: QueueKey, epoch: int, offset: int) -> bool | None:
        """Return whether progress has passed the message already; None if the epoch is not good."""
        session, progress = self._state.sessions.session_on(connection), self._state.progress.get(key)
        if session is None or progress is None or not self._state.locks.accepts_epoch(key, session.id, epoch):
            return None
        return progress.offset > offset

    def commit_dead_letter(self, key: QueueKey, offset: int, now_ms: int) -> None:
        """Commit past the message at `offset`, which was dead-lettered; the messages before it are finished."""
        self._state.progress.record_commit(key, offset + 1, 0, now_ms)

    def _refusal(self, group: Group, contract: ConsumerGroup, key: QueueKey, *, ordered: bool) -> str | None:
        if contract.ordered != ordered or contract.broadcasting:
            if ordered:
                return f"group {contract.group} is not an ordered group in clustering: nobody locks its queues"
            return f"group {contract.group} is not a concurrent group in clustering: its queues are locked, or each member has them all"
        if key[1] not in group.contract_subscriptions and contract.allocate != MANUAL:
            return f"group {contract.group} does not subscribe to {key[1]}"
        if not self._state.has_queue(key[1], key[2]):
            return f"{key[1]} has no readable queue {key[2]} at {self._state.config.broker_name}"
        return None

    def _room_refusal(self, key: QueueKey) -> str | None:
        """Return why the group can't begin in the queue or, if its start policy is resolved first, in the others of the topic; None if it
        can.
        """
        state, (group, topic, _) = self._state, key
        resolved = state.progress.since(group, topic) is not None
        count = int(state.progress.get(key) is None) if resolved else state.missing_progress_count(group, topic)
        try:
            state.check_progress_room(group, topic, count)
        except BrokerError as error:
            return error.remark
        return None

    def _may_hold(self, group: Group, session: Session, key: QueueKey) -> bool:
        """Return whether the group's list leaves the queue to this session; any member may have it if RocketMQ's rule is in force."""
        if group.members.get(session.client_id) != session.id or not self._state.has_queue(key[1], key[2]):
            return False
        return not self._state.decides_owners(group) or self._state.owner(group, key[1], key[2]) == session.client_id

    def _grant_result(self, session: Session, key: QueueKey, epoch: int) -> LockResult:
        progress = self._state.progress.get(key)
        assert progress is not None, "a grant begins progress, and they are dropped together"
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
        )

    def take_unreported_gap(self, key: QueueKey, session: Session) -> tuple[int, int] | None:
        """Return the gap that retention has left in the group's messages, if it must be reported: with each new grant, and once on each
        connection, until a commit has passed it. An earlier response that reported it may have come when the queue was no longer held.
        """
        progress = self._state.progress.get(key)
        if progress is None or progress.gap is None:
            self._reported_gaps.pop(key, None)
            return None
        told = (session.connection, progress.gap)
        if self._reported_gaps.get(key) == told:
            return None
        self._reported_gaps[key] = told
        return progress.gap

    # -------------------------------------------------------------------------------------------------------------- start

    def own_queue_ids(self, topic: str) -> list[int]:
        """Return the ids of this broker's readable queues of the topic."""
        return [queue.queue_id for queue in self._state.own_queues(topic)]

    def policies_to_look_up(self, connection: int, body: SessionLockBody) -> tuple[StartPolicy, ...]:
        """Return the start policies by time that this LOCK is about to resolve: of at most TIMES_MAX queues, and only of queues that the
        member may have.
        """
        state, left = self._state, TIMES_MAX
        session = state.sessions.session_on(connection)
        if session is None:
            return ()
        starts = {(start.group, start.topic): start for start in body.starts}
        found: dict[tuple[str, str], StartPolicy] = {}
        for item in body.items:
            group, key = state.groups.get(item.group), (item.group, item.topic, item.queue_id)
            if item.epoch is not None or group is None or group.contract is None or key[:2] in found:
                continue
            policy = _policy(group.contract, item.topic, starts.get(key[:2]))
            if policy.where is not ConsumeFromWhere.TIMESTAMP or state.progress.since(*key[:2]) is not None:
                continue
            count = state.own_queue_count(item.topic)
            refused = self._refusal(group, group.contract, key, ordered=group.contract.ordered) or self._room_refusal(key)
            if count <= left and not refused and group.members.get(session.client_id) == session.id:
                left -= count
                found[key[:2]] = policy
        return tuple(found.values())

    def _resolve_start(
        self, contract: ConsumerGroup, key: QueueKey, start: StartPolicy | None, by_time: OffsetsByTime, now_ms: int
    ) -> bool:
        """Record where the group begins in this topic, for all queues of this broker at once, if that is not known yet.

        Return False if the member has to ask again: the group begins by time and the offset of the queue was not looked up, or groups begin
        in too many queues at once.
        """
        state = self._state
        group, topic, _ = key
        layout = state.layouts.get(topic)
        if layout is None or state.progress.since(group, topic) is not None:
            return True
        policy = _policy(contract, topic, start)
        if policy.where is ConsumeFromWhere.TIMESTAMP and key not in by_time:
            return False
        if not self._reserve_starts(state.own_queue_count(topic), now_ms):
            return False
        since = min(layout.version.counter, policy.since or layout.version.counter)
        begins = []
        for queue_id, added_in in layout.each_added(state.config.broker_name):
            if state.progress.get((group, topic, queue_id)) is None:
                begins.append((queue_id, 0 if added_in > since else self._start_offset(queue_id, policy, by_time)))
        state.progress.record_start(group, topic, since=since, generation=state.fence.draw(), offsets=begins)
        return True

    def _reserve_starts(self, count: int, now_ms: int) -> bool:
        """Return whether a group may begin in `count` queues now, and count them if so."""
        if now_ms - self._start_window_ms >= BEGINS_MS:
            self._start_window_ms, self._start_count = now_ms, 0
        if self._start_count and self._start_count + count > BEGINS_MAX:
            return False
        self._start_count += count
        return True

    def _start_offset(self, queue_id: int, policy: StartPolicy, by_time: OffsetsByTime) -> int:
        minimum, _ = self._state.bounds.bounds(policy.topic, queue_id)
        end = self._state.bounds.end_offset(policy.topic, queue_id)
        if policy.where is ConsumeFromWhere.FIRST_OFFSET:
            return minimum
        if policy.where is ConsumeFromWhere.LAST_OFFSET:
            return end
        return max(minimum, min(end, by_time.get((policy.group, policy.topic, queue_id), 0)))

    def _prepare_grant(self, key: QueueKey) -> None:
        """Prepare a new grant: its gap is reported again, and the group begins at 0 in a queue that was added after the start policy was
        resolved.
        """
        self._reported_gaps.pop(key, None)
        if self._state.progress.get(key) is None:
            self._state.progress.set_progress(key, Progress(self._state.fence.draw(), 0))

    # --------------------------------------------------------------------------------------------------------------- SYNC

    def sync(self, connection: int, body: SyncBody, now_ms: int) -> SyncReply | None:
        """Carry out a SYNC. Return None if the connection is not its session's and is being closed."""
        session = self._state.sessions.touch(connection, now_ms)
        if session is None:
            self._state.close_connection(connection, "SYNC on a connection without a session")
            return None
        if len(body.items) > ITEMS_MAX:
            raise LocalProtocolError(f"SYNC of {len(body.items)} items, {ITEMS_MAX} allowed")
        answers = tuple(self._sync_item(session, item, now_ms) for item in body.items)
        return SyncReply(answers, self._versions(session, {}))

    def _sync_item(self, session: Session, item: SyncItem, now_ms: int) -> SyncResult:
        state = self._state
        key = (item.group, item.topic, item.queue_id)
        if item.epoch is None:
            return self._sync_generation(key, item, now_ms)
        lock = state.locks.get(key)
        if lock is None or not lock.accepts_epoch(session.id, item.epoch):
            if item.release and lock is not None and lock.held and lock.session == session.id:
                state.free_queue(key)  # its grant was superseded
            return SyncResult(LockVerdict.STALE, item.epoch)
        if item.offset is not None and (refused := self._commit_offset(key, item.offset, item.attempts, now_ms, item.error)) is not None:
            return SyncResult(LockVerdict.REFUSED, item.epoch, refused)
        if item.release and lock.held:
            state.free_queue(key)
        return SyncResult(LockVerdict.OK, item.epoch)

    def _sync_generation(self, key: QueueKey, item: SyncItem, now_ms: int) -> SyncResult:
        """Commit under the generation, in a concurrent group. An ordered group, or a locked queue, needs the epoch."""
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
        refused = None if item.offset is None else self._commit_offset(key, item.offset, item.attempts, now_ms)
        return SyncResult(LockVerdict.OK if refused is None else LockVerdict.REFUSED, None, refused)

    def _commit_offset(self, key: QueueKey, offset: int, attempts: int, now_ms: int, error: str | None = None) -> str | None:
        """Commit an offset that is not below the last one; return why it can't be committed, or None."""
        end = self._state.bounds.end_offset(key[1], key[2])
        if not 0 <= offset <= end or attempts < 0:
            return f"offset {offset} of {key[1]} queue {key[2]}, attempts {attempts}: the queue ends at {end}"
        self._state.activity.record_activity(key[0])
        self._state.progress.record_commit(key, offset, attempts, now_ms, error and one_line(error))
        return None

    def _versions(self, session: Session, named: Mapping[str, None]) -> dict[str, ListVersion]:
        state = self._state
        names = {**named, **{group.name: None for group in state.groups.groups_of_session(session.id)}}
        return {name: state.version(name) for name in names}


def start_policy(header: QueryConsumerOffsetHeader) -> StartPolicy:
    """Return the start policy in a concurrent member's query."""
    assert header.where is not None, header
    return StartPolicy(header.consumer_group, header.topic, header.where, header.timestamp_ms, header.since)


def _policy(contract: ConsumerGroup, topic: str, start: StartPolicy | None) -> StartPolicy:
    """Return the LOCK's own start policy, else the contract's. Without a time, TIMESTAMP means the first offset, and so does any policy for
    the group's own retries: it has seen those messages before.
    """
    policy = start or StartPolicy(contract.group, topic, contract.consume_from_where, contract.consume_timestamp_ms)
    if (policy.where is ConsumeFromWhere.TIMESTAMP and policy.timestamp_ms is None) or topic == RETRY_PREFIX + contract.group:
        return StartPolicy(policy.group, topic, ConsumeFromWhere.FIRST_OFFSET, None, policy.since)
    return policy
