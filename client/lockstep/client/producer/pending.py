"""What is acknowledged together: a `send`, or what one `send_batch` has for one queue."""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from lockstep.protocol.queue import LayoutVersion, MessageQueue, TopicLayout

if TYPE_CHECKING:
    from lockstep.client.producer.batch import Share
    from lockstep.client.producer.queue_machine import QueueMachine

QUEUE_WIDE = ""
"""Key of a selected or named send: the user's own key is not known, so the whole queue counts as one. No sharding key is empty."""

Pick = Callable[[TopicLayout, str], MessageQueue]
"""The queue of a key in a layout."""

Name = TypeVar("Name", bound=Hashable)


class _Ended:
    """Stands where a parcel had its future: its send has failed, and learns it in this loop turn or a later one."""

    __slots__ = ()

    def done(self) -> bool:
        return True

    def set_result(self, result: Any) -> None:
        """Ignored."""

    def set_exception(self, error: Exception) -> None:
        """Ignored."""

    def part(self, places: Sequence[int]) -> "_Ended":
        return self

    def post(self, parcel: "PendingSend") -> None:
        """Ignored."""


ENDED = _Ended()

Future: TypeAlias = "asyncio.Future[Any] | Share | _Ended"
"""What learns the end of a parcel's sends."""


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
        "future",
        "half_ms",
        "held_bytes",
        "keys",
        "left_behind",
        "message_ids",
        "pick",
        "sender",
        "sizes",
        "ticket",
        "version",
    )

    def __init__(
        self,
        data: bytes,
        sizes: list[int] | None,
        message_ids: str | list[str],
        held_bytes: int,
        future: Future,
        deadline_ms: int,
        half_ms: int,
        keys: Sequence[str] = (),
        version: LayoutVersion | None = None,
        pick: Pick | None = None,
    ) -> None:
        self.data = data
        """The records, one after the other."""
        self.sizes = sizes
        """Bytes of each record; None: there is one."""
        self.count = 1 if sizes is None else len(sizes)
        self.message_ids = message_ids
        """A list where the future wants a list of results."""
        self.held_bytes = held_bytes
        """What the in-flight limit counts for it."""
        self.future = future
        self.deadline_ms = deadline_ms
        self.half_ms = half_ms
        """When half of its time has passed. Until then it is written however little time is left for the answer."""
        self.keys = keys
        """Empty: unkeyed. One: that of all records. Else one for each record."""
        self.version = version
        """The layout that the queue was picked from; None: unkeyed, or the user named the queue."""
        self.pick = pick
        """Picks again from a higher layout; None where `version` is."""
        self.alone = False
        """Goes into a frame of its own: one of its last frame's records was refused."""
        self.durable: bool | None = None
        """Its frame is answered once the disk has it (True), the broker's operating system has it (False), or as the broker is set to."""
        self.left_behind = False
        """A queue that it has left may have stored it."""
        self.sender: QueueMachine | None = None
        """The queue where it waits."""
        self.ticket = 0
        """Its place in the lane where it waits (Lane)."""

    def end(self) -> Future:
        """Its send has failed: return what learns it, and be done from now on."""
        future, self.future = self.future, ENDED
        return future

    def split(self, name: Callable[[str], Name]) -> dict[Name, "PendingSend"]:
        """Keyed: the parts whose keys have one name, by that name, in the order of the first of each; itself where there is one name.

        Rare: a key of several failed, is refused, or belongs to another queue than its neighbours now.
        """
        keys, all_sizes, ids, future = self.keys, self.sizes, self.message_ids, self.future
        if len(keys) == 1:
            return {name(keys[0]): self}
        places: dict[Name, list[int]] = {}
        for place, key in enumerate(keys):
            places.setdefault(name(key), []).append(place)
        if len(places) == 1:
            return dict.fromkeys(places, self)
        assert all_sizes is not None
        assert not isinstance(future, asyncio.Future)
        records = [self.data[end - size : end] for size, end in zip(all_sizes, accumulate(all_sizes), strict=True)]
        parts: dict[Name, PendingSend] = {}
        bytes_left, held_left = len(self.data), self.held_bytes
        for found, own in places.items():
            data = b"".join([records[place] for place in own])
            held_bytes = held_left * len(data) // bytes_left
            bytes_left -= len(data)
            held_left -= held_bytes
            sizes = [all_sizes[place] for place in own]
            own_ids, own_keys = [ids[place] for place in own], [keys[place] for place in own]
            share = future.part(own)
            part = PendingSend(data, sizes, own_ids, held_bytes, share, self.deadline_ms, self.half_ms, own_keys, self.version, self.pick)
            part.alone, part.durable, part.sender = self.alone, self.durable, self.sender
            share.post(part)
            parts[found] = part
        return parts
