"""Structured bodies as msgpack maps: the dataclasses of bodies.py (and TopicLayout) ↔ bytes. Equal values give equal bytes."""

from typing import TypeVar

from lockstep.protocol.codec.plain import pack_plain, unpack_plain
from lockstep.protocol.fields import from_plain, to_plain

T = TypeVar("T")


def encode_body(value: object) -> bytes:
    """A dataclass as bytes. Raises LocalProtocolError where a value can't be written (an int beyond 64 bits, half a surrogate pair)."""
    return pack_plain(to_plain(value))


def decode_body(cls: type[T], data: bytes | bytearray | memoryview) -> T:
    """The dataclass `cls` from bytes. Raises RemoteProtocolError for anything that is not such a body."""
    return from_plain(cls, unpack_plain(data, what=cls.__name__))
