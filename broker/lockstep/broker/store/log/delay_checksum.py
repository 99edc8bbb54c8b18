"""The checksum of a delayed message until it is delivered.

RocketMQ's layout has a CRC of the body only. The broker also reads back the properties, the store time and the head of a delayed message,
and decides by them where and when to deliver it. So a record of the topic of delayed messages has a CRC-32 of all its bytes in a field that
only transactions use:

    at  bytes
    76   4     SEAL_MARK
    80   4     CRC-32 of the record without bytes 76 to 84

Records of RocketMQ's brokers have zeros there and are read without the check. So are those with IPv6 hosts, which only they write.
"""

from struct import Struct

from lockstep.protocol.crc import crc32
from lockstep.protocol.messages.record import BODY_LENGTH_AT, HEAD, PREPARED_OFFSET_AT, head_of
from lockstep.protocol.names import SCHEDULE_TOPIC

SEAL = Struct(">II")
SEAL_MARK = 0x4C535345
SCHEDULE = SCHEDULE_TOPIC.encode()


def seal(data: bytearray, begin: int) -> None:
    """Write the checksum into the last record of `data`, whose other fields are all set."""
    SEAL.pack_into(data, begin + PREPARED_OFFSET_AT, SEAL_MARK, _crc(data, begin, len(data)))


def seal_holds(data: bytes | bytearray | memoryview, begin: int, end: int, topic: bytes) -> bool:
    """Return whether the record [begin, end) has the right checksum, or is of a topic or broker without one."""
    if head_of(data, begin) is not HEAD:
        return True
    mark, crc = SEAL.unpack_from(data, begin + PREPARED_OFFSET_AT)
    if mark != SEAL_MARK and (topic != SCHEDULE or not (mark or crc)):
        return True
    return bool(mark == SEAL_MARK and crc == _crc(data, begin, end))


def _crc(data: bytes | bytearray | memoryview, begin: int, end: int) -> int:
    with memoryview(data) as view:
        return crc32(view[begin + BODY_LENGTH_AT : end], crc32(view[begin : begin + PREPARED_OFFSET_AT]))
