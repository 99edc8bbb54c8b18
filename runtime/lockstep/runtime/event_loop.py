"""Which event loop the processes of lockstep run, and whether this thread runs one."""

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's loop if uvloop is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def runs_event_loop() -> bool:
    """Return whether this thread runs an event loop, which must not be blocked."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
