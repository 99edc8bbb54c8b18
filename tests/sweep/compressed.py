"""Large bodies, which clients store compressed: checkers identify a message by the body that its sender passed, on the wire too."""

import zlib
from random import Random

from lockstep.protocol.messages.record import BODY_AT, BODY_LENGTH_AT, INT32, SYS_COMPRESSED, SYS_FLAG_AT, iter_records

LARGE_BYTES = 4_096
"""Bodies of this size and above are compressed if that makes them smaller: docs/guide.md, compress_over_bytes."""
LARGEST_BYTES = 9_000
FILLER = b" all of lockstep's messages"


def make_large_body(name: bytes, random: Random) -> bytes:
    """Return a body that begins with `name` and is stored in some 70 bytes more."""
    size = random.randint(LARGE_BYTES, LARGEST_BYTES)
    return (name + FILLER * (size // len(FILLER) + 1))[:size]


def decompress_body(stored: bytes, sys_flag: int) -> bytes:
    """Return the body as it was sent; unchanged if it is flagged as compressed and is not. Independent of the product's code."""
    if not sys_flag & SYS_COMPRESSED:
        return stored
    try:
        return zlib.decompress(stored)
    except zlib.error:
        return stored


def record_bodies(frame: bytes | bytearray | memoryview) -> tuple[tuple[bytes, ...], int]:
    """Return the bodies of a frame's records, and how many are compressed. Raise RemoteProtocolError if it is not a frame."""
    found, compressed = [], 0
    for start, _ in iter_records(frame):
        body_at, (sys_flag,) = start + BODY_AT, INT32.unpack_from(frame, start + SYS_FLAG_AT)
        found.append(decompress_body(bytes(frame[body_at : body_at + INT32.unpack_from(frame, start + BODY_LENGTH_AT)[0]]), sys_flag))
        compressed += bool(sys_flag & SYS_COMPRESSED)
    return tuple(found), compressed
