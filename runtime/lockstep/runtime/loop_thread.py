"""Runs an asynchronous service for programs that block: on its own event loop, in a daemon thread.

    NEW --first call, or start--> RUNNING --close--> CLOSED        CLOSED rejects every call
     ^                             |   ^                |
     +----------- fork ------------+   +-----start------+         after a fork the child has neither thread nor connections: it starts again

A forked child does not touch the parent's service: no destructor runs, and no byte is sent on a connection that both have.
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
from lockstep.runtime.event_loop import new_event_loop, runs_event_loop

S = TypeVar("S")
T = TypeVar("T")

EXIT_WAIT_S = 3.0
"""How long the end of the program waits for services that are not closed."""
CALLS_OF_A_START = 2
"""The calls of the service that `LoopThread.start` makes with `ready`."""
POLL_S = 0.5
"""A signal that arrives right before a thread begins to wait does not wake it (CPython), so the thread polls at this interval."""


class LoopThread(Generic[S]):
    """One service, started at its first call. `make` returns it as an asynchronous context manager. Thread-safe."""

    def __init__(self, name: str, make: Callable[[], AbstractAsyncContextManager[S]]) -> None:
        self.name = name
        """The name in errors and of the thread."""
        self._make = make
        self._lock = threading.Lock()
        self._running: _Running[S] | None = None
        self._closed = False
        _all.add(self)

    def start(self, ready: Callable[[S], Coroutine[Any, Any, object]] | None = None) -> None:
        """Start the service as the first call does, also after a close. Raise the error of the service's own start.

        `ready` is a call that belongs to the start: if it fails and nobody else has called the service, the service is ended.
        """
        running = self._submit(lambda running: running, reopen=True)
        if ready is None:
            return
        try:
            self.call(ready)
        except BaseException:  # re-raised
            with self._lock:
                unused = self._running is running and running.calls == CALLS_OF_A_START
                if unused:
                    self._running = None
            if unused:
                running.end()
            raise

    def call(self, request: Callable[[S], Coroutine[Any, Any, T]]) -> T:
        """Return the coroutine's result, or raise its error. An exception from elsewhere (KeyboardInterrupt) cancels it.

        Raises StateError if closed, if closed during the wait, or if called on an event loop, which it would block.
        """
        future = self._submit(lambda running: asyncio.run_coroutine_threadsafe(request(running.service), running.loop))
        try:
            return _result(future)
        except concurrent.futures.CancelledError:
            raise StateError(f"{self.name} was closed while this call waited") from None
        finally:
            future.cancel()
            del future  # one that failed holds the error, whose traceback holds this frame

    def peek(self, read: Callable[[S], T], default: T) -> T:
        """Return `read(service)`, called in this thread, for state that any thread may read; `default` if the service does not run."""
        running = self._running
        return read(running.service) if running is not None and running.is_started else default

    def close(self, timeout_s: float | None = None) -> None:
        """End the service and wait for its end. From now on every call is rejected. A second close, or one before the start, does
        nothing."""
        with self._lock:
            self._closed = True
            running, self._running = self._running, None
        if running is not None:
            running.end(timeout_s)

    @property
    def state(self) -> str:
        return "closed" if self._closed else "new" if self._running is None else "running"

    def _submit(self, submit: "Callable[[_Running[S]], T]", *, reopen: bool = False) -> T:
        """Return `submit(running)`, called within the lock: the loop receives its work before a stop."""
        if runs_event_loop():
            raise StateError(f"{self.name} blocks, and this thread runs an event loop: use the asynchronous one here, or a thread")
        running = self._ensure_running(reopen=reopen)
        try:
            _result(running.started)
        except Exception:  # re-raised
            with self._lock:
                if self._running is running:
                    self._running = None
            raise
        with self._lock:
            if self._running is not running:
                raise self._closed_error()
            if not running.thread.is_alive():
                raise StateError(f"{self.name}: its thread has ended unexpectedly; make a new one")
            running.calls += 1
            return submit(running)

    def _ensure_running(self, *, reopen: bool) -> "_Running[S]":
        """Return the running service, starting it if necessary. Threads that call it during the start wait for the same start and share its
        failure."""
        with self._lock:
            if reopen:
                self._closed = False
            if self._closed:
                raise self._closed_error()
            if self._running is None:
                self._running = _Running(self.name, self._make)
            return self._running

    def _closed_error(self) -> StateError:
        return StateError(f"{self.name} is closed: start() opens it again")

    def _reset_after_fork(self) -> None:
        """Reset in the child, in which this is the only thread."""
        if self._running is not None:
            _left_by_forks.append(self._running)
        self._running = None
        self._lock = threading.Lock()


class _Running(Generic[S]):
    """The thread, its loop and the service."""

    service: S

    def __init__(self, name: str, make: Callable[[], AbstractAsyncContextManager[S]]) -> None:
        self.started: concurrent.futures.Future[None] = concurrent.futures.Future()
        """Done when the service has started, or with the error that prevented that."""
        self.loop = new_event_loop()
        self._make = make
        self._stop = asyncio.Event()
        self.calls = 0
        """How often it was called, each `start` and its `ready` included."""
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    @property
    def is_started(self) -> bool:
        return self.started.done() and self.started.exception() is None

    def end(self, timeout_s: float | None = None) -> None:
        """End the service after the work that was submitted before has begun, and wait for its end."""
        try:
            self.loop.call_soon_threadsafe(self._stop.set)
        except RuntimeError:
            pass  # it has ended already
        self.thread.join(timeout_s)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            try:
                runner.run(self._serve())
            except BaseException as error:  # listener: the thread that waits for the start raises it
                if self.started.done():
                    raise
                self.started.set_exception(error)

    async def _serve(self) -> None:
        async with self._make() as self.service:
            self.started.set_result(None)
            await self._stop.wait()


_all: "weakref.WeakSet[LoopThread[Any]]" = weakref.WeakSet()
_left_by_forks: list[_Running[Any]] = []
"""Services of the parent: kept, so that garbage collection does not close them."""


def _result(future: "concurrent.futures.Future[T]") -> T:
    try:
        while True:
            try:
                return future.result(POLL_S)
            except TimeoutError:
                if future.done():
                    return future.result()
    finally:
        del future  # as in `LoopThread.call`


def _after_fork() -> None:
    for each in list(_all):
        each._reset_after_fork()


def _at_exit() -> None:
    for each in list(_all):
        each.close(EXIT_WAIT_S)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


def in_main_thread() -> bool:
    """Return whether this is the thread in which Python handles signals."""
    return threading.current_thread() is threading.main_thread()
