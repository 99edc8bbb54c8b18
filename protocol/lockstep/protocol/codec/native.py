"""The native codec: msgpack headers and bodies, typed fields."""

from typing import Any, TypeVar

from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codec.msgpack_header import MsgpackHeader
from lockstep.protocol.fields import from_plain, to_plain

T = TypeVar("T")


class NativeCodec(MsgpackHeader):
    """Frames of lockstep's own clients."""

    __slots__ = ()

    def read_fields(self, cls: type[T], fields: dict[str, Any]) -> T:
        return from_plain(cls, fields)

    def write_fields(self, header: object) -> dict[str, Any]:
        return to_plain(header)

    def read_body(self, cls: type[T], data: bytes | bytearray | memoryview) -> T:
        return decode_body(cls, data)

    def write_body(self, body: object) -> bytes:
        return encode_body(body)
