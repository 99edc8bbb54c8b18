"""Arrays of numbers of 64 bits as they are in a snapshot: little-endian, on every machine."""

import sys
from array import array


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
