"""Member lists: heartbeats, leaving, closed connections, silence (ordering.md 1, 5.1, 6.1, 11).

RocketMQ: ClientManageProcessor, ConsumerManager.

A session joins a group by HEART_BEAT. It leaves by UNREGISTER_CLIENT, by a later HEART_BEAT that does not name the group, or when it ends.
It loses its locks only when it ends or releases them. A classic client leaves when its connection closes, or after 120 s of silence.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from lockstep.broker.groups.contract_changes import ContractChanges
from lockstep.broker.groups.group_state import FREES_PER_TICK, GroupState
from lockstep.broker.groups.heartbeats import GROUPS_PER_CLIENT_MAX, Heartbeat
from lockstep.broker.groups.tables.session_table import Session, SessionRefusal
from lockstep.broker.groups.tables.subscription_table import estimated_bytes
from lockstep.protocol.bodies import (
    ConsumerGroup,
    GroupEventKind,
    GroupView,
    HeartbeatBody,
    HeartbeatReply,
    MemberList,
    Subscription,
)
from lockstep.protocol.errors import BrokerError, DuplicateClientIdError, NoPermissionError, SubscriptionConflictError, without_frames
from lockstep.runtime.logs.log import get_logger

log = get_logger("broker.groups")

MEMBERS_PER_CONNECTION_MAX = GROUPS_PER_CLIENT_MAX
"""Classic members of one connection, whose client id may change. A session has one client id and is limited to as many groups."""
UNREGISTERED = "it unregistered"
NONE_DENIED: Mapping[str, BrokerError] = {}
SUBSCRIPTION_BYTES_PER_CONNECTION_MAX = 2 << 20
"""Estimated memory of the subscriptions of all classic members of one connection: more than one HEART_BEAT may name."""


@dataclass(slots=True)
class ClassicMember:
    """A classic member of one group: its last connection, and until when it remains a member without another HEART_BEAT."""

    connection: int | None
    until_ms: int
    subscription_bytes: int = 0
    """Estimated memory of its subscriptions, which counts towards the limit of the connection."""


class GroupMembers:
    """Changes the member lists of all groups."""

    def __init__(self, state: GroupState) -> None:
        self._state = state
        self._contracts = ContractChanges(state)
        self._classic_members: dict[tuple[str, str], ClassicMember] = {}
        """(group, client id) → its connection and its time limit."""
        self._classic_members_on: dict[int, dict[tuple[str, str], None]] = {}
        """Connection → keys of the `_classic_members` that sent their last HEART_BEAT on it."""
        self._classic_group_counts: Counter[str] = Counter()
        """Client id → number of groups in which `_classic_members` has it."""
        self._classic_clients: dict[int, str] = {}

    # ---------------------------------------------------------------------------------------------------------- heartbeat

    def heartbeat(
        self, connection: int, heartbeat: Heartbeat, now_ms: int, user: str = "", denied: Mapping[str, BrokerError] = NONE_DENIED
    ) -> HeartbeatReply | None:
        """Bind the session, join the groups that it names, and leave those that it no longer names.

        `user` is who has logged in, `denied` the groups that this user may not consume. Members of those leave, and lose their queues.
        Return None if the connection is being closed. A group that is refused does not keep the session from joining the others; the first
        refusal is raised at the end.
        """
        body = heartbeat.body
        if connection in self._state.pending.closing:
            return None
        if body.session is None:
            if self._state.sessions.session_on(connection) is not None:
                self._state.pending.close_connection(connection, "heartbeat without a session on a session's connection")
                return None
            self._classic_heartbeat(connection, heartbeat, now_ms, denied)
            return self._reply(body)
        session = self._bind(connection, body.session, body, now_ms, user)
        if session is None:
            return None
        pairs = zip(body.consumers, heartbeat.contracts, strict=True)
        refused = list(filter(None, (self._join_or_refuse(session, entry, contract, now_ms, denied) for entry, contract in pairs)))
        named = {entry.group: None for entry in body.consumers}
        for group in self._state.groups.groups_of_session(session.id):
            if group.name not in named:
                self._state.leave_group(group.name, session.client_id, "its heartbeat no longer names the group")
        if refused:
            raise refused.pop(0)
        return self._reply(body)

    def _bind(self, connection: int, session_id: str, body: HeartbeatBody, now_ms: int, user: str) -> Session | None:
        state = self._state
        known = state.sessions.find(session_id, user)
        was_lost = known is not None and known.connection is None
        bound = state.sessions.bind(session_id, body.client_id, connection=connection, number=body.connection, now_ms=now_ms, user=user)
        if bound is SessionRefusal.DUPLICATE:
            raise DuplicateClientIdError(f"client id {body.client_id} is in use by a connected session: give each client an id of its own")
        if isinstance(bound, SessionRefusal):
            state.pending.close_connection(connection, f"heartbeat refused: {bound.value}")
            return None
        if bound.older_connection is not None:
            state.pending.close_connection(bound.older_connection, "a newer connection of its session took over")
        for group in state.groups.groups_of_session(bound.session.id) if was_lost else ():
            self._add_session_event(GroupEventKind.RECONNECTED, bound.session, group.name)
        return bound.session

    def _add_session_event(self, kind: GroupEventKind, session: Session, group: str, since_ms: int | None = None) -> None:
        self._state.events.add_member_event(kind, group, session.client_id, since_ms=since_ms)
        self._state.pending.request_drain()

    def _join_or_refuse(
        self, session: Session, entry: ConsumerGroup, offered: ConsumerGroup, now_ms: int, denied: Mapping[str, BrokerError]
    ) -> BrokerError | None:
        """Join the group. Return why it can't be joined, or None."""
        refusal: BrokerError | None
        try:
            if (refused := denied.get(entry.group)) is not None:
                self.evict(session, entry.group, refused.remark)
                raise refused
            self._check_room(entry.group, session.client_id, offered)
        except BrokerError as error:
            refusal = without_frames(error)
        else:
            try:
                refusal = self._join(session, entry, offered)
            finally:
                self._state.forget_if_empty(entry.group)
        if refusal is None:
            self._state.refusals.forget_client(entry.group, session.client_id)
        elif entry.group in self._state.activity:
            self._state.refusals.record(entry.group, session.client_id, refusal.remark, now_ms)
        return refusal

    def _check_room(self, name: str, client_id: str, offered: ConsumerGroup) -> None:
        """Raise NoPermissionError above a limit, ServiceNotAvailableError if the disk is too full for a new group or member."""
        state = self._state
        group = state.groups.get(name)
        if group is None or client_id not in group.members:
            state.limits.check_member_room(name, client_id)
        if group is None or group.member_subscriptions.get(client_id) != offered.subscriptions:
            state.limits.check_subscription_room(name, client_id, offered.subscriptions)
        state.register_group(name)

    def _join(self, session: Session, entry: ConsumerGroup, offered: ConsumerGroup) -> SubscriptionConflictError | None:
        state = self._state
        version = self._contracts.version_for(session, entry, offered)
        if isinstance(version, SubscriptionConflictError):
            return version
        state.join_group(entry.group, session.client_id, session.id, version)
        state.drop_unused_contract(entry.group)  # the member may have had an earlier one
        self._contracts.forget_permission(entry.group, offered.contract_version)
        self._record_subscriptions(entry, session.client_id, offered.subscriptions)
        return None

    def _record_subscriptions(self, entry: ConsumerGroup, client_id: str, declared: tuple[Subscription, ...]) -> None:
        group = self._state.groups.get(entry.group)
        assert group is not None, "the member has joined"
        self._state.groups.record_subscriptions(group, client_id, declared)
        self._state.groups.record_subscription_versions(group, entry.subscriptions)

    def _reply(self, body: HeartbeatBody) -> HeartbeatReply:
        state, config = self._state, self._state.config
        return HeartbeatReply(
            broker_name=config.broker_name,
            term=state.term,
            limits=config.limits,
            disconnect_grace_ms=config.disconnect_grace_ms,
            session_timeout_ms=config.session_timeout_ms,
            groups={entry.group: self._view(entry.group) for entry in body.consumers},
            delay_levels_ms=config.delay_levels_ms,
        )

    def _view(self, name: str) -> GroupView:
        group = self._state.groups.get(name)
        topics = {} if group is None else group.topics
        if group is not None and group.contract is not None and group.contract.broadcasting:
            layouts = {topic: self._state.layouts.get(topic) for topic in topics}
            since = {topic: 0 if layout is None else layout.version.counter for topic, layout in layouts.items()}
        else:
            since = {topic: counter for topic in topics if (counter := self._state.progress.since(name, topic)) is not None}
        last_decides = self._state.settings.uses_classic_policy(name)
        return GroupView(self.member_list(name) or MemberList((), self._state.version(name)), since, last_decides)

    def member_list(self, name: str) -> MemberList | None:
        """Return the member list, or None if the group has no member here."""
        group = self._state.groups.get(name)
        if group is None or not group.members:
            return None
        return MemberList(group.member_ids, self._state.version(name), group.has_classic_members, *group.shares)

    def member_count(self, name: str) -> int:
        """Return the number of members that the group has here."""
        group = self._state.groups.get(name)
        return 0 if group is None else len(group.members)

    def subscription(self, name: str, topic: str, connection: int | None = None) -> Subscription | None:
        """Return the subscription by which a pull on this connection is filtered, or None.

        For a session it is the one in its member's contract. A session that has left has none: while it drains, no other member's
        subscription moves it past a message. On other connections it is the newest contract's, or that of the classic members.
        """
        group = self._state.groups.get(name)
        if group is None:
            return None
        session = None if connection is None else self._state.sessions.session_on(connection)
        if session is not None and group.members.get(session.client_id) != session.id:
            return None
        agreed = group.subscription(topic, None if session is None else session.client_id)
        if agreed is not None:
            version = group.sub_versions.get(topic, 0)
            return agreed if agreed.sub_version == version else replace(agreed, sub_version=version)
        return group.classic_subscriptions.get(topic)

    # ------------------------------------------------------------------------------------------------------------ leaving

    def evict(self, session: Session, name: str, why: str) -> None:
        """Remove the session from the list of a group that its user may not consume any more, and end its grants there.

        Others get a queue when the session has let go of it: its listener may run until it knows.
        """
        group = self._state.groups.get(name)
        if group is not None and group.members.get(session.client_id) == session.id:
            self._state.leave_group(name, session.client_id, why)
        for key in self._state.locks.keys_held_by(session.id):
            lock = self._state.locks.holder(key)
            if key[0] == name and lock is not None and not lock.superseded:
                self._state.supersede_grant(key, why)

    def unregister(self, connection: int, client_id: str, name: str, now_ms: int) -> bool:
        """Remove the client from the list at once; its session and its locks remain (ordering.md 6.1).

        Return False if the connection is being closed.
        """
        state = self._state
        group = state.groups.get(name)
        session = state.sessions.touch(connection, now_ms)
        if session is not None:
            if group is not None and session.client_id == client_id and group.members.get(client_id) == session.id:
                state.leave_group(name, client_id, UNREGISTERED)
            return True
        if group is not None and group.members.get(client_id) is not None:
            state.pending.close_connection(connection, "UNREGISTER_CLIENT of a session on a connection that is not its own")
            return False
        seen = self._classic_members.get((name, client_id))
        if seen is not None and seen.connection == connection:
            self._classic_leave(name, client_id, UNREGISTERED)
        return True

    def connection_closed(self, connection: int, now_ms: int) -> None:
        """Begin the grace of the connection's session, and remove its classic members. The close of any other connection has no effect."""
        self._state.pending.closing.pop(connection, None)
        session = self._state.sessions.unbind(connection, now_ms)
        if session is not None:
            for group in self._state.groups.groups_of_session(session.id):
                self._add_session_event(GroupEventKind.DISCONNECTED, session, group.name, session.received_ms)
        self._classic_clients.pop(connection, None)
        for name, client_id in list(self._classic_members_on.get(connection, ())):
            self._classic_leave(name, client_id, "its connection was closed")

    def expire(self, now_ms: int) -> None:
        """End the sessions that have expired, as far as FREES_PER_TICK allows, and remove silent classic members."""
        state = self._state
        left = FREES_PER_TICK
        for session in state.sessions.expired_sessions(now_ms):
            if session.connection is not None:
                state.pending.close_connection(session.connection, "nothing was received from its session for the session timeout")
            left -= self._end_session(session, left)
        for (name, client_id), seen in list(self._classic_members.items()):
            if now_ms > seen.until_ms:
                if seen.connection is not None:
                    state.pending.close_connection(seen.connection, "nothing was received from its classic client")
                self._classic_leave(name, client_id, "nothing was heard from its classic client")

    def _end_session(self, session: Session, count_max: int) -> int:
        """Remove an ended session from every list, then free its locks. Return the number of freed locks.

        The session itself is removed last, so that the next call completes what `count_max` or an error has left.
        """
        state = self._state
        why = (
            "its connection was lost, and the grace is over" if session.connection is None else "nothing was heard for the session timeout"
        )
        for group in state.groups.groups_of_session(session.id):
            state.leave_group(group.name, session.client_id, why)
        held = state.locks.keys_held_by(session.id)
        for key in held[:count_max]:
            state.free_queue(key, why, kind=GroupEventKind.LOST)
        if len(held) <= count_max:
            state.sessions.remove(session)
        return min(len(held), count_max)

    # ------------------------------------------------------------------------------------------------------------ classic

    def _classic_heartbeat(self, connection: int, heartbeat: Heartbeat, now_ms: int, denied: Mapping[str, BrokerError]) -> None:
        """Apply the rules of RocketMQ's registry: the newest connection of a client id counts, and the newer subscription version wins."""
        state, body = self._state, heartbeat.body
        self._classic_clients[connection] = body.client_id
        refused: list[BrokerError] = []
        for entry, contract in zip(body.consumers, heartbeat.contracts, strict=True):
            key, until_ms = (entry.group, body.client_id), now_ms + state.config.classic_member_ms
            group = state.groups.get(entry.group)
            if group is not None and group.members.get(body.client_id) is not None:
                raise DuplicateClientIdError(
                    f"client id {body.client_id} is in use by a connected session: give each client an id of its own"
                )
            if (refusal := denied.get(entry.group)) is not None:
                refused.append(without_frames(refusal))
                self._classic_leave(entry.group, body.client_id, refusal.remark)
                continue
            seen = self._classic_members.get(key)
            here = None if seen is None else seen.connection  # a member for which this connection has no room remains on its own
            try:
                size = self._check_connection_room(connection, entry.group, body.client_id, contract)
                here = connection
                self._check_room(entry.group, body.client_id, contract)
            except BrokerError as error:
                refused.append(without_frames(error))
                if seen is not None:
                    self._set_classic_member(key, replace(seen, connection=here, until_ms=until_ms))
                continue
            state.join_group(entry.group, body.client_id, None)
            self._set_classic_member(key, ClassicMember(connection, until_ms, size))
            state.classic_connections[body.client_id] = connection
            self._record_subscriptions(entry, body.client_id, contract.subscriptions)
            group = state.groups.get(entry.group)
            assert group is not None, "the member has joined"
            known, newer = group.classic_subscriptions, {}
            for each in entry.subscriptions:
                if each.topic not in known or each.sub_version > known[each.topic].sub_version:
                    newer[each.topic] = each.sub_version
            if newer:  # use the copy that is stored and counted
                kept = group.member_subscriptions[body.client_id]
                known |= {each.topic: replace(each, sub_version=newer[each.topic]) for each in kept if each.topic in newer}
            if len(known) > len(entry.subscriptions):
                for topic in known.keys() - {each.topic for each in entry.subscriptions}:
                    del known[topic]
        if refused:
            raise refused.pop(0)

    def _check_connection_room(self, connection: int, name: str, client_id: str, offered: ConsumerGroup) -> int:
        """Return the estimated memory of the member's subscriptions. Raise NoPermissionError above a limit of the connection."""
        key, here = (name, client_id), self._classic_members_on.get(connection, {})
        if key not in here and len(here) >= MEMBERS_PER_CONNECTION_MAX:
            raise NoPermissionError(
                f"this connection has {len(here)} members of groups, {MEMBERS_PER_CONNECTION_MAX} are allowed: "
                f"{client_id} can't join group {name}"
            )
        size = estimated_bytes(offered.subscriptions)
        total = size + sum([self._classic_members[each].subscription_bytes for each in here if each != key])
        if total > SUBSCRIPTION_BYTES_PER_CONNECTION_MAX:
            raise NoPermissionError(
                f"the members of this connection have subscriptions of {total} bytes, {SUBSCRIPTION_BYTES_PER_CONNECTION_MAX} are allowed: "
                f"{client_id} can't subscribe to that much in {name}"
            )
        return size

    def _classic_leave(self, name: str, client_id: str, why: str) -> None:
        self._set_classic_member((name, client_id), None)
        if client_id not in self._classic_group_counts:
            self._state.classic_connections.pop(client_id, None)
        group = self._state.groups.get(name)
        if group is not None and group.members.get(client_id) is None:
            self._state.leave_group(name, client_id, why)

    def _set_classic_member(self, key: tuple[str, str], seen: ClassicMember | None) -> None:
        """Replace the entry of a classic member. None removes it."""
        before = self._classic_members.pop(key, None)
        if before is not None:
            self._classic_group_counts[key[1]] -= 1
            if before.connection is not None:
                there = self._classic_members_on[before.connection]
                del there[key]
                if not there:
                    del self._classic_members_on[before.connection]
        if seen is not None:
            self._classic_members[key] = seen
            self._classic_group_counts[key[1]] += 1
            if seen.connection is not None:
                self._classic_members_on.setdefault(seen.connection, {})[key] = None
        if not self._classic_group_counts[key[1]]:
            del self._classic_group_counts[key[1]]

    def classic_client_on(self, connection: int) -> str | None:
        """Return the classic client that sent its HEART_BEAT on this connection."""
        return self._classic_clients.get(connection)

    def has_heartbeat(self, connection: int) -> bool:
        """Return whether a client, of either kind, has sent HEART_BEAT on this connection."""
        return connection in self._classic_clients or self._state.sessions.session_on(connection) is not None

    def classic_received(self, name: str, client_id: str) -> tuple[int | None, int]:
        """Return the connection of a classic member (None if it has sent nothing since the start) and when its last HEART_BEAT came."""
        seen = self._classic_members[name, client_id]
        config = self._state.config
        return seen.connection, seen.until_ms - (config.classic_restart_ms if seen.connection is None else config.classic_member_ms)

    # -------------------------------------------------------------------------------------------------------------- start

    def restore_members(self, now_ms: int) -> None:
        """Restore every member that the log names. Each has the grace (30 s for a classic client) from now on."""
        state = self._state
        for group in state.groups:
            for client_id, session_id in group.members.items():
                if session_id is None:
                    self._set_classic_member((group.name, client_id), ClassicMember(None, now_ms + state.config.classic_restart_ms))
                else:
                    state.sessions.restore_session(session_id, client_id, now_ms)
        for _, lock in state.locks:
            if lock.held and lock.session is not None and lock.client_id is not None:
                state.sessions.restore_session(lock.session, lock.client_id, now_ms)

    def next_due_ms(self) -> int | None:
        dues = [seen.until_ms + 1 for seen in self._classic_members.values()]
        if (due := self._state.sessions.next_due_ms()) is not None:
            dues.append(due)
        return min(dues, default=None)
