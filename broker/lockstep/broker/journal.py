"""The durable changes of one loop turn, which are written to the log as one state record (store.md).

A change is a tuple `(kind, …)` of plain values. A table alters its durable state only by `Journal.record`, and replay applies the same
changes. Applying a change *sets* values and depends on nothing except the tables. So a record with changes that are
already in a snapshot may be applied again, with the same result.

    body = msgpack [FORMAT, [change, change, …]]

A change is encoded before it is applied. If it can't be encoded, the request that makes it fails and no table has changed.
"""

from collections.abc import Callable
from typing import Any

import msgpack  # type: ignore[import-untyped]

from lockstep.broker.stored_form import NEXT_STEP, UnknownFormError
from lockstep.protocol.errors import LocalProtocolError, StateError, StoreError

Change = tuple[Any, ...]
FORMAT = 1


_packb = msgpack.Packer().pack
_FORMAT = _packb(FORMAT)


class Journal:
    """Collects changes until the store takes them (`LogWriter.before_write`).

    Calls `on_first_change` at the first change of each turn, and `on_apply_failed` with the error of a change that could not be applied:
    the tables may hold half of it, and the log lacks it.
    """

    __slots__ = ("_changes", "on_apply_failed", "on_first_change", "refusal")

    def __init__(
        self, on_first_change: Callable[[], None] | None = None, on_apply_failed: Callable[[BaseException], None] | None = None
    ) -> None:
        self.on_first_change = on_first_change
        self.on_apply_failed = on_apply_failed
        self.refusal = ""
        """Why no change is taken; empty if changes are."""
        self._changes: list[bytes] = []
        """Each change as it will be written."""

    def __len__(self) -> int:
        return len(self._changes)

    def record(self, change: Change, apply: Callable[[Change], object]) -> None:
        """Apply a change and append it.

        Without doing either, raise LocalProtocolError if it can't be encoded, and StateError if no change is taken.
        """
        if self.refusal:
            raise StateError(f"{change[0]}: {self.refusal}")
        try:
            data = _packb(change)
        except (TypeError, ValueError, OverflowError) as error:
            raise LocalProtocolError(f"the state change {change[0]!r} can't be written to the log: {error}") from error
        try:
            apply(change)
        except Exception as error:  # re-raised
            if self.on_apply_failed is not None:
                self.on_apply_failed(error)
            raise
        self._changes.append(data)
        if len(self._changes) == 1 and self.on_first_change is not None:
            self.on_first_change()

    def encode(self, bytes_max: int) -> list[bytes]:
        """Return the bodies of the records that carry everything appended since the last call; none if there is nothing to write.

        One body, or, if it has more than `bytes_max` bytes, as many as are needed, in order.
        """
        changes, self._changes = self._changes, []
        return _bodies(changes, bytes_max) if changes else []


def _bodies(changes: list[bytes], bytes_max: int) -> list[bytes]:
    body = b"".join((b"\x92", _FORMAT, _array_head(len(changes)), *changes))
    half = len(changes) // 2
    return [body] if len(body) <= bytes_max or not half else _bodies(changes[:half], bytes_max) + _bodies(changes[half:], bytes_max)


def _array_head(count: int) -> bytes:
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")


def decode_changes(body: bytes) -> list[Change]:
    """Return the changes of one state record, in order. Raise StoreError if the body can't be read."""
    try:
        number, changes = msgpack.unpackb(body, use_list=False)
        if number != FORMAT:
            raise UnknownFormError(f"state record of format {number}, this version reads format {FORMAT}: {NEXT_STEP}")
        return list(changes)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise StoreError(f"state record of {len(body)} bytes can't be read: {error}") from error
