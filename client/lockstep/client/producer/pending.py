"""Records that are acknowledged together: those of a `send`, or those that one `send_batch` has for one queue. Pure."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import accumulate
from typing import Protocol, TypeVar

from lockstep.protocol.queue import LayoutVersion, MessageQueue, TopicLayout

QUEUE_WIDE = ""
"""Key of a selected or named send: the user's own key is not known, so the whole queue counts as one. No sharding key is empty."""

Pick = Callable[[TopicLayout, str], MessageQueue]
"""Returns the queue of a key in a layout."""

Name = TypeVar("Name", bound=Hashable)


class Waiter(Protocol):
    """The future of a `send`, or the `Batch` of a `send_batch`. The machines carry it and only ask whether it is done."""

    def done(self) -> bool:
        """Return whether the caller has gone: it was cancelled, or has its result."""
        ...


class PendingSend:
    """One or more encoded records that leave in one frame and are acknowledged together.

    Flat on purpose: a list per message would be one more object for the garbage collector to visit, ten thousand times a second.
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
        "left_behind",
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
        """Bytes of each record; None: there is one."""
        self.count = 1 if sizes is None else len(sizes)
        self.message_ids = message_ids
        """A list if the result is a list of results."""
        self.held_bytes = held_bytes
        """What the in-flight limit counts for it."""
        self.waiter = waiter
        self.places = places
        """Of a batch: the positions of its messages in it."""
        self.deadline_ms = deadline_ms
        self.half_ms = half_ms
        """When half of its time has passed. Until then it is written however little time is left for the response."""
        self.keys = keys
        """Empty: unkeyed. One: that of all records. Else one for each record."""
        self.version = version
        """The layout that the queue was picked from; None: unkeyed, or the user named the queue."""
        self.pick = pick
        """Picks again from a higher layout; None if `version` is."""
        self.alone = False
        """Goes into a frame of its own: one of its last frame's records was refused."""
        self.durable: bool | None = None
        """Its frame is answered once the disk has it (True), the broker's operating system has it (False), or as the broker is set to."""
        self.left_behind = False
        """A queue that it has left may have stored it."""
        self.failed = False
        """It was reported as failed. Its frame may still be in flight for others."""
        self.queue: MessageQueue | None = None
        """The queue where it waits, or in whose frame it is."""
        self.parts: tuple[PendingSend, ...] = ()
        """What it was split into; then it is in no queue itself."""
        self.ticket = 0
        """Its place in the lane where it waits (Lane)."""

    def done(self) -> bool:
        """Return whether nobody waits for it any more."""
        return self.failed or self.waiter.done()

    def leaves(self) -> "Iterator[PendingSend]":
        """Yield what it consists of now: itself, or the parts of its parts."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves()

    def split(self, name: Callable[[str], Name]) -> "dict[Name, PendingSend]":
        """Keyed: return the parts whose keys have one name, by that name, in the order of the first of each; itself if there is one name.

        Rare: a key of several failed, is refused, or belongs to another queue than its neighbours now.
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
            part.failed, part.left_behind = self.failed, self.left_behind
            parts[found] = part
        self.parts = tuple(parts.values())
        return parts
