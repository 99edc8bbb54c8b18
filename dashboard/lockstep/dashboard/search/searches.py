"""Searches of pages: few at a time over all who look, because each of them keeps the brokers at work for seconds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lockstep.protocol.errors import LockstepError

SEARCHES_MAX = 4
WAIT_S = 5.0
"""How long a page waits until others have ended."""


class BusyError(LockstepError):
    """Too many searches are running."""


class Searches:
    """Lets SEARCHES_MAX searches run at a time."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(SEARCHES_MAX)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until fewer than SEARCHES_MAX others are running, for at most WAIT_S. Raise BusyError if they go on."""
        try:
            async with asyncio.timeout(WAIT_S):
                await self._free.acquire()
        except TimeoutError:
            raise BusyError(f"{SEARCHES_MAX} searches are running, which is the most at a time: look again in a few seconds") from None
        try:
            yield
        finally:
            self._free.release()
