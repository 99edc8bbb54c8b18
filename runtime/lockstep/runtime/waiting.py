"""Waits that end after a time, and one that no cancellation ends."""

import asyncio
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def is_set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until the event is set, but no longer than `seconds`; None sets no limit. Return whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def to_its_end(task: "asyncio.Task[T]") -> T:
    """Return what a task returns, or raise what it raises. A caller that is cancelled meanwhile is cancelled when the task has ended."""
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    result = task.result()
    if cancelled:
        raise asyncio.CancelledError
    return result
