"""What waits for one queue, and how it is cut into frames. Pure: futures are carried, never looked into beyond `done()`.

A frame holds parcels of one lane and, when keyed, of one layout version: what is true of a frame (may it go elsewhere, when does it end,
which layout was it hashed over) is then true of each of its messages. Within a lane the order is that of arrival.

    unkeyed   may go to another queue while it is certainly not stored
    keyed     sharding key, selector or named queue: this queue or none
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from lockstep.protocol.queue import LayoutVersion, MessageQueue, TopicLayout

if TYPE_CHECKING:
    from lockstep.client.producer.queue_sender import QueueSender

QUEUE_WIDE = ""
"""Key of a selected or named send: the user's own key is not known, so the whole queue counts as one. No sharding key is empty."""


NEVER_MS = 1 << 62


class Parcel:
    """One or more encoded records that are acknowledged together: a `send`, or one queue's share of a `send_batch`.

    Flat on purpose: a list per message would be one more object for the garbage collector to visit, ten thousand times a second.
    """

    __slots__ = (
        "alone",
        "count",
        "data",
        "deadline_ms",
        "future",
        "held_bytes",
        "key",
        "message_ids",
        "move_ms",
        "pick",
        "sender",
        "sizes",
        "version",
    )

    def __init__(
        self,
        data: bytes,
        sizes: list[int] | None,
        message_ids: str | list[str],
        held_bytes: int,
        future: "asyncio.Future[Any]",
        deadline_ms: int,
        move_ms: int,
        key: str | None = None,
        version: LayoutVersion | None = None,
        pick: Callable[[TopicLayout], MessageQueue] | None = None,
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
        self.move_ms = move_ms
        """Until then the same queue is tried; later an unkeyed one may move although it may be stored."""
        self.key = key
        """None: unkeyed."""
        self.version = version
        """The layout that the queue was picked from; None: unkeyed, or the user named the queue."""
        self.pick = pick
        """Picks again from a higher layout; None where `version` is."""
        self.alone = False
        """Goes into a frame of its own: one of its last frame's records was refused."""
        self.sender: QueueSender | None = None
        """The queue where it waits."""


class Batcher:
    """Two lanes of waiting parcels."""

    __slots__ = ("_bytes_max", "_count_max", "_keyed_turn", "earliest_ms", "keyed", "unkeyed")

    def __init__(self, bytes_max: int, count_max: int) -> None:
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._keyed_turn = False
        self.earliest_ms = NEVER_MS
        """No deadline of what waits is earlier."""
        self.keyed: deque[Parcel] = deque()
        self.unkeyed: deque[Parcel] = deque()

    def __bool__(self) -> bool:
        return bool(self.unkeyed or self.keyed)

    def add(self, parcel: Parcel) -> None:
        if parcel.deadline_ms < self.earliest_ms:
            self.earliest_ms = parcel.deadline_ms
        (self.unkeyed if parcel.key is None else self.keyed).append(parcel)

    def put_back(self, parcels: Iterable[Parcel]) -> None:
        """Back to the head of their lane, in their order."""
        for parcel in reversed(list(parcels)):
            self.earliest_ms = min(self.earliest_ms, parcel.deadline_ms)
            (self.unkeyed if parcel.key is None else self.keyed).appendleft(parcel)

    def withdraw(self, parcel: Parcel) -> bool:
        """Take one out again; False: it is not waiting here."""
        lane = self.unkeyed if parcel.key is None else self.keyed
        try:
            lane.remove(parcel)
        except ValueError:
            return False
        return True

    def cut(self, *, keyed_blocked: bool = False) -> list[Parcel]:
        """The next frame's parcels, taken out; the lanes take turns. Empty where nothing may go."""
        keyed = self.keyed if not keyed_blocked else None
        if keyed and (self._keyed_turn or not self.unkeyed):
            self._keyed_turn = False
            return self._cut(keyed)
        self._keyed_turn = True
        return self._cut(self.unkeyed) if self.unkeyed else []

    def _cut(self, lane: deque[Parcel]) -> list[Parcel]:
        head = lane.popleft()
        taken = [head]
        if not lane:
            if not self:
                self.earliest_ms = NEVER_MS
            return taken
        if head.alone:
            return taken
        count_left = self._count_max - head.count
        bytes_left = self._bytes_max - head.held_bytes
        version = head.version
        while lane:
            parcel = lane[0]
            count_left -= parcel.count
            bytes_left -= parcel.held_bytes
            if count_left < 0 or bytes_left < 0 or parcel.alone or (parcel.version is not version and parcel.version != version):
                break
            taken.append(lane.popleft())
        return taken

    def take_expired(self, now_ms: int) -> list[Parcel]:
        """Those whose deadline has come."""
        if now_ms < self.earliest_ms:
            return []
        expired = self._take(lambda parcel: parcel.deadline_ms <= now_ms)
        self.earliest_ms = min([parcel.deadline_ms for lane in (self.unkeyed, self.keyed) for parcel in lane], default=NEVER_MS)
        return expired

    def take_all(self) -> list[Parcel]:
        """Everything that waits."""
        return self.take_expired(NEVER_MS)

    def take_unkeyed(self) -> list[Parcel]:
        """All that may go elsewhere."""
        taken = list(self.unkeyed)
        self.unkeyed.clear()
        return taken

    def take_keys(self, keys: Iterable[str]) -> list[Parcel]:
        """Those that wait behind a failed send of one of these keys."""
        failed = frozenset(keys)
        return self._take(lambda parcel: parcel.key is not None and parcel.key in failed)

    def take_older(self, version: LayoutVersion) -> list[Parcel]:
        """Those that were picked from a lower layout than this one."""
        return self._take(lambda parcel: parcel.version is not None and parcel.version < version)

    def _take(self, wanted: Callable[[Parcel], bool]) -> list[Parcel]:
        taken: list[Parcel] = []
        for lane in (self.unkeyed, self.keyed):
            if not lane:
                continue
            found = [parcel for parcel in lane if wanted(parcel)]
            if found:
                staying = [parcel for parcel in lane if not wanted(parcel)]
                lane.clear()
                lane.extend(staying)
                taken += found
        return taken
