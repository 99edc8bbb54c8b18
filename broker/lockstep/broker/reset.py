"""Sets a group's progress (ordering.md 7.6, 7.7). RocketMQ: AdminBrokerProcessor.resetOffset, of which it has to notify its clients.

A reset draws a new generation and ends the grant: everything that a running member has of the old one is STALE, so it drops the queue and
the messages that it fetched, and goes on from the new offset when its listener has returned. Nothing has to be restarted. No other member
is granted the queue before that member knows of the reset (O3), or its session has ended.
"""

from lockstep.broker.group_state import GroupState
from lockstep.broker.tables.progress_table import Progress
from lockstep.protocol.bodies import QueueOffset, ResetBody, ResetReply
from lockstep.protocol.errors import LocalProtocolError, StaleEpochError, TopicNotExistError
from lockstep.protocol.names import check_group


def reset(state: GroupState, body: ResetBody) -> ResetReply:
    """Reset all queues or, if one can't be reset (TopicNotExistError, LocalProtocolError, StaleEpochError), none."""
    check_group(body.group)
    group = state.groups.get(body.group)
    if group is not None and group.contract is not None and group.contract.broadcasting:
        raise LocalProtocolError(f"group {body.group} is broadcasting: each member keeps its own progress, there is none here to reset")
    for wanted in body.queues:
        if not state.has_queue(body.topic, wanted.queue_id):
            raise TopicNotExistError(f"{body.topic} has no readable queue {wanted.queue_id} at {state.config.broker_name}")
        first, end = state.bounds.bounds(body.topic, wanted.queue_id)[0], state.bounds.end_offset(body.topic, wanted.queue_id)
        if not first <= wanted.offset <= end:
            what = f"offset {wanted.offset} of {body.topic} queue {wanted.queue_id} at {state.config.broker_name}"
            raise LocalProtocolError(f"{what}: expected {first} to {end}; nothing was reset here")
        now = state.progress.get((body.group, body.topic, wanted.queue_id))
        if wanted.generation is not None and (now is None or now.generation != wanted.generation):
            raise StaleEpochError(
                f"generation {wanted.generation} of {body.group} at {body.topic} queue {wanted.queue_id} is over; nothing was reset here"
            )
    ids = dict.fromkeys(wanted.queue_id for wanted in body.queues)
    state.check_progress_room(
        body.group, body.topic, sum(state.progress.get((body.group, body.topic, queue_id)) is None for queue_id in ids)
    )
    state.register_group(body.group)
    before = []
    for wanted in body.queues:
        key = (body.group, body.topic, wanted.queue_id)
        progress = state.progress.get(key)
        before.append(QueueOffset(wanted.queue_id, -1 if progress is None else progress.offset))
        state.progress.set_progress(key, Progress(state.fence.draw(), wanted.offset))
        state.supersede_grant(key)
    return ResetReply(tuple(before))
