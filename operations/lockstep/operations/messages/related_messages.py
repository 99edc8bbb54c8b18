"""Messages that belong to one: those before and after it with its sharding key, the one that it is a copy of, and its copies."""

from dataclasses import dataclass

from lockstep.operations.admin_client import AdminClient
from lockstep.operations.messages.find import Criteria, Found, find_key
from lockstep.operations.messages.queue_reader import Pick, QueueReader
from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.messages.ids import parse_offset_message_id
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.messages.properties import ORIGIN_MESSAGE_ID

LOOK_MAX = 4_096
"""Messages before and after one that are searched for its sharding key."""
PART_COUNT = 256
"""Messages that are searched at a time."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The messages with the same sharding key next to one, in its queue."""

    before: MessageExt | None
    after: MessageExt | None
    is_first: bool
    """Whether the whole queue before it was searched and has none."""
    is_last: bool
    """Whether the whole queue after it was searched and has none."""


async def find_neighbours(admin: AdminClient, broker: BrokerAddress, message: MessageExt) -> Neighbours:
    """Return the messages next to one with its sharding key, of which the LOOK_MAX before and after it are searched.

    Raises the errors of requests to the broker.
    """
    ranges = await admin.offsets(broker, message.stored_topic)
    held = next((each for each in ranges if each.queue_id == message.queue_id), None)
    if held is None or message.sharding_key is None:
        return Neighbours(None, None, False, False)
    offset = message.queue_offset
    lowest, highest = max(held.min_offset, offset - LOOK_MAX), min(held.max_offset, offset + 1 + LOOK_MAX)
    before, after = None, None
    end = offset
    while before is None and end > lowest:
        begin = max(lowest, end - PART_COUNT)
        before = next(reversed(await _of_key(admin, broker, message, begin, end)), None)
        end = begin
    begin = offset + 1
    while after is None and begin < highest:
        end = min(highest, begin + PART_COUNT)
        after = next(iter(await _of_key(admin, broker, message, begin, end)), None)
        begin = end
    return Neighbours(before, after, before is None and lowest == held.min_offset, after is None and highest == held.max_offset)


async def _of_key(admin: AdminClient, broker: BrokerAddress, message: MessageExt, begin: int, end: int) -> list[MessageExt]:
    """Return the messages with the offsets from `begin` up to `end` that have the sharding key of `message`."""
    place = message.stored_topic, message.queue_id, begin, end
    reader = QueueReader(admin, broker, *place, Pick(key=message.sharding_key), count=end - begin)
    return [each for each in await reader.rest() if each.sharding_key == message.sharding_key]


def origin_of(message: MessageExt) -> str | None:
    """Return the offset message id of the message that this one is a copy of, a retry or a dead letter; None if it does not say so."""
    text = message.all_properties.get(ORIGIN_MESSAGE_ID, "")
    try:
        parse_offset_message_id(text)
    except LocalProtocolError:
        return None  # a client may send any text
    return text.upper()


async def find_copies(admin: AdminClient, found: Found, broker: BrokerAddress, message: MessageExt) -> None:
    """Search the broker's log for the id that the message's producer gave it. `copies_of` returns those of `found` that are copies."""
    if message.message_id != message.offset_message_id:
        await find_key(admin, found, message.message_id, Criteria(begin_ms=message.stored_ms), unique=True, brokers=[broker])


def copies_of(found: Found, message: MessageExt) -> list[MessageExt]:
    """Return those of the found messages whose properties name the message as their origin: a copy, a retry or a dead letter: the newest
    first."""
    return [each for each in found.messages if origin_of(each) == message.offset_message_id]
