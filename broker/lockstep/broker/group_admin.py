"""What operators and time change in a group: settings, deletion, resets, the end of idle groups."""

from lockstep.broker.group_state import GroupState
from lockstep.broker.reset import reset
from lockstep.protocol.bodies import GroupSettings, ResetBody, ResetReply
from lockstep.protocol.names import check_group


class GroupAdmin:
    """Changes the state of groups. A call's changes wait for the log: its response is sent when the log is confirmed."""

    def __init__(self, state: GroupState) -> None:
        self._state = state

    def set_settings(self, settings: GroupSettings) -> None:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
        check_group(settings.group)
        self._state.register_group(settings.group)
        self._state.settings.record_settings(settings)

    def delete_group(self, group: str, *, with_progress: bool) -> int | None:
        """DELETE_SUBSCRIPTIONGROUP: remove the group's settings and, with `with_progress`, its progress and locks, all in one change of the
        log.

        Return the number of queues whose progress was removed; None if the group is unknown. Its topics and their messages stay. Raise
        NoPermissionError while the group is in use.
        """
        check_group(group)
        state = self._state
        if group not in state.activity:
            return None
        state.check_unused(group)
        if with_progress:
            count = state.progress.queue_count(group)
            state.forget_group(group)
            return count
        if state.settings.get(group) is not None:
            state.settings.record_removal(group)
            state.forget_if_empty(group)
        return 0

    def reset_progress(self, body: ResetBody) -> ResetReply:
        """RESET_OFFSETS."""
        return reset(self._state, body)

    def is_idle(self, group: str) -> bool:
        """Return whether to forget the group. Ask once a day: a group in use counts as active on each day on which this is called."""
        state = self._state
        if group in state.activity and state.in_use(group):
            state.activity.record_activity(group)
        days = state.config.group_idle_days
        return bool(days) and state.activity.idle_days(group) >= days

    def forget_idle(self, group: str) -> int | None:
        """Forget a group that is still idle. Return the number of queues in which it had progress; None if it is not idle any more."""
        state = self._state
        if state.in_use(group) or state.activity.idle_days(group) < state.config.group_idle_days:
            return None
        count = state.progress.queue_count(group)
        state.forget_group(group)
        return count
