"""Ctrl-C for commands: the first one cancels the command, the second one ends the process at once.

asyncio.run alone is not enough:

- It handles SIGINT only where the process has begun with the default action. A shell script starts what it runs in the background (`&`)
  with SIGINT ignored: such a command would go on for ever.
- Its handler is set late: what a command imports takes a second on a loaded machine (`early.py`).
- Its handler does not wake a loop that is about to wait: a signal that comes just then is noticed at the next event.
- Cancelling does not end a write to a pipe that nobody reads, or a look-up of a name in a thread.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import Any

from lockstep.admin.early_signal import came_early


class CommandInterruptedError(Exception):
    """SIGINT has ended the work."""


def run_interruptible(work: Coroutine[Any, Any, None], *, exit_code: int, end_s: float | None = None) -> None:
    """Run `work` in a loop of its own. Raises CommandInterruptedError where SIGINT has cancelled it, and what the work raises.

    A second SIGINT ends the process at once with `exit_code`; so does the first one after `end_s`, where the work, or the thread or the
    write that it waits for, has not ended by then. Only the main thread gets signals: in others this is asyncio.run.
    """
    if threading.current_thread() is not threading.main_thread():
        asyncio.run(work)
        return
    before = signal.getsignal(signal.SIGINT)
    interrupt = _Interrupt(exit_code, end_s, before)
    try:
        asyncio.run(interrupt.watch(work))
    except asyncio.CancelledError:
        if not interrupt.came:
            raise
        raise CommandInterruptedError from None
    finally:
        interrupt.close()
        if before is not None:  # None: set by other code than Python's
            signal.signal(signal.SIGINT, before)


class _Interrupt:
    """The handler of one run."""

    def __init__(self, exit_code: int, end_s: float | None, before: object) -> None:
        self.came = False
        self._before = before
        self._exit_code = exit_code
        self._task: asyncio.Task[Any] | None = None
        self._limit = None if end_s is None else threading.Timer(end_s, self._end_now)

    async def watch(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.current_task()
        # The loop's own handler wakes it, whatever it waits for. The handler that is set then runs also in the midst of a blocking call.
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._woken)
        signal.signal(signal.SIGINT, self._signalled)
        if came_early(self._before):
            work.close()
            self.came = True
            raise asyncio.CancelledError
        await work

    def close(self) -> None:
        if self._limit is not None:
            self._limit.cancel()

    def _woken(self) -> None:
        """In the loop, after each signal: one that came before `_signalled` was set has not been taken yet."""
        if not self.came:
            self._signalled(signal.SIGINT, None)

    def _signalled(self, _: int, __: FrameType | None) -> None:
        if self.came:
            self._end_now()
        self.came = True
        if self._limit is not None:
            self._limit.daemon = True
            self._limit.start()
        assert self._task is not None
        self._task.cancel()

    def _end_now(self) -> None:
        os._exit(self._exit_code)
