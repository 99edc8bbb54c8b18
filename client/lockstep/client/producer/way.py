"""How a message finds its queue: now, and again when the layout changes."""

from collections.abc import Iterable, Sequence
from itertools import repeat

from lockstep.client.producer.parcel import QUEUE_WIDE, Pick
from lockstep.client.producer.queue_sender import QueueSender
from lockstep.client.producer.selector import Selector, queue_of_key, queue_of_selector
from lockstep.client.producer.topic_sender import TopicSender
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.message import Message
from lockstep.protocol.properties import check_text
from lockstep.protocol.queue import MessageQueue


class Way:
    """No `keys`: any live queue. Else the queue that `pick` answers for a layout, or the one that the user named."""

    __slots__ = ("keys", "pick", "queue")

    def __init__(
        self,
        keys: Sequence[str] = (),
        pick: Pick | None = None,
        queue: MessageQueue | None = None,
    ) -> None:
        self.keys = keys
        """What counts as a key when a send fails: the sharding keys, or the whole queue. One: that of all messages that go this way."""
        self.pick = pick
        self.queue = queue

    def sender(self, topic: TopicSender) -> QueueSender:
        """The queue's sender in the topic's present layout; LocalProtocolError for a named queue that it does not have."""
        if not self.keys:
            return topic.next()
        if self.keys[0] != QUEUE_WIDE:
            return topic.of_key(self.keys[0])
        queue = self.queue if self.pick is None else self.pick(topic.layout, QUEUE_WIDE)
        sender = None if queue is None else topic.of_queue(queue)
        if sender is None:
            count = len(topic.layout.write_queues)
            raise LocalProtocolError(f"{queue} is none of the {count} writable queues of topic {topic.layout.topic}: see SendResult.queue")
        return sender

    def sharding_keys(self, count: int) -> Iterable[str | None]:
        """What the records of `count` messages that go this way store as their key."""
        if len(self.keys) > 1:
            return self.keys
        return repeat(self.keys[0] or None if self.keys else None, count)


UNKEYED = Way()


def way_of(message: Message, sharding_key: str | None, selector: Selector | None, arg: object, queue: MessageQueue | None) -> Way:
    """The way that these arguments of `send` ask for; LocalProtocolError where they ask for two."""
    if (sharding_key is not None) + (selector is not None) + (queue is not None) > 1:
        raise LocalProtocolError("sharding_key, selector and queue each choose the queue: give one of them")
    if arg is not None and selector is None:
        raise LocalProtocolError("arg is handed to a selector, and none was given: selector=lambda queues, message, arg: …")
    if sharding_key is not None:
        if type(sharding_key) is not str or not sharding_key:
            check_text("sharding_key", sharding_key)
        return Way((sharding_key,), queue_of_key)
    if selector is not None:
        return Way((QUEUE_WIDE,), lambda layout, _: queue_of_selector(layout, selector, message, arg))
    if queue is not None:
        if queue.topic != message.topic:
            raise LocalProtocolError(f"the message's topic is {message.topic}, the queue's {queue.topic}")
        return Way((QUEUE_WIDE,), None, queue)
    return UNKEYED
