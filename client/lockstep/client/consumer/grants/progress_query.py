"""Reads the response to QUERY_CONSUMER_OFFSET of a concurrent group as the LockResult that a LOCK of the queue would have."""

from lockstep.client.consumer.grants.ownership import QueueOwnership
from lockstep.client.consumer.interfaces import ReportedQueueWorker
from lockstep.protocol.bodies import LockResult, LockVerdict
from lockstep.protocol.command import Command
from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.offsets import ProgressReply, QueryConsumerOffsetHeader
from lockstep.runtime.logs.log import get_logger

log = get_logger("client.consumer")


def query_header(worker: ReportedQueueWorker) -> QueryConsumerOffsetHeader:
    queue = worker.ownership.queue
    policy = worker.start_policy(queue.topic)
    return QueryConsumerOffsetHeader(worker.ownership.group, queue.topic, queue.queue_id, policy.where, policy.timestamp_ms, policy.since)


def read_query(ownership: QueueOwnership, response: Command) -> LockResult | None:
    """Return the grant; it has a generation and no epoch. None if the response can't be read."""
    try:
        reply = from_plain(ProgressReply, response.fields)
        if reply.generation is None:
            raise RemoteProtocolError("the response to a start policy has no generation")
    except RemoteProtocolError as error:
        log.error("query.unreadable", group=ownership.group, queue=str(ownership.queue), error=str(error))
        return None
    return LockResult(
        ownership.group,
        ownership.queue.topic,
        ownership.queue.queue_id,
        LockVerdict.OK,
        offset=reply.offset,
        generation=reply.generation,
        since=reply.since or 0,
        gap_first=reply.gap_first,
        gap_end=reply.gap_end,
    )
