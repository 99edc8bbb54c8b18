"""Ranges of finished offsets above a committed offset, of a group that consumes the keys of a queue in parallel.

A value is a tuple of strictly ascending bounds (first, end, first, end, …): the offsets `first` ≤ offset < `end` of each pair are finished.
Clients send it with their progress, the broker keeps it, and the next owner of the queue passes over these offsets.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

Ranges = tuple[int, ...]

RANGES_MAX = 128
"""The number of ranges that are kept for one queue. If there are more, the highest ones are dropped, and their messages may come again."""


def check_ranges(ranges: Ranges, offset: int, end: int) -> str | None:
    """Return what is wrong with ranges that were received with the committed `offset` of a queue that ends at `end`, or None."""
    if not ranges:
        return None
    if len(ranges) % 2 or len(ranges) > 2 * RANGES_MAX:
        return f"done ranges with {len(ranges)} bounds: expected pairs, at most {RANGES_MAX} of them"
    if ranges[0] <= offset or ranges[-1] > end or any(low >= high for low, high in pairwise(ranges)):
        return f"done ranges {ranges[0]} … {ranges[-1]}: expected ascending bounds above {offset} and up to {end}"
    return None


def contains(ranges: Ranges, offset: int) -> bool:
    """Return whether the offset is finished."""
    return bisect_right(ranges, offset) % 2 == 1


def skip(ranges: Ranges, offset: int) -> int:
    """Return the lowest offset from `offset` on that no range contains."""
    at = bisect_right(ranges, offset)
    return ranges[at] if at % 2 else offset


def above(ranges: Ranges, offset: int) -> Ranges:
    """Return the parts of the ranges from `offset` on."""
    at = bisect_right(ranges, offset)
    return (offset, *ranges[at:]) if at % 2 else ranges[at:]


def below(ranges: Ranges, offset: int) -> Ranges:
    """Return the parts of the ranges that are below `offset`."""
    at = bisect_right(ranges, offset - 1)
    return (*ranges[:at], offset) if at % 2 else ranges[:at]


def union(one: Ranges, other: Ranges) -> Ranges:
    """Return the ranges of the offsets that `one` or `other` contains; of more than RANGES_MAX ranges the lowest ones."""
    if not one or not other or one == other:
        return one or other
    return joined(sorted((*pairs(one), *pairs(other))))


def joined(found: Iterable[tuple[int, int]]) -> Ranges:
    """Return the ranges of (first, end) pairs in ascending order; of more than RANGES_MAX ranges the lowest ones."""
    bounds: list[int] = []
    for first, end in found:
        if bounds and first <= bounds[-1]:
            bounds[-1] = max(bounds[-1], end)
        elif len(bounds) == 2 * RANGES_MAX:
            break
        else:
            bounds += first, end
    return tuple(bounds)


def count(ranges: Ranges) -> int:
    """Return the number of offsets."""
    return sum(ranges[1::2]) - sum(ranges[::2])


def pairs(ranges: Ranges) -> Iterable[tuple[int, int]]:
    """Return the (first, end) of each range."""
    return zip(ranges[::2], ranges[1::2], strict=True)
