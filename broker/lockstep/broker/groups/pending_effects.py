"""Effects that wait for the next drain: closes, stale pulls, notices and pushes (effects.py).

Requests only mark what has changed. Who is notified of a free queue is decided when the effects are drained, from the state at that time,
so that a queue that was granted again in between is not announced (ordering.md 3.6).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator

from lockstep.broker.groups.effects import CloseConnection, DrainFault, GroupEffect, Notify, PushLayout, PushQueueFree, StalePulls
from lockstep.broker.groups.group_tables import GroupTables
from lockstep.broker.groups.tables.group import Group
from lockstep.broker.groups.tables.lock_table import QueueKey
from lockstep.protocol.bodies import FreeQueue


class PendingEffects:
    """Collects the effects of requests until `drain`. Calls `on_effects` when the first one is added."""

    def __init__(self, tables: GroupTables) -> None:
        self._tables = tables
        self.on_effects: Callable[[], None] | None = None
        self.closing: dict[int, None] = {}
        """Connections that will be closed. Requests that still arrive on them are ignored."""
        self._urgent_effects: list[CloseConnection | StalePulls] = []
        self._changed_layouts: dict[str, None] = {}
        self._freed_queues: OrderedDict[QueueKey, None] = OrderedDict()
        self._topic_scans: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()
        """(group, topic) whose free queues must be announced → the position of the next queue, and the number of queues left."""
        self._classic_freed: dict[str, None] = {}
        """Groups with classic members that must be notified of a free queue."""
        self._announced_queues: dict[QueueKey, None] = {}
        """Queues with holders that are made to send a LOCK, from which they learn of a reset, or of keys to replay."""
        self._drain_requested = False

    def close_connection(self, connection: int, reason: str) -> None:
        """Close the connection without a response."""
        if connection not in self.closing:
            self.closing[connection] = None
            self._urgent_effects.append(CloseConnection(connection, reason))
            self.request_drain()

    def end_held_pulls(self, key: QueueKey) -> None:
        """End the held pulls of the queue that do not carry its epoch."""
        self._urgent_effects.append(StalePulls(*key))
        self.request_drain()

    def notify_superseded(self, key: QueueKey) -> None:
        """Push QUEUE_FREE to the holder of a queue after its grant was superseded, so that it sends a LOCK soon.

        Does not request a drain: `end_held_pulls` of the same step does.
        """
        self._announced_queues[key] = None

    def notify_replays(self, key: QueueKey) -> None:
        """Push QUEUE_FREE to the holder of a queue, so that it sends a LOCK soon, and learns which keys to replay."""
        self._announced_queues[key] = None
        self.request_drain()

    def notify_queue_free(self, key: QueueKey) -> None:
        """Notify the member that owns the queue by the list, if the queue is still free at the next drain."""
        self._freed_queues[key] = None
        self.request_drain()

    def notify_layout_changed(self, topic: str) -> None:
        """Push the topic's layout to the members that subscribe to it. They ask for it only every 30 s."""
        self._changed_layouts[topic] = None
        self.request_drain()

    def notify_topic_free(self, group: Group, topic: str) -> None:
        """As `notify_queue_free`, for all queues that this broker has of the topic.

        If a scan of them is under way, it continues at its position and comes back to the first ones. So a group that changes again and
        again is notified of all its queues.
        """
        if group.contract is not None and group.contract.locks:
            position, _ = self._topic_scans.get((group.name, topic), (0, 0))
            self._topic_scans[group.name, topic] = position, self._tables.own_queue_count(topic)
            self.request_drain()

    def notify_group_free(self, group: Group) -> None:
        """As `notify_topic_free`, for all topics of the group's contracts."""
        if group.contract is not None:
            for topic in group.topics:
                self.notify_topic_free(group, topic)

    def notify_classic_free(self, group: Group) -> None:
        """Notify the group's classic members that queues are free."""
        self._classic_freed[group.name] = None
        self.request_drain()

    def request_drain(self) -> None:
        """Call `on_effects`, once until the next drain."""
        if not self._drain_requested:
            self._drain_requested = True
            if self.on_effects is not None:
                self.on_effects()

    def drain(self, count_max: int | None = None, *, notices: bool = True) -> list[GroupEffect]:
        """Return the effects in this order: closes, stale pulls, layouts, notices of changed lists, free queues.

        `count_max` limits the queues that are checked plus the connections that are notified of one. Without `notices` layouts and notices
        remain pending, and their content is decided later. Calls `on_effects` if anything is left. An error while notices are made does
        not lose the closes and stale pulls: it is returned as the last effect.
        """
        self._drain_requested = True
        try:
            effects: list[GroupEffect] = list(self._urgent_effects)
            self._urgent_effects = []
            changed = dict.fromkeys(self._tables.groups.take_changed_lists()) if notices else {}
            if notices:
                effects += self._layout_effects()
            for name in changed:
                group = self._tables.groups.get(name)
                if group is not None and self._tables.decides_owners(group):
                    self.notify_group_free(group)
            pushes = self._free_queue_effects(count_max)
            if notices:
                effects += self._notify_effects(changed)
            effects += pushes
        except Exception as error:  # notices: EffectRunner logs it
            effects.append(DrainFault(error))
        finally:
            self._drain_requested = False
        if self._freed_queues or self._topic_scans or self._classic_freed or self._changed_layouts or self._tables.groups.has_changed_lists:
            self.request_drain()
        return effects

    def _layout_effects(self) -> list[PushLayout]:
        topics, self._changed_layouts = self._changed_layouts, {}
        receivers: dict[str, dict[int, None]] = {topic: {} for topic in topics}
        for topic, connections in receivers.items():
            for group in self._tables.groups.groups_subscribed_to(topic):
                connections |= dict.fromkeys(self._native_connections(group))
        found = [(self._tables.layouts.get(topic), connections) for topic, connections in receivers.items()]
        return [PushLayout(layout, tuple(connections)) for layout, connections in found if layout is not None and connections]

    def _notify_effects(self, changed: dict[str, None]) -> list[Notify]:
        """Notify all members of groups whose lists changed, and the classic members of groups with a free queue."""
        freed, self._classic_freed = self._classic_freed, {}
        receivers: dict[str, tuple[int, ...]] = {}
        for name in changed | freed:
            group = self._tables.groups.get(name)
            if group is not None:
                native = self._native_connections(group) if name in changed else ()
                receivers[name] = (*native, *self._classic_connections(group))
        return [Notify(name, connections, self._tables.version(name)) for name, connections in receivers.items() if connections]

    def _free_queue_effects(self, count_max: int | None) -> list[PushQueueFree]:
        pushes: dict[int, dict[QueueKey, None]] = {}
        if self._tables.grants_suspended:
            self._freed_queues.clear()
            self._topic_scans.clear()
        all_members: dict[str, tuple[int, ...]] = {}
        count = 0
        for key in self._take_candidates():
            count += 1
            if key is not None:
                count += self._add_pushes(key, pushes, all_members)
            if count_max is not None and count >= count_max:
                break
        if self._topic_scans:
            # The next slice begins with another group, so that one with a list that keeps changing does not starve the others.
            self._topic_scans.move_to_end(next(iter(self._topic_scans)))
        superseded, self._announced_queues = self._announced_queues, {}
        for key in superseded:
            holder = self._tables.locks.holder(key)
            session = None if holder is None else self._tables.sessions.get(holder.session)
            if session is not None and session.connection is not None:
                pushes.setdefault(session.connection, {})[key] = None
        return [PushQueueFree(connection, tuple(FreeQueue(*key) for key in keys)) for connection, keys in pushes.items()]

    def _take_candidates(self) -> Iterator[QueueKey | None]:
        """Remove and yield the queues that must be checked, one at a time. Yield None at the end of a topic."""
        while self._freed_queues:
            yield self._freed_queues.popitem(last=False)[0]
        while self._topic_scans:
            group, topic = scan = next(iter(self._topic_scans))
            position, left = self._topic_scans[scan]
            layout = self._tables.layouts.get(topic)
            queue_id = None if layout is None or left <= 0 else layout.queue_id_at(self._tables.config.broker_name, position)
            if queue_id is not None:
                self._topic_scans[scan] = position + 1, left - 1
                yield group, topic, queue_id
            elif position and left > 0:
                self._topic_scans[scan] = 0, left  # past the last queue, or the topic has fewer queues now
            else:
                del self._topic_scans[scan]
                yield None

    def _add_pushes(self, key: QueueKey, pushes: dict[int, dict[QueueKey, None]], all_members: dict[str, tuple[int, ...]]) -> int:
        """Add a push of a queue to each connection that must be notified of it, if it is free. Return their number.

        `all_members`: group → connections of all native members, for groups whose owners this broker does not decide.
        """
        group = self._tables.groups.get(key[0])
        if group is None or not self._tables.has_queue(key[1], key[2]) or self._tables.locks.holder(key) is not None:
            return 0
        if self._tables.suspends(group):
            return 0
        if not self._tables.decides_owners(group) and group.name not in all_members:
            all_members[group.name] = self._native_connections(group)
            self._classic_freed[group.name] = None
        receivers = self._connections_to_notify(group, key, all_members)
        for connection in receivers:
            pushes.setdefault(connection, {})[key] = None
        return len(receivers)

    def _connections_to_notify(self, group: Group, key: QueueKey, all_members: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
        """Return the connection of the queue's owner, or those of all native members if this broker does not decide the owner."""
        if group.contract is None or not group.contract.locks:
            return ()
        if group.name in all_members:
            return all_members[group.name]
        owner = self._tables.owner(group, key[1], key[2])
        session = None if owner is None else self._tables.sessions.get(group.members[owner])
        return () if session is None or session.connection is None else (session.connection,)

    def _native_connections(self, group: Group) -> tuple[int, ...]:
        sessions = [self._tables.sessions.get(group.members[client_id]) for client_id in group.member_ids]
        return tuple(session.connection for session in sessions if session is not None and session.connection is not None)

    def _classic_connections(self, group: Group) -> tuple[int, ...]:
        ids = [client_id for client_id in group.member_ids if group.members[client_id] is None]
        found = [self._tables.classic_connections.get(client_id) for client_id in ids]
        return tuple(connection for connection in found if connection is not None)
