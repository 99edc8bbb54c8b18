"""The coordination tables of one broker together, and every step that touches more than one of them.

There is one way to free a queue, one to end a grant, one to drop a contract; each keeps its effects in here until `drain`. Which
connections are notified of a free queue is decided then, from the state at that time: a queue that was granted again meanwhile is not
reported.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from lockstep.broker.effects import CloseConnection, DrainFault, Effect, Notify, PushLayout, PushQueueFree, StalePulls
from lockstep.broker.journal import Change, Journal
from lockstep.broker.tables.activity_table import ActivityTable
from lockstep.broker.tables.group_table import Group, GroupTable
from lockstep.broker.tables.lock_table import FencingCounter, LockTable, QueueKey
from lockstep.broker.tables.progress_table import ProgressTable
from lockstep.broker.tables.session_table import SessionTable
from lockstep.broker.tables.settings_table import SettingsTable
from lockstep.protocol.allocate import BY_BROKER, owner_of
from lockstep.protocol.bodies import FreeQueue, Limits, ListVersion, Subscription
from lockstep.protocol.errors import ConfigError, NoPermissionError, StoreError
from lockstep.protocol.layouts import LayoutTable
from lockstep.protocol.names import DLQ_PREFIX, RETRY_PREFIX, group_of_topic
from lockstep.protocol.queue import MessageQueue

NAMED_MAX = 8
"""Clients that an error names."""
FREES_PER_TICK = 1_000
"""Locks whose lease is over that one tick frees, and as many of sessions that are over: about 10 ms of work. The next tick follows after 1
ms.
"""


@dataclass(frozen=True, slots=True)
class CoordinationConfig:
    """Times in milliseconds and limits. Grants and heartbeats carry these times, so that both ends use one value."""

    broker_name: str
    limits: Limits
    features: tuple[str, ...] = ()
    disconnect_grace_ms: int = 3_000
    """How long a session whose connection closed keeps its locks and its memberships."""
    session_timeout_ms: int = 20_000
    """Silence after which a session is over. Never below the grace: a silent client stops on its own only when the grace is over."""
    classic_lock_ms: int = 60_000
    """RocketMQ: rebalance.lockMaxLiveTime."""
    classic_member_ms: int = 120_000
    """RocketMQ: CHANNEL_EXPIRED_TIMEOUT."""
    classic_restart_ms: int = 30_000
    """How long a recorded classic member may take to reconnect after a start: one heartbeat interval of RocketMQ's clients."""
    groups_max: int = 10_000
    """Groups of which any table has something."""
    progress_max: int = 2_000_000
    """(group, topic, queue) with progress, and as many with a lock."""
    members_max: int = 50_000
    """Members of all groups."""
    subscription_bytes_max: int = 128 << 20
    """Approximate memory of the subscriptions of groups and members. Equal ones count once, except for the data that each group keeps of a
    topic.
    """
    group_idle_days: int = 30
    """Days without a member and without a commit after which a group is forgotten; 0 disables this."""

    def __post_init__(self) -> None:
        if self.disconnect_grace_ms < 1_000:
            raise ConfigError(
                f"disconnect_grace_ms is {self.disconnect_grace_ms}: expected at least 1000, clients stop 500 ms before it is over"
            )
        if self.session_timeout_ms < self.disconnect_grace_ms:
            object.__setattr__(self, "session_timeout_ms", self.disconnect_grace_ms)


class QueueBounds(Protocol):
    """The offsets of a queue in the store."""

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return (minimum, end) of the offsets that are visible to readers; (0, 0) for a queue that never had a message."""
        ...

    def end_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset that the next message gets."""
        ...


class GroupState:
    """The tables of groups, locks, progress and sessions. `on_effects` is called with the first effect that is to be drained."""

    KINDS = frozenset({"broker.term", "broker.hold", "broker.grace"})

    def __init__(self, config: CoordinationConfig, layouts: LayoutTable, bounds: QueueBounds, journal: Journal) -> None:
        self.config = config
        self.layouts = layouts
        self.bounds = bounds
        self.journal = journal
        self.fence = FencingCounter()
        self.sessions = SessionTable(grace_ms=config.disconnect_grace_ms, timeout_ms=config.session_timeout_ms)
        self.groups = GroupTable(journal)
        self.locks = LockTable(journal)
        self.progress = ProgressTable(journal)
        self.settings = SettingsTable(journal)
        self.activity = ActivityTable(journal)
        self.disk_check: Callable[[str], None] | None = None
        """Called with the name of new state; raises ServiceNotAvailableError if the disk has no room for it."""
        self.override_counts: dict[str, int] = {}
        """Group → how often a member's subscriptions replaced those of others, since the start."""
        self.term = 0
        """The term of the latest start."""
        self.grants_suspended = False
        """Durable: a suffix of the log is assumed lost, so no queue is granted for the grace (ordering.md 8.5)."""
        self.promised_grace_ms = 0
        """Durable: the longest grace that a client may still count on. It exceeds the setting only after a start with a shorter one."""
        self.retained_contracts: dict[str, None] = {}
        """Groups whose contract was recorded before the start: it stays in force for the session timeout even without a member."""
        self.classic_connections: dict[str, int] = {}
        """Client id of a classic member → its present connection."""
        self.closing: dict[int, None] = {}
        """Connections that are to be closed: frames that still arrive on them are ignored."""
        self.on_effects: Callable[[], None] | None = None
        self._urgent_effects: list[CloseConnection | StalePulls] = []
        self._changed_layouts: dict[str, None] = {}
        self._freed_queues: OrderedDict[QueueKey, None] = OrderedDict()
        self._topic_scans: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()
        """(group, topic) whose free queues are to be reported → the index of the next queue, and how many are still to be looked at."""
        self._classic_freed: dict[str, None] = {}
        """Groups whose classic members are to be notified of a free queue."""
        self._superseded_queues: dict[QueueKey, None] = {}
        self._drain_requested = False

    # ------------------------------------------------------------------------------------------------------------ durable

    def apply(self, change: Change) -> None:
        match change:
            case ("broker.term", int(term)):
                self.term = term
            case ("broker.hold", bool(holding)):
                self.grants_suspended = holding
            case ("broker.grace", int(told_ms)):
                self.promised_grace_ms = told_ms
            case _:
                raise StoreError(f"state change {change[:1]} is unknown")

    def record(self, change: Change) -> None:
        self.journal.record(change, self.apply)

    # ------------------------------------------------------------------------------------------------------------- groups

    def check_group_room(self, group: str) -> None:
        """Raise NoPermissionError if the group is unknown and the limit of groups is reached, ServiceNotAvailableError if the disk is too
        full for a new one. Record nothing: a request that can still be refused for another reason checks first, and registers the group
        last.
        """
        if group in self.activity:
            return
        limit = self.config.groups_max
        if len(self.activity) >= limit:
            raise NoPermissionError(
                f"{self.config.broker_name} knows {len(self.activity)} groups, {limit} are allowed (--groups-max): group {group} is "
                "refused. Groups without a member and a commit are forgotten after --group-idle-days; `lockstep group delete` removes one"
            )
        self.check_disk_room(f"group {group}")

    def register_group(self, group: str) -> None:
        """Count the group and record it as active. Call this before anything is recorded of a group. Raise as `check_group_room`."""
        self.check_group_room(group)
        self.activity.record_activity(group)

    def check_member_room(self, group: str, client_id: str) -> None:
        """Check that there is room for one more member of a group. Raise as `register_group`."""
        limit = self.config.members_max
        if self.groups.member_count >= limit:
            raise NoPermissionError(
                f"{self.config.broker_name} has {self.groups.member_count} members of groups, {limit} are allowed (--members-max): "
                f"{client_id} can't join group {group}"
            )
        self.check_disk_room(f"member {client_id} of group {group}")

    def check_subscription_room(self, group: str, client_id: str, asked: tuple[Subscription, ...]) -> None:
        """Raise NoPermissionError if there is no room for a member's subscriptions."""
        kept, limit = self.groups.subscription_bytes, self.config.subscription_bytes_max
        if (more := self.groups.additional_bytes(group, asked)) and kept + more > limit:
            raise NoPermissionError(
                f"{self.config.broker_name} keeps subscriptions of {kept} bytes, {limit} are allowed (--subscriptions-mib-max): "
                f"{client_id} can't subscribe with {more} bytes more in group {group}"
            )

    def check_progress_room(self, group: str, topic: str, count: int) -> None:
        """Check that `count` more queues of the topic may have progress of the group. Raise as `check_group_room`, never for 0."""
        if count <= 0:
            return
        limit = self.config.progress_max
        if len(self.progress) + count > limit:
            raise NoPermissionError(
                f"{self.config.broker_name} keeps progress of {len(self.progress)} queues of groups, {limit} are allowed (--progress-max): "
                f"group {group} can't begin in {count} queues of {topic}"
            )
        self.check_disk_room(f"progress of group {group} in {topic}")

    def missing_progress_count(self, group: str, topic: str) -> int:
        """Return in how many of this broker's readable queues of the topic the group has no progress: so many its start adds. The number is
        never too low, and too high only if the group has progress in queues that were removed from the layout.
        """
        return self.progress.missing_count(group, topic, self.own_queue_count(topic))

    def check_lock_room(self, key: QueueKey, count: int) -> None:
        """Check that there is room for `count` more locks, of which `key` is the first. Raise as `check_group_room`, never for 0."""
        limit = self.config.progress_max
        if count > 0 and len(self.locks) + count > limit:
            raise NoPermissionError(
                f"{self.config.broker_name} keeps {len(self.locks)} locks, {limit} are allowed (--progress-max): "
                f"{count} more from {key} are refused"
            )
        if count > 0:
            self.check_disk_room(f"a lock of group {key[0]} in {key[1]}")

    def check_disk_room(self, what: str) -> None:
        """Raise ServiceNotAvailableError if the disk is too full for new state."""
        if self.disk_check is not None:
            self.disk_check(what)

    def forget_if_empty(self, group: str) -> None:
        """Forget a group of which no table has anything any more. A group that has a topic here stays: each such topic was created for a
        group that counts, so that groups that come and go can't create more topics than the limit of groups allows.
        """
        known = (
            self.groups.get(group) or self.progress.topics_of_group(group) or self.locks.topics_of_group(group) or self.settings.get(group)
        )
        if group in self.activity and not known and not any(map(self.own_queue_count, (RETRY_PREFIX + group, DLQ_PREFIX + group))):
            self.forget_group(group)

    def in_use(self, group: str) -> bool:
        """Return whether the group has a member, a queue that is held, or settings of an operator."""
        known = self.groups.get(group)
        used = known is not None and (known.members or known.contract is not None)
        return bool(used or self.locks.held_count(group) or self.settings.get(group))

    def check_unused(self, group: str) -> None:
        """Raise NoPermissionError, naming the clients, if the group has a member here or a queue that is held."""
        known = self.groups.get(group)
        members = () if known is None else known.member_ids
        holders: dict[str, None] = {}
        if members:
            what, then = f"has {len(members)} members at {self.config.broker_name}", "Stop them"
        elif self.locks.held_count(group):
            holders = dict.fromkeys(str(lock.client_id) for _, lock in self.locks.locks_of_group(group) if lock.held)
            what = f"has queues at {self.config.broker_name} that clients hold which are no members (any more)"
            at_the_latest_s = max(self.config.classic_lock_ms, self.config.session_timeout_ms) // 1000
            then = f"They are free at the latest {at_the_latest_s} s after the clients have stopped: wait"
        else:
            return
        names = list(members or holders)
        listed = ", ".join(names[:NAMED_MAX]) + (" …" if len(names) > NAMED_MAX else "")
        raise NoPermissionError(
            f"group {group} was not deleted: it {what}: {listed}. {then}, and run `lockstep group delete {group}` again"
        )

    def forget_group(self, group: str) -> None:
        """Forget the group with its progress, its locks and its settings, in one change of the log."""
        self.activity.record_forgotten(group)
        self.drop_group(group)

    def drop_group(self, group: str) -> None:
        """Apply what `forget_group` records, live or from the log."""
        self.progress.drop_group(group)
        self.locks.drop_group(group)
        self.groups.drop_group(group)
        self.settings.drop_group(group)
        self.override_counts.pop(group, None)
        self.retained_contracts.pop(group, None)

    # ------------------------------------------------------------------------------------------------------------- queues

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Return whether the layout gives this broker such a readable queue."""
        layout = self.layouts.get(topic)
        return layout is not None and 0 <= queue_id < layout.read_count(self.config.broker_name)

    def own_queues(self, topic: str) -> list[MessageQueue]:
        """Return this broker's readable queues of the topic, in layout order."""
        layout = self.layouts.get(topic)
        return [] if layout is None else layout.queues_of(self.config.broker_name)

    def own_queue_count(self, topic: str) -> int:
        """Return how many readable queues this broker has of the topic."""
        layout = self.layouts.get(topic)
        return 0 if layout is None else layout.read_count(self.config.broker_name)

    def decides_owners(self, group: Group) -> bool:
        """Return whether this broker's list decides about owners. Otherwise RocketMQ's rule over all queues does, which one broker can't
        evaluate.
        """
        return group.contract is not None and group.contract.allocate == BY_BROKER and not group.has_classic_members

    def owner(self, group: Group, topic: str, queue_id: int) -> str | None:
        """Return the member to which the list of such a group gives the queue."""
        layout = self.layouts.get(topic)
        if layout is None:
            return None
        return owner_of(layout, MessageQueue(topic, self.config.broker_name, queue_id), group.member_ids)

    def version(self, group: str) -> ListVersion:
        known = self.groups.get(group)
        return ListVersion(self.term, 0 if known is None else known.version)

    # ------------------------------------------------------------------------------------------------------------- grants

    def grant(self, key: QueueKey, session: str | None, client_id: str) -> int:
        """Grant the queue under a new epoch, and return the epoch."""
        epoch = self.fence.draw()
        self.locks.record_grant(key, epoch, session, client_id)
        self._end_held_pulls(key, epoch)
        return epoch

    def free_queue(self, key: QueueKey) -> None:
        """Free the queue: it may be granted to others, and its epoch stays good until then."""
        if self.locks.holder(key) is not None:
            self.locks.record_free(key)
            self.notify_queue_free(key)
            self.drop_unused_contract(key[0])

    def end_grant(self, key: QueueKey) -> None:
        """End the grant: the epoch rises, and no session has the new one."""
        if self.locks.get(key) is None:
            self._end_held_pulls(key, 0)  # a concurrent group's pulls carry the generation
            return
        epoch = self.fence.draw()
        self.locks.record_end(key, epoch)
        self._end_held_pulls(key, epoch)
        self.notify_queue_free(key)

    def supersede_grant(self, key: QueueKey) -> None:
        """End the rights of the grant, and leave the queue to its session until that releases it: its LOCK does not name the queue, it
        releases the queue, or it ends. So no other member processes the queue while a listener that can't know still does. This is part of
        the lock and durable: neither a restart nor a lost response gives the queue to another member.
        """
        holder = self.locks.holder(key)
        if holder is None or holder.session is None or holder.client_id is None:
            self.end_grant(key)
            return
        epoch = self.fence.draw()
        self.locks.record_superseded(key, epoch)
        self._end_held_pulls(key, epoch)
        self._superseded_queues[key] = None

    def end_group_grants(self, group: str) -> None:
        """End the grants of the group's sessions: its contract is dropped or changed."""
        ended = [key for key, lock in self.locks.locks_of_group(group) if lock.session is not None]
        if ended:
            epoch = self.fence.draw()
            self.locks.record_group_end(group, epoch)
            for key in ended:
                self._end_held_pulls(key, epoch)
                self.notify_queue_free(key)

    def join_group(self, group: str, client_id: str, session: str | None) -> None:
        """Add a member to the list; this is the only way. Call `register_group` before."""
        if self.groups.join(group, client_id, session):
            self._request_drain()

    def leave_group(self, group: str, client_id: str) -> None:
        """Remove a member from the list; this is the only way."""
        self.groups.leave(group, client_id)
        self._request_drain()
        self.drop_unused_contract(group)
        self.forget_if_empty(group)

    def drop_unused_contract(self, name: str) -> None:
        """Drop the contract if the last member is gone. A member that has left and still drains a queue is not gone."""
        group = self.groups.get(name)
        if (
            group is None
            or group.contract is None
            or group.members
            or name in self.retained_contracts
            or self.locks.any_session_holds(name)
        ):
            return
        self.end_group_grants(name)
        self.groups.set_contract(name, None)
        self.forget_if_empty(name)

    # ------------------------------------------------------------------------------------------------------------ effects

    def close_connection(self, connection: int, reason: str) -> None:
        if connection not in self.closing:
            self.closing[connection] = None
            self._urgent_effects.append(CloseConnection(connection, reason))
            self._request_drain()

    def notify_queue_free(self, key: QueueKey) -> None:
        """Report the queue to its owner if it is still free when effects are drained."""
        self._freed_queues[key] = None
        self._request_drain()

    def notify_layout_changed(self, topic: str) -> None:
        """Push the topic's layout to its subscribers, which ask for it only every 30 s."""
        self._changed_layouts[topic] = None
        self._request_drain()

    def notify_topic_free(self, group: Group, topic: str) -> None:
        """Report this broker's free queues of the topic, as `notify_queue_free`. Which of them are free is checked when effects are
        drained.

        If a scan of the topic is under way, it goes on and then comes back to the queues that it has passed: a group that changes again and
        again is notified of all its queues.
        """
        if group.contract is not None and group.contract.locks:
            place, _ = self._topic_scans.get((group.name, topic), (0, 0))
            self._topic_scans[group.name, topic] = place, self.own_queue_count(topic)
            self._request_drain()

    def notify_group_free(self, group: Group) -> None:
        if group.contract is not None:
            for subscription in group.contract.subscriptions:
                self.notify_topic_free(group, subscription.topic)

    def drop_topic(self, topic: str) -> None:
        """Drop the progress and locks of the topic, and the group for which it was created if nothing else is recorded of that."""
        keys = self.locks.keys_in_topic(topic)
        for key in keys:
            self._end_held_pulls(key, 0)
        groups = dict.fromkeys(key[0] for key in keys)
        groups |= dict.fromkeys(self.progress.groups_in_topic(topic))
        if groups:
            self.locks.drop_topic(topic)
            self.progress.drop_topic(topic)
        if (own := group_of_topic(topic)) is not None:
            groups[own] = None
        for group in groups:
            self.drop_unused_contract(group)
            self.forget_if_empty(group)

    def drain(self, count_max: int | None = None, *, notices: bool = True) -> list[Effect]:
        """Return the effects, in this order: closes, stale pulls, layouts, notices, free queues.

        `count_max` limits the free queues that are looked at and the connections that are notified of one. `notices`: whether layouts and
        notices are drained too; otherwise they wait, and their contents are decided later. `on_effects` is called if anything is left. An
        error while notices are made loses neither closes nor stale pulls: it is the last effect.
        """
        self._drain_requested = True
        try:
            effects: list[Effect] = list(self._urgent_effects)
            self._urgent_effects = []
            changed = dict.fromkeys(self.groups.take_changed_lists()) if notices else {}
            if notices:
                effects += self._layout_effects()
            for name in changed:
                group = self.groups.get(name)
                if group is not None and self.decides_owners(group):
                    self.notify_group_free(group)
            pushes = self._free_queue_effects(count_max)
            if notices:
                effects += self._notify_effects(changed)
            effects += pushes
        except Exception as error:  # notices: logged when the effects are carried out
            effects.append(DrainFault(error))
        finally:
            self._drain_requested = False
        if self._freed_queues or self._topic_scans or self._classic_freed or self._changed_layouts or self.groups.has_changed_lists:
            self._request_drain()
        return effects

    def _layout_effects(self) -> list[PushLayout]:
        relaid, self._changed_layouts = self._changed_layouts, {}
        told: dict[str, dict[int, None]] = {topic: {} for topic in relaid}
        for topic, connections in told.items():
            for group in self.groups.groups_subscribed_to(topic):
                connections |= dict.fromkeys(self._native_connections(group))
        found = [(self.layouts.get(topic), connections) for topic, connections in told.items()]
        return [PushLayout(layout, tuple(connections)) for layout, connections in found if layout is not None and connections]

    def _notify_effects(self, changed: dict[str, None]) -> list[Notify]:
        """Make the notices: to all members of groups whose lists changed, to the classic members of groups with a free queue."""
        freed, self._classic_freed = self._classic_freed, {}
        told: dict[str, tuple[int, ...]] = {}
        for name in changed | freed:
            group = self.groups.get(name)
            if group is not None:
                native = self._native_connections(group) if name in changed else ()
                told[name] = (*native, *self._classic_connections(group))
        return [Notify(name, connections, self.version(name)) for name, connections in told.items() if connections]

    def _free_queue_effects(self, count_max: int | None) -> list[PushQueueFree]:
        pushes: dict[int, dict[QueueKey, None]] = {}
        if self.grants_suspended:
            self._freed_queues.clear()
            self._topic_scans.clear()
        unruled: dict[str, tuple[int, ...]] = {}
        count = 0
        for key in self._next_candidates():
            count += 1
            if key is not None:
                count += self._add_free_queue(key, pushes, unruled)
            if count_max is not None and count >= count_max:
                break
        if self._topic_scans:
            # The next slice begins with another group, so that one whose list keeps changing does not delay the others.
            self._topic_scans.move_to_end(next(iter(self._topic_scans)))
        nudged, self._superseded_queues = self._superseded_queues, {}
        for key in nudged:
            holder = self.locks.holder(key)
            session = None if holder is None else self.sessions.get(holder.session)
            if session is not None and session.connection is not None:
                pushes.setdefault(session.connection, {})[key] = None
        return [PushQueueFree(connection, tuple(FreeQueue(*key) for key in keys)) for connection, keys in pushes.items()]

    def _next_candidates(self) -> Iterator[QueueKey | None]:
        """Take the queues that are to be looked at, one at a time; None if a topic has no further one."""
        while self._freed_queues:
            yield self._freed_queues.popitem(last=False)[0]
        while self._topic_scans:
            group, topic = waits = next(iter(self._topic_scans))
            place, left = self._topic_scans[waits]
            layout = self.layouts.get(topic)
            queue_id = None if layout is None or left <= 0 else layout.queue_id_at(self.config.broker_name, place)
            if queue_id is not None:
                self._topic_scans[waits] = place + 1, left - 1
                yield group, topic, queue_id
            elif place and left > 0:
                self._topic_scans[waits] = 0, left  # the last queue was looked at, or the topic has fewer now
            else:
                del self._topic_scans[waits]
                yield None

    def _add_free_queue(self, key: QueueKey, pushes: dict[int, dict[QueueKey, None]], unruled: dict[str, tuple[int, ...]]) -> int:
        """Add a queue to the notices if it is free; return to how many connections it is pushed.

        `unruled` caches the native connections of groups whose owners this broker does not decide.
        """
        group = self.groups.get(key[0])
        if group is None or not self.has_queue(key[1], key[2]) or self.locks.holder(key) is not None:
            return 0
        if not self.decides_owners(group) and group.name not in unruled:
            unruled[group.name] = self._native_connections(group)
            self._classic_freed[group.name] = None
        told = self._connections_to_notify(group, key, unruled)
        for connection in told:
            pushes.setdefault(connection, {})[key] = None
        return len(told)

    def _connections_to_notify(self, group: Group, key: QueueKey, unruled: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
        """Return the connections to notify of a free queue: that of its owner, or those of all native members if this broker does not
        decide about owners.
        """
        if group.contract is None or not group.contract.locks:
            return ()
        if group.name in unruled:
            return unruled[group.name]
        owner = self.owner(group, key[1], key[2])
        session = None if owner is None else self.sessions.get(group.members[owner])
        return () if session is None or session.connection is None else (session.connection,)

    def _native_connections(self, group: Group) -> tuple[int, ...]:
        sessions = [self.sessions.get(group.members[client_id]) for client_id in group.member_ids]
        return tuple(session.connection for session in sessions if session is not None and session.connection is not None)

    def _classic_connections(self, group: Group) -> tuple[int, ...]:
        ids = [client_id for client_id in group.member_ids if group.members[client_id] is None]
        found = [self.classic_connections.get(client_id) for client_id in ids]
        return tuple(connection for connection in found if connection is not None)

    def _end_held_pulls(self, key: QueueKey, epoch: int) -> None:
        self._urgent_effects.append(StalePulls(*key, epoch))
        self._request_drain()

    def _request_drain(self) -> None:
        if not self._drain_requested:
            self._drain_requested = True
            if self.on_effects is not None:
                self.on_effects()
