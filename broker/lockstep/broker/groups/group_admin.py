"""Settings, deletion, resets and expiry of groups. RocketMQ: AdminBrokerProcessor (resetOffset, which needs a notice to the clients)."""

from lockstep.broker.groups.group_state import GroupState
from lockstep.broker.groups.tables.progress_table import Progress
from lockstep.protocol.bodies import GroupSettings, QueueOffset, ResetBody, ResetReply
from lockstep.protocol.errors import LocalProtocolError, NoPermissionError, StaleEpochError, TopicNotExistError
from lockstep.protocol.names import check_group, check_topic, group_of_topic

NAMED_MAX = 8
"""Number of clients that a refusal names."""


class GroupAdmin:
    """Carries out the requests of operators about groups. Responses wait until the log is confirmed."""

    def __init__(self, state: GroupState) -> None:
        self._state = state

    def set_settings(self, settings: GroupSettings) -> None:
        """Handle UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
        check_group(settings.group)
        self._state.register_group(settings.group)
        self._state.settings.record_settings(settings)

    def delete_group(self, group: str, *, with_progress: bool) -> int | None:
        """Handle DELETE_SUBSCRIPTIONGROUP: remove the group's settings and, `with_progress`, its progress and locks, in one change.

        Return the number of queues in which progress was removed, or None if the group is unknown. Its topics and their messages remain.
        Raise NoPermissionError while the group is in use.
        """
        check_group(group)
        state = self._state
        if group not in state.activity:
            return None
        self.check_unused(group)
        if with_progress:
            count = state.progress.queue_count(group)
            state.forget_group(group)
            return count
        if state.settings.get(group) is not None:
            state.settings.record_removal(group)
            state.forget_if_empty(group)
        return 0

    def forget_progress(self, group: str, topic: str) -> int:
        """Handle FORGET_PROGRESS: end the group's progress in one topic, with its locks there, in one turn (ordering.md 11.6).

        Return the number of queues in which it had progress. If the group comes back to the topic, it begins by its start policy.

        Raises NoPermissionError while a member consumes the topic or holds a queue of it, and ParkRefusedError while keys are parked there.
        """
        check_group(group)
        check_topic(topic)
        if group_of_topic(topic) == group:
            raise NoPermissionError(f"{topic} has the retries of group {group}: its progress there ends with the group, by its deletion")
        state = self._state
        queues = state.progress.progress_in_topic(group, topic)
        if not queues:
            return 0
        self._check_left(group, topic)
        keys = [(group, topic, queue_id) for queue_id, _ in queues]
        for key in keys:
            state.check_not_parked(key)
        for key in keys:
            state.parks.clear(key)
            state.pending.end_held_pulls(key)
        state.locks.forget(group, topic)
        state.progress.forget(group, topic)
        state.forget_if_empty(group)
        return len(keys)

    def _check_left(self, group: str, topic: str) -> None:
        """Raise NoPermissionError if a member may consume the topic, or a client holds a queue of it."""
        state = self._state
        known = state.groups.get(group)
        if known is not None and known.members and not state.has_left(group, topic):
            names = ", ".join(known.member_ids[:NAMED_MAX]) + (" …" if len(known.members) > NAMED_MAX else "")
            what = f"may consume it: {names}. Let them stop, or subscribe to other topics"
        elif state.locks.is_any_held(group, topic):
            what = "hold queues of it, and finish their last calls. Wait until they have"
        else:
            return
        raise NoPermissionError(
            f"the progress of group {group} in {topic} was not ended: clients at {state.config.broker_name} {what}, and run "
            f"`lockstep group forget {group} --topic {topic}` again"
        )

    def reset_progress(self, body: ResetBody) -> ResetReply:
        """Handle RESET_OFFSETS: set the group's progress in all named queues, or in none (ordering.md 7.6, 7.7).

        Each queue gets a new generation, and its grant ends. Requests of a member under the old grant are STALE: it drops the queue and
        the messages that it has fetched, and continues from the new offset when its listener has returned. No process has to be
        restarted. The queue is not granted to another member before the holder has learned of the reset or its session has ended (O3).
        Requests of classic members carry no generation: they are told by PULL_OFFSET_MOVED (ordering.md 12.5), but not of a native member's
        seek, which names the generation that it knows.

        Raises TopicNotExistError, LocalProtocolError, StaleEpochError if a named generation has ended, or ParkRefusedError while keys are
        parked, unless the request forgets them.
        """
        state = self._state
        self._check_reset(body)
        keys = {queue.queue_id: (body.group, body.topic, queue.queue_id) for queue in body.queues}
        state.limits.check_progress_room(body.group, body.topic, sum(state.progress.get(key) is None for key in keys.values()))
        state.register_group(body.group)
        group = state.groups.get(body.group)
        has_classic = group is not None and group.has_classic_members
        before = []
        for queue in body.queues:
            key = keys[queue.queue_id]
            progress = state.progress.get(key)
            before.append(QueueOffset(queue.queue_id, -1 if progress is None else progress.offset))
            unannounced = has_classic and queue.generation is None
            state.parks.clear(key)
            state.progress.set_progress(key, Progress(state.fence.draw(), queue.offset, unannounced=unannounced))
            state.supersede_grant(key)
        return ResetReply(tuple(before))

    def _check_reset(self, body: ResetBody) -> None:
        state = self._state
        check_group(body.group)
        group = state.groups.get(body.group)
        if group is not None and group.contract is not None and group.contract.broadcasting:
            raise LocalProtocolError(f"group {body.group} is broadcasting: each member keeps its own progress, there is none here to reset")
        for queue in body.queues:
            if not state.has_queue(body.topic, queue.queue_id):
                raise TopicNotExistError(f"{body.topic} has no readable queue {queue.queue_id} at {state.config.broker_name}")
            first, end = state.bounds.bounds(body.topic, queue.queue_id)[0], state.bounds.end_offset(body.topic, queue.queue_id)
            if not first <= queue.offset <= end:
                what = f"offset {queue.offset} of {body.topic} queue {queue.queue_id} at {state.config.broker_name}"
                raise LocalProtocolError(f"{what}: expected {first} to {end}; nothing was reset here")
            if not body.drop_parked:
                state.check_not_parked((body.group, body.topic, queue.queue_id))
            now = state.progress.get((body.group, body.topic, queue.queue_id))
            if queue.generation is not None and (now is None or now.generation != queue.generation):
                what = f"generation {queue.generation} of {body.group} at {body.topic} queue {queue.queue_id}"
                raise StaleEpochError(f"{what} has ended; nothing was reset here")

    def in_use(self, group: str) -> bool:
        """Return whether the group has a member, a contract, a held queue, or settings of an operator."""
        state = self._state
        known = state.groups.get(group)
        used = known is not None and (known.members or known.contract is not None)
        return bool(used or state.locks.held_count(group) or state.settings.get(group))

    def check_unused(self, group: str) -> None:
        """Raise NoPermissionError, which names the clients, if the group has a member or a held queue here."""
        state, config = self._state, self._state.config
        known = state.groups.get(group)
        members = () if known is None else known.member_ids
        holders: dict[str, None] = {}
        if members:
            what, then = f"has {len(members)} members at {config.broker_name}", "Stop them"
        elif state.locks.held_count(group):
            holders = dict.fromkeys(str(lock.client_id) for _, lock in state.locks.locks_of_group(group) if lock.held)
            what = f"has queues at {config.broker_name} that are held by clients which are not members (any more)"
            at_the_latest_s = max(config.classic_lock_ms, config.session_timeout_ms) // 1000
            then = f"They are free at the latest {at_the_latest_s} s after the clients have stopped: wait"
        else:
            return
        names = list(members or holders)
        listed = ", ".join(names[:NAMED_MAX]) + (" …" if len(names) > NAMED_MAX else "")
        raise NoPermissionError(
            f"group {group} was not deleted: it {what}: {listed}. {then}, and run `lockstep group delete {group}` again"
        )

    def is_idle(self, group: str) -> bool:
        """Return whether to forget a group. Call it once a day: a group in use is recorded as active on each day of a call."""
        state = self._state
        if group in state.activity and self.in_use(group):
            state.activity.record_activity(group)
        return state.activity.is_idle(group, state.config.group_idle_days)

    def forget_idle(self, group: str) -> int | None:
        """Forget a group if it is still idle. Return the number of queues in which it had progress, or None if it is not idle."""
        state = self._state
        if self.in_use(group) or not state.activity.is_idle(group, state.config.group_idle_days):
            return None
        count = state.progress.queue_count(group)
        state.forget_group(group)
        return count
