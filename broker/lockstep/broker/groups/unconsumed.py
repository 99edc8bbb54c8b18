"""Which groups have not consumed what a purge of a topic removes."""

from collections.abc import Mapping

from lockstep.broker.groups.group_state import GroupState
from lockstep.broker.groups.tables.lock_table import QueueKey
from lockstep.broker.groups.tables.progress_table import Progress
from lockstep.protocol.bodies import ParkState, UnconsumedGroup
from lockstep.protocol.done_ranges import above, below, count

NAMED_MAX = 8
"""Number of groups that a refusal names."""


def unconsumed_groups(state: GroupState, topic: str, minimums: Mapping[int, int]) -> list[UnconsumedGroup]:
    """Return the groups that have not consumed all messages below these offsets, by queue id; those with the most messages first.

    Each queue with progress of a group is looked at once. A group whose start policy was not resolved yet is not among them: it begins
    with what is left. Nor is a broadcasting group, whose members keep their progress themselves. Messages that damage has lost count too.
    """
    firsts = {queue_id: state.bounds.bounds(topic, queue_id)[0] for queue_id in minimums}
    unbegun = {
        queue_id: max(0, minimum - max(firsts[queue_id], state.progress.first_offset(topic, queue_id)))
        for queue_id, minimum in minimums.items()
    }
    all_unbegun = sum(unbegun.values())
    found = []
    for group in state.progress.groups_in_topic(topic):
        has_begun = state.progress.since(group, topic) is not None
        # It begins at the first message of each queue in which it has no progress.
        messages, parked = all_unbegun if has_begun else 0, 0
        for queue_id, progress in state.progress.progress_in_topic(group, topic):
            if (minimum := minimums.get(queue_id)) is None:
                continue
            messages -= unbegun[queue_id] if has_begun else 0
            messages += _unfinished_count(progress, firsts[queue_id], minimum)
            parked += _waiting_count(state, (group, topic, queue_id), minimum)
        if messages or parked:
            found.append(UnconsumedGroup(group, messages, parked))
    return sorted(found, key=lambda each: (-each.messages, -each.parked, each.group))


def _unfinished_count(progress: Progress, first: int, minimum: int) -> int:
    """Return how many messages from `first` up to `minimum` are not finished."""
    low = max(progress.offset, first)
    return minimum - low - count(below(above(progress.done, low), minimum)) if low < minimum else 0


def _waiting_count(state: GroupState, key: QueueKey, minimum: int) -> int:
    """Return the number of parked keys that may wait with messages below `minimum`."""
    return sum(row.state is not ParkState.ENDED and row.next < minimum for row in state.parks.rows(key)) if key in state.parks else 0


def describe_groups(groups: list[UnconsumedGroup]) -> str:
    """Return the groups for an error text."""
    named = [f"{each.group} ({each.messages} messages" + (f", {each.parked} parked keys" if each.parked else "") + ")" for each in groups]
    more = len(named) - NAMED_MAX
    return ", ".join(named[:NAMED_MAX]) + (f" and {more} others" if more > 0 else "")
