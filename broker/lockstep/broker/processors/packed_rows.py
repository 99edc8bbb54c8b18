"""Packs the rows of a response one by one, so that other requests are handled in between."""

from collections.abc import Iterable

from lockstep.protocol.codec.plain import PackedList, pack_plain
from lockstep.protocol.fields import to_plain
from lockstep.runtime.turn import TurnBudget


async def packed_rows(rows: Iterable[object], budget: TurnBudget) -> PackedList:
    """Return the rows (dataclasses) as a list for `pack_around`. Each row is one item of the budget."""
    packed = []
    for row in rows:
        await budget.take()
        packed.append(pack_plain(to_plain(row)))
    return PackedList(packed)
