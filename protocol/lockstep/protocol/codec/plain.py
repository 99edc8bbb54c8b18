"""msgpack ↔ plain values (None, bool, int, float, str, bytes, list, dict), within limits. The only module that knows the library."""

from typing import Any, cast

import msgpack  # type: ignore[import-untyped]

from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError

ITEMS_MAX = 65_536
"""Elements of one list or map. 65,536 topics in a registration, or queues in a LOCK, are more than one broker serves."""

_packb = msgpack.packb
_unpackb = msgpack.unpackb


def pack_plain(value: object) -> bytes:
    """Plain values as bytes; maps in their own order. Raises LocalProtocolError for what msgpack can't hold (an int beyond 64 bits)."""
    try:
        return cast(bytes, _packb(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalProtocolError(f"can't be written as msgpack: {error}") from None


def unpack_plain(data: bytes | bytearray | memoryview, *, what: str = "body", array_max: int = ITEMS_MAX, map_max: int = ITEMS_MAX) -> Any:
    """Plain values from bytes. Raises RemoteProtocolError, beginning with `what`.

    msgpack may allocate a list from the length that it claims, so that is held to the bytes that are there. Nesting ends at the library's
    own stack (1,024 levels). Extension types are refused, and so are map keys that are neither str nor bytes.
    """
    there = len(data)
    try:
        return _unpackb(
            data,
            max_array_len=array_max if array_max < there else there,
            max_map_len=map_max if map_max < there else there,
            max_ext_len=0,
        )
    except (ValueError, TypeError) as error:
        raise RemoteProtocolError(f"{what} is not msgpack within its limits: {type(error).__name__} {str(error)[:120]}") from None
