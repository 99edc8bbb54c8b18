"""LOCK_BATCH_MQ, UNLOCK_BATCH_MQ and SYNC. RocketMQ: AdminBrokerProcessor.lockBatchMQ, unlockBatchMQ.

A connection with a session sends ReconcileBody, any other one LockBatchBody. Answers wait until the log is confirmed up to its end, also
those that changed nothing: they may tell of a change that is not durable yet. An empty SYNC is proof of life and is answered at once.
"""

from collections.abc import Iterable
from functools import partial
from typing import Protocol

from lockstep.broker.coordination import Coordination
from lockstep.broker.tables.lock_table import Key
from lockstep.protocol.bodies import LockBatchBody, ReconcileBody, StartPolicy, SyncBody
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import RemoteProtocolError
from lockstep.runtime.dispatch import HELD, Later, Outcome, Pending, Request, handles
from lockstep.runtime.host import Host
from lockstep.runtime.limits import MEMBER_BYTES_MAX

START_LANE = "start"
"""The offsets of start policies by time may have to be read from the disk."""


class TimeIndex(Protocol):
    """What a start policy by time needs of the store."""

    async def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int: ...


class LockProcessor:
    """Who holds what, and how far it is."""

    def __init__(self, host: Host, coordination: Coordination, store: TimeIndex) -> None:
        self._clock = host.clock
        self._coordination = coordination
        self._store = store

    @handles(RequestCode.LOCK_BATCH_MQ, None, bytes, body_bytes_max=MEMBER_BYTES_MAX)
    def lock(self, request: Request) -> Outcome:
        request.body = body = self._lock_body(request)
        if isinstance(body, LockBatchBody):
            return Pending(request.reply(body=self._coordination.legacy.lock(body, self._clock.boot_ms())))
        if self._coordination.lock_sync.times_needed(request.endpoint.id, body):
            return Later(START_LANE, partial(self._lock_by_time, request, body))
        return self._reconcile(request, body, {})

    @handles(RequestCode.UNLOCK_BATCH_MQ, None, LockBatchBody, body_bytes_max=MEMBER_BYTES_MAX)
    def unlock(self, request: Request) -> Outcome:
        self._coordination.legacy.unlock(request.body)
        return Pending(request.reply())

    @handles(RequestCode.SYNC, None, SyncBody, body_bytes_max=MEMBER_BYTES_MAX)
    def sync(self, request: Request) -> Outcome:
        reply = self._coordination.lock_sync.sync(request.endpoint.id, request.body, self._clock.boot_ms())
        if reply is None:
            return HELD
        command = request.reply(body=reply)
        return Pending(command) if reply.items else command

    def _lock_body(self, request: Request) -> ReconcileBody | LockBatchBody:
        raw = request.body
        if self._coordination.state.sessions.of_connection(request.endpoint.id) is not None:
            return decode_body(ReconcileBody, raw)
        try:
            return decode_body(LockBatchBody, raw)
        except RemoteProtocolError as error:
            try:
                return decode_body(ReconcileBody, raw)
            except RemoteProtocolError:
                raise error from None

    def _reconcile(self, request: Request, body: ReconcileBody, by_time: dict[Key, int]) -> Outcome:
        reply = self._coordination.lock_sync.lock(request.endpoint.id, body, self._clock.boot_ms(), by_time)
        return HELD if reply is None else Pending(request.reply(body=reply))

    async def _lock_by_time(self, request: Request, body: ReconcileBody) -> Outcome:
        """The offsets of a start policy by time may have to be read from the disk: once per group and topic, whoever asks first."""
        needed = self._coordination.lock_sync.times_needed(request.endpoint.id, body)
        by_time = await offsets_by_time(self._coordination, self._store, needed)
        if request.endpoint.closed:
            return HELD  # and forgotten: nothing may be recorded of this connection any more
        return self._reconcile(request, body, by_time)


async def offsets_by_time(coordination: Coordination, store: TimeIndex, policies: Iterable[StartPolicy]) -> dict[Key, int]:
    """Where start policies by time begin, in every queue of this broker."""
    found = {}
    for policy in policies:
        assert policy.timestamp_ms is not None, "a policy by time names one"
        for queue_id in coordination.lock_sync.own_queue_ids(policy.topic):
            found[policy.group, policy.topic, queue_id] = await store.offset_by_time(policy.topic, queue_id, policy.timestamp_ms)
    return found
