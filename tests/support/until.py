"""Waiting for something to become true without a sleep: the loop turns until it is."""

import asyncio
from collections.abc import Callable

LIMIT_S = 10
"""A condition that never comes fails the test; no test depends on how long it takes."""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        # The condition belongs to product code, which sets no event for a test.
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)
