"""Waits for an event that end after a time."""

import asyncio
from contextlib import suppress


async def is_set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until the event is set, but no longer than `seconds`; None sets no limit. Return whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
