"""Coordination of one broker: sessions, member lists, locks and progress under one set of rules (ordering.md 1 to 8, 11, 12).

Pure: a connection is an int, time is `now_ms` of one monotonic clock that also counts while the machine is suspended. Actions leave as
values through `PendingEffects.drain` (effects.py). Durable changes go to the Journal and return through `apply`.

    group_state.py     the tables, and each step that touches several of them: free a queue, end a grant, join, leave
    group_limits.py    how much may be stored for groups
    pending_effects.py notices and closes that wait for the next drain
    membership.py      HEART_BEAT, member lists
    contract.py        what members must agree on    contract_changes.py  which contracts are in force
    lock_sync.py       LOCK and SYNC of sessions     start_policy.py  where a group begins in a topic
    legacy_clients.py  requests without an epoch     pull_fence.py    whether a pull may be served
    group_admin.py     settings, resets, deletion    group_status.py  the status of a group
    parking.py         keys that are set aside
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from lockstep.broker.groups.group_admin import GroupAdmin
from lockstep.broker.groups.group_state import GroupState
from lockstep.broker.groups.group_status import GroupStatusReader
from lockstep.broker.groups.group_tables import CoordinationConfig, QueueBounds
from lockstep.broker.groups.legacy_clients import LegacyClients
from lockstep.broker.groups.lock_sync import LockSync
from lockstep.broker.groups.membership import GroupMembers
from lockstep.broker.groups.parking import Parking
from lockstep.broker.groups.pull_fence import PullFence
from lockstep.broker.groups.start_policy import StartPositions
from lockstep.broker.groups.tables.activity_table import DAY_MS, ActivityTable
from lockstep.broker.groups.tables.group_table import GroupTable
from lockstep.broker.groups.tables.lock_table import LockTable, QueueKey
from lockstep.broker.groups.tables.park_table import ParkTable
from lockstep.broker.groups.tables.progress_table import Progress, ProgressTable
from lockstep.broker.groups.tables.settings_table import SettingsTable
from lockstep.broker.journal import Change, Journal
from lockstep.broker.stored_form import check_parts
from lockstep.protocol.done_ranges import above, below, skip
from lockstep.protocol.topics.layouts import LayoutTable

__all__ = ["TICK_MS_MAX", "Coordination", "CoordinationConfig", "QueueBounds", "next_term"]

HANDSHAKES_MS = 1_000
"""How long a client has for its first HEART_BEAT, after its connection could be accepted."""
START_GRACES_MAX = 10
"""10 graces of 3 s are the handshakes of 30,000 clients."""
TICK_MS_MAX = 1_000
"""`tick` is due at least this often. If it is called later, this process was paused and could not receive anything in that time."""
SECONDS_2020 = 1_577_836_800
"""2020-01-01 in seconds since 1970."""


def next_term(last_term: int, wall_ms: int) -> int:
    """Return max(last + 1, seconds since 2020-01-01), so that fencing numbers never fall, not even after a wiped or restored store."""
    return max(last_term + 1, wall_ms // 1000 - SECONDS_2020)


class Coordination:
    """The parts that coordinate a broker's groups, over one state, and what concerns all of them: replay, starts, time.

    Start:   restore() the snapshot, apply() the changes after it, enter_term(next_term(state.term, wall_ms), …), sync the log, open the
             port, port_opened().
    Running: state.sessions.touch() for every frame that arrives, the methods of the parts, tick() when it is due, and state.pending.drain()
             after each call of `state.pending.on_effects`.

    If a method of a part returns None instead of a reply, the connection is being closed: send no response.
    """

    KINDS = frozenset[str]().union(
        *(each.KINDS for each in (GroupState, ActivityTable, GroupTable, LockTable, ParkTable, ProgressTable, SettingsTable))
    )
    """Kinds of the journal changes that `apply` accepts."""

    def __init__(self, config: CoordinationConfig, layouts: LayoutTable, bounds: QueueBounds, journal: Journal) -> None:
        self.state = GroupState(config, layouts, bounds, journal)
        self.membership = GroupMembers(self.state)
        self.starts = StartPositions(self.state)
        self.lock_sync = LockSync(self.state, self.starts)
        self.legacy = LegacyClients(self.state, self.membership)
        self.pulls = PullFence(self.state, self.lock_sync, self.legacy)
        self.admin = GroupAdmin(self.state)
        self.parking = Parking(self.state)
        self.status = GroupStatusReader(self.state, self.membership, self.legacy)
        self._opened_ms: int | None = None
        self._ticked_ms: int | None = None

    # ------------------------------------------------------------------------------------------------------------ durable

    def apply(self, change: Change) -> None:
        """Apply one change from the log. Its kind is one of KINDS."""
        kind = change[0]
        if kind in LockTable.KINDS:
            self.state.locks.apply(change)
        elif kind in ProgressTable.KINDS:
            self.state.progress.apply(change)
        elif kind in ParkTable.KINDS:
            self.state.parks.apply(change)
        elif kind in GroupTable.KINDS:
            self.state.groups.apply(change)
        elif kind in SettingsTable.KINDS:
            self.state.settings.apply(change)
        elif kind in ActivityTable.KINDS:
            self.state.activity.apply(change)
            if kind == "group.forgotten":
                self.state.drop_group(change[1])
        else:
            self.state.apply(change)

    def snapshot(self) -> dict[str, Any]:
        """Return all durable state as plain values."""
        state = self.state
        return {
            "term": state.term,
            "holding": state.grants_suspended,
            "classic_holding": state.classic_suspended,
            "told_grace_ms": state.promised_grace_ms,
            "groups": state.groups.snapshot(),
            "locks": state.locks.snapshot(),
            "progress": state.progress.snapshot(),
            "settings": state.settings.snapshot(),
            "activity": state.activity.snapshot(),
            "parks": state.parks.snapshot(),
        }

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Restore a snapshot into empty tables. Raise UnknownFormError if it has a part that `snapshot` does not write."""
        check_parts("the coordination", plain, self.snapshot())
        state = self.state
        state.term, state.grants_suspended, state.promised_grace_ms = plain["term"], plain["holding"], plain["told_grace_ms"]
        state.classic_suspended = plain["classic_holding"]
        state.groups.restore(plain["groups"])
        state.locks.restore(plain["locks"])
        state.progress.restore(plain["progress"])
        state.settings.restore(plain["settings"])
        state.activity.restore(plain["activity"])
        state.parks.restore(plain["parks"])

    # -------------------------------------------------------------------------------------------------------------- start

    def enter_term(self, term: int, *, assumed_loss: bool, now_ms: int) -> None:
        """Begin a new term after replay. All recorded members have the grace. The changes must be durable before the port opens.

        `assumed_loss`: the machine crashed under async flush, so a visible suffix of the log, including grants, may be lost.
        """
        state = self.state
        assert term > state.term, "a term never falls"
        state.fence.start_term(term)
        state.record(("broker.term", term))
        if state.promised_grace_ms < state.config.disconnect_grace_ms:
            state.record(("broker.grace", state.config.disconnect_grace_ms))
        if assumed_loss:
            state.locks.record_end_of_all(state.fence.draw())
            state.progress.renew_generations(state.fence.draw())
            if not state.grants_suspended:
                state.record(("broker.hold", True))
            if not state.classic_suspended:
                state.record(("broker.classic_hold", True))
        self._repair_progress()
        self._register_known_groups()
        self._start_grace(now_ms)

    def port_opened(self, now_ms: int) -> None:
        """Start every grace again, because the port is open. No session ends before the longest grace that was promised is over."""
        self.state.sessions.restart_timeouts(now_ms, now_ms + self.state.promised_grace_ms)
        self._start_grace(now_ms)
        self._opened_ms = now_ms
        self.state.start_grace_ends_ms = now_ms + self.state.promised_grace_ms
        self.state.classic_hold_ends_ms = now_ms + max(self.state.promised_grace_ms, self.state.config.classic_trust_ms)

    def extend_start_grace(self, now_ms: int) -> None:
        """Let the grace of a start end 1 s from now at the earliest, if it is not over: clients are still shaking hands.

        All clients of a restarted broker connect at once, and a handshake of TLS costs the broker about a millisecond. No longer than
        START_GRACES_MAX graces: somebody may open connections all the time.
        """
        state = self.state
        ends_ms = state.start_grace_ends_ms
        if self._opened_ms is None or ends_ms is None or now_ms > ends_ms:
            return
        until_ms = min(now_ms + HANDSHAKES_MS, self._opened_ms + START_GRACES_MAX * state.promised_grace_ms)
        if until_ms > ends_ms:
            state.start_grace_ends_ms = until_ms
            state.sessions.postpone_expiry(until_ms)

    def keep_sessions(self, now_ms: int) -> None:
        """Let no session end before its client has had the grace to come back from now on: the broker refuses all clients now."""
        self.state.sessions.postpone_expiry(now_ms + TICK_MS_MAX + self.state.promised_grace_ms)

    def _start_grace(self, now_ms: int) -> None:
        self._ticked_ms = now_ms
        self.state.retained_contracts = {group.name: None for group in self.state.groups if group.contract is not None}
        self.membership.restore_members(now_ms)
        self.legacy.restore_leases(now_ms)

    def _register_known_groups(self) -> None:
        """Register the groups whose activity was recorded in a damaged part of the log, as active today."""
        state = self.state
        for names in ([group.name for group in state.groups], state.progress.groups(), state.locks.groups(), state.settings.groups()):
            for name in names:
                if name not in state.activity:
                    state.activity.record_activity(name)

    def _repair_progress(self) -> None:
        """Correct progress that is outside its queue, and where groups begin.

        It is beyond the end if the log lost a suffix: those offsets will be given to other messages. It is below the minimum if the last
        process ended between the removal of old messages and the record of it.
        """
        state = self.state
        minimums: dict[tuple[str, int], int] = {}
        for key, progress in list(state.progress):
            end = state.bounds.end_offset(key[1], key[2])
            if progress.offset > end:
                state.progress.set_progress(key, Progress(state.fence.draw(), end, unannounced=True))
                state.end_grant(key, "its progress was beyond the queue")
            elif progress.done and progress.done[-1] > end:
                renewed = replace(progress, generation=state.fence.draw(), unannounced=True, done=below(progress.done, end))
                state.progress.set_progress(key, renewed)
                state.end_grant(key, "its progress was beyond the queue")
            minimums[key[1:]] = state.bounds.bounds(key[1], key[2])[0]
        for topic, queue_id, first in state.progress.first_offsets():
            if first > (end := state.bounds.end_offset(topic, queue_id)):
                state.progress.record_reopened(topic, [(queue_id, end)])
        for _ in self.skip_removed(minimums):
            pass
        for queue in dict.fromkeys((row.group, row.topic, row.queue_id) for row in state.parks):
            state.parks.move_within(queue, state.bounds.bounds(*queue[1:])[0], state.bounds.end_offset(*queue[1:]))

    # --------------------------------------------------------------------------------------------------------------- time

    def tick(self, now_ms: int) -> int:
        """Do what is due by time alone: end sessions and leases, allow grants again. Return when to call it next."""
        state = self.state
        if self._ticked_ms is not None and (pause_ms := now_ms - self._ticked_ms - TICK_MS_MAX) > 0:
            state.sessions.exclude_pause(pause_ms, now_ms)
        self._ticked_ms = now_ms
        if self._opened_ms is None:
            return now_ms + TICK_MS_MAX
        self.membership.expire(now_ms)
        self.legacy.expire(now_ms)
        held_until = self._opened_ms + state.config.session_timeout_ms
        if state.retained_contracts and now_ms >= held_until:
            state.retained_contracts = {}
            for group in state.groups:
                state.drop_unused_contract(group.name)
        if state.start_grace_ends_ms is not None and now_ms >= state.start_grace_ends_ms:
            self._end_start_grace()
        if state.classic_suspended and state.classic_hold_ends_ms is not None and now_ms >= state.classic_hold_ends_ms:
            self._end_classic_hold()
        return self._next_due_ms(now_ms)

    def _end_start_grace(self) -> None:
        """End the grace after a start: no client can still work under a grace that an earlier start promised."""
        state = self.state
        if state.promised_grace_ms > state.config.disconnect_grace_ms:
            state.record(("broker.grace", state.config.disconnect_grace_ms))
        if state.grants_suspended:
            state.record(("broker.hold", False))
            for group in state.groups:
                state.pending.notify_group_free(group)

    def _end_classic_hold(self) -> None:
        """End the hold of classic clients: none trusts a lock of before the start any more."""
        self.state.record(("broker.classic_hold", False))
        for group in self.state.groups:
            if group.has_classic_members:
                self.state.pending.notify_group_free(group)
                self.state.pending.notify_classic_free(group)

    def _next_due_ms(self, now_ms: int) -> int:
        dues = [now_ms + TICK_MS_MAX, self.membership.next_due_ms(), self.legacy.next_due_ms()]
        if self.state.grants_suspended or self.state.promised_grace_ms > self.state.config.disconnect_grace_ms:
            dues.append(self.state.start_grace_ends_ms)
        if self.state.classic_suspended:
            dues.append(self.state.classic_hold_ends_ms)
        return max(now_ms + 1, min(due for due in dues if due is not None))

    def set_day(self, wall_ms: int) -> bool:
        """Set the day for the activity of groups. Return whether it differs from the previous one."""
        return self.state.activity.set_day(wall_ms // DAY_MS)

    # ------------------------------------------------------------------------------------------------------ topics, status

    def layout_changed(self, topic: str) -> None:
        """Adapt to a layout that was adopted: a deleted topic loses progress and locks, and queues that were added are free."""
        state = self.state
        state.pending.notify_layout_changed(topic)
        layout = state.layouts.get(topic)
        if layout is None or layout.deleted:
            state.drop_topic(topic)
            return
        for group in state.groups.groups_subscribed_to(topic):
            state.pending.notify_topic_free(group, topic)

    def queues_added(self, topic: str, added: Mapping[int, bool]) -> None:
        """Record where groups begin in queues that a layout has added: not at messages from before (ordering.md 7.2).

        `added`: queue id → whether an operator has removed the queue before. If so, its messages are stored, and the group begins after
        them. Else those of an earlier topic of the same name are deleted: the group begins at the first offset that the queue still has.
        """
        end, bounds = self.state.bounds.end_offset, self.state.bounds.bounds
        begins = [(number, end(topic, number) if removed else bounds(topic, number)[0]) for number, removed in added.items()]
        if any(begin for _, begin in begins):
            self.state.progress.record_reopened(topic, begins)

    def topic_created(self, topic: str) -> None:
        """Record that groups which subscribe to a topic that has come to exist begin at its first message (ordering.md 7.8)."""
        for group in self.state.groups.groups_subscribed_to(topic) if self.starts.own_queue_ids(topic) else ():
            self.starts.begin_at_first(group, topic)

    def skip_removed(self, minimums: Mapping[tuple[str, int], int]) -> Iterator[None]:
        """Move groups forward to the new minimum of (topic, queue id) if retention or a purge removed messages that they have not consumed.

        The lost range is recorded as a gap. Yields after each (group, topic, queue) and each group, so that the caller may let other work
        run in between. What a process has not moved before it ends, the next start moves.
        """
        table = self.state.progress
        moved = dict.fromkeys(topic for topic, _ in minimums)
        for group in table.groups():
            yield
            for topic in [topic for topic in table.topics_of_group(group) if topic in moved]:
                for queue_id, _ in table.progress_in_topic(group, topic):
                    self._skip_to((group, topic, queue_id), minimums.get((topic, queue_id), 0))
                    yield

    def _skip_to(self, key: QueueKey, new_min: int) -> None:
        progress = self.state.progress.get(key)
        self.state.parks.move_within(key, new_min, sys.maxsize)
        if progress is not None and progress.offset < new_min:
            first = progress.offset if progress.gap is None else progress.gap[0]
            offset = skip(progress.done, new_min)
            moved = replace(progress, offset=offset, attempts=0, gap=(first, new_min), done=above(progress.done, offset))
            self.state.progress.skip_lost(key, moved, self._ticked_ms)
