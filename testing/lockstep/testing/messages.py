"""Messages and contexts as a consumer passes them to a listener, for unit tests that need no broker."""

from collections.abc import Mapping, Sequence
from typing import Literal

from lockstep.client.consumer.calls.listener import ConcurrentlyContext, Fence, OrderlyContext
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.messages.message import Message, MessageExt, decode_messages
from lockstep.protocol.messages.properties import UNIQ_KEY, encode_properties
from lockstep.protocol.messages.record import BORN_HOST_AT, HOSTS, OFFSETS, QUEUE_OFFSET_AT, encode_record, pack_host
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.runtime.host import Host

HOST = pack_host("127.0.0.1:10911")
FIRST_GENERATION = (1 << 32) + 1
"""The generation of a group's first progress in a queue."""
FIRST_EPOCH = (1 << 32) + 2
"""The fencing token of the first owner of a queue."""
OFFSET_MAX = 2**63 - 1


def message(
    topic: str,
    body: bytes,
    *,
    tags: str | None = None,
    keys: str | Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    sharding_key: str | None = None,
    flag: int = 0,
    broker_name: str = "broker-a",
    queue_id: int = 0,
    queue_offset: int = 0,
    reconsume_times: int = 0,
    message_id: str | None = None,
    born_ms: int | None = None,
    stored_ms: int | None = None,
) -> MessageExt:
    """Return a message as a consumer receives it: it is encoded and decoded as a broker and a consumer do.

    Args:
        topic, body, tags, keys, properties, sharding_key, flag: As in Message.
        broker_name, queue_id, queue_offset: The position of the message.
        reconsume_times: How often a concurrent group has failed to consume it.
        message_id: The id that its producer gave. Default: one that is made from the queue and the offset.
        born_ms: When it was sent, in ms since 1970. Default: now.
        stored_ms: When it was stored, in ms since 1970. Default: `born_ms`.

    Raises:
        LocalProtocolError: A value can't be sent or stored.
    """
    if not 0 <= queue_offset <= OFFSET_MAX:
        raise LocalProtocolError(f"queue_offset {queue_offset}: an offset is 0 to 2^63 − 1")
    draft = Message(topic, body, tags=tags, keys=keys, properties=properties or {}, sharding_key=sharding_key, flag=flag)
    born_ms = Host.current().clock.wall_ms() if born_ms is None else born_ms
    own = encode_properties({UNIQ_KEY: message_id or f"{queue_id & 0xFFFFFFFF:016X}{queue_offset:016X}"})
    stored = b"\x02".join(part for part in (draft.stored_properties, own) if part)
    sent = encode_record(draft.stored_topic, queue_id, draft.body, stored, flag=flag, born_ms=born_ms, reconsume_times=reconsume_times)
    record = bytearray(sent)
    OFFSETS.pack_into(record, QUEUE_OFFSET_AT, queue_offset, queue_offset)
    HOSTS.pack_into(record, BORN_HOST_AT, HOST, born_ms if stored_ms is None else stored_ms, HOST)
    (made,) = decode_messages(bytes(record), broker_name)
    return made


def orderly_context(
    messages: Sequence[MessageExt],
    *,
    group: str = "test",
    attempt: int = 0,
    epoch: int = FIRST_EPOCH,
    generation: int = FIRST_GENERATION,
    order_by: Literal["queue", "sharding_key"] = "queue",
    unkeyed: Literal["together", "alone"] = "together",
    cancelled: bool = False,
) -> OrderlyContext:
    """Return the context with which an ordered listener is called with these messages, which are of one queue.

    Args:
        messages: The messages of the call.
        group: The consumer group.
        attempt: How often this batch has failed before.
        epoch, generation, order_by, unkeyed: As in Fence.
        cancelled: Whether the result of the call may no longer be accepted (`context.cancelled`).
    """
    queue = _queue_of(messages)
    fence = Fence(group, queue.topic, queue.broker_name, queue.queue_id, epoch, generation, order_by, unkeyed)
    return OrderlyContext(queue, fence, attempt, lambda: cancelled)


def concurrently_context(messages: Sequence[MessageExt], *, cancelled: bool = False) -> ConcurrentlyContext:
    """Return the context with which a concurrent listener is called with these messages, which are of one queue.

    Args:
        messages: The messages of the call.
        cancelled: Whether the result of the call may no longer be accepted (`context.cancelled`).
    """
    return ConcurrentlyContext(_queue_of(messages), len(messages), lambda: cancelled)


def _queue_of(messages: Sequence[MessageExt]) -> MessageQueue:
    queues = {MessageQueue(each.stored_topic, each.broker_name, each.queue_id) for each in messages}
    if len(queues) != 1:
        named = ", ".join(sorted(map(str, queues))) or "no message"
        raise LocalProtocolError(f"a listener is called with messages of one queue, not with those of {named}")
    return queues.pop()
