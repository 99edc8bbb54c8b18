"""Dead letters of a group: find them, read them, and record which ones have been replayed.

The replay position is the progress of the group LOCKSTEP_REPLAY in the dead-letter topic. Brokers store it like any group's progress, so
`lockstep group show LOCKSTEP_REPLAY` shows how many dead letters of each group have not been replayed.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from itertools import chain

from lockstep.operations.admin_client import AdminClient, BrokerResults, by_name, gather_results, without_address
from lockstep.operations.messages.queue_reader import QueueReader
from lockstep.protocol.bodies import BrokerAddress, OffsetRange, QueueOffset, ResetBody
from lockstep.protocol.errors import SubscriptionGroupNotExistError
from lockstep.protocol.messages.message import Message, MessageExt
from lockstep.protocol.messages.properties import (
    ORIGIN_MESSAGE_ID,
    ORIGIN_QUEUE,
    REASON,
    RESERVED,
    RESERVED_PREFIXES,
    RETRY_TOPIC,
    decode_properties,
)
from lockstep.protocol.messages.record import RecordView, split_records
from lockstep.protocol.names import REPLAY_GROUP, dlq_topic
from lockstep.protocol.topics.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message in a group's dead-letter topic, and where it came from."""

    broker: BrokerAddress
    message: MessageExt
    """The message as stored in the dead-letter topic."""
    physical_offset: int
    origin_topic: str | None
    origin_id: str | None
    """The offset message id of the message that failed first."""
    reason: str | None
    origin_queue_id: int | None = None
    """The queue at this broker that held the original message."""

    @property
    def origin_queue(self) -> MessageQueue | None:
        """Return the original queue of a message without a sharding key: its producer may have chosen that queue to keep an order."""
        if self.message.sharding_key is not None or self.origin_topic is None or self.origin_queue_id is None:
            return None
        return MessageQueue(self.origin_topic, self.broker.name, self.origin_queue_id)

    @property
    def order_scope(self) -> str | None:
        """Return the sharding key or the original queue: messages of a scope must not overtake each other. None if neither is known."""
        queue = self.origin_queue
        return self.message.sharding_key if queue is None else str(queue)

    def original_message(self) -> Message:
        """Return the message as its producer sent it, addressed to its original topic."""
        message = self.message
        own = {name: value for name, value in message.properties.items() if name not in RESERVED and not name.startswith(RESERVED_PREFIXES)}
        return Message(
            self.origin_topic or message.topic,
            message.body,
            tags=message.tags,
            keys=message.keys,
            properties=own,
            sharding_key=message.sharding_key,
            flag=message.flag,
        )


@dataclass(frozen=True, slots=True)
class DeadLetterQueue:
    """One queue of a group's dead-letter topic at one broker."""

    broker: BrokerAddress
    offsets: OffsetRange
    replayed_offset: int
    """Every dead letter before this offset was replayed, or removed by retention."""

    @property
    def next_offset(self) -> int:
        """Return the offset of the first dead letter that has not been replayed."""
        return max(self.offsets.min_offset, self.replayed_offset)

    @property
    def stored_count(self) -> int:
        return self.offsets.max_offset - self.offsets.min_offset

    @property
    def pending_count(self) -> int:
        """Return how many dead letters have not been replayed."""
        return self.offsets.max_offset - self.next_offset


@dataclass(frozen=True, slots=True)
class NewestDeadLetters:
    """The newest dead letters of a group, and how many it has, at the brokers that could be read."""

    letters: tuple[tuple[DeadLetter, bool], ...]
    """Those of each broker, oldest first, and whether each was replayed."""
    stored_count: int
    pending_count: int
    """How many have not been replayed."""
    failed: Mapping[str, str]
    """Broker → why it could not be read."""


async def find_dead_letter_queues(admin: AdminClient, group: str) -> BrokerResults[list[DeadLetterQueue]]:
    """Return the queues that hold the group's dead letters, by broker name. Raise TopicNotExistError if the group never had one."""
    topic = dlq_topic(group)
    route = await admin.route(topic)
    brokers = by_name(sorted(route.brokers, key=lambda broker: broker.name))
    results = await gather_results({name: _dead_letter_queues_at(admin, broker, topic) for name, broker in brokers.items()})
    missing = without_address(route.layout.brokers, brokers)
    return BrokerResults(results.values, {**results.failed, **missing})


async def _dead_letter_queues_at(admin: AdminClient, broker: BrokerAddress, topic: str) -> list[DeadLetterQueue]:
    ranges = await admin.offsets(broker, topic)
    return [DeadLetterQueue(broker, offsets, await _replayed_offset(admin, broker, topic, offsets.queue_id)) for offsets in ranges]


async def _replayed_offset(admin: AdminClient, broker: BrokerAddress, topic: str, queue_id: int) -> int:
    try:
        status = (await admin.group_status(broker, REPLAY_GROUP)).status
    except SubscriptionGroupNotExistError:
        return 0
    queues = () if status is None else status.queues
    return next((max(0, queue.committed_offset) for queue in queues if (queue.topic, queue.queue_id) == (topic, queue_id)), 0)


async def commit_replayed(admin: AdminClient, queue: DeadLetterQueue, group: str, next_offset: int) -> int:
    """Record that every dead letter before `next_offset` was replayed. Return the offset that was recorded before."""
    body = ResetBody(REPLAY_GROUP, dlq_topic(group), (QueueOffset(queue.offsets.queue_id, next_offset),))
    return max(0, (await admin.reset(queue.broker, body)).queues[0].offset)


async def read_dead_letters(admin: AdminClient, queue: DeadLetterQueue, group: str, first: int) -> AsyncIterator[DeadLetter]:
    """Yield the dead letters from offset `first` to the end that the queue had when `queue` was made."""
    begin = max(first, queue.offsets.min_offset)
    reader = QueueReader(admin, queue.broker, dlq_topic(group), queue.offsets.queue_id, begin, queue.offsets.max_offset)
    while (page := await reader.next()) is not None:
        for message, (start, _) in zip(page.messages, split_records(page.data), strict=False):  # later ones are after the end
            yield _dead_letter(queue.broker, message, RecordView(page.data, start))


async def read_newest(admin: AdminClient, group: str, found: BrokerResults[list[DeadLetterQueue]], limit: int) -> NewestDeadLetters:
    """Return the newest dead letters of the queues that `find_dead_letter_queues` has found, at most `limit` of each broker's queues."""
    read = await gather_results({broker: _newest(admin, group, queues, limit) for broker, queues in found.values.items()})
    queues = [queue for broker in read.values for queue in found.values[broker]]
    return NewestDeadLetters(
        tuple(chain.from_iterable(read.values.values())),
        sum(queue.stored_count for queue in queues),
        sum(queue.pending_count for queue in queues),
        {**found.failed, **read.failed},
    )


async def _newest(admin: AdminClient, group: str, queues: list[DeadLetterQueue], limit: int) -> list[tuple[DeadLetter, bool]]:
    newest: list[tuple[DeadLetter, bool]] = []
    for queue in queues:
        first = max(queue.offsets.min_offset, queue.offsets.max_offset - limit)
        newest += [(each, each.message.queue_offset < queue.next_offset) async for each in read_dead_letters(admin, queue, group, first)]
    return newest


def _dead_letter(broker: BrokerAddress, message: MessageExt, record: RecordView) -> DeadLetter:
    properties = decode_properties(record.properties)
    number = properties.get(ORIGIN_QUEUE, "")
    return DeadLetter(
        broker,
        message,
        record.physical_offset,
        properties.get(RETRY_TOPIC),
        properties.get(ORIGIN_MESSAGE_ID),
        properties.get(REASON),
        int(number) if number.isdecimal() else None,
    )
