"""Clocks for tests: one that the test sets, one that each reading advances, and one that shows a loop's time."""

import asyncio

from lockstep.runtime.clock import Clock


class SetClock(Clock):
    """Clocks that show `now_ms`, which the test sets. The wall clock is `ahead_ms` ahead of it."""

    __slots__ = ("ahead_ms", "now_ms")

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self.now_ms = now_ms
        self.ahead_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms

    boot_ms = monotonic_ms

    def monotonic_us(self) -> int:
        return self.now_ms * 1_000

    def wall_ms(self) -> int:
        return self.now_ms + self.ahead_ms


class WorkClock(SetClock):
    """Clocks for work that reads `monotonic_us` after each step: a step takes `step_us`. Only the test moves the others."""

    __slots__ = ("step_us", "worked_us")

    def __init__(self, step_us: int) -> None:
        super().__init__(0)
        self.step_us = step_us
        self.worked_us = 0

    def monotonic_us(self) -> int:
        self.worked_us += self.step_us
        return self.worked_us


class LoopClock(Clock):
    """Clocks that show the loop's time. `slept_ms` of suspension count on the boot clock only."""

    __slots__ = ("_loop", "slept_ms")

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None, *, slept_ms: int = 0) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self.slept_ms = slept_ms

    def monotonic_ms(self) -> int:
        return round(self._loop.time() * 1_000)

    wall_ms = monotonic_ms

    def boot_ms(self) -> int:
        return self.monotonic_ms() + self.slept_ms

    def monotonic_us(self) -> int:
        return round(self._loop.time() * 1_000_000)
