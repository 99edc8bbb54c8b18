"""QUERY_CONSUMER_OFFSET and UPDATE_CONSUMER_OFFSET: progress without an epoch. RocketMQ: ConsumerManageProcessor."""

from typing import Protocol

from lockstep.broker.coordination import Coordination
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import QueryNotFound
from lockstep.protocol.headers.offsets import OffsetReply, QueryConsumerOffsetHeader, UpdateConsumerOffsetHeader
from lockstep.runtime.dispatch import Outcome, Pending, Request, handles
from lockstep.runtime.host import Host


class YoungQueues(Protocol):
    """What the store knows of a queue that a group has not read yet."""

    def young_queue(self, topic: str, queue_id: int) -> bool:
        """True while the queue's first message is still at hand: a group without an offset then begins at 0."""
        ...


class OffsetProcessor:
    """How far a group is."""

    def __init__(self, host: Host, coordination: Coordination, store: YoungQueues) -> None:
        self._clock = host.clock
        self._coordination = coordination
        self._store = store

    @handles(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader)
    def query(self, request: Request) -> Outcome:
        """ "Not found" and "could not tell" are different answers: the first one lets a client use its start policy."""
        header: QueryConsumerOffsetHeader = request.header
        young = self._store.young_queue(header.topic, header.queue_id)
        offset = self._coordination.query_offset(header.consumer_group, header.topic, header.queue_id, young=young)
        if offset is None:
            raise QueryNotFound(f"group {header.consumer_group} has no offset for {header.topic} queue {header.queue_id}")
        return request.reply(OffsetReply(offset))

    @handles(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader)
    def update(self, request: Request) -> Outcome:
        header: UpdateConsumerOffsetHeader = request.header
        self._coordination.update_offset(
            request.endpoint.id, header.consumer_group, header.topic, header.queue_id, header.commit_offset, self._clock.boot_ms()
        )
        return Pending(request.reply())
