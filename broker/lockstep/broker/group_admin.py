"""What operators and time do to a group: settings, deletion, resets, the end of idle groups."""

from lockstep.broker.group_state import GroupState
from lockstep.broker.reset import reset
from lockstep.protocol.bodies import GroupSettings, ResetBody, ResetReply
from lockstep.protocol.names import check_group


class GroupAdmin:
    """Over the state of the groups. What a call records waits for the log: its response leaves when the log is confirmed."""

    def __init__(self, state: GroupState) -> None:
        self._state = state

    def set_settings(self, settings: GroupSettings) -> None:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
        check_group(settings.group)
        self._state.register_group(settings.group)
        self._state.settings.record_settings(settings)

    def delete_group(self, group: str, *, with_progress: bool) -> int | None:
        """DELETE_SUBSCRIPTIONGROUP: remove the group's settings; `with_progress` also its progress and locks, all in one change of the log.

        Returns in how many queues progress was removed; None if nothing is known of the group. Its topics and their messages stay. Raises
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
        """Whether to forget a group. Ask once a day: a group that is in use counts as active on each day on which it is asked about."""
        state = self._state
        if group in state.activity and state.in_use(group):
            state.activity.record_activity(group)
        days = state.config.group_idle_days
        return bool(days) and state.activity.idle_days(group) >= days

    def forget_idle(self, group: str) -> int | None:
        """Forget a group that is still idle. Returns in how many queues it had progress; None if it is not idle any more."""
        state = self._state
        if state.in_use(group) or state.activity.idle_days(group) < state.config.group_idle_days:
            return None
        count = state.progress.queue_count(group)
        state.forget_group(group)
        return count
