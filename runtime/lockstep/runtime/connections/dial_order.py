"""Which address of a peer is dialed when, and which connection is kept. Pure; times are ms of a monotonic clock.

A peer may have several addresses, of which one serves at a time: those of the copies of a broker's log.

| address                 | is dialed                                                                                            |
|-------------------------|------------------------------------------------------------------------------------------------------|
| the first               | at once                                                                                              |
| each of the others      | in turn: when the first has failed or has not answered for 300 ms, then 100 ms after the one before  |
| one that somebody names | at once, and once                                                                                    |
| one that has failed     | again 500 ms later, as long as another is under way                                                  |

None is dialed any more when one has answered. Those that are under way have 100 ms more to answer, and the connection of the highest rank
is kept.
"""

from collections import deque
from collections.abc import Iterable

ANSWER_MS = 300
APART_MS = 100
AGAIN_MS = 500

ConnectionRank = tuple[int, ...]


class DialOrder:
    """One attempt to connect to a peer, until a connection is kept or each address has failed."""

    def __init__(self, addresses: Iterable[str], now_ms: int) -> None:
        self._turn = deque(dict.fromkeys(addresses))
        """What is to be dialed, in this order."""
        self._first = self._turn[0]
        self._due_ms = now_ms
        """When the next one is dialed."""
        self._under_way: set[str] = set()
        self._failed_ms: dict[str, int] = {}
        """When addresses have failed that are not in `_turn` again."""
        self._tried: set[str] = set()
        self._answers: dict[str, ConnectionRank] = {}
        self._keep_ms = 0

    def next(self, now_ms: int) -> str | None:
        """Return an address to dial now, which is under way from then on, or None."""
        if self._answers:
            return None
        if not self._turn and self._under_way:
            again = [address for address, failed_ms in self._failed_ms.items() if now_ms >= failed_ms + AGAIN_MS]
            for address in again:
                del self._failed_ms[address]
                self._turn.append(address)
        if not self._turn or now_ms < self._due_ms:
            return None
        address = self._turn.popleft()
        self._due_ms = now_ms + (APART_MS if self._tried else ANSWER_MS)
        self._under_way.add(address)
        self._tried.add(address)
        return address

    def name(self, address: str, now_ms: int, *, again: bool = False) -> None:
        """Dial this address next and at once, unless it is under way, or was dialed before and is not to be dialed `again`."""
        if address in self._under_way or (address in self._tried and not again):
            return
        self._failed_ms.pop(address, None)
        self._turn = deque([address, *(each for each in self._turn if each != address)])
        self._due_ms = now_ms

    def failed(self, address: str, now_ms: int) -> None:
        self._under_way.discard(address)
        self._failed_ms[address] = now_ms
        if address == self._first:
            self._due_ms = min(self._due_ms, now_ms)

    def answered(self, address: str, rank: ConnectionRank, now_ms: int) -> None:
        self._under_way.discard(address)
        if not self._answers:
            self._keep_ms = now_ms + APART_MS
        self._answers[address] = rank

    def kept(self, now_ms: int) -> str | None:
        """Return the address of the connection to keep, or None if there is none yet."""
        if not self._answers or (self._under_way and now_ms < self._keep_ms):
            return None
        return max(self._answers, key=lambda address: self._answers[address])

    @property
    def is_over(self) -> bool:
        """Return whether nothing is dialed any more and none has answered."""
        return not (self._turn or self._under_way or self._answers)

    @property
    def wake_ms(self) -> int | None:
        """Return when to call `next` and `kept` again if nothing happens before; None: not before."""
        if self._answers:
            return self._keep_ms
        if self._turn:
            return self._due_ms
        return min(self._failed_ms.values()) + AGAIN_MS if self._failed_ms and self._under_way else None
