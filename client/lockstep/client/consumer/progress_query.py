"""QUERY_CONSUMER_OFFSET of a concurrent group, and its answer in the words of a LOCK's."""

from lockstep.client.consumer.interfaces import QueueHandler
from lockstep.client.consumer.ownership import QueueOwnership
from lockstep.protocol.bodies import LockAnswer, Verdict
from lockstep.protocol.command import Command
from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.offsets import ProgressReply, QueryConsumerOffsetHeader
from lockstep.runtime.log import get_logger

log = get_logger("client.consumer")


def query_header(party: QueueHandler) -> QueryConsumerOffsetHeader:
    queue = party.own.queue
    policy = party.start_policy(queue.topic)
    return QueryConsumerOffsetHeader(party.own.group, queue.topic, queue.queue_id, policy.where, policy.timestamp_ms, policy.since)


def read_query(own: QueueOwnership, response: Command) -> LockAnswer | None:
    """The grant: the generation stands for the epoch. None: the broker answered what can't be read."""
    try:
        reply = from_plain(ProgressReply, response.fields)
        if reply.generation is None:
            raise RemoteProtocolError("the answer to a start policy names no generation")
    except RemoteProtocolError as error:
        log.error("query.unreadable", group=own.group, queue=str(own.queue), error=str(error))
        return None
    return LockAnswer(
        own.group,
        own.queue.topic,
        own.queue.queue_id,
        Verdict.OK,
        epoch=reply.generation,
        offset=reply.offset,
        generation=reply.generation,
        since=reply.since or 0,
        gap_first=reply.gap_first,
        gap_end=reply.gap_end,
    )
