"""PURGE_TOPIC: removes what a topic holds below an offset of each queue."""

from collections.abc import Awaitable, Callable, Sequence

from lockstep.broker.groups.unconsumed import describe_groups, unconsumed_groups
from lockstep.broker.state import BrokerState
from lockstep.broker.store import Store
from lockstep.broker.store.health.retention import Moved
from lockstep.protocol.bodies import PurgeBody, PurgedQueue, PurgeReply, UnconsumedGroup
from lockstep.protocol.bodies.purge import GROUPS_LISTED_MAX
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import LocalProtocolError, NoPermissionError, TopicNotExistError
from lockstep.protocol.names import check_topic, is_sendable_topic
from lockstep.runtime.limits import MEMBER_BYTES_MAX
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import DELETE, on_topic
from lockstep.runtime.requests.request import AuditedChange, HandlerResult, PendingResponse, Request
from lockstep.runtime.security.rights import Kind, resource

log = get_logger("broker")

PURGE_LANE = "purges"
"""The lane of purges: the groups that one moves are moved in many turns."""


class PurgeProcessor:
    """Purges topics. `move_groups` moves the groups past removed messages, as after retention."""

    def __init__(self, store: Store, state: BrokerState, move_groups: Callable[[Sequence[Moved]], Awaitable[None]]) -> None:
        self._store = store
        self._state = state
        self._move_groups = move_groups

    @handles(RequestCode.PURGE_TOPIC, None, PurgeBody, needs=[on_topic(DELETE)], lane=PURGE_LANE, body_bytes_max=MEMBER_BYTES_MAX)
    async def purge(self, request: Request) -> HandlerResult:
        """Purge all named queues, or none. Without `force` refuse if groups have not consumed all of it, in the turn of the purge.

        What a process has not moved of the groups before it ends, the next start moves.
        """
        body: PurgeBody = request.body
        queues = self._check(body)
        minimums = {queue.queue_id: queue.after for queue in queues if queue.before < queue.after}
        groups = unconsumed_groups(self._state.coordination.state, body.topic, minimums)
        reply = PurgeReply(queues, tuple(groups[:GROUPS_LISTED_MAX]), len(groups))
        if body.dry_run:
            request.change = None
            return request.reply(body=reply)
        if groups and not body.force:
            raise self._refusal(body.topic, groups)
        if minimums:
            self._state.purge(body.topic, minimums)
            removed = sum(queue.after - queue.before for queue in queues)
            facts = {"queues": minimums, "messages": removed, "groups_moved": len(groups)}
            log.info("topic.purged", topic=body.topic, peer=request.endpoint.peer, **facts)
            before = {queue.queue_id: queue.before for queue in queues}
            request.change = AuditedChange(resource(Kind.TOPIC, body.topic), before, minimums)
            await self._move_groups([(body.topic, queue_id, minimum) for queue_id, minimum in minimums.items()])
        return PendingResponse(request.reply(body=reply))

    def _check(self, body: PurgeBody) -> tuple[PurgedQueue, ...]:
        """Return what the purge removes. An offset below the first one of its queue removes nothing."""
        check_topic(body.topic)
        if not is_sendable_topic(body.topic):
            raise NoPermissionError(f"topic {body.topic} is the broker's own: it is not purged")
        count = self._state.topics.own_read_count(self._state.topics.require_layout(body.topic))
        name = self._state.coordination.state.config.broker_name
        queues: dict[int, PurgedQueue] = {}
        for wanted in body.queues:
            queue_id, offset = wanted.queue_id, wanted.offset
            if not 0 <= queue_id < count:
                raise TopicNotExistError(f"{body.topic} has no readable queue {queue_id} at {name}; nothing was purged here")
            first, end = self._store.bounds(body.topic, queue_id)
            if not 0 <= offset <= end or queue_id in queues:
                what = f"offset {offset} of {body.topic} queue {queue_id} at {name}"
                raise LocalProtocolError(f"{what}: expected one offset from 0 to {end} for each queue; nothing was purged here")
            queues[queue_id] = PurgedQueue(queue_id, first, max(first, offset))
        return tuple(queues.values())

    def _refusal(self, topic: str, groups: list[UnconsumedGroup]) -> NoPermissionError:
        name = self._state.coordination.state.config.broker_name
        return NoPermissionError(
            f"topic {topic} was not purged at {name}: not all of it was consumed by {describe_groups(groups)}. Let them consume it, end "
            "their progress by `lockstep group forget`, or use --force"
        )
