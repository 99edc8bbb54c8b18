"""How a message finds its queue: now, and again when the layout changes."""

from collections.abc import Callable

from lockstep.client.producer.batcher import QUEUE_WIDE
from lockstep.client.producer.queue_sender import QueueSender
from lockstep.client.producer.selector import Selector, queue_of_key, queue_of_selector
from lockstep.client.producer.topic_sender import TopicSender
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.message import Message
from lockstep.protocol.properties import check_text
from lockstep.protocol.queue import MessageQueue, TopicLayout


class Way:
    """`key` None: any live queue. Else the queue that `pick` answers for a layout, or the one that the user named."""

    __slots__ = ("key", "pick", "queue")

    def __init__(
        self,
        key: str | None = None,
        pick: Callable[[TopicLayout], MessageQueue] | None = None,
        queue: MessageQueue | None = None,
    ) -> None:
        self.key = key
        """What counts as one key when a send fails: the sharding key, or the whole queue."""
        self.pick = pick
        self.queue = queue

    def sender(self, topic: TopicSender) -> QueueSender:
        """The queue's sender in the topic's present layout; LocalProtocolError for a named queue that it does not have."""
        if self.key is None:
            return topic.next()
        if self.key != QUEUE_WIDE:
            return topic.of_key(self.key)
        queue = self.queue if self.pick is None else self.pick(topic.layout)
        sender = None if queue is None else topic.of_queue(queue)
        if sender is None:
            count = len(topic.layout.write_queues)
            raise LocalProtocolError(f"{queue} is none of the {count} writable queues of topic {topic.layout.topic}: see SendResult.queue")
        return sender


UNKEYED = Way()


def way_of(message: Message, sharding_key: str | None, selector: Selector | None, arg: object, queue: MessageQueue | None) -> Way:
    """The way that these arguments of `send` ask for; LocalProtocolError where they ask for two."""
    if (sharding_key is not None) + (selector is not None) + (queue is not None) > 1:
        raise LocalProtocolError("sharding_key, selector and queue each choose the queue: give one of them")
    if sharding_key is not None:
        if type(sharding_key) is not str or not sharding_key:
            check_text("sharding_key", sharding_key)
        return Way(sharding_key, lambda layout: queue_of_key(layout, sharding_key))
    if selector is not None:
        return Way(QUEUE_WIDE, lambda layout: queue_of_selector(layout, selector, message, arg))
    if queue is not None:
        if queue.topic != message.topic:
            raise LocalProtocolError(f"the message's topic is {message.topic}, the queue's {queue.topic}")
        return Way(QUEUE_WIDE, None, queue)
    return UNKEYED
