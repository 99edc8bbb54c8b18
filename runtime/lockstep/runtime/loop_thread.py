"""An asynchronous service for programs that block: on an event loop of its own, in a daemon thread.

    NEW --first call, or start--> RUNNING --close--> CLOSED        CLOSED refuses every call
     ^                               |
     +----------- fork --------------+                             the child has neither thread nor connections: it begins anew

In a forked child nothing of the parent's service is touched: no destructor runs, no byte goes out on a connection that both have.
"""

import asyncio
import atexit
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from lockstep.protocol.errors import StateError
from lockstep.runtime.daemon import new_event_loop

S = TypeVar("S")
T = TypeVar("T")

EXIT_WAIT_S = 3.0
"""How long the end of the program waits for services that nobody has closed."""
LOOK_S = 0.5
"""A signal that comes right before a thread begins to wait does not wake it (CPython): it looks this often."""


class LoopThread(Generic[S]):
    """One service, started at its first call. `make` gives it; its `async with` is its life. Safe to call from any thread."""

    def __init__(self, name: str, make: Callable[[], AbstractAsyncContextManager[S]]) -> None:
        self.name = name
        """What errors and the thread are called by."""
        self._make = make
        self._lock = threading.Lock()
        self._running: _Running[S] | None = None
        self._closed = False
        _all.add(self)

    def start(self) -> None:
        """What the first call does. StateError when it is closed; raises what the service's own start raises."""
        self._handed(lambda _: None)

    def call(self, ask: Callable[[S], Coroutine[Any, Any, T]]) -> T:
        """The coroutine's result, or what it raised. An exception that comes from elsewhere (KeyboardInterrupt) cancels it.

        StateError when it is closed, was closed while this waited, or is called on an event loop, which it would block.
        """
        future = self._handed(lambda running: asyncio.run_coroutine_threadsafe(ask(running.service), running.loop))
        try:
            return _result(future)
        except concurrent.futures.CancelledError:
            raise StateError(f"{self.name} was closed while this call waited") from None
        finally:
            future.cancel()

    def look(self, ask: Callable[[S], T], default: T) -> T:
        """`ask(service)` in this very thread: for what can be read from any; `default` while it does not run."""
        running = self._running
        return ask(running.service) if running is not None and running.is_started else default

    def close(self, timeout_s: float | None = None) -> None:
        """End the service, and wait for that; from now on every call is refused. Again, or before the start: nothing happens."""
        with self._lock:
            self._closed = True
            running, self._running = self._running, None
        if running is not None:
            running.stop()
            running.thread.join(timeout_s)

    @property
    def state(self) -> str:
        return "closed" if self._closed else "new" if self._running is None else "running"

    def _handed(self, hand: "Callable[[_Running[S]], T]") -> T:
        """`hand` of what runs, within the lock: what it gives to the loop is there before a stop is."""
        if _loop_runs():
            raise StateError(f"{self.name} blocks, and this thread runs an event loop: use the asynchronous one here, or a thread")
        running = self._begun()
        try:
            _result(running.started)
        except Exception:  # re-raised
            with self._lock:
                if self._running is running:
                    self._running = None
            raise
        with self._lock:
            if self._running is not running:
                raise self._is_closed()
            if not running.thread.is_alive():
                raise StateError(f"{self.name}: its thread has ended by itself; make a new one")
            return hand(running)

    def _begun(self) -> "_Running[S]":
        """Threads that come while it starts wait for the one start, and share its failure."""
        with self._lock:
            if self._closed:
                raise self._is_closed()
            if self._running is None:
                self._running = _Running(self.name, self._make)
            return self._running

    def _is_closed(self) -> StateError:
        return StateError(f"{self.name} is closed: make a new one")

    def _forked(self) -> None:
        """In the child, whose only thread is this one."""
        if self._running is not None:
            _left_by_forks.append(self._running)
        self._running = None
        self._lock = threading.Lock()


class _Running(Generic[S]):
    """Thread, loop and service."""

    service: S

    def __init__(self, name: str, make: Callable[[], AbstractAsyncContextManager[S]]) -> None:
        self.started: concurrent.futures.Future[None] = concurrent.futures.Future()
        """Or what kept it from that."""
        self.loop = new_event_loop()
        self._make = make
        self._stop = asyncio.Event()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    @property
    def is_started(self) -> bool:
        return self.started.done() and self.started.exception() is None

    def stop(self) -> None:
        """The service ends once what was handed to the loop until now has begun."""
        try:
            self.loop.call_soon_threadsafe(self._stop.set)
        except RuntimeError:
            pass  # it has ended by itself

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            try:
                runner.run(self._serve())
            except BaseException as error:  # listener: whoever waits for the start raises it
                if self.started.done():
                    raise
                self.started.set_exception(error)

    async def _serve(self) -> None:
        async with self._make() as self.service:
            self.started.set_result(None)
            await self._stop.wait()


_all: "weakref.WeakSet[LoopThread[Any]]" = weakref.WeakSet()
_left_by_forks: list[_Running[Any]] = []
"""A parent's: kept, so that nothing of them is closed by being collected."""


def _result(future: "concurrent.futures.Future[T]") -> T:
    while True:
        try:
            return future.result(LOOK_S)
        except TimeoutError:
            if future.done():
                return future.result()


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _after_fork() -> None:
    for each in list(_all):
        each._forked()


def _at_exit() -> None:
    for each in list(_all):
        each.close(EXIT_WAIT_S)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
