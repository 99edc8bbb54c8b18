"""PARK, PARK_END and PARK_CONTROL: keys of ordered groups that are set aside (ordering.md 15)."""

from lockstep.broker.delivery.parked_copies import ParkedCopies
from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.groups.tables.park_table import sharding_key_in
from lockstep.broker.processors.send_back import SEND_BACK_LANE
from lockstep.broker.store import ReadStatus, Store
from lockstep.broker.store.queues.predicates import stored_properties
from lockstep.protocol.bodies import ParkAction, ParkControlBody
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import BrokerSystemError, StaleEpochError
from lockstep.protocol.headers.park import ParkEndHeader, ParkHeader
from lockstep.protocol.names import check_group
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import GET, SUB, UPDATE, inside, on_group, on_topic
from lockstep.runtime.requests.request import NO_RESPONSE, AuditedChange, HandlerResult, PendingResponse, Request
from lockstep.runtime.security.rights import Kind, resource

log = get_logger("broker.park")


class ParkProcessor:
    def __init__(self, store: Store, coordination: Coordination, copies: ParkedCopies) -> None:
        self._store = store
        self._coordination = coordination
        self._copies = copies

    @handles(RequestCode.PARK, ParkHeader, needs=[on_group(SUB), on_topic(SUB)], lane=SEND_BACK_LANE)
    async def park(self, request: Request) -> HandlerResult:
        header: ParkHeader = request.header
        check_group(header.consumer_group)
        result = await self._store.read_or_wait(header.topic, header.queue_id, header.offset, 1, 1)
        if request.endpoint.closed:
            return NO_RESPONSE
        self._check_epoch(request)
        self._check_stored(header)
        if result.status is not ReadStatus.FOUND:
            raise BrokerSystemError(f"{header.topic} queue {header.queue_id} has no message at {header.offset}: {result.status.value}")
        data = result.parts[0]
        key = sharding_key_in(stored_properties(data, 0, len(data)))
        self._coordination.parking.park(header, key, self._store.now_ms())
        facts = {"group": header.consumer_group, "topic": header.topic, "queue_id": header.queue_id, "offset": header.offset}
        log_limited(log, "warning", "key.parked", **facts, key=repr(key), attempts=header.attempts, error=header.reason)
        return PendingResponse(request.reply())

    @handles(RequestCode.PARK_END, ParkEndHeader, needs=[on_group(SUB), on_topic(SUB)])
    def end(self, request: Request) -> HandlerResult:
        self._check_epoch(request)
        return PendingResponse(request.reply(self._coordination.parking.commit_replay(request.header)))

    @handles(
        RequestCode.PARK_CONTROL,
        None,
        ParkControlBody,
        needs=[inside("Get group to list, without one those that may be listed; Update group to replay or drop")],
    )
    def control(self, request: Request) -> HandlerResult:
        body: ParkControlBody = request.body
        if body.group is not None:
            check_group(body.group)
            request.user.check_group(body.group, *((SUB, GET) if body.action is ParkAction.LIST else (UPDATE,)))
        if body.action is not ParkAction.LIST:
            request.change = AuditedChange(f"{resource(Kind.GROUP, body.group or '')}, {resource(Kind.TOPIC, body.topic or '')}")
        reply = self._coordination.parking.control(body, request.user.sees_group)
        if body.action is ParkAction.LIST:
            return request.reply(body=reply)
        facts = {"action": body.action.value, "group": body.group, "topic": body.topic, "key": body.key}
        if request.change is not None:
            request.change.after = {"action": body.action.value, "keys": len(reply.keys)}
        log.info("parked_keys.changed", **facts, keys=len(reply.keys), peer=request.endpoint.peer)
        if body.action is ParkAction.DROP:
            self._copies.wake()
        return PendingResponse(request.reply(body=reply))

    def _check_stored(self, header: ParkHeader) -> None:
        """Raise StaleEpochError if the message was removed, by a purge or by retention.

        Nothing is left to park, and the member calls it in vain. So its grant ends: it drops the queue and continues at its progress.
        """
        first, _ = self._store.bounds(header.topic, header.queue_id)
        if header.offset < first:
            self._coordination.state.supersede_grant((header.consumer_group, header.topic, header.queue_id))
            place = f"{header.topic} queue {header.queue_id}"
            raise StaleEpochError(
                f"the message at offset {header.offset} of {place} was removed, the queue begins at {first}: drop the queue"
            )

    def _check_epoch(self, request: Request) -> None:
        header: ParkHeader | ParkEndHeader = request.header
        queue = (header.consumer_group, header.topic, header.queue_id)
        if not self._coordination.state.accepts_epoch(request.endpoint.id, queue, header.epoch):
            raise StaleEpochError(f"epoch {header.epoch} of {queue[0]} at {queue[1]}:{queue[2]} is stale: drop the queue")
