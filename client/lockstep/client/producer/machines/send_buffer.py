"""The sends that wait for one queue, and how they are divided into frames. Pure: futures are carried, and only their `done()` is called.

A frame has sends of one FIFO and, if keyed, of one layout version: the properties of a frame (may it go to another queue, when does it
expire, which layout was it hashed over) are then those of each of its messages. Within a FIFO the order is that of arrival.

    unkeyed   may go to another queue while it is certainly not stored
    keyed     sharding key, selector or named queue: this queue only
"""

from collections.abc import Iterable

from lockstep.client.producer.machines.pending import PendingSend
from lockstep.client.producer.machines.send_fifo import SendFifo


class SendBuffer:
    """Two FIFOs of waiting sends, keyed and unkeyed. The methods here concern both."""

    __slots__ = ("_bytes_max", "_count_max", "_keyed_turn", "keyed", "unkeyed")

    def __init__(self, bytes_max: int, count_max: int) -> None:
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._keyed_turn = False
        self.keyed = SendFifo()
        self.unkeyed = SendFifo()

    def __bool__(self) -> bool:
        return bool(self.unkeyed.waiting or self.keyed.waiting)

    @property
    def earliest_ms(self) -> int:
        """No deadline of a waiting send is earlier."""
        return min(self.unkeyed.earliest_ms, self.keyed.earliest_ms)

    def put_back(self, sends: Iterable[PendingSend]) -> None:
        """Put sends back at the head of their FIFO, in their order."""
        for pending in reversed(list(sends)):
            self.fifo_of(pending).push(pending)

    def fifo_of(self, pending: PendingSend) -> SendFifo:
        """Return the FIFO in which this send belongs."""
        return self.keyed if pending.keys else self.unkeyed

    def cut(self, *, keyed_blocked: bool = False) -> list[PendingSend]:
        """Remove and return the sends of the next frame, from the two FIFOs in turn. Return an empty list if none may be sent."""
        keyed, unkeyed = self.keyed, self.unkeyed
        if keyed.waiting and not keyed_blocked and (self._keyed_turn or not unkeyed.waiting):
            self._keyed_turn = False
            return keyed.cut(self._bytes_max, self._count_max)
        self._keyed_turn = True
        return unkeyed.cut(self._bytes_max, self._count_max) if unkeyed.waiting else []

    def take_expired(self, now_ms: int, limit: int) -> list[PendingSend]:
        """Remove and return at most `limit` sends whose deadline has come. If `earliest_ms` is still not after `now_ms`, there are more."""
        expired = self.unkeyed.take_expired(now_ms, limit)
        return expired + self.keyed.take_expired(now_ms, limit - len(expired))

    def take_all(self) -> list[PendingSend]:
        """Remove and return all sends."""
        return self.unkeyed.take_all() + self.keyed.take_all()
