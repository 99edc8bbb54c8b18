"""Ctrl-C for commands: the first SIGINT cancels the command, the second one ends the process at once.

asyncio.run alone is not enough:

- It handles SIGINT only if the process began with the default action. A shell script starts its background processes (`&`) with SIGINT
  ignored: such a command could not be interrupted.
- It sets its handler late: a command's imports take a second on a loaded machine (`early_signal.py`).
- Its handler does not wake a loop that is about to wait: a signal at that moment is noticed only at the next event.
- Cancelling ends neither a write to a pipe that is not read nor a name lookup in a thread.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import Any

from lockstep.cli.early_signal import received_early


class CommandInterruptedError(Exception):
    """SIGINT has cancelled the work."""


def run_interruptible(work: Coroutine[Any, Any, None], *, exit_code: int, end_s: float | None = None) -> None:
    """Run `work` in a new event loop.

    A second SIGINT ends the process at once with `exit_code`. So does the first one after `end_s` seconds, if the work, or the thread or
    the write that it waits for, has not ended by then. Only the main thread receives signals: in others this is asyncio.run.

    Raises:
        CommandInterruptedError: SIGINT has cancelled the work. Exceptions of the work itself are raised unchanged.
    """
    if threading.current_thread() is not threading.main_thread():
        asyncio.run(work)
        return
    before = signal.getsignal(signal.SIGINT)
    interrupt = _Interrupt(exit_code, end_s, before)
    try:
        asyncio.run(interrupt.watch(work))
    except asyncio.CancelledError:
        if not interrupt.received:
            raise
        raise CommandInterruptedError from None
    finally:
        interrupt.close()
        if before is not None:  # None if it was not set by Python code
            signal.signal(signal.SIGINT, before)


class _Interrupt:
    """The SIGINT handler of one run."""

    def __init__(self, exit_code: int, end_s: float | None, before: object) -> None:
        self.received = False
        self._before = before
        self._exit_code = exit_code
        self._task: asyncio.Task[Any] | None = None
        self._end_timer = None if end_s is None else threading.Timer(end_s, self._end_now)

    async def watch(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.current_task()
        # The loop's own handler wakes the loop. The handler that is set after it also runs during a blocking call.
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._on_loop_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        if received_early(self._before):
            work.close()
            self.received = True
            raise asyncio.CancelledError
        await work

    def close(self) -> None:
        if self._end_timer is not None:
            self._end_timer.cancel()

    def _on_loop_signal(self) -> None:
        """Runs in the loop after each signal. Handles one that was received before `_on_signal` was set."""
        if not self.received:
            self._on_signal(signal.SIGINT, None)

    def _on_signal(self, _: int, __: FrameType | None) -> None:
        if self.received:
            self._end_now()
        self.received = True
        if self._end_timer is not None:
            self._end_timer.daemon = True
            self._end_timer.start()
        assert self._task is not None
        self._task.cancel()

    def _end_now(self) -> None:
        os._exit(self._exit_code)
