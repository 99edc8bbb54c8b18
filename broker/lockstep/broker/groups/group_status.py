"""GROUP_STATUS: the state of a group at this broker. RocketMQ: AdminBrokerProcessor (GET_CONSUME_STATS, GET_CONSUMER_CONNECTION_LIST)."""

from collections.abc import Callable, Iterator, Sequence

from lockstep.broker.groups.group_state import GroupState
from lockstep.broker.groups.legacy_clients import LegacyClients
from lockstep.broker.groups.membership import GroupMembers
from lockstep.broker.groups.tables.lock_table import QueueKey
from lockstep.protocol.bodies import ConsumerGroup, GroupStatus, GroupSummary, MemberStatus, QueueStatus

SESSION_DIGITS_SHOWN = 8
"""Number of digits of a session that are shown. The whole session is a secret."""


class GroupStatusReader:
    """Reads the status of groups. Large groups are read in parts: the members, then the queues, then `combine`."""

    def __init__(self, state: GroupState, membership: GroupMembers, legacy: LegacyClients) -> None:
        self._state = state
        self._membership = membership
        self._legacy = legacy

    def groups(self) -> tuple[str, ...]:
        """Return every group with members, a contract, locks, progress or settings, sorted."""
        return tuple(sorted(self._state.activity))

    def contract(self, group: str) -> ConsumerGroup | None:
        """Return the newest contract that members have agreed on, or None for a group without native members."""
        known = self._state.groups.get(group)
        return None if known is None else known.contract

    def held_count(self, group: str) -> int | None:
        """Return the number of held queues, or None for a group that is not ordered and has no locks."""
        contract, locks = self.contract(group), self._state.locks
        return locks.held_count(group) if (contract is not None and contract.locks) or locks.topics_of_group(group) else None

    def read(self, group: str, now_ms: int, address: Callable[[int], str]) -> GroupStatus | None:
        """Return the status of a group, read at once, or None if the group is unknown. `address` names the peer of a connection."""
        found = [self.read_member(group, client_id, now_ms, address) for client_id in self.member_ids(group)]
        queues = [self.read_queue(key, now_ms) for key in self.queue_keys_of(group)]
        return self.combine(group, [member for member in found if member is not None], queues, now_ms)

    def combine(self, name: str, members: Sequence[MemberStatus], queues: Sequence[QueueStatus], now_ms: int) -> GroupStatus | None:
        """Return the status made of the results of `read_member` and `read_queue`, or None if the group is unknown."""
        state = self._state
        if name not in state.activity:
            return None
        known = state.groups.get(name)
        consumed = None if known is None else known.consumed_topics
        return GroupStatus(
            group=name,
            version=state.version(name),
            contract=self.contract(name),
            members=tuple(members),
            queues=tuple(queues),
            settings=state.settings.get(name),
            overruled_count=state.override_counts.get(name, 0),
            refusals=state.refusals.of(name, now_ms),
            grants=state.locks.grant_counts[name],
            suspended_ms=self._suspended_ms(name, now_ms),
            consumed=None if consumed is None else tuple(sorted(consumed)),
        )

    def _suspended_ms(self, name: str, now_ms: int) -> int | None:
        """Return for how long no queue is granted yet, because the last start may have lost grants; None if queues are granted."""
        state, group = self._state, self._state.groups.get(name)
        if not state.suspends(group):
            return None
        for_classic = state.classic_suspended and group is not None and group.has_classic_members
        ends_ms = state.classic_hold_ends_ms if for_classic else state.start_grace_ends_ms
        return None if ends_ms is None else max(0, ends_ms - now_ms)

    def summary(self, name: str, lag: int) -> GroupSummary:
        """Return the summary of a group. `lag`: the sum of `lag_of` the queues that count."""
        contract = self.contract(name)
        ordered, broadcasting = (None, None) if contract is None else (contract.ordered, contract.broadcasting)
        has_settings = self._state.settings.get(name) is not None
        return GroupSummary(name, ordered, broadcasting, len(self.member_ids(name)), 0 if broadcasting else lag, has_settings)

    def lag_of(self, key: QueueKey) -> int:
        """Return the number of messages of one queue that are stored and not finished by one group."""
        progress = self._state.progress.get(key)
        end = self._state.bounds.end_offset(key[1], key[2])
        return max(0, end - self._begins_at(key)) if progress is None else progress.lag(end)

    def _begins_at(self, key: QueueKey) -> int:
        """Return the lowest offset at which a group without progress may begin in a queue."""
        return max(self._state.progress.first_offset(key[1], key[2]), self._state.bounds.bounds(key[1], key[2])[0])

    def member_ids(self, group: str) -> tuple[str, ...]:
        """Return the client ids of the members, sorted."""
        known = self._state.groups.get(group)
        return () if known is None else known.member_ids

    def read_member(self, name: str, client_id: str, now_ms: int, address: Callable[[int], str]) -> MemberStatus | None:
        """Return the status of one member, or None if it is no longer a member."""
        state = self._state
        group = state.groups.get(name)
        if group is None or client_id not in group.members:
            return None
        session_id = group.members[client_id]
        connection, heard_ms = self._received(group.name, client_id, session_id, now_ms)
        declared = group.member_subscriptions.get(client_id)
        return MemberStatus(
            client_id=client_id,
            session=None if session_id is None else session_id[:SESSION_DIGITS_SHOWN],
            address="" if connection is None else address(connection),
            connected=connection is not None,
            heard_ago_ms=max(0, now_ms - heard_ms),
            subscriptions=None if group.contract is not None and group.contract.subscriptions == declared else declared,
            contract_version=group.member_versions.get(client_id, 0),
            grace_left_ms=self._grace_left_ms(session_id, now_ms),
        )

    def _grace_left_ms(self, session_id: str | None, now_ms: int) -> int | None:
        """Return how long a session that has lost its connection may still come back; None if it has one."""
        session = self._state.sessions.get(session_id)
        if session is None or session.connection is not None:
            return None
        return max(0, self._state.sessions.due_ms(session) - now_ms)

    def connection_of(self, name: str, client_id: str) -> int | None:
        """Return the connection of a member, or None if the client is no member or has no connection now."""
        group = self._state.groups.get(name)
        if group is None or client_id not in group.members:
            return None
        return self._received(name, client_id, group.members[client_id], 0)[0]

    def _received(self, name: str, client_id: str, session_id: str | None, now_ms: int) -> tuple[int | None, int]:
        """Return the connection of a member (None if it has none) and when something was last received from it."""
        if session_id is None:
            return self._membership.classic_received(name, client_id)
        session = self._state.sessions.get(session_id)
        return (None, now_ms) if session is None else (session.connection, session.received_ms)

    def queue_keys_of(self, name: str) -> Iterator[QueueKey]:
        """Yield the queues to which the group subscribes and those with progress or a lock, sorted. Reads one topic at a time."""
        state = self._state
        group = state.groups.get(name)
        subscribed = {} if group is None else group.topics
        for topic in sorted({*subscribed, *state.progress.topics_of_group(name), *state.locks.topics_of_group(name)}):
            ids = {queue.queue_id for queue in state.own_queues(topic)} if topic in subscribed else set()
            ids |= {queue_id for queue_id, _ in state.progress.progress_in_topic(name, topic)}
            for queue_id in sorted(ids.union(state.locks.queue_ids(name, topic))):
                yield name, topic, queue_id

    def counted_queue_keys(self, name: str) -> Iterator[QueueKey]:
        """Yield the same queues without those of topics that the group has left: what is stored there is not its lag (ordering.md 11.6)."""
        left = dict.fromkeys(self._state.left_topics(name))
        return (key for key in self.queue_keys_of(name) if key[1] not in left)

    def read_queue(self, key: QueueKey, now_ms: int, held_offset: int | None = None, disk_pulls: int = 0) -> QueueStatus:
        """Return the status of one queue of one group. `held_offset`: that of the pull which waits for its next message. `disk_pulls`:
        the number of those that wait for the disk."""
        state = self._state
        lock, progress, committed_ms = state.locks.get(key), state.progress.get(key), state.progress.committed_ms(key)
        failing, group = state.progress.failing(key), state.groups.get(key[0])
        loss = state.progress.loss(key)
        decided = group is not None and state.decides_owners(group)
        return QueueStatus(
            topic=key[1],
            queue_id=key[2],
            owner=lock.client_id if lock is not None and lock.held else None,
            epoch=0 if lock is None else lock.epoch,
            generation=0 if progress is None else progress.generation,
            committed_offset=-1 if progress is None else progress.offset,
            max_offset=state.bounds.end_offset(key[1], key[2]),
            attempts=0 if progress is None else progress.attempts,
            committed_ago_ms=None if committed_ms is None else max(0, now_ms - committed_ms),
            classic_lease_left_ms=self._legacy.lease_left_ms(key, now_ms),
            failing_ms=None if failing is None else max(0, now_ms - failing.since_ms),
            error=None if failing is None else failing.error,
            done=None if progress is None else progress.done or None,
            parked=state.parks.waiting_count(key),
            listed_owner=state.owner(group, key[1], key[2]) if group is not None and decided else None,
            owner_grace_ms=self._grace_left_ms(lock.session, now_ms) if lock is not None and lock.held else None,
            held_offset=held_offset,
            disk_pulls=disk_pulls,
            gap_first=None if loss is None else loss.first,
            gap_end=None if loss is None else loss.end,
            gap_ago_ms=None if loss is None or loss.seen_ms is None else max(0, now_ms - loss.seen_ms),
            begins_at=self._begins_at(key) if progress is None else None,
        )
