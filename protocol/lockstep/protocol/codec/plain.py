"""msgpack ↔ plain values (None, bool, int, float, str, bytes, list, dict), within limits. The only module that knows the library."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgpack  # type: ignore[import-untyped]

from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError

ITEMS_MAX = 65_536
"""Elements of one list or map. 65,536 topics in a registration, or queues in a LOCK, are more than one broker serves."""

ELEMENTS_MAX = 500_000
"""Elements of all lists and maps of one body together (an entry of a map is one). A LOCK of 16,384 queues has 130,000."""
ELEMENTS_ALWAYS = 65_536
"""Elements that any body may have. So a body of at most so many bytes is within the limit, and nothing is counted."""
ELEMENT_BYTES_MIN = 4
"""Beyond that there is at most one for so many bytes of the body. Ours take 8 to 60; an element takes up to 64 bytes of memory."""

_packb = msgpack.packb
_unpackb = msgpack.unpackb


def pack_plain(value: object) -> bytes:
    """Plain values as bytes; maps in their own order. Raises LocalProtocolError for what msgpack can't hold (an int beyond 64 bits)."""
    try:
        return cast(bytes, _packb(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalProtocolError(f"can't be written as msgpack: {error}") from None


@dataclass(frozen=True, slots=True)
class PackedList:
    """A list whose elements have been packed one by one."""

    elements: Sequence[bytes]


def pack_around(value: Mapping[str, object]) -> bytes:
    """As `pack_plain`, of a map in which a value, at any depth of maps, may be a PackedList."""
    packer = msgpack.Packer()
    parts: list[bytes] = []

    def add(value: object) -> None:
        if isinstance(value, PackedList):
            parts.append(packer.pack_array_header(len(value.elements)))
            parts.extend(value.elements)
        elif isinstance(value, dict):
            parts.append(packer.pack_map_header(len(value)))
            for name, each in value.items():
                parts.append(pack_plain(name))
                add(each)
        else:
            parts.append(pack_plain(value))

    add(value)
    return b"".join(parts)


def unpack_plain(data: bytes | bytearray | memoryview, *, what: str = "body", array_max: int = ITEMS_MAX, map_max: int = ITEMS_MAX) -> Any:
    """Plain values from bytes. Raises RemoteProtocolError, beginning with `what`.

    msgpack allocates a list from the length that it claims, so that is held to the bytes that are there. Nesting ends at the library's
    own stack (1,024 levels), and the number of elements is held to the bytes too. Extension types are refused, and so are map keys
    that are neither str nor bytes.
    """
    there = len(data)
    count = None
    if there > ELEMENTS_ALWAYS:
        elements_max = min(ELEMENTS_MAX, max(ELEMENTS_ALWAYS, there // ELEMENT_BYTES_MIN))
        count = _counter(elements_max)
        there = elements_max
    try:
        return _unpackb(
            data,
            max_array_len=array_max if array_max < there else there,
            max_map_len=map_max if map_max < there else there,
            max_ext_len=0,
            object_hook=count,
            list_hook=count,
        )
    except (ValueError, TypeError) as error:
        raise RemoteProtocolError(f"{what} is not msgpack within its limits: {type(error).__name__} {str(error)[:120]}") from None


def _counter(elements_max: int) -> Callable[[Any], Any]:
    """A hook for complete lists and maps that raises ValueError when they have more elements together."""
    left = elements_max

    def count(container: Any) -> Any:
        nonlocal left
        left -= len(container)
        if left < 0:
            raise ValueError(f"more than {elements_max} elements in its lists and maps")
        return container

    return count
