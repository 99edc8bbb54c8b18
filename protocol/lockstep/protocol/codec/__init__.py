"""Header codecs by the frame's serialize type byte. A reply is encoded in its request's type."""

from typing import Protocol

from lockstep.protocol.codec.msgpack_header import MsgpackHeader
from lockstep.protocol.command import MSGPACK, Command


class HeaderCodec(Protocol):
    """Turns a Command's header into bytes and back. The body is not its business."""

    def encode(self, command: Command) -> bytes:
        """The header. Raises LocalProtocolError where a value can't be written."""
        ...

    def decode(self, header: bytes | bytearray | memoryview, body: bytes) -> Command:
        """The command of a header, with this body. Raises RemoteProtocolError for anything that is not such a header."""
        ...


CODECS: dict[int, HeaderCodec] = {MSGPACK: MsgpackHeader()}
