"""Sends a request again until a deadline, if it fails for a reason that may pass. It must be one that may be carried out twice."""

import asyncio
from collections.abc import Awaitable, Callable, Container

from lockstep.protocol.command import Command
from lockstep.protocol.errors import BrokerError, TransportError
from lockstep.protocol.responses import SUCCEEDED, checked
from lockstep.runtime.clock import Clock

PAUSE_MS = 100
"""First pause before a retry; it doubles up to PAUSE_MS_MAX."""
PAUSE_MS_MAX = 1_000


async def patiently(
    clock: Clock, until_ms: int, attempt: Callable[[], Awaitable[Command]], accepted: Container[int] = SUCCEEDED
) -> Command:
    """Return the first response with an accepted code.

    An attempt without a response, or with a retriable error, is repeated after a pause, which the response may name (RETRY_AFTER_FIELD).
    Raise its error if it can't be repeated before `until_ms` (monotonic), and any other error at once.
    """
    pause_ms = PAUSE_MS
    while True:
        wait_ms = pause_ms
        try:
            return checked(await attempt(), accepted)
        except (TransportError, BrokerError) as error:
            may_pass = isinstance(error, TransportError) or error.retriable
            if isinstance(error, BrokerError) and error.retry_after_ms is not None:
                wait_ms = error.retry_after_ms
            if not may_pass or clock.monotonic_ms() + wait_ms >= until_ms:
                raise
        await asyncio.sleep(wait_ms / 1_000)
        pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)
