"""The records of messages that wait: their checksum, and when they are due.

RocketMQ's layout has a CRC of the body only. The broker also reads back the properties, the store time and the head of a message that
waits, and decides by them where and when to deliver it. So a record of the topics of such messages has a CRC-32 of all its bytes in a field
that only transactions use:

    at  bytes
    76   4     SEAL_MARK
    80   4     CRC-32 of the record without bytes 76 to 84

Records of RocketMQ's brokers have zeros there and are read without the check. So are those with IPv6 hosts, which only they write. A record
in a waiting room without the checksum is not of this broker, and does not wait. The running CRC of a frame counts these bytes as zero, as
its sender wrote them.
"""

from struct import Struct
from typing import NamedTuple

from lockstep.protocol.crc import crc32
from lockstep.protocol.delays import queue_delay_ms
from lockstep.protocol.errors import MessageIllegalError
from lockstep.protocol.messages.record import BODY_AT, BODY_LENGTH_AT, HEAD, PREPARED_OFFSET_AT, UINT32, head_of
from lockstep.protocol.messages.rooms import READERS, due_of_code
from lockstep.protocol.names import SCHEDULE_TOPIC

SEAL = Struct(">II")
SEAL_MARK = 0x4C535345
NO_SEAL = bytes(8)
DAY_MS = 86_400_000
ROOMS = frozenset(READERS)
"""Topics into which clients send frames to wait."""
SEALED = frozenset({SCHEDULE_TOPIC, *ROOMS})
"""Topics whose records have the checksum."""
_SEALED_NAMES = frozenset(topic.encode() for topic in SEALED)
_ENTRY = Struct(">qiq")


class Room(NamedTuple):
    """What a frame that a client sends into a waiting room has to comply with."""

    home: bytes
    """How the properties of each record begin (RoomProperties.home)."""
    wait_max_ms: int | None
    """The longest wait. None: a record does not wait for a time, but for a decision."""

    def due_max(self, store_ms: int) -> int | None:
        """Return the latest time at which a record may be due that is stored at this time."""
        return None if self.wait_max_ms is None else store_ms + self.wait_max_ms


def seal(data: bytearray, begin: int, end: int) -> None:
    """Write the checksum into the record [begin, end), whose other fields are all set."""
    SEAL.pack_into(data, begin + PREPARED_OFFSET_AT, SEAL_MARK, _crc(data, begin, end))


def seal_holds(data: bytes | bytearray | memoryview, begin: int, end: int, topic: bytes) -> bool:
    """Return whether the record [begin, end) has the right checksum, or is of a topic or broker without one."""
    if head_of(data, begin) is not HEAD:
        return True
    mark, crc = SEAL.unpack_from(data, begin + PREPARED_OFFSET_AT)
    if mark != SEAL_MARK and (topic not in _SEALED_NAMES or not (mark or crc)):
        return True
    return bool(mark == SEAL_MARK and crc == _crc(data, begin, end))


def is_sealed(data: bytes | bytearray | memoryview, begin: int = 0) -> bool:
    """Return whether the record has a checksum."""
    return head_of(data, begin) is HEAD and bool(SEAL.unpack_from(data, begin + PREPARED_OFFSET_AT)[0] == SEAL_MARK)


def due_of(topic: str, queue_id: int, store_ms: int, properties: bytes) -> int | None:
    """Return what the entry of a sealed record has instead of a tag hash: when it is due (ms), in a waiting room the due code. None if it
    does not wait."""
    if topic == SCHEDULE_TOPIC:
        return store_ms + queue_delay_ms(queue_id)
    found = READERS[topic](properties) if topic in READERS else None
    return None if found is None else found.code(store_ms)


def seal_waiting(
    data: bytearray, at: int, entries: bytearray, topic: str, queue_id: int, store_ms: int, due_max: int | None = None
) -> None:
    """Seal the records of one frame, which begin at `at` of `data`, and put into their entries when they are due.

    Raises MessageIllegalError if a record would be due after `due_max`.
    """
    first = _ENTRY.unpack_from(entries)[0]
    for number, (position, size, _) in enumerate(_ENTRY.iter_unpack(entries)):
        begin = at + position - first
        end = begin + size
        topic_at = begin + BODY_AT + UINT32.unpack_from(data, begin + BODY_LENGTH_AT)[0] + 1
        due = due_of(topic, queue_id, store_ms, bytes(data[topic_at + data[topic_at - 1] + 2 : end]))
        if due is None:
            raise MessageIllegalError(f"record {number}: its properties do not say when it is due")
        if due_max is not None and due_of_code(due) > due_max:
            days, days_max = (due_of_code(due) - store_ms) / DAY_MS, (due_max - store_ms) / DAY_MS
            raise MessageIllegalError(f"record {number}: waits for {days:.2f} days: at most {days_max:g} (timer_days_max)")
        _ENTRY.pack_into(entries, number * _ENTRY.size, position, size, due)
        seal(data, begin, end)


def _crc(data: bytes | bytearray | memoryview, begin: int, end: int) -> int:
    with memoryview(data) as view:
        return crc32(view[begin + BODY_LENGTH_AT : end], crc32(view[begin : begin + PREPARED_OFFSET_AT]))
