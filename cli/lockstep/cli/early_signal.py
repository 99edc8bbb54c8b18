"""Handle SIGINT from the first line of a command on, before the slow imports. This module must not import anything slow.

A process that a shell script starts in the background begins with SIGINT ignored, and would ignore it until its command runs.
KeyboardInterrupt alone is not enough: it is lost if it is raised in a callback of the interpreter or in a module written in C.
So the signal is also recorded, and then the command does not begin (`interrupt.py`).
"""

import os
import signal
import threading
from types import FrameType

EXIT_INTERRUPTED = 130


class EarlySignal:
    """The SIGINT handler until a command sets its own."""

    def __init__(self) -> None:
        self.received = False

    def __call__(self, _: int, __: FrameType | None) -> None:
        if self.received:
            os._exit(EXIT_INTERRUPTED)
        self.received = True
        raise KeyboardInterrupt

    def install(self) -> object:
        """Set the handler, even if SIGINT is ignored, and return the previous one. Does nothing outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return None
        return signal.signal(signal.SIGINT, self)

    def restore(self, previous: object) -> None:
        """Set the handler again that `install` returned."""
        if previous is not None:  # None in another thread, or if it was not set by Python code
            signal.signal(signal.SIGINT, previous)  # type: ignore[arg-type]


def received_early(handler: object) -> bool:
    """Return whether SIGINT was received while this handler was set, before the command began."""
    return isinstance(handler, EarlySignal) and handler.received
