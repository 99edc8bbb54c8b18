"""What waits for one queue, and how it is cut into frames. Pure: futures are carried, never looked into beyond `done()`.

A frame holds sends of one lane and, when keyed, of one layout version: what is true of a frame (may it go elsewhere, when does it end,
which layout was it hashed over) is then true of each of its messages. Within a lane the order is that of arrival.

    unkeyed   may go to another queue while it is certainly not stored
    keyed     sharding key, selector or named queue: this queue or none
"""

from collections.abc import Iterable, Mapping

from lockstep.client.producer.lane import Lane
from lockstep.client.producer.pending import PendingSend
from lockstep.protocol.queue import LayoutVersion


class SendBuffer:
    """Two lanes of waiting sends."""

    __slots__ = ("_bytes_max", "_count_max", "_keyed_turn", "keyed", "unkeyed")

    def __init__(self, bytes_max: int, count_max: int) -> None:
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._keyed_turn = False
        self.keyed = Lane()
        self.unkeyed = Lane()

    def __bool__(self) -> bool:
        return bool(self.unkeyed or self.keyed)

    @property
    def earliest_ms(self) -> int:
        """No deadline of what waits is earlier."""
        return min(self.unkeyed.earliest_ms, self.keyed.earliest_ms)

    def add(self, pending: PendingSend) -> None:
        (self.keyed if pending.keys else self.unkeyed).append(pending)

    def put_back(self, sends: Iterable[PendingSend]) -> None:
        """Back to the head of their lane, in their order."""
        for pending in reversed(list(sends)):
            (self.keyed if pending.keys else self.unkeyed).push(pending)

    def withdraw(self, pending: PendingSend) -> bool:
        """Take one out again; False: it is not waiting here."""
        return (self.keyed if pending.keys else self.unkeyed).remove(pending)

    def cut(self, *, keyed_blocked: bool = False) -> list[PendingSend]:
        """The next frame's sends, taken out; the lanes take turns. Empty where nothing may go."""
        keyed = self.keyed if not keyed_blocked else None
        if keyed and (self._keyed_turn or not self.unkeyed):
            self._keyed_turn = False
            return keyed.cut(self._bytes_max, self._count_max)
        self._keyed_turn = True
        return self.unkeyed.cut(self._bytes_max, self._count_max) if self.unkeyed else []

    def take_expired(self, now_ms: int, limit: int) -> list[PendingSend]:
        """Those whose deadline has come, at most `limit`; more are left if `earliest_ms` is still not after `now_ms`."""
        expired = self.unkeyed.take_expired(now_ms, limit)
        return expired + self.keyed.take_expired(now_ms, limit - len(expired))

    def take_all(self) -> list[PendingSend]:
        """Everything that waits."""
        return self.unkeyed.take_all() + self.keyed.take_all()

    def take_unkeyed(self, limit: int) -> list[PendingSend]:
        """The first of those that may go elsewhere."""
        return [self.unkeyed.pop() for _ in range(min(limit, len(self.unkeyed)))]

    def take_keys(self, keys: Mapping[str, int]) -> list[PendingSend]:
        """The records that wait behind a failed send of one of these keys (its ticket): sends of one key each."""
        return self.keyed.take_keys(keys)

    def take_older(self, version: LayoutVersion) -> list[PendingSend]:
        """Those that were picked from a lower layout than this one."""
        return self.keyed.take_older(version)
