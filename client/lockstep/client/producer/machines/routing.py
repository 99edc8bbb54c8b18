"""How a message is assigned to a queue, initially and when the layout changes. Pure. RocketMQ: MessageQueueSelector, TopicPublishInfo.

keyed      crc32(utf8(key)) mod n over all writable queues of the layout, connected or not: a key moves only when the layout changes
selected   the user's function over the same queues
named      the queue that the user gives
unkeyed    round robin over the writable queues of the connected brokers; with more than 127 messages in flight, in runs (topic_machine.py)
"""

from collections.abc import Callable, Sequence

from lockstep.protocol.crc import crc32
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.messages.message import Message
from lockstep.protocol.object_text import text_of
from lockstep.protocol.topics.queue import MessageQueue, TopicLayout

QUEUE_WIDE = ""
"""The key of a selected or named send: the user's own key is not known, so the whole queue counts as one key. A sharding key is never
empty."""

SelectQueue = Callable[[TopicLayout, str], MessageQueue]
"""Returns the queue of a key in a layout."""

Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Returns the queue for a message: one of the given queues, which are all writable queues of the topic in the order of its layout."""


class Route:
    """How a send is routed. Without `keys`: to any live queue. Otherwise to the queue that `pick` returns for a layout, or the named
    `queue`."""

    __slots__ = ("keys", "may_be_closed", "pick", "queue")

    def __init__(
        self,
        keys: Sequence[str] = (),
        pick: SelectQueue | None = None,
        queue: MessageQueue | None = None,
        *,
        may_be_closed: bool = False,
    ) -> None:
        self.keys = keys
        """What counts as a key if a send fails: the sharding keys, or the whole queue. One key is that of all messages of this route."""
        self.pick = pick
        self.queue = queue
        self.may_be_closed = may_be_closed
        """The frame may be stored already, which only the broker of `queue` knows: it is asked also if the layout has no such queue."""


UNKEYED = Route()


def route_of(message: Message, selector: Selector | None, queue: MessageQueue | None) -> Route:
    """Return the route that the message and the arguments of `send` specify. Raise LocalProtocolError if they specify two."""
    key = message.sharding_key
    if selector is None and queue is None:
        return UNKEYED if key is None else Route((key,), queue_of_key)
    if key is not None or (selector is not None and queue is not None):
        raise LocalProtocolError("the message's sharding_key, selector and queue each choose the queue: give one of them")
    if selector is not None:
        return Route((QUEUE_WIDE,), lambda layout, _: queue_of_selector(layout, selector, message))
    assert queue is not None
    if queue.topic != message.topic:
        raise LocalProtocolError(f"the message's topic is {message.topic}, the queue's {queue.topic}")
    return Route((QUEUE_WIDE,), None, queue)


def number_of_key(sharding_key: str, queue_count: int) -> int:
    """Return the position in the layout's writable queues to which a key belongs."""
    return crc32(sharding_key.encode()) % queue_count


def queue_of_key(layout: TopicLayout, sharding_key: str) -> MessageQueue:
    """Return the queue to which a key belongs in this layout."""
    return layout.write_queues[number_of_key(sharding_key, len(layout.write_queues))]


def queue_of_selector(layout: TopicLayout, selector: Selector, message: Message) -> MessageQueue:
    """Call the selector and return its queue. Raise LocalProtocolError if it returned something else than a queue of the
    layout."""
    try:
        queue = selector(layout.write_queues, message)
    except BaseException as error:  # re-raised
        if isinstance(error, StopIteration) or not isinstance(error, Exception | KeyboardInterrupt | SystemExit):
            raise LocalProtocolError(f"the selector failed: {text_of(error)}") from error  # a future can't have such an error
        raise
    if not issubclass(type(queue), MessageQueue) or queue not in layout.write_number_of:
        raise LocalProtocolError(
            f"the selector returned {text_of(queue)}: expected one of the {len(layout.write_queues)} queues that it was given"
        )
    return queue
