"""The state of all groups: the coordination tables, and every step that changes more than one of them.

A queue is freed, a grant ended and a contract dropped only here, so that the other tables and the pending effects always follow.
"""

from lockstep.broker.groups.group_events import GroupEventLog
from lockstep.broker.groups.group_limits import GroupLimits
from lockstep.broker.groups.group_tables import CoordinationConfig, GroupTables, QueueBounds
from lockstep.broker.groups.join_refusals import JoinRefusals
from lockstep.broker.groups.pending_effects import PendingEffects
from lockstep.broker.groups.tables.lock_table import Lock, QueueKey
from lockstep.broker.journal import Journal
from lockstep.protocol.bodies import GroupEventKind
from lockstep.protocol.errors import ParkRefusedError
from lockstep.protocol.names import DLQ_PREFIX, RETRY_PREFIX, group_of_topic
from lockstep.protocol.topics.layouts import LayoutTable

FREES_PER_TICK = 1_000
"""Number of locks with an ended lease that one tick frees, and of locks of ended sessions: about 10 ms. The next one is 1 ms later."""


class GroupState(GroupTables):
    """The coordination tables with their limits, their pending effects, and the steps that change several of them."""

    def __init__(self, config: CoordinationConfig, layouts: LayoutTable, bounds: QueueBounds, journal: Journal) -> None:
        super().__init__(config, layouts, bounds, journal)
        self.limits = GroupLimits(self)
        self.pending = PendingEffects(self)
        self.refusals = JoinRefusals()
        self.events = GroupEventLog()
        self.override_counts: dict[str, int] = {}
        """Group → how often a member's subscriptions replaced those of the others, since the start (ordering.md 11.4)."""
        self.retained_contracts: dict[str, None] = {}
        """Groups with a contract that was recorded before the start. They keep it for the session timeout, even without a member."""

    # ------------------------------------------------------------------------------------------------------------- groups

    def register_group(self, group: str) -> None:
        """Record the group as active, before anything else is recorded of it. Raises the errors of `GroupLimits.check_group_room`."""
        self.limits.check_group_room(group)
        self.activity.record_activity(group)

    def forget_if_empty(self, group: str) -> None:
        """Forget a group that no table has anything of.

        A group that has a topic here is kept. Each such topic was created for a group that counts, so that groups that come and go can't
        create more topics than the limit of groups allows.
        """
        known = (
            self.groups.get(group) or self.progress.topics_of_group(group) or self.locks.topics_of_group(group) or self.settings.get(group)
        )
        if group in self.activity and not known and not any(map(self.own_queue_count, (RETRY_PREFIX + group, DLQ_PREFIX + group))):
            self.forget_group(group)

    def forget_group(self, group: str) -> None:
        """Forget the group with its progress, its locks and its settings, in one change of the log."""
        self.activity.record_forgotten(group)
        self.drop_group(group)

    def drop_group(self, group: str) -> None:
        """Remove the group from all tables. The change `group.forgotten` has the same effect when it is replayed."""
        self.progress.drop_group(group)
        self.parks.drop_group(group)
        self.locks.drop_group(group)
        self.groups.drop_group(group)
        self.settings.drop_group(group)
        self.refusals.drop_group(group)
        self.override_counts.pop(group, None)
        self.retained_contracts.pop(group, None)

    def join_group(self, group: str, client_id: str, session: str | None, version: int = 0) -> None:
        """Add a member with the contract of this version to the list. Call `register_group` before."""
        known = self.groups.get(group)
        if known is None or client_id not in known.members or known.members[client_id] != session:
            self.events.add_member_event(GroupEventKind.JOINED, group, client_id)
        if self.groups.join(group, client_id, session, version):
            self.pending.request_drain()

    def leave_group(self, group: str, client_id: str, why: str) -> None:
        """Remove a member from the list. `why` is told to operators (GROUP_EVENTS)."""
        known = self.groups.get(group)
        if known is not None and client_id in known.members:
            self.events.add_member_event(GroupEventKind.LEFT, group, client_id, why)
        self.groups.leave(group, client_id)
        self.pending.request_drain()
        self.drop_unused_contract(group)
        self.forget_if_empty(group)

    def drop_unused_contract(self, name: str) -> None:
        """Drop the contract if no member is left and no session holds a queue of the group: a member that has left may still drain one.

        Of several contracts, drop those that no member has. Grants do not end: the members that remain have a contract.
        """
        group = self.groups.get(name)
        if group is None or group.contract is None or name in self.retained_contracts:
            return
        for version in group.unused_versions:
            self.groups.end_contract(name, version)
        if not group.members and not self.locks.any_session_holds(name):
            self.end_group_grants(name)
            self.groups.end_contracts(name)
            self.forget_if_empty(name)

    def drop_topic(self, topic: str) -> None:
        """Remove the topic's progress and locks, and the group for which it was created if nothing else is known of that group."""
        keys = self.locks.keys_in_topic(topic)
        for key in keys:
            self.pending.end_held_pulls(key)
            if (holder := self.locks.holder(key)) is not None:
                self._add_queue_event(GroupEventKind.ENDED, key, holder, holder.epoch, "the topic was deleted")
        groups = dict.fromkeys(key[0] for key in keys)
        groups |= dict.fromkeys(self.progress.groups_in_topic(topic))
        self.parks.drop_topic(topic)
        if groups or self.progress.has_reopened(topic):
            self.locks.drop_topic(topic)
            self.progress.drop_topic(topic)
        if (own := group_of_topic(topic)) is not None:
            groups[own] = None
        for group in groups:
            self.drop_unused_contract(group)
            self.forget_if_empty(group)

    def check_not_parked(self, key: QueueKey) -> None:
        """Raise ParkRefusedError if keys of the queue are parked: a change of its progress would deliver their messages again, or never."""
        if count := self.parks.waiting_count(key):
            raise ParkRefusedError(
                f"group {key[0]} is not reset in {key[1]} queue {key[2]} at {self.config.broker_name}: {count} keys are parked there. "
                f"Replay or drop them (`lockstep park ls {key[0]}`), or forget them with `lockstep group reset-offset … --drop-parked`"
            )

    # ------------------------------------------------------------------------------------------------------------- grants

    def grant(self, key: QueueKey, session: str | None, client_id: str) -> int:
        """Grant the queue under a new epoch, and return the epoch."""
        epoch = self.fence.draw()
        self.locks.record_grant(key, epoch, session, client_id)
        self.events.add_queue_event(GroupEventKind.GRANTED, key, client_id, epoch)
        self.pending.end_held_pulls(key)
        return epoch

    def hold_again(self, key: QueueKey) -> None:
        """Give a free queue back under the epoch that it was freed from, which its session has renewed."""
        self.locks.record_held_again(key)
        if (holder := self.locks.holder(key)) is not None:
            self.events.add_queue_event(GroupEventKind.RENEWED, key, holder.client_id, holder.epoch)
            self.pending.request_drain()

    def free_queue(self, key: QueueKey, why: str, *, kind: GroupEventKind = GroupEventKind.FREED, heard_ms: int | None = None) -> None:
        """Allow that the queue is granted to others. Its epoch remains valid until then.

        `kind` and `why` are told to operators (GROUP_EVENTS). `heard_ms`: when its owner was last heard, if that is a classic client.
        """
        if (holder := self.locks.holder(key)) is not None:
            self._add_queue_event(kind, key, holder, holder.epoch, why, heard_ms)
            self.locks.record_free(key)
            self.pending.notify_queue_free(key)
            self.drop_unused_contract(key[0])

    def end_grant(self, key: QueueKey, why: str) -> None:
        """End the grant: the epoch rises, and no client has the new one. `why` is told to operators (GROUP_EVENTS)."""
        lock = self.locks.get(key)
        if lock is None:
            self.pending.end_held_pulls(key)  # a concurrent group's pulls carry the generation
            return
        epoch = self.fence.draw()
        if lock.held:
            self._add_queue_event(GroupEventKind.ENDED, key, lock, epoch, why)
        self.locks.record_end(key, epoch)
        self.pending.end_held_pulls(key)
        self.pending.notify_queue_free(key)

    def supersede_grant(self, key: QueueKey, why: str = "a reset") -> None:
        """End what the grant allows, but leave the queue to the session that holds it until that session lets go of it.

        It lets go if its LOCK does not name the queue, if it releases the queue, or when it ends. So no other member works on the queue
        at the same time as a listener that cannot know of the end. This is part of the lock and durable: neither a restart nor a lost
        response gives the queue to another member (ordering.md 6.7, 7.6). `why` is told to operators (GROUP_EVENTS).
        """
        holder = self.locks.holder(key)
        if holder is not None and holder.held_by_classic:
            self.pending.end_held_pulls(key)  # its lease gives it the queue; it is told by its next pull (12.5)
            return
        if holder is None or holder.session is None or holder.client_id is None:
            self.end_grant(key, why)
            return
        epoch = self.fence.draw()
        self.events.add_queue_event(GroupEventKind.SUPERSEDED, key, holder.client_id, epoch, why)
        self.locks.record_superseded(key, epoch)
        self.pending.end_held_pulls(key)
        self.pending.notify_superseded(key)

    def end_group_grants(self, group: str) -> None:
        """End the grants of the group's sessions, because its contract is dropped or changed."""
        ended = {key: lock for key, lock in self.locks.locks_of_group(group) if lock.session is not None}
        if ended:
            epoch = self.fence.draw()
            for key, lock in ended.items():
                if lock.held:
                    self._add_queue_event(GroupEventKind.ENDED, key, lock, epoch, "the group's contract was changed or dropped")
            self.locks.record_group_end(group, epoch)
            for key in ended:
                self.pending.end_held_pulls(key)
                self.pending.notify_queue_free(key)

    def _add_queue_event(self, kind: GroupEventKind, key: QueueKey, owner: Lock, epoch: int, why: str, heard_ms: int | None = None) -> None:
        """Add an event by which the owner of a queue loses it."""
        session = self.sessions.get(owner.session)
        self.events.add_queue_event(kind, key, owner.client_id, epoch, why, heard_ms if session is None else session.received_ms)
