"""Packs the rows of a response in parts, so that other requests are handled in between."""

from collections.abc import Sequence

from lockstep.protocol.codec.plain import PackedList
from lockstep.protocol.fields import to_plain
from lockstep.runtime.turn import TurnBudget

PART = 20
"""Rows that are packed at once."""


async def packed_rows(rows: Sequence[object], budget: TurnBudget) -> PackedList:
    """Return the rows (dataclasses) as a list for `pack_around`. Each row is one item of the budget."""
    packed = PackedList()
    for first in range(0, len(rows), PART):
        part = rows[first : first + PART]
        await budget.take(len(part))
        for row in part:
            packed.append(to_plain(row))
    return packed
