"""Packs the rows of a response in parts, so that other requests are handled in between."""

from collections.abc import Sequence

from lockstep.protocol.codec.plain import PackedList, pack_plain
from lockstep.protocol.fields import to_plain
from lockstep.runtime.turn import TurnBudget

PART = 20
"""Rows that are packed at once."""


async def packed_rows(rows: Sequence[object], budget: TurnBudget) -> PackedList:
    """Return the rows (dataclasses) as a list for `pack_around`. Each row is one item of the budget."""
    packed: list[bytes] = []
    for first in range(0, len(rows), PART):
        part = rows[first : first + PART]
        await budget.take(len(part))
        packed += [pack_plain(to_plain(row)) for row in part]
    return PackedList(packed)
