"""The body of SEND_BATCH_MESSAGE. RocketMQ: MessageDecoder.decodeMessages.

repeated: int32 size, int32 magic, int32 crc, int32 flag, int32 length, body, int16 length, properties
"""

from collections.abc import Iterator
from struct import Struct

from lockstep.protocol.errors import MessageIllegalError

_HEAD = Struct(">iiiii")
_SHORT = Struct(">h")
_MIN = _HEAD.size + _SHORT.size
BATCH_MAX = 4_096
"""Messages of one batch: the header of the response has the id of each. RocketMQ limits it only by the size of the frame."""


def joined_properties(own: str, batch: str) -> str:
    """Return the properties of a message in a batch: its own, then those of the batch."""
    return own if not batch else batch if not own else own + batch if own.endswith("\x02") else f"{own}\x02{batch}"


def read_batch(data: bytes | bytearray | memoryview) -> Iterator[tuple[int, bytes, str]]:
    """Yield (flag, body, properties) of each message. Raise MessageIllegalError if the bytes are no batch."""
    raw, at, count = bytes(data), 0, 0
    while at < len(raw):
        count += 1
        if count > BATCH_MAX:
            raise MessageIllegalError(f"a batch of more than {BATCH_MAX} messages")
        if len(raw) - at < _MIN:
            raise MessageIllegalError(f"batch: message {count} is cut off at byte {at}")
        size, _, _, flag, body_bytes = _HEAD.unpack_from(raw, at)
        body_at = at + _HEAD.size
        properties_at = body_at + body_bytes
        if body_bytes < 0 or size < _MIN or at + size > len(raw) or properties_at + _SHORT.size > at + size:
            raise MessageIllegalError(f"batch: message {count} at byte {at} has a body of {body_bytes} bytes and a size of {size}")
        (properties_bytes,) = _SHORT.unpack_from(raw, properties_at)
        if properties_bytes < 0 or properties_at + _SHORT.size + properties_bytes != at + size:
            raise MessageIllegalError(
                f"batch: message {count} at byte {at} has properties of {properties_bytes} bytes and a size of {size}"
            )
        try:
            properties = str(raw[properties_at + _SHORT.size : at + size], "utf-8")
        except UnicodeDecodeError:
            raise MessageIllegalError(f"batch: the properties of message {count} are not UTF-8") from None
        yield flag, raw[body_at:properties_at], properties
        at += size
