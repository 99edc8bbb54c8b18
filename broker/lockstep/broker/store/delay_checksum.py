"""The checksum of a delayed message while it waits.

RocketMQ's layout has a CRC of the body alone. Of a message that waits the broker also reads back the properties, the store time and the
head, and decides by them where and when it is delivered. So a record of the topic of delayed messages has a CRC-32 of all its bytes in a
field that only transactions use:

    at  bytes
    76   4     SEAL_MARK
    80   4     CRC-32 of the record without bytes 76 to 84

Records of earlier versions have zeros there, and are read without the check.
"""

from struct import Struct

from lockstep.protocol.crc import crc32
from lockstep.protocol.names import SCHEDULE_TOPIC
from lockstep.protocol.record import BODY_LENGTH_AT, PREPARED_OFFSET_AT

SEAL = Struct(">II")
SEAL_MARK = 0x4C535345
SCHEDULE = SCHEDULE_TOPIC.encode()


def seal(data: bytearray, begin: int) -> None:
    """Writes the checksum into the record that ends `data`, when all its other fields are set."""
    SEAL.pack_into(data, begin + PREPARED_OFFSET_AT, SEAL_MARK, _crc(data, begin, len(data)))


def seal_holds(data: bytes | bytearray | memoryview, begin: int, end: int, topic: bytes) -> bool:
    """Whether the record [begin, end) is what was sealed, or is of a kind or version that has no checksum."""
    mark, crc = SEAL.unpack_from(data, begin + PREPARED_OFFSET_AT)
    if mark != SEAL_MARK and (topic != SCHEDULE or not (mark or crc)):
        return True
    return bool(mark == SEAL_MARK and crc == _crc(data, begin, end))


def _crc(data: bytes | bytearray | memoryview, begin: int, end: int) -> int:
    with memoryview(data) as view:
        return crc32(view[begin + BODY_LENGTH_AT : end], crc32(view[begin : begin + PREPARED_OFFSET_AT]))
