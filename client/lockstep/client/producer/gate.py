"""The in-flight limit of a producer: `await send()` waits here, first come first served. RocketMQ: maxAsyncSend… semaphores."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush

from lockstep.client.errors import PrecedingSendFailed
from lockstep.client.producer.expiry import Expiry
from lockstep.protocol.queue import MessageQueue

Tag = Sequence[tuple[MessageQueue, Sequence[str]]]
"""The queues that a send goes to, with what counts as its keys there (none: unkeyed)."""
Place = tuple[MessageQueue, str]
"""A key of one queue."""


class _Waiter:
    """A send that waits for its place."""

    __slots__ = ("_error", "_gate", "byte_count", "count", "entered", "number", "places")

    def __init__(self, gate: "Gate", number: int, count: int, byte_count: int, places: list[Place], error: Callable[[], Exception]) -> None:
        self._gate = gate
        self._error = error
        self.number = number
        """Rises with each that comes."""
        self.count = count
        self.byte_count = byte_count
        self.places = places
        self.entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(self) -> bool:
        return self.entered.done()

    def expire(self) -> None:
        self._gate.expired(self, self._error())


class Gate:
    """Counts messages and bytes between `send` and their end. `shut`: the next one must `await enter(…)`, else `add` and go on."""

    __slots__ = (
        "_by_place",
        "_expiry",
        "_idle",
        "_number",
        "_waiters",
        "_waking",
        "byte_count",
        "byte_count_max",
        "count",
        "count_max",
        "shut",
    )

    def __init__(self, count_max: int, byte_count_max: int) -> None:
        self.count_max = count_max
        self.byte_count_max = byte_count_max
        self.count = 0
        self.byte_count = 0
        self.shut = False
        self._waiters: OrderedDict[int, _Waiter] = OrderedDict()
        """By their number, which rises."""
        self._by_place: dict[Place, dict[int, _Waiter]] = {}
        self._number = 0
        self._waking = 0
        self._idle: asyncio.Future[None] | None = None
        self._expiry: Expiry | None = None

    def begin(self, expiry: Expiry) -> None:
        """The producer has started: waiters expire here."""
        self._expiry = expiry

    def add(self, count: int, byte_count: int) -> None:
        """Let these in at once (the gate is not shut)."""
        self.count += count
        self.byte_count += byte_count
        if self.count >= self.count_max or self.byte_count >= self.byte_count_max:
            self.shut = True

    async def enter(self, count: int, byte_count: int, tag: Tag, deadline_ms: int, expired: Callable[[], Exception]) -> None:
        """Wait for a place, behind all who wait already; at the deadline (monotonic ms) raise what `expired` makes.

        What expires fails what waits behind it with one of its keys, as a failed send does.
        """
        assert self._expiry is not None
        self._number += 1
        places = [(queue, key) for queue, keys in tag for key in dict.fromkeys(keys)]
        waiter = _Waiter(self, self._number, count, byte_count, places, expired)
        self._waiters[waiter.number] = waiter
        for place in places:
            self._by_place.setdefault(place, {})[waiter.number] = waiter
        self._admit()
        if not waiter.entered.done():
            self._expiry.add(deadline_ms, waiter)
        try:
            await waiter.entered
        except BaseException:  # re-raised
            if waiter.entered.done() and not waiter.entered.cancelled() and waiter.entered.exception() is None:
                self._waking -= 1
                self.release(count, byte_count)
            elif waiter.number in self._waiters:
                self._remove(waiter)
                self._admit()
            raise
        self._waking -= 1
        self._update()

    def release(self, count: int, byte_count: int) -> None:
        """These have ended."""
        self.count -= count
        self.byte_count -= byte_count
        if self.shut:
            self._admit()
        if self.count == 0 and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def expired(self, waiter: _Waiter, error: Exception) -> None:
        """The waiter's deadline has come: it raises the error."""
        self._remove(waiter)
        waiter.entered.set_exception(error)
        self._refuse(waiter.places, waiter.number)
        self._admit()

    def refuse_behind(self, queue: MessageQueue, keys: Iterable[str]) -> None:
        """A keyed send failed: who waits with the same key raises PrecedingSendFailed too, whole, and who waits behind that."""
        self._refuse([(queue, key) for key in keys], 0)
        self._admit()

    async def idle(self) -> None:
        """Wait until nothing is in flight."""
        while self.count or self._waiters:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def _refuse(self, places: Iterable[Place], behind: int) -> None:
        """Fail the waiters of these places with a number above `behind`, and what waits behind them in any of their places."""
        failed: set[Place] = set()
        reached: list[int] = []

        def fail(places: Iterable[Place], behind: int) -> None:
            for place in places:
                if place not in failed:
                    failed.add(place)
                    for number in self._by_place.get(place, ()):
                        if number > behind:
                            heappush(reached, number)

        fail(places, behind)
        while reached:
            waiter = self._waiters.get(heappop(reached))
            if waiter is None:  # reached by two of its places
                continue
            queue, key = next(place for place in waiter.places if place in failed)
            self._remove(waiter)
            if not waiter.entered.done():
                waiter.entered.set_exception(PrecedingSendFailed(queue, key or None))
            fail(waiter.places, waiter.number)

    def _remove(self, waiter: _Waiter) -> None:
        del self._waiters[waiter.number]
        for place in waiter.places:
            others = self._by_place[place]
            del others[waiter.number]
            if not others:
                del self._by_place[place]

    def _admit(self) -> None:
        while self._waiters and self.count < self.count_max and self.byte_count < self.byte_count_max:
            waiter = next(iter(self._waiters.values()))
            self._remove(waiter)
            if waiter.entered.done():
                continue
            self.count += waiter.count
            self.byte_count += waiter.byte_count
            self._waking += 1
            waiter.entered.set_result(None)
        self._update()

    def _update(self) -> None:
        full = self.count >= self.count_max or self.byte_count >= self.byte_count_max
        self.shut = full or bool(self._waiters) or self._waking > 0
