"""Requests to several servers, again and again: one that is silent delays no other one."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Generic, TypeVar

from lockstep.protocol.errors import LockstepError, RemoteProtocolError, RequestTimeoutError
from lockstep.runtime.daemon import Tasks

T = TypeVar("T")


class Requests(Generic[T]):
    """At most one request to each name at a time. A response that comes late is returned when it is there."""

    def __init__(self, tasks: Tasks, patience_ms: int) -> None:
        """`patience_ms`: how long responses are waited for. A server that has not responded by then counts as silent."""
        self._tasks = tasks
        self._patience_ms = patience_ms
        self._running: dict[str, asyncio.Task[T | LockstepError]] = {}

    def __contains__(self, name: str) -> bool:
        """Return whether a request to this name is running, or its response has not been returned."""
        return name in self._running

    def start(self, name: str, request: Callable[[], Awaitable[T]]) -> None:
        """Start a request, unless one to this name is running."""
        if name not in self._running:
            self._running[name] = self._tasks.spawn(_attempt(request), f"look at {name}")

    async def responses(self, names: Collection[str], *, patience_ms: int | None = None) -> dict[str, T | LockstepError]:
        """Wait for the requests to these names. Return what they have returned or raised, and what others have by now."""
        patience_ms = self._patience_ms if patience_ms is None else patience_ms
        waited = [task for name, task in self._running.items() if name in names]
        if waited:
            await asyncio.wait(waited, timeout=patience_ms / 1000)
        found: dict[str, T | LockstepError] = {}
        for name, task in list(self._running.items()):
            if not task.done():
                found[name] = RequestTimeoutError(f"it has not responded for {patience_ms / 1000:g} s")
                continue
            del self._running[name]
            failure = task.exception()  # the owner of the task has logged it
            found[name] = task.result() if failure is None else RemoteProtocolError(f"its response can't be read: {failure!r}")
        return found

    async def cancel(self) -> None:
        """End all requests."""
        running = list(self._running.values())
        self._running.clear()
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


async def _attempt(request: Callable[[], Awaitable[T]]) -> T | LockstepError:
    try:
        return await request()
    except LockstepError as error:
        return error
