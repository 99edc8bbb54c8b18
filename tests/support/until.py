"""Wait for a condition without a sleep, turn by turn."""

import asyncio
from collections.abc import Callable

from support.processes import LIMIT_S


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        # Product code sets no event for a test, so the condition is polled.
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)
