"""Header codecs by the serialize type byte of the frame. A response is encoded in the type of its request."""

from typing import Protocol

from lockstep.protocol.codec.msgpack_header import MsgpackHeader
from lockstep.protocol.command import MSGPACK, Command


class HeaderCodec(Protocol):
    """Encodes and decodes the header of a Command. It does not touch the body."""

    def encode(self, command: Command) -> bytes:
        """Return the encoded header. Raise LocalProtocolError if a value can't be encoded."""
        ...

    def decode(self, header: bytes | bytearray | memoryview, body: bytes) -> Command:
        """Return the command of a header, with this body. Raise RemoteProtocolError if the header is malformed."""
        ...


CODECS: dict[int, HeaderCodec] = {MSGPACK: MsgpackHeader()}
