"""What producers and consumers have in common: each belongs to one process, runs on one event loop at a time, and may wait for its start.

A producer or consumer that is started belongs to the event loop on which that was done, until it has ended. Whoever calls it on another
loop gets a StateError, before anything is touched. If the loop was closed without an end of the producer or consumer (`asyncio.run` for
each task), nothing of it runs any more: the next start or end on any loop drops it. The same holds in a forked child, which leaves the
connections of its parent alone.
"""

import asyncio
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

from lockstep.protocol.errors import StateError, TransportError
from lockstep.runtime.event_loop import running_loop
from lockstep.runtime.logs.log import get_logger

log = get_logger("lockstep.client")

T = TypeVar("T")

START_PAUSE_MS = 1_000
"""Pause between two attempts to start while no nameserver responds (`start_timeout_ms`, `start_in_background`)."""


class OfOneProcess:
    """The base of objects that can't be pickled or copied, because connections and threads belong to the process that made them."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} can't be pickled or copied, because its connections belong to this process: make it in each process")


class Life(OfOneProcess, ABC):
    """The base of producers and consumers: their event loop, and the attempts to start."""

    group: str

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop to which this belongs: from the beginning of a start to the end."""
        self._pid = 0
        """The process of that loop."""
        self._awaited: str | None = None
        """Why the last attempt to start failed, while there will be another one."""

    @abstractmethod
    def _drop(self) -> None:
        """Drop what belonged to an event loop that is closed, or to the parent process, and become ended. Nothing of it runs here."""

    def _check_loop(self) -> None:
        """Raise StateError if this belongs to another event loop than the running one, or to one that is closed.

        A thread without an event loop is not refused: the methods that are not coroutines may be called there.
        """
        own, here = self._loop, running_loop()
        if own is None or own is here:
            return
        if over := self._why_over(own):
            raise StateError(f"{self!r} was started {over}: start it again")
        if here is not None:
            raise StateError(
                f"{self!r} belongs to another event loop, {own!r}, on which it was started: call it there "
                "(asyncio.run_coroutine_threadsafe), end it there, or make another one for this loop"
            )

    def _why_over(self, own: asyncio.AbstractEventLoop) -> str | None:
        """Return why nothing of the loop runs in this process; None if it may run."""
        if self._pid != os.getpid():
            return "in the parent of this process, before a fork"
        return "on an event loop that has been closed since" if own.is_closed() else None

    def _enter_loop(self) -> None:
        """Begin a start or an end on the running event loop: what a closed loop has left is dropped.

        Raises:
            StateError: This belongs to another event loop.
        """
        own = self._loop
        if own is not None and own is not running_loop() and (over := self._why_over(own)):
            log.warning("client.dropped", group=self.group, reason=f"it was started {over}")
            self._drop()
            self._loop = self._awaited = None
        self._check_loop()

    def _own_loop(self) -> None:
        """Belong to the running event loop."""
        self._loop, self._pid = asyncio.get_running_loop(), os.getpid()

    async def _start_patiently(self, attempt: Callable[[], Awaitable[T]], limit_ms: int | None) -> T:
        """Return the result of `attempt`. While no nameserver responds, try again for this time; None: without a limit."""
        loop, waited = asyncio.get_running_loop(), False
        end = math.inf if limit_ms is None else loop.time() + limit_ms / 1_000
        try:
            while True:
                try:
                    return await attempt()
                except TransportError as error:
                    left_s = end - loop.time()
                    if left_s <= 0:
                        raise
                    if not waited:
                        log.warning("nameserver.awaited", group=self.group, error=str(error), limit_ms=limit_ms, again_ms=START_PAUSE_MS)
                    waited, self._awaited = True, str(error)
                await asyncio.sleep(min(START_PAUSE_MS / 1_000, left_s))
        finally:
            self._awaited = None
