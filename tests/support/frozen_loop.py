"""A host on the test's frozen loop, and functions that advance its time in small steps."""

import asyncio
from dataclasses import replace

from lockstep.runtime.host import Host
from support.clocks import LoopClock
from support.loops import FrozenLoop, turns

SETTLE_TURNS = 60
"""Enough for several requests and responses over loopback."""


def loop_host() -> Host:
    return replace(Host.real(), clock=LoopClock())


async def settle() -> None:
    await turns(SETTLE_TURNS)


async def advance(seconds: float) -> None:
    """Advance virtual time in steps of 10 ms, with the I/O of each step."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, FrozenLoop)
    for _ in range(max(1, round(seconds * 100))):
        await loop.advance(min(seconds, 0.01))
        await turns(8)
    await settle()
