"""Which queue a message goes to. Pure. RocketMQ: MessageQueueSelector, TopicPublishInfo.selectOneMessageQueue.

keyed      crc32(utf8(key)) mod n over all writable queues of the layout, live or not: a key moves only when the layout changes
selected   the user's function over the same queues
unkeyed    round robin over the writable queues of the brokers that live
"""

from collections.abc import Callable, Sequence

from lockstep.protocol.crc import crc32
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.message import Message
from lockstep.protocol.queue import MessageQueue, TopicLayout

Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Returns the queue for a message: one of the given ones, which are all writable queues of the topic in the order of its layout."""


def number_of_key(sharding_key: str, queue_count: int) -> int:
    """Returns the position in the layout's writable queues to which a key belongs."""
    return crc32(sharding_key.encode()) % queue_count


def queue_of_key(layout: TopicLayout, sharding_key: str) -> MessageQueue:
    """The queue to which a key belongs in this layout."""
    return layout.write_queues[number_of_key(sharding_key, len(layout.write_queues))]


def queue_of_selector(layout: TopicLayout, selector: Selector, message: Message) -> MessageQueue:
    """Returns what the user's selector returns, and raises what it raises. LocalProtocolError unless that is a queue of the layout."""
    queue = selector(layout.write_queues, message)
    if not isinstance(queue, MessageQueue) or queue not in layout.write_number_of:
        raise LocalProtocolError(
            f"the selector returned {queue!r}: expected one of the {len(layout.write_queues)} queues that it was given"
        )
    return queue
