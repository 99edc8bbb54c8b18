"""The in-flight limit of a producer: `await send()` waits here, first come first served. RocketMQ: maxAsyncSend… semaphores."""

import asyncio
from collections import deque
from collections.abc import Callable


class _Waiter:
    __slots__ = ("byte_count", "count", "entered", "tag")

    def __init__(self, count: int, byte_count: int, tag: object, entered: "asyncio.Future[None]") -> None:
        self.count = count
        self.byte_count = byte_count
        self.tag = tag
        self.entered = entered


class Gate:
    """Counts messages and bytes between `send` and their end. `shut`: the next one must `await enter(…)`, else `count` and go on."""

    __slots__ = ("_idle", "_waiters", "_waking", "byte_count", "byte_count_max", "count", "count_max", "shut")

    def __init__(self, count_max: int, byte_count_max: int) -> None:
        self.count_max = count_max
        self.byte_count_max = byte_count_max
        self.count = 0
        self.byte_count = 0
        self.shut = False
        self._waiters: deque[_Waiter] = deque()
        self._waking = 0
        self._idle: asyncio.Future[None] | None = None

    def add(self, count: int, byte_count: int) -> None:
        """Let these in at once (the gate is not shut)."""
        self.count += count
        self.byte_count += byte_count
        if self.count >= self.count_max or self.byte_count >= self.byte_count_max:
            self.shut = True

    async def enter(self, count: int, byte_count: int, tag: object) -> None:
        """Wait for a place, behind all who wait already. `tag` finds the waiter again (`refuse`)."""
        waiter = _Waiter(count, byte_count, tag, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self._admit()
        try:
            await waiter.entered
        except BaseException:  # re-raised
            if waiter.entered.done() and not waiter.entered.cancelled() and waiter.entered.exception() is None:
                self._waking -= 1
                self.release(count, byte_count)
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
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

    def refuse(self, fails: Callable[[object], Exception | None]) -> None:
        """Waiters for whose tag `fails` answers an error raise it."""
        staying: deque[_Waiter] = deque()
        for waiter in self._waiters:
            error = fails(waiter.tag)
            if error is None:
                staying.append(waiter)
            elif not waiter.entered.done():
                waiter.entered.set_exception(error)
        self._waiters = staying
        self._admit()

    async def idle(self) -> None:
        """Wait until nothing is in flight."""
        while self.count or self._waiters:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def _admit(self) -> None:
        while self._waiters and self.count < self.count_max and self.byte_count < self.byte_count_max:
            waiter = self._waiters.popleft()
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
