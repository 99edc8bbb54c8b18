"""Messages that wait in a delay queue or a waiting room: where they go, and when. Pure."""

from dataclasses import dataclass

from lockstep.protocol.delays import queue_delay_ms
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.messages.properties import REAL_QID, REAL_TOPIC, RETRY_TOPIC, TRANSACTION_ID
from lockstep.protocol.messages.rooms import due_of_code, read_timer
from lockstep.protocol.names import HALF_TOPIC, SCHEDULE_TOPIC, WAITING_TOPICS
from lockstep.protocol.topics.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """A message that waits for its delay, its next retry or the end of its transaction."""

    queue: MessageQueue
    """The queue to which it goes: of its own topic, or of a group's retry topic."""
    due_ms: int | None
    """When, in ms since 1970: its delay after it was stored, or its time of day. A broker whose clock was set since delivers it by the
    corrected time. None: it waits for the end of its transaction."""
    transaction_id: str = ""
    """That transaction."""


def waiting_of(message: MessageExt) -> WaitingMessage | None:
    """Return where a message goes and when, or None if it does not wait. Brokers return the records of those that wait only."""
    if message.stored_topic not in WAITING_TOPICS:
        return None
    properties = message.all_properties
    number = properties.get(REAL_QID, "")
    queue_id = int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else 0
    queue = MessageQueue(properties.get(REAL_TOPIC, message.stored_topic), message.broker_name, queue_id)
    if message.stored_topic == SCHEDULE_TOPIC:
        return WaitingMessage(queue, message.stored_ms + queue_delay_ms(message.queue_id))
    if message.stored_topic == HALF_TOPIC:
        return WaitingMessage(queue, None, properties.get(TRANSACTION_ID) or message.message_id)
    timer = read_timer(message.stored_properties)
    return WaitingMessage(queue, message.stored_ms if timer is None else due_of_code(timer.code(message.stored_ms)))


def home_queue(message: MessageExt) -> MessageQueue:
    """Return the queue of a message: if it waits, the one to which it goes."""
    waiting = waiting_of(message)
    return MessageQueue(message.stored_topic, message.broker_name, message.queue_id) if waiting is None else waiting.queue


def home_topic(message: MessageExt) -> str:
    """Return the topic to which a message was sent, also if it waits. For a retry it is the original topic."""
    waiting = waiting_of(message)
    return message.topic if waiting is None else message.all_properties.get(RETRY_TOPIC, waiting.queue.topic)
