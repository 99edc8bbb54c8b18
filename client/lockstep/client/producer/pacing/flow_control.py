"""The in-flight limit of a producer, for which `await send()` waits, first come first served. RocketMQ: maxAsyncSend… semaphores."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from lockstep.client.errors import PrecedingSendError
from lockstep.client.producer.machines.routing import QUEUE_WIDE
from lockstep.client.producer.pacing.ends import Ends
from lockstep.client.producer.pacing.expiry import Expiry
from lockstep.client.producer.pacing.waiting_room import WaitingRoom
from lockstep.protocol.topics.queue import MessageQueue

QueueKeys = Sequence[tuple[MessageQueue, Sequence[str]]]
"""The queues that a send goes to, with its keys there (unkeyed: none)."""
SendScope = tuple[MessageQueue | str, str]
"""The scope within which a failed send fails the later ones: a sharding key of one topic, whichever queue the layout gives it, or a whole
queue."""


class _Waiter:
    """A send that waits for the in-flight limit."""

    __slots__ = ("_error", "_limit", "byte_count", "count", "entered", "number", "places")

    def __init__(
        self,
        limit: "InFlightLimit",
        number: int,
        count: int,
        byte_count: int,
        places: dict[SendScope, MessageQueue],
        error: Callable[[], Exception],
    ) -> None:
        self._limit = limit
        self._error = error
        self.number = number
        """Rises with each waiter."""
        self.count = count
        self.byte_count = byte_count
        self.places = places
        self.entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(self) -> bool:
        return self.entered.done()

    def expire(self) -> None:
        self._limit.expired(self, self._error())


class InFlightLimit:
    """Counts messages and bytes from `send` to their end. While `must_wait` is set a send must await `enter`; otherwise it calls `add`.

    A waiter is listed under each of its places until its `enter` returns or raises. When a keyed send fails, the list of its place is
    removed as a whole: every waiter in it is refused, in one step, however many they are. They end as loop turns have time for them, and
    none of them is admitted in between.
    """

    __slots__ = (
        "_admitting",
        "_by_place",
        "_ends",
        "_expiry",
        "_idle",
        "_number",
        "_waiters",
        "_waking",
        "byte_count",
        "byte_count_max",
        "count",
        "count_max",
        "must_wait",
        "waiting",
    )

    def __init__(self, count_max: int, byte_count_max: int, waiting: WaitingRoom) -> None:
        self.count_max = count_max
        self.byte_count_max = byte_count_max
        self.count = 0
        self.byte_count = 0
        self.must_wait = False
        self.waiting = waiting
        self._waiters: OrderedDict[int, _Waiter] = OrderedDict()
        """By number, in rising order; those that are not admitted yet."""
        self._by_place: dict[SendScope, dict[int, _Waiter]] = {}
        """Includes admitted waiters, until they run."""
        self._number = 0
        self._waking = 0
        """The number of waiters that are admitted and do not run yet."""
        self._admitting = False
        """`_admissions` runs, or will when the loop has time."""
        self._idle: asyncio.Future[None] | None = None
        self._expiry: Expiry | None = None
        self._ends: Ends | None = None

    def begin(self, expiry: Expiry, ends: Ends) -> None:
        """Set what ends and admits waiters. The producer has started."""
        self._expiry = expiry
        self._ends = ends

    def add(self, count: int, byte_count: int) -> None:
        """Count these at once. `must_wait` must not be set."""
        self.count += count
        self.byte_count += byte_count
        if self.count >= self.count_max or self.byte_count >= self.byte_count_max:
            self.must_wait = True

    async def enter(
        self,
        count: int,
        byte_count: int,
        queue_keys: QueueKeys,
        deadline_ms: int,
        expired: Callable[[], Exception],
        in_time: Callable[[], bool],
    ) -> None:
        """Wait for admission after all earlier waiters. Raise what `expired` returns at the deadline (monotonic ms).

        The same is raised if `in_time` returns False when the send is admitted; what `in_time` raises is raised. A waiter that expires also
        fails the later waiters with one of its keys, as a failed send does: those raise PrecedingSendError.
        """
        assert self._expiry is not None
        self._number += 1
        places = {_place(queue, key): queue for queue, keys in queue_keys for key in keys}
        waiter = _Waiter(self, self._number, count, byte_count, places, expired)
        self._waiters[waiter.number] = waiter
        for place in places:
            self._by_place.setdefault(place, {})[waiter.number] = waiter
        self.waiting.enter(count, byte_count)
        self._admit()
        if not waiter.entered.done():
            self._expiry.add(deadline_ms, waiter)
        try:
            if waiter.entered.done():  # waiters that were admitted before and have not run yet come first
                await asyncio.sleep(0)
            await waiter.entered
        except BaseException:  # re-raised
            if waiter.entered.done() and not waiter.entered.cancelled() and waiter.entered.exception() is None:
                self._waking -= 1
                self._leave(waiter)
                self.release(count, byte_count)
            elif self._waiters.pop(waiter.number, None) is not None:
                self._leave(waiter)
                self._admit()
            del waiter  # a future that fails holds the error, whose traceback holds this frame
            raise
        finally:
            self.waiting.leave(count, byte_count)
        self._waking -= 1
        refused_at = self._refused_at(waiter)
        if refused_at is not None:  # an earlier send failed after this one was admitted
            self._fail_later(waiter)
            self.release(count, byte_count)
            raise _preceding(waiter, refused_at)
        try:
            if not in_time():
                self._fail_later(waiter)
                raise expired()
        except BaseException:  # re-raised
            self._leave(waiter)
            self.release(count, byte_count)
            raise
        self._leave(waiter)
        self._update()

    def release(self, count: int, byte_count: int) -> None:
        """Stop counting sends that have ended."""
        self.count -= count
        self.byte_count -= byte_count
        if self.must_wait:
            self._admit()
        self._notify_idle()

    def expired(self, waiter: _Waiter, error: Exception) -> None:
        """Fail a waiter with the error, because its deadline has come."""
        del self._waiters[waiter.number]
        waiter.entered.set_exception(error)
        self._fail_later(waiter)
        self._admit()

    def refuse_later(self, queue: MessageQueue, keys: Iterable[str]) -> Iterator[None]:
        """Refuse every waiter with one of these keys, because a keyed send failed, and every later waiter that has a key of a refused one.

        Return an iterator that ends them: they raise PrecedingSendError.
        """
        refused: dict[SendScope, Mapping[int, _Waiter]] = {}
        for key in keys:
            place = _place(queue, key)
            waiters = self._by_place.pop(place, None)
            if waiters is not None:
                refused[place] = waiters
        return self._end(refused)

    async def idle(self) -> None:
        """Wait until nothing is in flight."""
        while self.count or self._waiters:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def _end(self, refused: Mapping[SendScope, Mapping[int, _Waiter]]) -> Iterator[None]:
        for place, waiters in refused.items():
            for waiter in waiters.values():
                if self._waiters.pop(waiter.number, None) is None:
                    continue
                if not waiter.entered.done():
                    waiter.entered.set_exception(_preceding(waiter, place))
                self._fail_later(waiter)
                self._admit()
                yield

    def _fail_later(self, waiter: _Waiter) -> None:
        """Refuse the later waiters in the places where a failed waiter is listed.

        If it is no longer listed in a place, its list was removed, and the waiters that are listed there now came later.
        """
        refused: dict[SendScope, Mapping[int, _Waiter]] = {}
        for place in waiter.places:
            listed = self._by_place.get(place)
            if listed is None or listed.pop(waiter.number, None) is None:
                continue
            if not listed or next(iter(listed)) > waiter.number:
                later = self._by_place.pop(place)
            else:
                later = {number: other for number, other in listed.items() if number > waiter.number}
                for number in later:
                    del listed[number]
            if later:
                refused[place] = later
        if refused:
            assert self._ends is not None
            self._ends.add(self._end(refused))

    def _refused_at(self, waiter: _Waiter) -> SendScope | None:
        """Return the place of the waiter in which an earlier send has failed."""
        for place in waiter.places:
            if waiter.number not in self._by_place.get(place, ()):
                return place
        return None

    def _leave(self, waiter: _Waiter) -> None:
        """Remove the waiter from the lists of its places."""
        for place in waiter.places:
            listed = self._by_place.get(place)
            if listed is not None and listed.pop(waiter.number, None) is not None and not listed:
                del self._by_place[place]

    def _admit(self) -> None:
        """Admit waiters if there is room: now, as far as this loop turn has time for them."""
        if self._waiters and not self._admitting and self._has_room:
            assert self._ends is not None
            self._admitting = True
            self._ends.add(self._admissions())
        self._update()

    def _admissions(self) -> Iterator[None]:
        while self._waiters and self._has_room:
            waiter = next(iter(self._waiters.values()))
            if self._refused_at(waiter) is not None:
                break  # it is about to end; the next one is admitted then
            del self._waiters[waiter.number]
            if waiter.entered.done():
                self._leave(waiter)
                continue
            self.count += waiter.count
            self.byte_count += waiter.byte_count
            self._waking += 1
            waiter.entered.set_result(None)
            yield
        self._admitting = False
        self._update()

    @property
    def _has_room(self) -> bool:
        return self.count < self.count_max and self.byte_count < self.byte_count_max

    def _update(self) -> None:
        self.must_wait = not self._has_room or bool(self._waiters) or self._waking > 0
        self._notify_idle()

    def _notify_idle(self) -> None:
        if not self.count and not self._waiters and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)


def _place(queue: MessageQueue, key: str) -> SendScope:
    return (queue if key == QUEUE_WIDE else queue.topic, key)


def _preceding(waiter: _Waiter, place: SendScope) -> PrecedingSendError:
    return PrecedingSendError(waiter.places[place], place[1] or None)
