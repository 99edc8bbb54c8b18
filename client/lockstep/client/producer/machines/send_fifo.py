"""A FIFO of sends that wait for one queue. Pure. The cost of each operation does not depend on how many wait.

Sends leave from the front, and any one can be removed. The indexes by deadline and by key are built when they are first needed and kept
while sends wait: sends that only pass through don't pay for them, and when thousands fail, each costs as much as one.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush

from lockstep.client.producer.machines.pending import PendingSend
from lockstep.protocol.topics.queue import LayoutVersion

NEVER_MS = 1 << 62
AHEAD_OF_ALL = -1 << 62
"""A ticket that is lower than all others."""
STALE_MAX = 64
"""The heap of deadlines is rebuilt when it has more stale entries (of sends that have left) than sends plus this number."""


class SendFifo:
    """First in, first out. Each send has a ticket: a number that rises from the front to the end."""

    __slots__ = ("_by_key", "_deadlines", "_first", "_next", "earliest_ms", "waiting")

    def __init__(self) -> None:
        self.waiting: OrderedDict[int, PendingSend] = OrderedDict()
        """By ticket, in rising order. Only the FIFO changes it."""
        self._first = 0
        self._next = 0
        self._deadlines: list[tuple[int, int]] | None = None
        """A heap of (deadline, ticket), which includes sends that have left; None if it is not built."""
        self._by_key: dict[str, dict[int, None]] = {}
        """The tickets of the sends with each key. Built together with the heap of deadlines."""
        self.earliest_ms = NEVER_MS
        """No deadline of a waiting send is earlier."""

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def __len__(self) -> int:
        return len(self.waiting)

    def __iter__(self) -> Iterator[PendingSend]:
        return iter(self.waiting.values())

    def append(self, pending: PendingSend) -> None:
        """Add a send at the end."""
        self._next = pending.ticket = ticket = self._next + 1
        self.waiting[ticket] = pending
        if pending.deadline_ms < self.earliest_ms:
            self.earliest_ms = pending.deadline_ms
        if self._deadlines is not None:
            self._index(ticket, pending)

    def push(self, pending: PendingSend) -> None:
        """Add a send at the front."""
        self._first = pending.ticket = ticket = self._first - 1
        self.waiting[ticket] = pending
        self.waiting.move_to_end(ticket, last=False)
        self.earliest_ms = min(self.earliest_ms, pending.deadline_ms)
        if self._deadlines is not None:
            self._index(ticket, pending)

    def pop(self) -> PendingSend:
        """Remove and return the first send."""
        ticket, pending = self.waiting.popitem(last=False)
        if self._deadlines is not None or not self.waiting:
            self._left(ticket, pending)
        return pending

    def cut(self, bytes_max: int, count_max: int) -> list[PendingSend]:
        """Remove and return the sends of the next frame: the first one, and those after it that have the same layout version and fit.
        The FIFO must not be empty."""
        waiting = self.waiting
        if len(waiting) == 1:
            return self.take_all()
        taken: list[PendingSend] = []
        for pending in waiting.values():
            bytes_max -= pending.held_bytes
            count_max -= pending.count
            if taken:
                version = taken[0].version
                if count_max < 0 or bytes_max < 0 or pending.alone or (pending.version is not version and pending.version != version):
                    break
            taken.append(pending)
            if pending.alone:
                break
        if len(taken) == len(waiting):
            return self.take_all()
        for _ in taken:
            self.pop()
        return taken

    def remove(self, pending: PendingSend) -> bool:
        """Remove a send. Return False if it does not wait here."""
        if self.waiting.get(pending.ticket) is not pending:
            return False
        self._take(pending.ticket)
        return True

    def take_all(self) -> list[PendingSend]:
        """Remove and return all sends, in order."""
        taken = list(self.waiting.values())
        self.waiting.clear()
        self._empty()
        return taken

    def take(self, limit: int) -> list[PendingSend]:
        """Remove and return the first sends, at most `limit`."""
        return [self.pop() for _ in range(min(limit, len(self.waiting)))]

    def take_expired(self, now_ms: int, limit: int) -> list[PendingSend]:
        """Remove and return at most `limit` sends whose deadline has come. If `earliest_ms` is still not after `now_ms`, there are more."""
        if self._deadlines is None and now_ms >= self.earliest_ms:
            self.earliest_ms = min([pending.deadline_ms for pending in self], default=NEVER_MS)
        if now_ms < self.earliest_ms:
            return []
        deadlines = self._indexed()
        tickets: dict[int, None] = {}
        while deadlines:
            deadline_ms, ticket = deadlines[0]
            if ticket in self.waiting and ticket not in tickets:
                if deadline_ms > now_ms or len(tickets) >= limit:
                    break
                tickets[ticket] = None
            heappop(deadlines)
        self.earliest_ms = deadlines[0][0] if deadlines else NEVER_MS
        return [self._take(ticket) for ticket in sorted(tickets)]

    def take_keys(self, keys: Mapping[str, int]) -> list[PendingSend]:
        """Remove and return the records with one of these keys that come after its ticket, in order, as sends of one key each. Other
        records keep their place."""
        self._indexed()
        taken: list[PendingSend] = []
        for ticket in sorted(
            {ticket for key, failed_ticket in keys.items() for ticket in self._by_key.get(key, ()) if ticket > failed_ticket}
        ):
            failed = frozenset(key for key in self.waiting[ticket].keys if keys.get(key, ticket) < ticket)
            parts = self.waiting[ticket].split(lambda key, failed=failed: key if key in failed else None)  # type: ignore[misc]
            rest = parts.pop(None, None)
            self._take(ticket) if rest is None else self._replace(ticket, rest)
            taken += parts.values()
        return taken

    def take_older(self, version: LayoutVersion) -> list[PendingSend]:
        """Remove and return the sends that were picked from a lower layout than this one, in order."""
        older = [ticket for ticket, pending in self.waiting.items() if pending.version is not None and pending.version < version]
        return [self._take(ticket) for ticket in older]

    # ----------------------------------------------------------------------------------------------------------------- index

    def _index(self, ticket: int, pending: PendingSend) -> None:
        assert self._deadlines is not None
        heappush(self._deadlines, (pending.deadline_ms, ticket))
        self._learn(ticket, pending)

    def _take(self, ticket: int) -> PendingSend:
        pending = self.waiting.pop(ticket)
        self._left(ticket, pending)
        return pending

    def _replace(self, ticket: int, part: PendingSend) -> None:
        """Put a part of a send in its place."""
        self._unlearn(ticket, self.waiting[ticket])
        part.ticket = ticket
        self.waiting[ticket] = part
        self._learn(ticket, part)

    def _indexed(self) -> list[tuple[int, int]]:
        if self._deadlines is None:
            self._deadlines = [(pending.deadline_ms, ticket) for ticket, pending in self.waiting.items()]
            heapify(self._deadlines)
            for ticket, pending in self.waiting.items():
                self._learn(ticket, pending)
        return self._deadlines

    def _left(self, ticket: int, pending: PendingSend) -> None:
        waiting = self.waiting
        if not waiting:
            self._empty()
        elif self._deadlines is not None:
            self._unlearn(ticket, pending)
            if len(self._deadlines) > 2 * len(waiting) + STALE_MAX:
                self._deadlines = [(pending.deadline_ms, ticket) for ticket, pending in waiting.items()]
                heapify(self._deadlines)

    def _empty(self) -> None:
        self._deadlines = None
        self._by_key.clear()
        self.earliest_ms = NEVER_MS

    def _learn(self, ticket: int, pending: PendingSend) -> None:
        for key in pending.keys:
            self._by_key.setdefault(key, {})[ticket] = None

    def _unlearn(self, ticket: int, pending: PendingSend) -> None:
        for key in pending.keys:
            tickets = self._by_key.get(key)
            if tickets is not None:
                tickets.pop(ticket, None)
                if not tickets:
                    del self._by_key[key]
