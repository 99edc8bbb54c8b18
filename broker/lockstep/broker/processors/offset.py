"""QUERY_CONSUMER_OFFSET and UPDATE_CONSUMER_OFFSET: progress without an epoch. RocketMQ: ConsumerManageProcessor.

A query with a start policy comes from a session of a concurrent group: the broker resolves the policy and returns the offset at which the
group goes on, and its generation. Any other query is RocketMQ's.
"""

from functools import partial
from typing import Protocol

from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.groups.start_policy import OffsetsByTime, start_policy
from lockstep.broker.processors.start_offsets import StartOffsets, TimeIndex
from lockstep.protocol.bodies import LockItem, LockVerdict, SessionLockBody
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import NotYoursError, QueryNotFoundError, ServiceNotAvailableError
from lockstep.protocol.headers.offsets import ProgressReply, QueryConsumerOffsetHeader, UpdateConsumerOffsetHeader
from lockstep.runtime.host import Host
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import GET, SUB, UPDATE, on_group, on_topic
from lockstep.runtime.requests.request import NO_RESPONSE, HandlerResult, PendingResponse, Request


class Queues(TimeIndex, Protocol):
    """What OffsetProcessor needs of the store."""

    def young_queue(self, topic: str, queue_id: int, first: int) -> bool:
        """Return True while the queue's first message, at `first` or before, is a recent one: a group without an offset then begins at
        `first`."""
        ...


class OffsetProcessor:
    """Handles queries and commits of progress by clients that hold no epoch."""

    def __init__(self, host: Host, coordination: Coordination, store: Queues) -> None:
        self._clock = host.clock
        self._coordination = coordination
        self._store = store
        self._starts = StartOffsets(coordination, store)

    @handles(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader, needs=[on_group(SUB, GET), on_topic(SUB, GET)], classic=True)
    def query(self, request: Request) -> HandlerResult:
        """Return the group's offset. QueryNotFoundError alone lets a client use its start policy, so no other failure may raise it."""
        header: QueryConsumerOffsetHeader = request.header
        if header.where is not None:
            item = LockItem(header.consumer_group, header.topic, header.queue_id)
            body = SessionLockBody((item,), (start_policy(header),))
            return self._starts.resolve(request, body, partial(self._query_session, request, header))
        first = self._coordination.state.progress.first_offset(header.topic, header.queue_id)
        young = self._store.young_queue(header.topic, header.queue_id, first)
        offset = self._coordination.legacy.query_offset((header.consumer_group, header.topic, header.queue_id), young=young)
        if offset is None:
            raise QueryNotFoundError(f"group {header.consumer_group} has no offset for {header.topic} queue {header.queue_id}")
        return request.reply(ProgressReply(offset))

    @handles(
        RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader, needs=[on_group(SUB, UPDATE), on_topic(SUB, UPDATE)], classic=True
    )
    def update(self, request: Request) -> HandlerResult:
        header: UpdateConsumerOffsetHeader = request.header
        key = header.consumer_group, header.topic, header.queue_id
        self._coordination.legacy.update_offset(request.endpoint.id, key, header.commit_offset, self._clock.boot_ms(), header.idle_days)
        return PendingResponse(request.reply())

    def _query_session(self, request: Request, header: QueryConsumerOffsetHeader, by_time: OffsetsByTime) -> HandlerResult:
        result = self._coordination.lock_sync.query_start(request.endpoint.id, header, self._clock.boot_ms(), by_time)
        if result is None:
            return NO_RESPONSE
        if result.verdict is LockVerdict.NOT_YOURS:
            other = f"{header.topic} queue {header.queue_id} belongs to another member according to the member list"
            raise NotYoursError(result.remark or other)
        if result.verdict is not LockVerdict.OK:
            raise ServiceNotAvailableError(result.remark or "")
        reply = ProgressReply(result.offset, result.generation, result.since, result.gap_first, result.gap_end)
        return PendingResponse(request.reply(reply))
