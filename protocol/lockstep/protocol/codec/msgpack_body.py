"""Structured bodies as msgpack maps: the dataclasses of bodies (and TopicLayout) ↔ bytes. Equal values give equal bytes."""

from typing import TypeVar

from lockstep.protocol.codec.plain import pack_plain, unpack_plain
from lockstep.protocol.fields import from_plain, to_plain

T = TypeVar("T")


def encode_body(value: object) -> bytes:
    """Return a dataclass as bytes. Raise LocalProtocolError if a value can't be encoded (an int beyond 64 bits, half a surrogate pair)."""
    return pack_plain(to_plain(value))


def decode_body(cls: type[T], data: bytes | bytearray | memoryview) -> T:
    """Return the dataclass `cls` decoded from bytes. Raise RemoteProtocolError if the bytes are not such a body."""
    return from_plain(cls, unpack_plain(data, what=cls.__name__))
