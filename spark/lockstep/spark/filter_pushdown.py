"""Use filters on `partition`, `offset` and `timestamp` to read fewer queues and shorter ranges. No row that passes the filters is lost."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from lockstep.spark.cluster import Cluster
from lockstep.spark.offsets import QueueRange
from lockstep.spark.positions import Subscribed

_NO_END = 1 << 62


@dataclass(frozen=True, slots=True)
class FilterPushdown:
    """The restrictions of all filters together."""

    numbers: frozenset[int] | None = None
    """Queue numbers; None if all queues are read."""
    offset_from: int = 0
    offset_until: int = _NO_END
    """Exclusive."""
    store_ms_from: int | None = None
    store_ms_until: int | None = None
    """Exclusive."""

    async def apply(self, ranges: Sequence[QueueRange], now: Subscribed, cluster: Cluster) -> list[QueueRange]:
        """Return the restricted ranges. Store times never decrease within a queue, so a time corresponds to an offset."""
        kept = [range_ for range_ in ranges if self.numbers is None or now.number_of(range_.queue) in self.numbers]
        narrowed = await asyncio.gather(*(self._narrow(range_, cluster) for range_ in kept))
        return [range_ for range_ in narrowed if range_.count > 0]

    async def _narrow(self, range_: QueueRange, cluster: Cluster) -> QueueRange:
        start, end = max(range_.start, self.offset_from), min(range_.end, self.offset_until)
        if self.store_ms_from is not None:
            start = max(start, await cluster.offset_at(range_.queue, self.store_ms_from))
        if self.store_ms_until is not None:
            end = min(end, await cluster.offset_at(range_.queue, self.store_ms_until))
        return QueueRange(range_.queue, start, end)


def pushdown_of(filters: Iterable[Any]) -> FilterPushdown:
    """Return the restrictions that Spark's filters allow. Filters on other columns are ignored."""
    made = FilterPushdown()
    for filter_ in filters:
        path = getattr(filter_, "attribute", None)
        if not isinstance(path, tuple) or len(path) != 1:
            continue
        kind, value = type(filter_).__name__, getattr(filter_, "value", None)
        match path[0]:
            case "partition" if kind in ("EqualTo", "EqualNullSafe", "In"):
                numbers = frozenset(value if isinstance(value, tuple | list) else (value,))
                made = replace(made, numbers=numbers if made.numbers is None else made.numbers & numbers)
            case "offset" if type(value) is int:
                low, until = _bounds(kind, value)
                made = replace(made, offset_from=max(made.offset_from, low or 0), offset_until=min(made.offset_until, _or(until, _NO_END)))
            case "timestamp" if isinstance(value, datetime):
                low, until = _bounds(kind, _floor_ms(value))
                made = replace(made, store_ms_from=_most(made.store_ms_from, low), store_ms_until=_least(made.store_ms_until, until))
    return made


def _bounds(kind: str, value: int) -> tuple[int | None, int | None]:
    """Return [from, until) for a comparison. A time in ms includes the whole millisecond."""
    return {
        "EqualTo": (value, value + 1),
        "EqualNullSafe": (value, value + 1),
        "GreaterThan": (value, None),
        "GreaterThanOrEqual": (value, None),
        "LessThan": (None, value + 1),
        "LessThanOrEqual": (None, value + 1),
    }.get(kind, (None, None))


def _floor_ms(value: datetime) -> int:
    aware = value if value.tzinfo is not None else value.astimezone(UTC)
    return int(aware.timestamp() * 1_000_000) // 1_000


def _or(value: int | None, other: int) -> int:
    return other if value is None else value


def _most(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _least(one: int | None, other: int | None) -> int | None:
    return min((value for value in (one, other) if value is not None), default=None)
