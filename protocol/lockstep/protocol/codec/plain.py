"""msgpack ↔ plain values (None, bool, int, float, str, bytes, list, dict), within limits. Only this module imports the msgpack library."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgpack  # type: ignore[import-untyped]

from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError

ITEMS_MAX = 65_536
"""The maximum number of elements of one list or map. One broker serves fewer than 65,536 topics in a registration or queues in a LOCK."""

ELEMENTS_MAX = 500_000
"""The maximum number of elements of all lists and maps of one body (an entry of a map is one element). A LOCK of 16,384 queues has
130,000."""
ELEMENTS_ALWAYS = 65_536
"""The number of elements that any body may have. A body of at most that many bytes is within the limit without counting."""
ELEMENT_BYTES_MIN = 4
"""The minimum size of an element of a larger body, on average. lockstep's elements take 8 to 60 bytes encoded, and up to 64 bytes of
memory."""

_packb = msgpack.packb
_unpackb = msgpack.unpackb


def pack_plain(value: object) -> bytes:
    """Return plain values as bytes, with maps in their own order. Raise LocalProtocolError for values that msgpack can't encode (an int
    beyond 64 bits)."""
    return _pack(_packb, value)


def _pack(pack: Callable[[object], object], value: object) -> bytes:
    try:
        return cast(bytes, pack(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalProtocolError(f"can't be written as msgpack: {error}") from None


class PackedList:
    """A list whose elements are packed when they are appended, for `pack_around`.

    It has a packer of its own: `pack_plain` makes one for each value, which takes as long as to pack a small map.
    """

    __slots__ = ("_pack_element", "elements")

    def __init__(self) -> None:
        self.elements: list[bytes] = []
        self._pack_element = msgpack.Packer().pack

    def append(self, value: object) -> None:
        """Pack a value and append it. Raise what `pack_plain` raises."""
        self.elements.append(_pack(self._pack_element, value))


def pack_around(value: Mapping[str, object]) -> bytes:
    """Pack a map as `pack_plain` does. A value, at any depth of maps, may be a PackedList."""
    parts: list[bytes] = []
    _add_parts(parts, msgpack.Packer(), value)
    return b"".join(parts)


def _add_parts(parts: list[bytes], packer: msgpack.Packer, value: object) -> None:
    """Append the bytes of `value` to `parts`. A function inside `pack_around` would refer to itself, and keep all parts until the garbage
    collector finds it."""
    if isinstance(value, PackedList):
        parts.append(packer.pack_array_header(len(value.elements)))
        parts.extend(value.elements)
    elif isinstance(value, dict):
        parts.append(packer.pack_map_header(len(value)))
        for name, each in value.items():
            parts.append(pack_plain(name))
            _add_parts(parts, packer, each)
    else:
        parts.append(pack_plain(value))


def unpack_plain(data: bytes | bytearray | memoryview, *, what: str = "body", array_max: int = ITEMS_MAX, map_max: int = ITEMS_MAX) -> Any:
    """Return plain values decoded from bytes.

    msgpack allocates a list from the length that it claims, so the length is limited by the number of bytes in `data`, and so is the number
    of elements. The library's own stack limits nesting (1,024 levels). Extension types are rejected, and so are map keys that are neither
    str nor bytes.

    Raises RemoteProtocolError, whose text begins with `what`.
    """
    length_max = len(data)
    count = None
    if length_max > ELEMENTS_ALWAYS:
        elements_max = min(ELEMENTS_MAX, max(ELEMENTS_ALWAYS, length_max // ELEMENT_BYTES_MIN))
        count = _counter(elements_max)
        length_max = elements_max
    try:
        return _unpackb(
            data,
            max_array_len=array_max if array_max < length_max else length_max,
            max_map_len=map_max if map_max < length_max else length_max,
            max_ext_len=0,
            object_hook=count,
            list_hook=count,
        )
    except (ValueError, TypeError) as error:
        raise RemoteProtocolError(f"{what} is not msgpack within its limits: {type(error).__name__} {str(error)[:120]}") from None


def _counter(elements_max: int) -> Callable[[Any], Any]:
    """Return a hook for complete lists and maps that raises ValueError if they have more elements in total."""
    left = elements_max

    def count(container: Any) -> Any:
        nonlocal left
        left -= len(container)
        if left < 0:
            raise ValueError(f"more than {elements_max} elements in its lists and maps")
        return container

    return count
