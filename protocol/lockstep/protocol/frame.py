"""One frame on the wire. RocketMQ: NettyDecoder, NettyEncoder, RemotingCommand.

    0   4   length          = 4 + header length + body length; does not count itself
    4   1   serialize type  0x4D ('M') msgpack (codec/__init__.py lists the known types)
    5   3   header length   unsigned
    8   H   header
    8+H B   body

The whole frame, including the length field, may have `frame_bytes_max` bytes, the header `header_bytes_max`. Both are checked before the
first byte of them arrives, and memory is never allocated by a claimed length: the buffer grows with the received bytes. Where longer frames
depend on who sends them, the header decides, which is complete before the body.

A frame whose end comes with later data is joined alone, and what follows it is read from the piece that was received. A pull response is
nearly as long as what a socket gives at once, so that most end in another piece, and joining the pieces would copy everything twice.
"""

from collections.abc import Callable, Sequence
from struct import Struct

from lockstep.protocol.codec import CODECS, Codec
from lockstep.protocol.command import MSGPACK, Command
from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError
from lockstep.protocol.native import kernels

FRAME_BYTES_MAX = 16 * 1024 * 1024
"""RocketMQ: com.rocketmq.remoting.frameMaxLength."""
HEADER_BYTES_MAX = 256 * 1024
BODY_BYTES_MAX = 4 * 1024 * 1024
"""The maximum size of a message body. A larger one gets an error response instead of a closed connection. RocketMQ: maxMessageSize."""

TLS_HANDSHAKE = 0x1603
HTTP_BEGINNINGS = (b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI", b"PRI ")
"""The first four bytes of requests of HTTP, and of HTTP/2."""
"""The first two bytes of a connection that begins with TLS: a handshake record of version 3 (RFC 8446, 5.1)."""

_PREFIX = Struct(">iI")
_LENGTH = Struct(">i")
_PREFIX_BYTES = 8


class FrameBuffer:
    """Decodes a stream of bytes into commands. The commands don't depend on how the bytes are split; the time is linear in the bytes.

    `next` raises RemoteProtocolError at the first invalid frame. From then on the buffer ignores new data and raises the same error again:
    the stream can't be resynchronized, so the caller closes the connection.
    """

    __slots__ = (
        *("_bytes_max", "_data", "_error", "_header_bytes_max", "_is_long", "_joined", "_lacking", "_position"),
        *("frame_bytes_max", "reads_long"),
    )

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX, header_bytes_max: int = HEADER_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        """It may be changed. A longer frame that has begun is refused."""
        self.reads_long: Callable[[Command, int], bool] | None = None
        """Returns whether a longer frame is read all the same, by its header and its size. The body has not arrived."""
        self._bytes_max = frame_bytes_max
        self._header_bytes_max = header_bytes_max
        self._is_long = False
        """Whether `reads_long` has let the frame pass that has begun."""
        self._joined: bytes | bytearray = b""
        """A whole frame that comes before `_data`."""
        self._data: bytes | bytearray = b""
        self._position = 0
        self._lacking = 0
        """How many more bytes the frame at `_position` has, if that is known."""
        self._error: str | None = None

    @property
    def pending_bytes(self) -> int:
        """Return the number of received bytes that are not yet part of a command."""
        return len(self._joined) + len(self._data) - self._position

    def clear(self) -> None:
        """Drop the received bytes that are not yet part of a command."""
        self._joined = self._data = b""
        self._position = self._lacking = 0

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Append received data. The caller may reuse `data` at once."""
        if self._error is not None:
            return
        kept, position, lacking = self._data, self._position, self._lacking
        if position == len(kept):
            self._data, self._position = data if type(data) is bytes else bytes(data), 0
            return
        if type(kept) is bytearray and position:
            # Deleting the front of a bytearray moves no bytes; CPython shrinks the block when less than half is used.
            del kept[:position]
            position = 0
        if lacking and lacking <= len(data):
            if type(kept) is bytes:
                self._joined = b"".join((memoryview(kept)[position:], memoryview(data)[:lacking]))
            else:
                kept += memoryview(data)[:lacking]
                self._joined = kept
            self._data, self._position = (bytes(data), lacking) if lacking < len(data) else (b"", 0)
            self._lacking = 0
        else:
            if type(kept) is bytes:
                self._data = kept = bytearray(memoryview(kept)[position:])
            kept += data
            self._position, self._lacking = 0, max(0, lacking - len(data))

    def next(self) -> Command | None:
        """Return the next complete command, or None until more bytes arrive. Raise RemoteProtocolError if the frame is invalid."""
        joined = self._joined
        data, start = (joined, 0) if joined else (self._data, self._position)
        available = len(data) - start
        if available < _PREFIX_BYTES:
            if self._error is not None:
                raise RemoteProtocolError(self._error)
            if available >= 4:
                self._check_length(_LENGTH.unpack_from(data, start)[0])
            return None
        found = None
        if kernels is not None and type(data) is bytes:
            found = kernels.next_frame(data, start, self.frame_bytes_max, self._header_bytes_max)
        if found is not None:
            parts, end = found
            command = Command(*parts)
        else:
            read = self._read(data, start)
            if read is None:
                return None
            command, end = read
        if joined:
            self._joined = b""
        elif end == len(data):
            self._data, self._position = b"", 0
        else:
            self._position = end
        return command

    def _read(self, data: bytes | bytearray, start: int) -> tuple[Command, int] | None:
        """Return the command that begins at `start` of the data and where it ends, or None until more bytes arrive."""
        length, word = _PREFIX.unpack_from(data, start)
        self._check_length(length)
        header_bytes = word & 0xFFFFFF
        codec = CODECS.get(word >> 24)
        if codec is None:
            raise self._fail(f"serialize type 0x{word >> 24:02X} is unknown")
        if header_bytes > length - 4 or header_bytes > self._header_bytes_max:
            raise self._fail(
                f"header length {header_bytes} is refused: at most {min(length - 4, self._header_bytes_max)} in a frame of length {length}"
            )
        end = start + 4 + length
        body_at = start + _PREFIX_BYTES + header_bytes
        if length > self.frame_bytes_max - 4 and not self._reads_on(codec, data, start, body_at, length):
            return None
        if end > len(data):
            self._lacking = end - len(data)
            return None
        header = data[start + _PREFIX_BYTES : body_at]
        body = data[body_at:end] if type(data) is bytes else bytes(memoryview(data)[body_at:end])
        try:
            command = codec.decode(header, body)
        except RemoteProtocolError as error:
            raise self._fail(str(error)) from None
        command.header_bytes = header_bytes
        return command, end

    def _check_length(self, length: int) -> None:
        if length < 4 or length > (self.frame_bytes_max if self.reads_long is None else self._bytes_max) - 4:
            raise self._refused(length)

    def _reads_on(self, codec: Codec, data: bytes | bytearray, start: int, body_at: int, length: int) -> bool:
        """Return whether a long frame is read on; False until its header has arrived. Raise RemoteProtocolError if it is refused."""
        if not self._is_long:
            if body_at - start > self.frame_bytes_max:
                raise self._refused(length)
            if body_at > len(data):
                return False
            try:
                command = codec.decode(data[start + _PREFIX_BYTES : body_at], b"")
            except RemoteProtocolError as error:
                raise self._fail(str(error)) from None
            if self.reads_long is None or not self.reads_long(command, length + 4):
                raise self._refused(length)
        self._is_long = start + 4 + length > len(data)
        return True

    def _refused(self, length: int) -> RemoteProtocolError:
        hint = "; a handshake of TLS begins so, and this port has no TLS" if length >> 16 == TLS_HANDSHAKE else ""
        if length > 0 and length.to_bytes(4, "big") in HTTP_BEGINNINGS:
            hint = "; a request of HTTP begins so, and this is not the admin port"
        return self._fail(f"frame length {length} is refused: 4 … {self.frame_bytes_max - 4}{hint}")

    def _fail(self, message: str) -> RemoteProtocolError:
        self._error = message
        self.clear()
        return RemoteProtocolError(message)


def encode_frame(command: Command) -> bytes:
    """Return the whole frame. Raise LocalProtocolError if it would exceed the size that a peer accepts."""
    if kernels is not None and command.codec == MSGPACK:
        frame = kernels.encode_frame(command, HEADER_BYTES_MAX, FRAME_BYTES_MAX)
        if frame is not None:
            return frame
    header = CODECS[command.codec].encode(command)
    return b"".join((_prefix(command, len(header), len(command.body)), header, command.body))


def encode_frame_parts(command: Command, body_parts: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """Return the frame as a list: its head, then `body_parts` unchanged, so that writelines copies no bodies. `command.body` is not
    sent."""
    header = CODECS[command.codec].encode(command)
    return [_prefix(command, len(header), sum(map(len, body_parts))) + header, *body_parts]


def _prefix(command: Command, header_bytes: int, body_bytes: int) -> bytes:
    length = 4 + header_bytes + body_bytes
    if header_bytes > HEADER_BYTES_MAX:
        raise LocalProtocolError(f"header of code {command.code} has {header_bytes} bytes: at most {HEADER_BYTES_MAX}")
    if length > FRAME_BYTES_MAX - 4:
        raise LocalProtocolError(f"frame of code {command.code} has {length + 4} bytes: at most {FRAME_BYTES_MAX}")
    return _PREFIX.pack(length, command.codec << 24 | header_bytes)
