"""What waits for one queue, and how it is cut into frames. Pure: futures are carried, never looked into beyond `done()`.

A frame holds parcels of one lane and, when keyed, of one layout version: what is true of a frame (may it go elsewhere, when does it end,
which layout was it hashed over) is then true of each of its messages. Within a lane the order is that of arrival.

    unkeyed   may go to another queue while it is certainly not stored
    keyed     sharding key, selector or named queue: this queue or none
"""

from collections import deque
from collections.abc import Callable, Iterable

from lockstep.client.producer.parcel import Parcel
from lockstep.protocol.queue import LayoutVersion

NEVER_MS = 1 << 62


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
        (self.keyed if parcel.keys else self.unkeyed).append(parcel)

    def put_back(self, parcels: Iterable[Parcel]) -> None:
        """Back to the head of their lane, in their order."""
        for parcel in reversed(list(parcels)):
            self.earliest_ms = min(self.earliest_ms, parcel.deadline_ms)
            (self.keyed if parcel.keys else self.unkeyed).appendleft(parcel)

    def withdraw(self, parcel: Parcel) -> bool:
        """Take one out again; False: it is not waiting here."""
        lane = self.keyed if parcel.keys else self.unkeyed
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
        """The records that wait behind a failed send of one of these keys: parcels of one key each."""
        failed = frozenset(keys)
        taken: list[Parcel] = []
        waiting = list(self.keyed)
        self.keyed.clear()
        for parcel in waiting:
            for key, part in parcel.split(lambda key: key if key in failed else None).items():
                (self.keyed if key is None else taken).append(part)
        return taken

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
