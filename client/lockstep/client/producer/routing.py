"""How a message finds its queue: now, and again when the layout changes."""

from collections.abc import Sequence

from lockstep.client.producer.pending import QUEUE_WIDE, Pick
from lockstep.client.producer.queue_machine import QueueMachine
from lockstep.client.producer.selector import Selector, queue_of_key, queue_of_selector
from lockstep.client.producer.topic_machine import TopicMachine
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.message import Message
from lockstep.protocol.queue import MessageQueue


class Route:
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

    def sender(self, topic: TopicMachine) -> QueueMachine:
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


UNKEYED = Route()


def route_of(message: Message, selector: Selector | None, queue: MessageQueue | None) -> Route:
    """Returns the way that the message and these arguments of `send` ask for. LocalProtocolError if they ask for two."""
    if (message.sharding_key is not None) + (selector is not None) + (queue is not None) > 1:
        raise LocalProtocolError("the message's sharding_key, selector and queue each choose the queue: give one of them")
    if message.sharding_key is not None:
        return Route((message.sharding_key,), queue_of_key)
    if selector is not None:
        return Route((QUEUE_WIDE,), lambda layout, _: queue_of_selector(layout, selector, message))
    if queue is not None:
        if queue.topic != message.topic:
            raise LocalProtocolError(f"the message's topic is {message.topic}, the queue's {queue.topic}")
        return Route((QUEUE_WIDE,), None, queue)
    return UNKEYED
