"""Compressed message bodies, as RocketMQ's clients write and read them. The broker stores bodies as it receives them and never
decompresses.

    sys flag   meaning
    0x001      the body is compressed
    0x700      the algorithm: 0 and 0x300 zlib, 0x100 LZ4, 0x200 Zstandard

lockstep's clients write zlib (0x301) if it makes a body smaller. They read zlib, and LZ4 and Zstandard, which RocketMQ 5 can write, if the
extra [lz4] or [zstd] is installed. The record's CRC covers the stored (compressed) bytes.
"""

import zlib
from collections.abc import Callable, Mapping
from importlib import import_module
from io import BytesIO
from typing import Any

from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.frame import BODY_BYTES_MAX
from lockstep.protocol.messages.record import SYS_COMPRESSED

COMPRESS_OVER_BYTES = 4096
"""Bodies of this size and above are compressed. RocketMQ: compressMsgBodyOverHowmuch."""
LEVEL = 5
"""RocketMQ: rocketmq.message.compressLevel."""
TYPE_MASK = 0x700
TYPE_ZLIB = 0x300
SYS_ZLIB = SYS_COMPRESSED | TYPE_ZLIB
ZSTD_WINDOW_BYTES_MAX = 8 << 20
"""What a decoder should allow at least (RFC 8878), and enough for levels up to 19. A frame that names a larger window is refused."""


def compress_body(body: bytes) -> tuple[bytes, int]:
    """Return the bytes to store for a body and the sys flag bits of the compression: the body and 0 if compression does not make it
    smaller."""
    smaller = zlib.compress(body, LEVEL)
    return (smaller, SYS_ZLIB) if len(smaller) < len(body) else (body, 0)


def decompress_body(stored: bytes, sys_flag: int) -> bytes:
    """Return the body that was sent.

    Decompression stops after BODY_BYTES_MAX + 1 bytes. Raises RemoteProtocolError, with the reason, if the body can't be decompressed.
    """
    method = _METHODS.get(sys_flag & TYPE_MASK)
    if method is None:
        raise RemoteProtocolError(
            f"the body is compressed by an unknown algorithm (sys flag {sys_flag:#x}): set the producer's compression type to ZLIB"
        )
    body, ended, has_more = method(stored)
    if len(body) > BODY_BYTES_MAX:
        raise RemoteProtocolError(f"the body of {len(stored)} bytes decompresses to more than {BODY_BYTES_MAX}, the largest message body")
    if not ended or has_more:
        what = "has bytes after its end" if ended else "ends too early"
        raise RemoteProtocolError(f"the body of {len(stored)} bytes is marked as compressed, and its {_NAMES[method]} stream {what}")
    return body


Decompressed = tuple[bytes, bool, bool]
"""At most BODY_BYTES_MAX + 1 bytes; whether the stream ended with them; whether bytes follow."""


def _zlib(stored: bytes) -> Decompressed:
    inflate = zlib.decompressobj()
    try:
        return inflate.decompress(stored, BODY_BYTES_MAX + 1), inflate.eof, bool(inflate.unused_data)
    except zlib.error as error:
        raise _no_stream(stored, "a zlib", error) from None


def _lz4(stored: bytes) -> Decompressed:
    """RocketMQ: Lz4Compressor, the frame format."""
    frame = _import("lz4.frame", "LZ4", "lz4").LZ4FrameDecompressor()
    try:
        return frame.decompress(stored, max_length=BODY_BYTES_MAX + 1), frame.eof, bool(frame.unused_data)
    except RuntimeError as error:
        raise _no_stream(stored, "an LZ4", error) from None


def _zstd(stored: bytes) -> Decompressed:
    """RocketMQ: ZstdCompressor. Its frames do not name the size of the body."""
    zstandard = _import("zstandard", "Zstandard", "zstd")
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)
    try:
        # The reader stops at the limit, but does not say whether the frame has ended: that takes a second pass, of a size known by then.
        body = decompressor.stream_reader(BytesIO(stored), read_across_frames=False).read(BODY_BYTES_MAX + 1)
        if len(body) > BODY_BYTES_MAX:
            return body, False, False
        frame = decompressor.decompressobj()
        return frame.decompress(stored), frame.eof, bool(frame.unused_data)
    except zstandard.ZstdError as error:
        raise _no_stream(stored, "a Zstandard", error) from None


def _no_stream(stored: bytes, kind: str, error: Exception) -> RemoteProtocolError:
    return RemoteProtocolError(f"the body of {len(stored)} bytes is marked as compressed and is not {kind} stream: {error}")


def _import(module: str, algorithm: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise RemoteProtocolError(
            f"the body is compressed by {algorithm}, and {module.partition('.')[0]} is not installed: run pip install "
            f"'lockstep-mq[{extra}]', or set the producer's compression type to ZLIB"
        ) from None


_METHODS: Mapping[int, Callable[[bytes], Decompressed]] = {0: _zlib, 0x100: _lz4, 0x200: _zstd, TYPE_ZLIB: _zlib}
_NAMES: Mapping[Callable[[bytes], Decompressed], str] = {_zlib: "zlib", _lz4: "LZ4", _zstd: "Zstandard"}
