"""Transactions of a program that has only a function that begins one, of a library that blocks or of an asynchronous one."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, TypeVar

from lockstep.client.database import Database, Steps
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Threads

T = TypeVar("T")

Connect = Callable[[], AbstractContextManager[Any] | AbstractAsyncContextManager[Any] | Awaitable[AbstractAsyncContextManager[Any]]]
"""Returns a context manager that gives a connection or session in a transaction, which it commits at its end, or rolls back after an error:
`engine.begin`, `lambda: psycopg.connect(URL)`, `lambda: sqlite3.connect(FILE)`. It is called for each transaction, in a thread. An
asynchronous one is entered on the event loop, and may have to be awaited first: `lambda: psycopg.AsyncConnection.connect(URL)`."""


class Transactions:
    """Runs one transaction at a time. What blocks is run in a thread."""

    def __init__(self, connect: Connect, threads: Threads) -> None:
        self._connect = connect
        self._threads = threads
        self._lock = asyncio.Lock()
        self._jobs = Tasks()

    async def run(self, steps: Steps[T]) -> T:
        """Return the result of the steps, when their transaction is committed.

        A call that is cancelled waits until the transaction has ended: the caller may then close the database.

        Raises:
            ConfigError: `connect` returned no context manager, or that of another kind of library than its connection.
        """
        async with self._lock:
            job = self._jobs.spawn(self._attempt(steps), "outbox transaction")
            try:
                result, error = await asyncio.shield(job)
            except asyncio.CancelledError:
                await asyncio.wait([job])
                raise
        if error is None:
            done: T = result
            return done
        try:
            raise error
        finally:
            del error  # its traceback holds this frame

    async def _attempt(self, steps: Steps[T]) -> tuple[Any, Exception | None]:
        """Return the result, or the error."""
        try:
            manager, result = await self._threads.run(self._blocking, steps)
            if manager is None:
                return result, None
            if not hasattr(manager, "__aenter__"):
                manager = await manager  # psycopg.AsyncConnection.connect(…)
            async with manager as db:
                result = Database(db).perform(steps)
                result = await result if inspect.isawaitable(result) else result
            return result, None
        except Exception as error:  # listener: the user's database
            return None, error

    def _blocking(self, steps: Steps[T]) -> tuple[Any, Any]:
        """Return the context manager if it is asynchronous, and otherwise the result of the steps."""
        manager: Any = self._connect()
        if hasattr(manager, "__aenter__") or inspect.isawaitable(manager):
            return manager, None
        if not hasattr(manager, "__enter__"):
            kind = f"{type(manager).__module__}.{type(manager).__qualname__}"
            raise ConfigError(f"connect returned a {kind}: expected a context manager that gives a connection in a transaction")
        try:
            with manager as db:
                result: Any = Database(db).perform(steps)
                if inspect.isawaitable(result):
                    raise ConfigError("connect returned a blocking context manager of an asynchronous connection")
                return None, result
        finally:
            if hasattr(manager, "in_transaction") and hasattr(manager, "close"):
                manager.close()  # sqlite3 commits at the end of `with`, and leaves the connection open
