"""SIGINT from the first line of a command on, before what takes long is imported. This module imports nothing that does.

A process that is started in the background of a shell script begins with SIGINT ignored, and would ignore it until its command runs.
KeyboardInterrupt alone is not enough: code that is interrupted in a callback of the interpreter, or in a module that is written in C, may
drop it. So the signal is remembered, and the command does not begin (`interrupt.py`).
"""

import os
import signal
import threading
from types import FrameType

EXIT_INTERRUPTED = 130


class EarlySignal:
    """The handler of SIGINT until a command sets its own."""

    def __init__(self) -> None:
        self.came = False

    def __call__(self, _: int, __: FrameType | None) -> None:
        if self.came:
            os._exit(EXIT_INTERRUPTED)
        self.came = True
        raise KeyboardInterrupt

    def listen(self) -> object:
        """Sets the handler, also where SIGINT is ignored; returns the one of before. Only the main thread gets signals."""
        if threading.current_thread() is not threading.main_thread():
            return None
        return signal.signal(signal.SIGINT, self)

    def end(self, before: object) -> None:
        """Sets the handler of before `listen` again."""
        if before is not None:  # None: another thread, or set by other code than Python's
            signal.signal(signal.SIGINT, before)  # type: ignore[arg-type]


def came_early(handler: object) -> bool:
    """Whether SIGINT has come while this handler was set, before the command began."""
    return isinstance(handler, EarlySignal) and handler.came
