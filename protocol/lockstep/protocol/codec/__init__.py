"""Codecs by the serialize type byte of the frame. A response is encoded in the type of its request."""

from typing import Any, Protocol, TypeVar

from lockstep.protocol.codec.java_binary import BinaryCodec
from lockstep.protocol.codec.java_json import JsonCodec
from lockstep.protocol.codec.native import NativeCodec
from lockstep.protocol.command import BINARY, JSON, MSGPACK, Command

T = TypeVar("T")


class Codec(Protocol):
    """Encodes and decodes what a frame has: its header, the header's fields, and structured bodies.

    Encoding raises LocalProtocolError for a value that can't be encoded, decoding RemoteProtocolError for bytes or fields that are
    malformed.
    """

    def encode(self, command: Command) -> bytes:
        """Return the encoded header. The body is not touched."""
        ...

    def decode(self, header: bytes | bytearray | memoryview, body: bytes) -> Command:
        """Return the command of a header, with this body."""
        ...

    def read_fields(self, cls: type[T], fields: dict[str, Any]) -> T:
        """Return the header dataclass of a command's fields."""
        ...

    def write_fields(self, header: object) -> dict[str, Any]:
        """Return the fields of a header dataclass."""
        ...

    def read_body(self, cls: type[T], data: bytes | bytearray | memoryview) -> T:
        """Return the dataclass that a body encodes."""
        ...

    def write_body(self, body: object) -> bytes:
        """Return a dataclass as a body."""
        ...


CODECS: dict[int, Codec] = {MSGPACK: NativeCodec(), JSON: JsonCodec(), BINARY: BinaryCodec()}
