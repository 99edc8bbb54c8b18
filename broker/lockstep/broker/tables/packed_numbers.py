"""Arrays of numbers of 64 bits as they are in a snapshot: little-endian, on every machine."""

import sys
from array import array
from collections.abc import Iterator

ROW_COUNT = 8_192
"""Numbers of one row of a snapshot."""


def pieces(numbers: "array[int]", count: int) -> "Iterator[array[int]]":
    """Yield copies of the parts of an array, of `count` numbers each, to which numbers may be added and from whose end they may be removed
    meanwhile."""
    at = 0
    while piece := numbers[at : at + count]:
        yield piece
        at += count


def to_bytes(numbers: "array[int]") -> bytes:
    """Return the numbers in bytes. `numbers` is the caller's own copy."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def from_bytes(packed: bytes) -> "array[int]":
    """Return the numbers of `to_bytes`."""
    numbers = array("Q", packed)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
