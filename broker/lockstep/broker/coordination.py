"""Who may consume what: sessions, member lists, locks and progress of one broker, under one set of rules (ordering.md 1-7, 9, 10).

Pure: a connection is an int, time is `now_ms` of one monotonic clock that counts suspension. What must happen in the world comes out of
`drain()` as values (effects.py); what must survive goes into the Journal as changes and comes back through `apply`.

    group_state.py     the tables together: the one way to free a queue, end a grant, join, leave
    membership.py      heartbeats, member lists     contract.py  what the members of a group agree on
    lock_sync.py       LOCK, SYNC, start policies of sessions
    legacy_clients.py  requests without an epoch
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from lockstep.broker.effects import Effect
from lockstep.broker.group_state import CoordinationConfig, GroupState, QueueBounds
from lockstep.broker.group_status import group_names, group_status, member_status, queue_keys, queue_status
from lockstep.broker.heartbeats import Heartbeat
from lockstep.broker.journal import Change, Journal
from lockstep.broker.legacy_clients import LegacyClients, PullCheck
from lockstep.broker.lock_sync import LockSync, OffsetsByTime
from lockstep.broker.membership import Membership
from lockstep.broker.reset import reset
from lockstep.broker.tables.activity_table import DAY_MS, ActivityTable
from lockstep.broker.tables.group_table import GroupTable
from lockstep.broker.tables.lock_table import Key, LockTable
from lockstep.broker.tables.progress_table import Progress, ProgressTable
from lockstep.broker.tables.settings_table import SettingsTable
from lockstep.protocol.bodies import (
    ConsumerGroup,
    GroupSettings,
    GroupStatus,
    HeartbeatBody,
    HeartbeatReply,
    LockAnswer,
    LockBatchBody,
    LockBatchReply,
    MemberList,
    MemberStatus,
    QueueStatus,
    ReconcileBody,
    ReconcileReply,
    ResetBody,
    ResetReply,
    StartPolicy,
    Subscription,
    SyncBody,
    SyncReply,
)
from lockstep.protocol.headers.offsets import QueryConsumerOffsetHeader
from lockstep.protocol.layouts import LayoutTable
from lockstep.protocol.names import check_group

__all__ = ["TICK_MS_MAX", "Coordination", "CoordinationConfig", "PullCheck", "QueueBounds", "next_term"]

TICK_MS_MAX = 1_000
"""`tick` is due at least this often: a longer distance is time in which this process stood still and heard nobody."""
SECONDS_2020 = 1_577_836_800
"""2020-01-01 in seconds since 1970."""


def next_term(last_term: int, wall_ms: int) -> int:
    """max(last + 1, seconds since 2020-01-01): fences never fall, not even after a wiped or restored store."""
    return max(last_term + 1, wall_ms // 1000 - SECONDS_2020)


class Coordination:
    """The one door. An answer that is None means: the connection is being closed (see `drain`), say nothing.

    Start:   restore() the snapshot, apply() what follows it, started(next_term(c.term, wall_ms), …), sync the log, open the port, opened().
    Running: heard() for every frame that comes in, the calls below, tick() when it says; drain() whenever `wake` was called.
    """

    KINDS = GroupState.KINDS | ActivityTable.KINDS | GroupTable.KINDS | LockTable.KINDS | ProgressTable.KINDS | SettingsTable.KINDS
    """First words of the journal changes that `apply` takes."""

    def __init__(self, config: CoordinationConfig, layouts: LayoutTable, bounds: QueueBounds, journal: Journal) -> None:
        self._state = GroupState(config, layouts, bounds, journal)
        self._membership = Membership(self._state)
        self._lock_sync = LockSync(self._state)
        self._classic = LegacyClients(self._state, self._membership, self._lock_sync)
        self._opened_ms: int | None = None
        self._ticked_ms: int | None = None

    @property
    def wake(self) -> Callable[[], None] | None:
        """Called when `drain()` has something where it had nothing."""
        return self._state.wake

    @wake.setter
    def wake(self, wake: Callable[[], None] | None) -> None:
        self._state.wake = wake

    @property
    def config(self) -> CoordinationConfig:
        return self._state.config

    # ------------------------------------------------------------------------------------------------------------ durable

    @property
    def term(self) -> int:
        """Of the last start that the log knows; 0 in a new store."""
        return self._state.term

    @property
    def holding(self) -> bool:
        """After an assumed loss, until the grace is over: nobody is granted a queue."""
        return self._state.holding

    def apply(self, change: Change) -> None:
        """One change from the log; its kind is one of KINDS."""
        kind = change[0]
        if kind in LockTable.KINDS:
            self._state.locks.apply(change)
        elif kind in ProgressTable.KINDS:
            self._state.progress.apply(change)
        elif kind in GroupTable.KINDS:
            self._state.groups.apply(change)
        elif kind in SettingsTable.KINDS:
            self._state.settings.apply(change)
        elif kind in ActivityTable.KINDS:
            self._state.activity.apply(change)
            if kind == "group.forgotten":
                self._state.drop_group(change[1])
        else:
            self._state.apply(change)

    def snapshot(self) -> dict[str, Any]:
        """Everything durable, as plain values."""
        state = self._state
        return {
            "term": state.term,
            "holding": state.holding,
            "told_grace_ms": state.told_grace_ms,
            "groups": state.groups.snapshot(),
            "locks": state.locks.snapshot(),
            "progress": state.progress.snapshot(),
            "settings": state.settings.snapshot(),
            "activity": state.activity.snapshot(),
        }

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Into empty tables."""
        state = self._state
        state.term, state.holding, state.told_grace_ms = plain["term"], plain["holding"], plain["told_grace_ms"]
        state.groups.restore(plain["groups"])
        state.locks.restore(plain["locks"])
        state.progress.restore(plain["progress"])
        state.settings.restore(plain.get("settings", []))
        state.activity.restore(plain.get("activity", []))

    # -------------------------------------------------------------------------------------------------------------- start

    def started(self, term: int, *, assumed_loss: bool, now_ms: int) -> None:
        """After replay: a new term; everybody recorded has the grace. What this records must be durable before the port opens.

        `assumed_loss`: the machine crashed under async flush, so a visible suffix of the log, grants in it included, may be gone.
        """
        state = self._state
        assert term > state.term, "a term never falls"
        state.fence.start(term)
        state.do(("broker.term", term))
        if state.told_grace_ms < state.config.disconnect_grace_ms:
            state.do(("broker.grace", state.config.disconnect_grace_ms))
        if assumed_loss:
            state.locks.end_all(state.fence.draw())
            state.progress.renew_all(state.fence.draw())
            if not state.holding:
                state.do(("broker.hold", True))
        self._mend_progress()
        self._know_groups()
        self._begin_grace(now_ms)

    def opened(self, now_ms: int) -> None:
        """The port is open: every grace counts from here, and nothing ends before the longest one that was told is over."""
        self._state.sessions.restart(now_ms, now_ms + self._state.told_grace_ms)
        self._begin_grace(now_ms)
        self._opened_ms = now_ms

    def _begin_grace(self, now_ms: int) -> None:
        self._ticked_ms = now_ms
        self._state.contracts_held = {group.name: None for group in self._state.groups if group.contract is not None}
        self._membership.recorded(now_ms)
        self._classic.recorded(now_ms)

    def _know_groups(self) -> None:
        """A log from before activity was recorded: its groups were active today."""
        state = self._state
        for names in ([group.name for group in state.groups], state.progress.groups(), state.locks.groups(), state.settings.groups()):
            for name in names:
                if name not in state.activity:
                    state.activity.active(name)

    def _mend_progress(self) -> None:
        """Progress outside its queue: the log was cut, and those offsets will be given to other messages; or the last life ended between
        the removal of old messages and the record of it.
        """
        state = self._state
        minimums: dict[tuple[str, int], int] = {}
        for key, progress in list(state.progress):
            end = state.bounds.end_offset(key[1], key[2])
            if progress.offset > end:
                state.progress.set(key, Progress(state.fence.draw(), end))
                state.end(key)
            minimums[key[1:]] = state.bounds.bounds(key[1], key[2])[0]
        for _ in self.retention_moved(minimums):
            pass

    # --------------------------------------------------------------------------------------------------------------- time

    def tick(self, now_ms: int) -> int:
        """What time alone changes: sessions and leases that are over, the end of the hold. Returns when to call next."""
        state = self._state
        if self._ticked_ms is not None and (pause_ms := now_ms - self._ticked_ms - TICK_MS_MAX) > 0:
            state.sessions.shift(pause_ms, now_ms)
        self._ticked_ms = now_ms
        if self._opened_ms is None:
            return now_ms + TICK_MS_MAX
        self._membership.expire(now_ms)
        self._classic.expire(now_ms)
        held_until = self._opened_ms + state.config.session_timeout_ms
        if state.contracts_held and now_ms >= held_until:
            state.contracts_held = {}
            for group in state.groups:
                state.settle(group.name)
        if now_ms >= self._opened_ms + state.told_grace_ms:
            self._end_start_grace()
        return self._next_due_ms(now_ms)

    def _end_start_grace(self) -> None:
        """Nobody from before the start can still be running on what it was told then."""
        state = self._state
        if state.told_grace_ms > state.config.disconnect_grace_ms:
            state.do(("broker.grace", state.config.disconnect_grace_ms))
        if state.holding:
            state.do(("broker.hold", False))
            for group in state.groups:
                state.tell_all_free(group)

    def _next_due_ms(self, now_ms: int) -> int:
        assert self._opened_ms is not None
        dues = [now_ms + TICK_MS_MAX, self._membership.next_due_ms(), self._classic.next_due_ms()]
        if self._state.holding or self._state.told_grace_ms > self._state.config.disconnect_grace_ms:
            dues.append(self._opened_ms + self._state.told_grace_ms)
        return max(now_ms + 1, min(due for due in dues if due is not None))

    def set_day(self, wall_ms: int) -> bool:
        """What day it is, for the activity of groups. Whether it is another one than before."""
        return self._state.activity.set_day(wall_ms // DAY_MS)

    def is_idle(self, group: str) -> bool:
        """Whether to forget a group. Ask once a day: a group that is in use counts as active on each day on which it is asked about."""
        state = self._state
        if group in state.activity and state.in_use(group):
            state.activity.active(group)
        days = state.config.group_idle_days
        return bool(days) and state.activity.idle_days(group) >= days

    def forget_group(self, group: str) -> int | None:
        """Forgets a group that is idle still; how many queues it had progress in. None: it is not idle any more."""
        state = self._state
        if state.in_use(group) or state.activity.idle_days(group) < state.config.group_idle_days:
            return None
        count = state.progress.count_of(group)
        state.forget(group)
        return count

    def drain(self, count_max: int | None = None, *, notices: bool = True) -> list[Effect]:
        """What is to be done in the world, in order; each effect once. `count_max` and `notices`: see GroupState.drain."""
        return self._state.drain(count_max, notices=notices)

    # --------------------------------------------------------------------------------------------------------- membership

    def heard(self, connection: int, now_ms: int) -> None:
        """A frame came in on this connection. Cheap: call it for every one."""
        self._state.sessions.heard(connection, now_ms)

    def has_session(self, connection: int) -> bool:
        """Whether this is a session's connection now."""
        return self._state.sessions.of_connection(connection) is not None

    def heartbeat(self, connection: int, body: HeartbeatBody, now_ms: int) -> HeartbeatReply | None:
        """HEART_BEAT. Raises SubscriptionConflictError, DuplicateClientIdError, LocalProtocolError."""
        return self._membership.heartbeat(connection, Heartbeat.of(body), now_ms)

    def parsed_heartbeat(self, connection: int, heartbeat: Heartbeat, now_ms: int) -> HeartbeatReply | None:
        """As `heartbeat`, of a body that has been checked and parsed."""
        return self._membership.heartbeat(connection, heartbeat, now_ms)

    def unregister(self, connection: int, client_id: str, group: str, now_ms: int) -> bool:
        """UNREGISTER_CLIENT of a consumer group. False: the connection is being closed."""
        return self._membership.unregister(connection, client_id, group, now_ms)

    def connection_closed(self, connection: int, now_ms: int) -> None:
        """Exactly once for every connection that is gone, also for those that `drain` asked to close."""
        self._membership.closed(connection, now_ms)

    def member_list(self, group: str) -> MemberList | None:
        """None: the group has no member here."""
        return self._membership.member_list(group)

    def member_count(self, group: str) -> int:
        """How many members the group has here."""
        known = self._state.groups.get(group)
        return 0 if known is None else len(known.members)

    def online(self, group: str) -> bool:
        """Whether the group has a member here (RocketMQ's condition for a pull that brings no subscription)."""
        return self._membership.member_list(group) is not None

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """What the group subscribes to of this topic: by its contract, else as its classic members say."""
        known = self._state.groups.get(group)
        if known is None:
            return None
        agreed = known.subscribed.get(topic)
        if agreed is not None:
            return replace(agreed, sub_version=known.sub_versions.get(topic, 0))
        return known.subscriptions.get(topic)

    # ------------------------------------------------------------------------------------------------- locks and progress

    def times_needed(self, connection: int, body: ReconcileBody) -> tuple[StartPolicy, ...]:
        """Start policies by time that this LOCK will resolve: look up `own_queue_ids` of the topic, pass the offsets to `reconcile`."""
        return self._lock_sync.times_needed(connection, body)

    def own_queue_ids(self, topic: str) -> list[int]:
        """This broker's readable queues of the topic."""
        return [queue.queue_id for queue in self._state.own_queues(topic)]

    def reconcile(self, connection: int, body: ReconcileBody, now_ms: int, by_time: OffsetsByTime | None = None) -> ReconcileReply | None:
        """LOCK_BATCH_MQ of a session. The answer waits until the log is confirmed."""
        return self._lock_sync.reconcile(connection, body, now_ms, by_time or {})

    def sync(self, connection: int, body: SyncBody, now_ms: int) -> SyncReply | None:
        """SYNC. The answer waits until the log is confirmed, unless the body has no items."""
        return self._lock_sync.sync(connection, body, now_ms)

    def check_pull(
        self, connection: int, group: str, topic: str, queue_id: int, epoch: int | None, generation: int | None = None
    ) -> PullCheck | None:
        """PULL_MESSAGE: ask again before a held pull is answered."""
        return self._classic.check_pull(connection, (group, topic, queue_id), epoch, generation)

    def begin(
        self, connection: int, header: QueryConsumerOffsetHeader, now_ms: int, by_time: OffsetsByTime | None = None
    ) -> LockAnswer | None:
        """QUERY_CONSUMER_OFFSET of a concurrent session: where it goes on. The answer waits until the log is confirmed."""
        return self._lock_sync.begin(connection, header, now_ms, by_time or {})

    def dead_lettered(self, connection: int, group: str, topic: str, queue_id: int, epoch: int, offset: int) -> bool | None:
        """DEAD_LETTER: whether progress is behind the message already; None: the epoch is over."""
        return self._lock_sync.dead_lettered(connection, (group, topic, queue_id), epoch, offset)

    def move_behind(self, group: str, topic: str, queue_id: int, offset: int, now_ms: int) -> None:
        """The message at `offset` was dead-lettered; what stands before it is finished."""
        self._state.progress.commit((group, topic, queue_id), offset + 1, 0, now_ms)

    def classic_lock(self, body: LockBatchBody, now_ms: int) -> LockBatchReply:
        """LOCK_BATCH_MQ of a classic client. The answer waits until the log is confirmed."""
        return self._classic.lock(body, now_ms)

    def classic_unlock(self, body: LockBatchBody) -> None:
        """UNLOCK_BATCH_MQ."""
        self._classic.unlock(body)

    def query_offset(self, group: str, topic: str, queue_id: int, *, young: bool) -> int | None:
        """QUERY_CONSUMER_OFFSET; `young`: Store.young_queue. None: QUERY_NOT_FOUND."""
        return self._classic.query_offset((group, topic, queue_id), young=young)

    def update_offset(self, connection: int, group: str, topic: str, queue_id: int, offset: int, now_ms: int) -> None:
        """UPDATE_CONSUMER_OFFSET, and the commit bit of a pull that may commit. NoPermissionError names who holds the queue."""
        self._classic.update_offset(connection, (group, topic, queue_id), offset, now_ms)

    def reset(self, body: ResetBody) -> ResetReply:
        """RESET_OFFSETS. The answer waits until the log is confirmed."""
        return reset(self._state, body)

    # ------------------------------------------------------------------------------------------------------ topics, status

    def layout_changed(self, topic: str) -> None:
        """A layout was adopted. A deleted topic loses progress and locks; queues that were added are free."""
        state = self._state
        state.tell_layout(topic)
        layout = state.layouts.get(topic)
        if layout is None or layout.deleted:
            state.drop_topic(topic)
            return
        for group in state.groups.of_topic(topic):
            state.tell_topic_free(group, topic)

    def retention_moved(self, minimums: Mapping[tuple[str, int], int]) -> Iterator[None]:
        """Retention removed what lies below the new minimum of (topic, queue id): groups that were not there yet are moved, and told.

        Yields after each (group, topic, queue) that was looked at, and each group: the caller may let other work in between. What a process
        that ends in between has not moved, the next start moves.
        """
        table = self._state.progress
        moved = dict.fromkeys(topic for topic, _ in minimums)
        for group in table.groups():
            yield
            for topic in [topic for topic in table.topics(group) if topic in moved]:
                for queue_id, _ in table.of_topic(group, topic):
                    self._move_up((group, topic, queue_id), minimums.get((topic, queue_id), 0))
                    yield

    def _move_up(self, key: Key, new_min: int) -> None:
        progress = self._state.progress.get(key)
        if progress is not None and progress.offset < new_min:
            first = progress.offset if progress.gap is None else progress.gap[0]
            self._state.progress.set(key, replace(progress, offset=new_min, attempts=0, gap=(first, new_min)))

    def progress(self) -> Iterator[tuple[Key, Progress]]:
        """Of every (group, topic, queue id) that has one: all at once, for tests and small brokers."""
        return iter(self._state.progress)

    def progress_topics(self, group: str) -> list[str]:
        """Topics in which the group has progress."""
        return self._state.progress.topics(group)

    def progress_of(self, group: str, topic: str) -> list[tuple[int, Progress]]:
        """(queue id, progress) of the group in the topic."""
        return self._state.progress.of_topic(group, topic)

    def progress_at(self, key: Key) -> Progress | None:
        return self._state.progress.get(key)

    @property
    def progress_count(self) -> int:
        """(group, topic, queue) that have progress."""
        return len(self._state.progress)

    @property
    def members_count(self) -> int:
        """Members of all groups."""
        return self._state.groups.members_count

    @property
    def subscription_bytes(self) -> int:
        """About the memory of what groups and members subscribe to."""
        return self._state.groups.subscription_bytes

    @property
    def group_count(self) -> int:
        """Groups of which anything is known."""
        return len(self._state.activity)

    @property
    def may_begin(self) -> Callable[[str], None] | None:
        """Raises ServiceNotAvailableError where the disk has no room for state that begins something."""
        return self._state.may_begin

    @may_begin.setter
    def may_begin(self, check: Callable[[str], None] | None) -> None:
        self._state.may_begin = check

    def check_group_room(self, group: str) -> None:
        """GroupState.check_group_room: whether the group may begin here. Records nothing."""
        self._state.check_group_room(group)

    def begin_group(self, group: str) -> None:
        """GroupState.begin: counts the group and notes it as active."""
        self._state.begin(group)

    def configure(self, settings: GroupSettings) -> None:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP. The answer waits until the log is confirmed."""
        check_group(settings.group)
        self._state.begin(settings.group)
        self._state.settings.set(settings)

    def delete_group(self, group: str, *, with_progress: bool) -> int | None:
        """DELETE_SUBSCRIPTIONGROUP. The answer waits until the log is confirmed. NoPermissionError while the group is in use.

        Removes the group's settings; `with_progress` also its progress and locks, all in one change of the log. Returns in how many queues
        progress was removed; None: nothing is known of the group. Its topics and their messages stay.
        """
        check_group(group)
        state = self._state
        if group not in state.activity:
            return None
        state.check_unused(group)
        if with_progress:
            count = state.progress.count_of(group)
            state.forget(group)
            return count
        if state.settings.get(group) is not None:
            state.settings.remove(group)
            state.tidy(group)
        return 0

    @property
    def settings_count(self) -> int:
        """Groups with settings: they are never forgotten."""
        return len(self._state.settings)

    def contract(self, group: str) -> ConsumerGroup | None:
        """What the group's members have agreed on; of a group without native members None."""
        known = self._state.groups.get(group)
        return None if known is None else known.contract

    def overruled_count(self, group: str) -> int:
        """How often a member's subscriptions replaced those of others, since the start."""
        return self._state.overruled.get(group, 0)

    def groups(self) -> tuple[str, ...]:
        """Every group of which anything is known."""
        return group_names(self._state)

    def status(self, group: str, now_ms: int, address: Callable[[int], str]) -> GroupStatus | None:
        """GROUP_STATUS of one group, all at once; `address` names the peer of a connection."""
        found = [self.member_status(group, client_id, now_ms, address) for client_id in self.member_ids(group)]
        queues = [self.queue_status(key, now_ms) for key in self.queue_keys(group)]
        return self.status_with(group, [member for member in found if member is not None], queues)

    def member_ids(self, group: str) -> tuple[str, ...]:
        """The members that its status tells of, sorted."""
        known = self._state.groups.get(group)
        return () if known is None else known.member_ids

    def member_status(self, group: str, client_id: str, now_ms: int, address: Callable[[int], str]) -> MemberStatus | None:
        """One of them; None: it has left."""
        return member_status(self._state, self._membership, group, client_id, now_ms, address)

    def queue_keys(self, group: str) -> Iterator[Key]:
        """The queues that its status tells of, sorted."""
        return queue_keys(self._state, group)

    def queue_status(self, key: Key, now_ms: int) -> QueueStatus:
        """One of them."""
        return queue_status(self._state, self._classic, key, now_ms)

    def status_with(self, group: str, members: list[MemberStatus], queues: list[QueueStatus]) -> GroupStatus | None:
        """As `status`, with what was found of members and queues. None: nothing is known of the group."""
        return group_status(self._state, group, members, queues)

    def held_count(self, group: str) -> int | None:
        """Queues of the group that are held; None of a group that is not ordered and of which no lock is known."""
        known, locks = self._state.groups.get(group), self._state.locks
        ordered = known is not None and known.contract is not None and known.contract.locks
        return locks.held_count(group) if ordered or locks.topics(group) else None

    def granted_counts(self) -> dict[str, int]:
        """Group → grants since this start: a queue that moves is granted once more."""
        return dict(self._state.locks.granted)

    @property
    def refused_update_count(self) -> int:
        """Commits without an epoch that were not applied because somebody else holds the queue."""
        return self._classic.refused_update_count
