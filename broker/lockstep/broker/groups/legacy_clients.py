"""Requests without an epoch, by RocketMQ's rules (ordering.md 12). RocketMQ: RebalanceLockManager, ConsumerOffsetManager.

A classic lock has a lease of 60 s from its last LOCK_BATCH_MQ. It survives its client's connection, and a start gives it a new lease.

| the queue at a LOCK_BATCH_MQ of client c | result                            |
|------------------------------------------|-----------------------------------|
| held by c, lease not over                | granted, lease renewed            |
| free                                     | granted                           |
| held by another client, lease over       | granted: taken over               |
| held by another client, or by a session  | refused: not in the response      |
| any, within 30 s of an assumed loss      | refused (ordering.md 12.6)        |

A reset of progress (RESET_OFFSETS), and an assumed loss, has to be announced: classic requests carry no generation, and a member continues
to read and to commit at its old offset.

| after a reset to n, or a loss when it was at n  | result                                                                       |
|-------------------------------------------------|------------------------------------------------------------------------------|
| a pull from n                                   | served: the reset is known                                                   |
| the first pull from anywhere else               | PULL_OFFSET_MOVED with n: the client drops its messages and continues from n |
| another pull from there, on the same connection | served: a reader that chooses its offsets itself                             |
| until then, a commit of another offset          | refused while the group has classic members, else a reset                    |
"""

from dataclasses import replace
from itertools import islice

from lockstep.broker.groups.group_state import FREES_PER_TICK, GroupState
from lockstep.broker.groups.membership import GroupMembers
from lockstep.broker.groups.tables.lock_table import Lock, QueueKey
from lockstep.broker.groups.tables.progress_table import Progress
from lockstep.protocol.bodies import GroupEventKind, LockBatchBody, LockBatchReply, QueueRef
from lockstep.protocol.errors import LocalProtocolError, NoPermissionError, TopicNotExistError
from lockstep.protocol.names import check_client_id, check_group

IDLE_DAYS_MAX = 3_650
"""The highest limit of idle days that a commit may bring: ten years."""

ANNOUNCED_MAX = 64
"""The number of connections to which the last reset of a queue was announced that a broker remembers. The others are notified again."""


class LegacyClients:
    """Locks and commits of RocketMQ's own clients."""

    def __init__(self, state: GroupState, membership: GroupMembers) -> None:
        self._state = state
        self._membership = membership
        self._leases: dict[QueueKey, int] = {}
        """Classic lock → time of its last renewal, the oldest first."""
        self._users: dict[QueueKey, str] = {}
        """Classic lock → the user who has it, if its client has logged in. After a start it is the first one who renews it."""
        self._announced_to: dict[QueueKey, dict[int, int]] = {}
        """Connection → generation of its last pull that was answered with the offset of a reset which is not known yet."""
        self.refused_update_count = 0
        """Number of commits without an epoch that were refused because another client holds the queue."""

    # -------------------------------------------------------------------------------------------------------------- locks

    def lock(self, body: LockBatchBody, now_ms: int, user: str = "") -> LockBatchReply:
        """Lock the queues that the client may have, and return those that it holds now.

        Lock none if that exceeds a limit: raise NoPermissionError or ServiceNotAvailableError. As in RocketMQ the client need not be a
        member of the group.
        """
        check_group(body.consumer_group)
        check_client_id(body.client_id)
        state = self._state
        granted = [ref for ref in dict.fromkeys(body.mq_set) if self._may_lock(self._key(body, ref), ref, body.client_id, now_ms, user)]
        if granted:
            fresh = [key for ref in granted if state.locks.get(key := self._key(body, ref)) is None]
            state.limits.check_lock_room(self._key(body, granted[0]), len(fresh))
            state.register_group(body.consumer_group)
        for ref in granted:
            self._lock(self._key(body, ref), body.client_id, now_ms, user)
        return LockBatchReply(tuple(granted))

    def _may_lock(self, key: QueueKey, ref: QueueRef, client_id: str, now_ms: int, user: str) -> bool:
        state = self._state
        if ref.broker_name != state.config.broker_name or not state.has_queue(ref.topic, ref.queue_id):
            return False
        if state.grants_suspended or state.classic_suspended:
            return False
        holder = state.locks.holder(key)
        return holder is None or self._is_owner(key, holder, client_id, user) or (holder.held_by_classic and self._expired(key, now_ms))

    def _lock(self, key: QueueKey, client_id: str, now_ms: int, user: str) -> None:
        holder = self._state.locks.holder(key)
        if holder is None or holder.client_id != client_id or self._expired(key, now_ms):
            self._state.grant(key, None, client_id)
        self._leases.pop(key, None)
        self._leases[key] = now_ms
        if user:
            self._users[key] = user
        else:
            self._users.pop(key, None)

    def unlock(self, body: LockBatchBody, user: str = "") -> None:
        """Free the queues that this client holds. Others are ignored."""
        for ref in body.mq_set:
            key = self._key(body, ref)
            holder = self._state.locks.holder(key)
            mine = holder is not None and self._is_owner(key, holder, body.client_id, user)
            if ref.broker_name == self._state.config.broker_name and mine:
                self._free(key, "unlocked", GroupEventKind.FREED)

    def expire(self, now_ms: int) -> None:
        """Free locks after the end of their lease, at most FREES_PER_TICK."""
        for key in list(islice(self._leases, FREES_PER_TICK)):
            if not self._expired(key, now_ms):
                break
            self._free(key, "its lease is over", GroupEventKind.LOST)

    def restore_leases(self, now_ms: int) -> None:
        """Give every recorded classic lock a whole lease from now."""
        self._leases = {key: now_ms for key, lock in self._state.locks if lock.held_by_classic}

    def next_due_ms(self) -> int | None:
        renewed = next(iter(self._leases.values()), None)
        return None if renewed is None else renewed + self._state.config.classic_lock_ms + 1

    def lease_left_ms(self, key: QueueKey, now_ms: int) -> int | None:
        """Return the rest of the lease, or None if no classic client holds the queue."""
        renewed = self._leases.get(key)
        return None if renewed is None else max(0, renewed + self._state.config.classic_lock_ms - now_ms)

    def _expired(self, key: QueueKey, now_ms: int) -> bool:
        return now_ms - self._leases[key] > self._state.config.classic_lock_ms

    def _free(self, key: QueueKey, why: str, kind: GroupEventKind) -> None:
        renewed_ms = self._leases.pop(key)
        self._users.pop(key, None)
        holder = self._state.locks.holder(key)
        if holder is not None and holder.held_by_classic:
            self._state.free_queue(key, why, kind=kind, heard_ms=renewed_ms if kind is GroupEventKind.LOST else None)

    def _is_owner(self, key: QueueKey, holder: Lock, client_id: str, user: str) -> bool:
        """Return whether this client holds the queue, as a client of the user who has locked it."""
        return self._is_holder(holder, client_id) and self._users.get(key, user) == user

    def _is_holder(self, holder: Lock, client_id: str | None) -> bool:
        return holder.held_by_classic and holder.client_id == client_id

    def _key(self, body: LockBatchBody, ref: QueueRef) -> QueueKey:
        return body.consumer_group, ref.topic, ref.queue_id

    # ----------------------------------------------------------------------------------------------------- pull and offset

    def may_commit(self, connection: int, key: QueueKey) -> bool:
        """Return whether a commit without an epoch is applied: the queue is free, or held by this connection's classic client.

        A classic client may commit on another connection than that of its heartbeats (Java 4.3 at the port − 2, pools), and so may tools.
        So a connection without a heartbeat is nobody else's.
        """
        holder = self._state.locks.holder(key)
        if holder is None or self._is_holder(holder, self._membership.classic_client_on(connection)):
            return True
        return holder.held_by_classic and not self._membership.has_heartbeat(connection)

    def announce_reset(self, connection: int, key: QueueKey, offset: int) -> tuple[bool, int | None]:
        """Note a pull of a classic client from `offset`. Return whether the client had to learn of a reset until now, and, if it must
        continue elsewhere, from which offset.

        The announcement is kept for this connection alone: a response that was lost with its connection announces nothing.
        """
        progress = self._state.progress.get(key)
        if progress is None or not progress.unannounced:
            return False, None
        announced = self._announced_to.setdefault(key, {})
        if offset == progress.offset or announced.get(connection) == progress.generation:
            del self._announced_to[key]
            self._state.progress.set_progress(key, replace(progress, unannounced=False))
            return True, None
        if len(announced) >= ANNOUNCED_MAX:
            del announced[next(iter(announced))]
        announced[connection] = progress.generation
        return True, progress.offset

    def query_offset(self, key: QueueKey, *, young: bool) -> int | None:
        """Return the group's offset. If it has none, return that of the first message for a young queue, whose first message is still
        available, or if it begins there (ordering.md 7.2, 7.8), else None."""
        progress = self._state.progress.get(key)
        if progress is not None:
            return progress.offset
        begins = young or self._state.progress.since(key[0], key[1]) is not None
        return self._state.progress.first_offset(key[1], key[2]) if begins else None

    def update_offset(self, connection: int, key: QueueKey, offset: int, now_ms: int, idle_days: int | None = None) -> None:
        """Apply a commit without an epoch. A lower offset is a reset. Raise NoPermissionError, which names the holder, if there is one.

        `idle_days`: the group is to be forgotten after so many idle days.
        """
        state = self._state
        group, topic, queue_id = key
        check_group(group)
        if idle_days is not None and not 1 <= idle_days <= IDLE_DAYS_MAX:
            raise LocalProtocolError(f"idleDays {idle_days} of group {group}: expected 1 to {IDLE_DAYS_MAX}")
        if not state.has_queue(topic, queue_id):
            raise TopicNotExistError(f"{topic} has no readable queue {queue_id} at {state.config.broker_name}")
        if not self.may_commit(connection, key):
            self.refused_update_count += 1
            holder = state.locks.holder(key)
            assert holder is not None, "commits to a free queue are applied"
            raise NoPermissionError(f"{topic} queue {queue_id} is held by {holder.client_id} of group {group}: the offset is not applied")
        end = state.bounds.end_offset(topic, queue_id)
        if not 0 <= offset <= end:
            raise LocalProtocolError(f"offset {offset} of {topic} queue {queue_id}: expected 0 to {end}, the end of the queue")
        progress = state.progress.get(key)
        if progress is not None and progress.offset >= (first := state.bounds.bounds(topic, queue_id)[0]):
            offset = max(offset, first)  # what is below was removed: a periodic commit from there is not a reset
        known = state.groups.get(group)
        if progress is not None and progress.unannounced and offset != progress.offset and known is not None and known.has_classic_members:
            raise NoPermissionError(
                f"offset {offset} of {topic} queue {queue_id} is not applied: group {group} was reset to {progress.offset}, by a "
                "command or by a start that may have lost messages, and no member has pulled from there yet. Pull from there, or reset the "
                "group again"
            )
        state.limits.check_progress_room(group, topic, int(progress is None))
        state.register_group(group)
        if idle_days is not None:
            state.activity.record_idle_limit(group, idle_days)
        if progress is not None and (offset == progress.offset or (offset > progress.offset and not progress.unannounced)):
            state.progress.record_commit(key, offset, 0, now_ms)
            return
        self._announced_to.pop(key, None)
        state.check_not_parked(key)
        state.parks.clear(key)
        state.progress.set_progress(key, Progress(state.fence.draw(), offset))
        if progress is not None and state.locks.holder(key) is None:
            state.end_grant(key, "its offset was set back")
