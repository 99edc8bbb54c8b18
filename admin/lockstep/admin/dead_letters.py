"""What lies in a group's dead-letter topic: read it, put it back, remember how far that went.

How far: the progress of the group LOCKSTEP_REPLAY in the dead-letter topic, kept by the brokers like any group's. `lockstep group show
LOCKSTEP_REPLAY` tells how many dead letters of which group wait.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from lockstep.admin.client import AdminClient, Answers, absent, by_name, gather
from lockstep.protocol.bodies import BrokerAddress, OffsetRange, QueueOffset, ResetBody
from lockstep.protocol.errors import SubscriptionGroupNotExistError
from lockstep.protocol.message import Message, MessageExt, decode_messages
from lockstep.protocol.names import dlq_topic
from lockstep.protocol.properties import (
    ORIGIN_MESSAGE_ID,
    ORIGIN_QUEUE,
    REASON,
    RESERVED,
    RESERVED_PREFIXES,
    RETRY_TOPIC,
    decode_properties,
)
from lockstep.protocol.queue import MessageQueue
from lockstep.protocol.record import RecordView, split_records

REPLAYER = "LOCKSTEP_REPLAY"
PAGE_COUNT = 256


@dataclass(frozen=True, slots=True)
class DeadLetter:
    broker: BrokerAddress
    message: MessageExt
    """As it is stored in the dead-letter topic."""
    physical_offset: int
    origin_topic: str | None
    origin_id: str | None
    """Offset message id of the message that failed first."""
    reason: str | None
    origin_queue_id: int | None = None
    """The queue at this broker in which that message lay."""

    @property
    def queue(self) -> MessageQueue | None:
        """Where a message without a sharding key lay: a selector, or its producer, may have chosen that queue for its order."""
        if self.message.sharding_key is not None or self.origin_topic is None or self.origin_queue_id is None:
            return None
        return MessageQueue(self.origin_topic, self.broker.name, self.origin_queue_id)

    @property
    def lane(self) -> str | None:
        """What it must not be overtaken in; None: nothing is known of its order."""
        queue = self.queue
        return self.message.sharding_key if queue is None else str(queue)

    def again(self) -> Message:
        """The message as its producer sent it, for the topic that it came from."""
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
    """A group's dead letters at one broker."""

    broker: BrokerAddress
    held: OffsetRange
    replayed: int
    """Those before this offset were replayed, or were removed by retention."""

    @property
    def next(self) -> int:
        """The first one that was not replayed."""
        return max(self.held.min_offset, self.replayed)

    @property
    def waiting(self) -> int:
        return self.held.max_offset - self.next


async def morgues(admin: AdminClient, group: str) -> Answers[list[DeadLetterQueue]]:
    """Where the group has dead letters, by broker name, and who could not be asked. TopicNotExistError where it never had one."""
    topic = dlq_topic(group)
    route = await admin.route(topic)
    brokers = by_name(sorted(route.brokers, key=lambda broker: broker.name))
    answers = await gather({name: _morgues_at(admin, broker, topic) for name, broker in brokers.items()})
    return Answers(answers.given, {**answers.failed, **absent([entry.broker_name for entry in route.layout.entries], brokers)})


async def _morgues_at(admin: AdminClient, broker: BrokerAddress, topic: str) -> list[DeadLetterQueue]:
    ranges = await admin.offsets(broker, topic)
    return [DeadLetterQueue(broker, held, await _replayed(admin, broker, topic, held.queue_id)) for held in ranges]


async def _replayed(admin: AdminClient, broker: BrokerAddress, topic: str, queue_id: int) -> int:
    try:
        status = (await admin.group_status(broker, REPLAYER)).status
    except SubscriptionGroupNotExistError:
        return 0
    queues = () if status is None else status.queues
    return next((max(0, queue.committed_offset) for queue in queues if (queue.topic, queue.queue_id) == (topic, queue_id)), 0)


async def remember(admin: AdminClient, morgue: DeadLetterQueue, group: str, following: int) -> int:
    """The dead letters before `following` need no further replay; answers what was remembered until now."""
    body = ResetBody(REPLAYER, dlq_topic(group), (QueueOffset(morgue.held.queue_id, following),))
    return max(0, (await admin.reset(morgue.broker, body)).queues[0].offset)


async def letters(admin: AdminClient, morgue: DeadLetterQueue, group: str, first: int) -> AsyncIterator[DeadLetter]:
    """From offset `first` to what was there when `morgue` was made."""
    offset = max(first, morgue.held.min_offset)
    while offset < morgue.held.max_offset:
        data, following = await admin.pull(morgue.broker, dlq_topic(group), morgue.held.queue_id, offset, PAGE_COUNT)
        for message, (start, _) in zip(decode_messages(data, morgue.broker.name), split_records(data), strict=True):
            if message.queue_offset < morgue.held.max_offset:
                yield _letter(morgue.broker, message, RecordView(data, start))
        if following <= offset:
            return
        offset = following


def _letter(broker: BrokerAddress, message: MessageExt, record: RecordView) -> DeadLetter:
    said = decode_properties(record.properties)
    number = said.get(ORIGIN_QUEUE, "")
    came_from = said.get(RETRY_TOPIC), said.get(ORIGIN_MESSAGE_ID), said.get(REASON), int(number) if number.isdecimal() else None
    return DeadLetter(broker, message, record.physical_offset, *came_from)
