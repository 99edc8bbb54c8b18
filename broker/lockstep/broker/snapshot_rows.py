"""A long list in a snapshot: taken in one turn of the loop, made and packed in others."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any


class SnapshotRows:
    """`count` rows that `make` yields from values that no longer change: the copy of a table.

    Copying a table takes a hundredth of the time that making and packing its rows takes, so a snapshot can be of a single turn without a
    long turn.
    """

    __slots__ = ("_count", "_make")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, count: int, make: Callable[[], Iterable[Any]]) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return iter(self._make())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SnapshotRows | list) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(list(self))
