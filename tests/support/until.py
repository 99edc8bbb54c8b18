"""Wait for a condition without a sleep, turn by turn."""

import asyncio
from collections.abc import Callable

LIMIT_S = 60
"""The time limit of a wait, which only ends a test that would hang: a busy machine may take long."""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        # Product code sets no event for a test, so the condition is polled.
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)
