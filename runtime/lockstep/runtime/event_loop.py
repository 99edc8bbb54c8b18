"""Which event loop the processes of lockstep run, and which one this thread runs."""

import asyncio

running_loop = asyncio._get_running_loop
"""Returns the event loop that this thread runs, or None."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's loop if uvloop is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def runs_event_loop() -> bool:
    """Return whether this thread runs an event loop, which must not be blocked."""
    return running_loop() is not None
