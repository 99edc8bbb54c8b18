"""Which queue a message goes to. Pure. RocketMQ: MessageQueueSelector, TopicPublishInfo.selectOneMessageQueue.

keyed      crc32(utf8(key)) mod n over all writable queues of the layout, live or not: a key moves only when the layout changes
selected   the user's function over the same queues
unkeyed    round robin over the writable queues of the brokers that live
"""

from collections.abc import Callable

from lockstep.protocol.crc import crc32
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.message import Message
from lockstep.protocol.properties import check_text
from lockstep.protocol.queue import MessageQueue, TopicLayout

Selector = Callable[..., MessageQueue]
"""`(queues: Sequence[MessageQueue], message: Message, arg) -> MessageQueue`: must answer one of `queues` (the layout's, in its order)."""


def number_of_key(sharding_key: str, queue_count: int) -> int:
    """The position in the layout's writable queues to which a key belongs; LocalProtocolError for what is no key."""
    try:
        return crc32(sharding_key.encode()) % queue_count
    except (AttributeError, UnicodeEncodeError):
        check_text("sharding_key", sharding_key)
        raise


def queue_of_key(layout: TopicLayout, sharding_key: str) -> MessageQueue:
    """The queue to which a key belongs in this layout."""
    return layout.write_queues[number_of_key(sharding_key, len(layout.write_queues))]


def queue_of_selector(layout: TopicLayout, selector: Selector, message: Message, arg: object) -> MessageQueue:
    """What the user's selector answers; LocalProtocolError unless it is one of the layout's queues. What it raises goes through."""
    queue = selector(layout.write_queues, message, arg)
    if not isinstance(queue, MessageQueue) or queue not in layout.write_number_of:
        raise LocalProtocolError(
            f"the selector answered {queue!r}: expected one of the {len(layout.write_queues)} queues that it was given"
        )
    return queue
