"""Long lists of a snapshot: copied in one turn of the loop, made and packed in later ones."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any


class SnapshotRows:
    """The `count` rows that `make` yields from a copy of a table, which nothing changes any more.

    Copying a table takes a hundredth of the time of making and packing its rows. So all tables can be copied in one turn without delaying
    requests.
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
