"""LOCK_BATCH_MQ, UNLOCK_BATCH_MQ and SYNC. RocketMQ: AdminBrokerProcessor.lockBatchMQ, unlockBatchMQ.

A connection with a session sends SessionLockBody, any other one LockBatchBody. Responses wait until the log is confirmed up to its end,
even if the request changed nothing: they may report a change that is not durable yet. An empty SYNC only proves that the client is alive,
and its response is sent at once.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.groups.membership import NONE_DENIED
from lockstep.broker.groups.start_policy import OffsetsByTime
from lockstep.broker.processors.start_offsets import StartOffsets, TimeIndex
from lockstep.protocol.bodies import LockBatchBody, LockItem, SessionLockBody, SyncBody, SyncItem
from lockstep.protocol.codec import CODECS
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import BrokerError, RemoteProtocolError
from lockstep.runtime.host import Host
from lockstep.runtime.limits import MEMBER_BYTES_MAX
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import SUB, inside, on_group
from lockstep.runtime.requests.request import NO_RESPONSE, HandlerResult, PendingResponse, Request
from lockstep.runtime.security.authenticated_user import ANYBODY


class LockProcessor:
    """Handles the requests by which clients take queues, keep them and commit."""

    def __init__(self, host: Host, coordination: Coordination, store: TimeIndex) -> None:
        self._clock = host.clock
        self._coordination = coordination
        self._starts = StartOffsets(coordination, store)

    @handles(
        RequestCode.LOCK_BATCH_MQ,
        None,
        bytes,
        needs=[inside("Sub group and topic of each queue")],
        body_bytes_max=MEMBER_BYTES_MAX,
        classic=True,
    )
    def lock(self, request: Request) -> HandlerResult:
        request.body = body = self._lock_body(request)
        if isinstance(body, LockBatchBody):
            request.user.check_consumption(body.consumer_group, dict.fromkeys(ref.topic for ref in body.mq_set))
            return PendingResponse(request.reply(body=self._coordination.legacy.lock(body, self._clock.boot_ms(), request.user.name)))
        return self._starts.resolve(request, body, partial(self._session_lock, request, body))

    @handles(RequestCode.UNLOCK_BATCH_MQ, None, LockBatchBody, needs=[on_group(SUB)], body_bytes_max=MEMBER_BYTES_MAX, classic=True)
    def unlock(self, request: Request) -> HandlerResult:
        self._coordination.legacy.unlock(request.body, request.user.name)
        return PendingResponse(request.reply())

    @handles(RequestCode.SYNC, None, SyncBody, needs=[inside("Sub group and topic of each queue")], body_bytes_max=MEMBER_BYTES_MAX)
    def sync(self, request: Request) -> HandlerResult:
        denied = self._evict(request, request.body.items)
        reply = self._coordination.lock_sync.sync(request.endpoint.id, request.body, self._clock.boot_ms(), denied)
        if reply is None:
            return NO_RESPONSE
        command = request.reply(body=reply)
        return PendingResponse(command) if reply.items else command

    def _evict(self, request: Request, items: Sequence[LockItem | SyncItem]) -> Mapping[str, BrokerError]:
        """End the membership in groups that the user may not consume any more. Return them, each with its refusal."""
        if request.user is ANYBODY:
            return NONE_DENIED
        topics: dict[str, dict[str, None]] = {}
        for item in items:
            topics.setdefault(item.group, {})[item.topic] = None
        denied = request.user.denied_groups(topics.items())
        session = self._coordination.state.sessions.session_on(request.endpoint.id)
        for group, refusal in denied.items():
            request.note_refusal(refusal)
            if session is not None:
                self._coordination.membership.evict(session, group, refusal.remark)
        return denied

    def _lock_body(self, request: Request) -> SessionLockBody | LockBatchBody:
        """Decode the body. Raise the error of LockBatchBody if a connection without a session has sent neither of the two."""
        raw = request.body
        if not request.is_native:
            return CODECS[request.codec].read_body(LockBatchBody, raw)
        if self._coordination.state.sessions.session_on(request.endpoint.id) is not None:
            return decode_body(SessionLockBody, raw)
        try:
            return decode_body(LockBatchBody, raw)
        except RemoteProtocolError as error:
            try:
                return decode_body(SessionLockBody, raw)
            except RemoteProtocolError:
                raise error from None

    def _session_lock(self, request: Request, body: SessionLockBody, by_time: OffsetsByTime) -> HandlerResult:
        denied = self._evict(request, body.items)
        reply = self._coordination.lock_sync.lock(request.endpoint.id, body, self._clock.boot_ms(), by_time, denied)
        return NO_RESPONSE if reply is None else PendingResponse(request.reply(body=reply))
