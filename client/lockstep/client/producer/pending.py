"""Records that are acknowledged together: those of a `send`, or those of a `send_batch` for one queue. Pure."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import accumulate
from typing import Protocol, TypeVar

from lockstep.protocol.queue import LayoutVersion, MessageQueue, TopicLayout

QUEUE_WIDE = ""
"""The key of a selected or named send: the user's own key is not known, so the whole queue counts as one key. A sharding key is never
empty."""

Pick = Callable[[TopicLayout, str], MessageQueue]
"""Returns the queue of a key in a layout."""

Name = TypeVar("Name", bound=Hashable)


class Waiter(Protocol):
    """The future of a `send`, or the `Batch` of a `send_batch`. The machines carry it and only check whether it is done."""

    def done(self) -> bool:
        """Return whether the caller no longer waits: it was cancelled, or has its result."""
        ...


class PendingSend:
    """One or more encoded records that are sent in one frame and acknowledged together.

    It has no nested objects: a list per message would be one more object for the garbage collector to visit, ten thousand times a second.
    """

    __slots__ = (
        "alone",
        "count",
        "data",
        "deadline_ms",
        "durable",
        "failed",
        "half_ms",
        "held_bytes",
        "keys",
        "may_be_stored",
        "message_ids",
        "parts",
        "pick",
        "places",
        "queue",
        "sizes",
        "ticket",
        "version",
        "waiter",
    )

    def __init__(
        self,
        data: bytes,
        sizes: list[int] | None,
        message_ids: str | list[str],
        held_bytes: int,
        waiter: Waiter,
        deadline_ms: int,
        half_ms: int,
        keys: Sequence[str] = (),
        version: LayoutVersion | None = None,
        pick: Pick | None = None,
        places: Sequence[int] = (),
    ) -> None:
        self.data = data
        """The records, one after the other."""
        self.sizes = sizes
        """The size of each record in bytes; None if there is one record."""
        self.count = 1 if sizes is None else len(sizes)
        self.message_ids = message_ids
        """A list if the result is a list of results."""
        self.held_bytes = held_bytes
        """The bytes that the in-flight limit counts for it."""
        self.waiter = waiter
        self.places = places
        """In a batch: the positions of its messages."""
        self.deadline_ms = deadline_ms
        self.half_ms = half_ms
        """When half of its time has passed (monotonic ms). Until then it is written even if little time is left for the response."""
        self.keys = keys
        """Empty: unkeyed. One: the key of all records. Otherwise one for each record."""
        self.version = version
        """The layout from which the queue was picked; None if it is unkeyed or the user named the queue."""
        self.pick = pick
        """Picks the queue from a higher layout; None if `version` is None."""
        self.alone = False
        """It goes into a frame of its own, because a record of its last frame was refused."""
        self.durable: bool | None = None
        """The response to its frame is sent when the records are on disk (True), when the operating system has them (False), or
        according to the broker's flush setting (None)."""
        self.may_be_stored = False
        """A queue that it has left may have stored it."""
        self.failed = False
        """It was reported as failed. Its frame may still be in flight for other sends."""
        self.queue: MessageQueue | None = None
        """The queue in which it waits, or in whose frame it is."""
        self.parts: tuple[PendingSend, ...] = ()
        """The parts into which it was split. It is then in no queue itself."""
        self.ticket = 0
        """Its position in the FIFO in which it waits (SendFifo)."""

    def done(self) -> bool:
        """Return whether no caller waits for it any more."""
        return self.failed or self.waiter.done()

    def leaves(self) -> "Iterator[PendingSend]":
        """Yield the parts that it consists of now: itself, or the parts of its parts."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves()

    def split(self, name: Callable[[str], Name]) -> "dict[Name, PendingSend]":
        """Split a keyed send by the names of its keys. Return the parts by name, in the order of their first keys; itself if there is one
        name.

        This is rare: a key of several failed, is refused, or belongs to another queue than the others after a change of the layout.
        """
        keys, all_sizes, ids = self.keys, self.sizes, self.message_ids
        if len(keys) == 1:
            return {name(keys[0]): self}
        positions: dict[Name, list[int]] = {}
        for position, key in enumerate(keys):
            positions.setdefault(name(key), []).append(position)
        if len(positions) == 1:
            return dict.fromkeys(positions, self)
        assert all_sizes is not None
        records = [self.data[end - size : end] for size, end in zip(all_sizes, accumulate(all_sizes), strict=True)]
        parts: dict[Name, PendingSend] = {}
        bytes_left, held_left = len(self.data), self.held_bytes
        for found, own in positions.items():
            data = b"".join([records[position] for position in own])
            held_bytes = held_left * len(data) // bytes_left
            bytes_left -= len(data)
            held_left -= held_bytes
            part = PendingSend(
                data,
                [all_sizes[position] for position in own],
                [ids[position] for position in own],
                held_bytes,
                self.waiter,
                self.deadline_ms,
                self.half_ms,
                [keys[position] for position in own],
                self.version,
                self.pick,
                [self.places[position] for position in own],
            )
            part.alone, part.durable, part.queue = self.alone, self.durable, self.queue
            part.failed, part.may_be_stored = self.failed, self.may_be_stored
            parts[found] = part
        self.parts = tuple(parts.values())
        return parts
