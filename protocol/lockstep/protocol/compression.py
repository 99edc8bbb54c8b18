"""Compressed message bodies, as RocketMQ's clients write and read them. The broker stores bodies as it receives them and never
decompresses.

    sys flag   meaning
    0x001      the body is compressed
    0x700      the algorithm: 0 and 0x300 zlib, 0x100 LZ4, 0x200 Zstandard

Clients write zlib (0x301) if it makes a body smaller, and read zlib. The record's CRC covers the stored (compressed) bytes.
"""

import zlib

from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.frame import BODY_BYTES_MAX
from lockstep.protocol.record import SYS_COMPRESSED

COMPRESS_OVER_BYTES = 4096
"""Bodies of this size and above are compressed. RocketMQ: compressMsgBodyOverHowmuch."""
LEVEL = 5
"""RocketMQ: rocketmq.message.compressLevel."""
TYPE_MASK = 0x700
TYPE_ZLIB = 0x300
SYS_ZLIB = SYS_COMPRESSED | TYPE_ZLIB
_OTHERS = {0x100: "LZ4", 0x200: "Zstandard"}


def compress_body(body: bytes) -> tuple[bytes, int]:
    """Return the bytes to store for a body and the sys flag bits of the compression: the body and 0 if compression does not make it
    smaller."""
    smaller = zlib.compress(body, LEVEL)
    return (smaller, SYS_ZLIB) if len(smaller) < len(body) else (body, 0)


def decompress_body(stored: bytes, sys_flag: int) -> bytes:
    """Return the body that was sent.

    Decompression stops after BODY_BYTES_MAX + 1 bytes. Raises RemoteProtocolError, with the reason, if the body can't be decompressed.
    """
    kind = sys_flag & TYPE_MASK
    if kind not in (0, TYPE_ZLIB):
        raise RemoteProtocolError(
            f"the body is compressed by {_OTHERS.get(kind, f'an unknown algorithm (sys flag {sys_flag:#x})')}, and only zlib can be "
            "read: set the producer's compression type to ZLIB"
        )
    inflate = zlib.decompressobj()
    try:
        body = inflate.decompress(stored, BODY_BYTES_MAX + 1)
    except zlib.error as error:
        raise RemoteProtocolError(f"the body of {len(stored)} bytes is marked as compressed and is not a zlib stream: {error}") from None
    if len(body) > BODY_BYTES_MAX:
        raise RemoteProtocolError(f"the body of {len(stored)} bytes decompresses to more than {BODY_BYTES_MAX}, the largest message body")
    if not inflate.eof or inflate.unused_data:
        what = "has bytes after its end" if inflate.eof else "ends too early"
        raise RemoteProtocolError(f"the body of {len(stored)} bytes is marked as compressed, and its zlib stream {what}")
    return body
