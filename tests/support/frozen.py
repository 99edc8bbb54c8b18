"""A host on the test's frozen loop, and time that passes there in small steps."""

import asyncio
from dataclasses import replace

from lockstep.runtime.clock import Clock
from lockstep.runtime.host import Host
from support.loops import FrozenLoop, turns

SETTLE_TURNS = 60
"""Enough for several requests and responses over loopback."""


class LoopClock(Clock):
    """Every clock of the host shows the loop's time; `slept_ms` of it only the one that counts suspension."""

    __slots__ = ("_loop", "slept_ms")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.slept_ms = 0

    def monotonic_ms(self) -> int:
        return round(self._loop.time() * 1_000)

    wall_ms = monotonic_ms

    def boot_ms(self) -> int:
        return self.monotonic_ms() + self.slept_ms

    def monotonic_us(self) -> int:
        return round(self._loop.time() * 1_000_000)


def loop_host() -> Host:
    return replace(Host.real(), clock=LoopClock(asyncio.get_running_loop()))


async def settle() -> None:
    await turns(SETTLE_TURNS)


async def advance(seconds: float) -> None:
    """Virtual time passes in steps of 10 ms, with the I/O that belongs to each."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, FrozenLoop)
    for _ in range(max(1, round(seconds * 100))):
        await loop.advance(min(seconds, 0.01))
        await turns(8)
    await settle()
