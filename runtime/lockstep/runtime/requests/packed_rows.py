"""Packs the rows of a response in parts, so that other requests are handled in between."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

from lockstep.protocol.codec.plain import PackedList
from lockstep.protocol.fields import to_plain
from lockstep.runtime.turn import TurnBudget

T = TypeVar("T")

PART = 20
"""Rows that are packed at once."""


async def packed_rows(items: Iterable[T], budget: TurnBudget, row: Callable[[T], object] = lambda item: item) -> PackedList:
    """Return the row (a dataclass) of each item as a list for `pack_around`. Each is one item of the budget, and is made in its turn."""
    packed, left = PackedList(), iter(items)
    while part := list(islice(left, PART)):
        await budget.take(len(part))
        for item in part:
            packed.append(to_plain(row(item)))
    return packed
