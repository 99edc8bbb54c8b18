"""State is log (store.md): the durable changes of one loop turn, which leave the process as the body of one state record.

A change is a tuple `(kind, …)` of plain values. A table alters its durable state only by applying a change and appending it here; replay
applies the same changes alone. Applying *sets* values and depends on nothing but the tables, so a record whose changes a snapshot already
holds may be applied again: the end is the same.

    body = msgpack [FORMAT, [change, change, …]]
"""

from collections.abc import Callable
from typing import Any

import msgpack  # type: ignore[import-untyped]

from lockstep.protocol.errors import StoreError

Change = tuple[Any, ...]
FORMAT = 1


class Journal:
    """Collects changes until the store asks for them (`Store.before_write`). `on_dirty` is called with the first change of each turn."""

    __slots__ = ("_changes", "on_dirty")

    def __init__(self, on_dirty: Callable[[], None] | None = None) -> None:
        self.on_dirty = on_dirty
        self._changes: list[Change] = []

    def __len__(self) -> int:
        return len(self._changes)

    def append(self, change: Change) -> None:
        """Adds a change that has been applied."""
        self._changes.append(change)
        if len(self._changes) == 1 and self.on_dirty is not None:
            self.on_dirty()

    def encode(self, bytes_max: int) -> list[bytes]:
        """The body of the record that carries everything appended since the last call; none where there is nothing to write.

        One body, unless it has more than `bytes_max` bytes: then as many as it takes, in order.
        """
        changes, self._changes = self._changes, []
        return _bodies(changes, bytes_max) if changes else []


def _bodies(changes: list[Change], bytes_max: int) -> list[bytes]:
    body = bytes(msgpack.packb([FORMAT, changes]))
    half = len(changes) // 2
    return [body] if len(body) <= bytes_max or not half else _bodies(changes[:half], bytes_max) + _bodies(changes[half:], bytes_max)


def decode_changes(body: bytes) -> list[Change]:
    """The changes of one state record, in order. StoreError where the body is not one of ours."""
    try:
        number, changes = msgpack.unpackb(body, use_list=False)
        if number != FORMAT:
            raise StoreError(f"state record of format {number}: this version reads format {FORMAT}; start the version that wrote it")
        return list(changes)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise StoreError(f"state record of {len(body)} bytes can't be read: {error}") from error
