"""QUERY_CONSUMER_OFFSET and UPDATE_CONSUMER_OFFSET: progress without an epoch. RocketMQ: ConsumerManageProcessor.

A query with a start policy comes from a session of a concurrent group: the broker resolves the policy and answers where to go on, under
which generation. Any other query is RocketMQ's.
"""

from functools import partial
from typing import Protocol

from lockstep.broker.coordination import Coordination
from lockstep.broker.lock_sync import OffsetsByTime, start_policy
from lockstep.broker.processors.lock import START_LANE, TimeIndex, offsets_by_time
from lockstep.protocol.bodies import LockItem, LockVerdict, ReconcileBody, StartPolicy
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import NotYoursError, QueryNotFoundError, ServiceNotAvailableError
from lockstep.protocol.headers.offsets import ProgressReply, QueryConsumerOffsetHeader, UpdateConsumerOffsetHeader
from lockstep.runtime.dispatch import HELD, Later, Outcome, Pending, Request, handles
from lockstep.runtime.host import Host


class Queues(TimeIndex, Protocol):
    """What the store knows of queues that a group has not read yet."""

    def young_queue(self, topic: str, queue_id: int) -> bool:
        """True while the queue's first message is still at hand: a group without an offset then begins at 0."""
        ...


class OffsetProcessor:
    """How far a group is."""

    def __init__(self, host: Host, coordination: Coordination, store: Queues) -> None:
        self._clock = host.clock
        self._coordination = coordination
        self._store = store

    @handles(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader)
    def query(self, request: Request) -> Outcome:
        """ "Not found" and "could not tell" are different answers: the first one lets a client use its start policy."""
        header: QueryConsumerOffsetHeader = request.header
        if header.where is not None:
            return self._query_session(request, header)
        young = self._store.young_queue(header.topic, header.queue_id)
        offset = self._coordination.legacy.query_offset((header.consumer_group, header.topic, header.queue_id), young=young)
        if offset is None:
            raise QueryNotFoundError(f"group {header.consumer_group} has no offset for {header.topic} queue {header.queue_id}")
        return request.reply(ProgressReply(offset))

    @handles(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader)
    def update(self, request: Request) -> Outcome:
        header: UpdateConsumerOffsetHeader = request.header
        self._coordination.legacy.update_offset(
            request.endpoint.id, (header.consumer_group, header.topic, header.queue_id), header.commit_offset, self._clock.boot_ms()
        )
        return Pending(request.reply())

    def _query_session(self, request: Request, header: QueryConsumerOffsetHeader) -> Outcome:
        if self._times_needed(request, header):
            return Later(START_LANE, partial(self._query_by_time, request, header))
        return self._begin(request, header, {})

    def _times_needed(self, request: Request, header: QueryConsumerOffsetHeader) -> tuple[StartPolicy, ...]:
        """The start policy while the group has not begun in the topic, if it is by time."""
        item = LockItem(header.consumer_group, header.topic, header.queue_id)
        return self._coordination.lock_sync.times_needed(request.endpoint.id, ReconcileBody((item,), (start_policy(header),)))

    def _begin(self, request: Request, header: QueryConsumerOffsetHeader, by_time: OffsetsByTime) -> Outcome:
        answer = self._coordination.lock_sync.query(request.endpoint.id, header, self._clock.boot_ms(), by_time)
        if answer is None:
            return HELD
        if answer.verdict is LockVerdict.NOT_YOURS:
            raise NotYoursError(answer.remark or f"{header.topic} queue {header.queue_id} is another member's by the list")
        if answer.verdict is not LockVerdict.OK:
            raise ServiceNotAvailableError(answer.remark or "")
        reply = ProgressReply(answer.offset, answer.epoch, answer.since, answer.gap_first, answer.gap_end)
        return Pending(request.reply(reply))

    async def _query_by_time(self, request: Request, header: QueryConsumerOffsetHeader) -> Outcome:
        by_time = await offsets_by_time(self._coordination, self._store, self._times_needed(request, header))
        if request.endpoint.closed:
            return HELD  # and forgotten: nothing may be recorded of this connection any more
        return self._begin(request, header, by_time)
