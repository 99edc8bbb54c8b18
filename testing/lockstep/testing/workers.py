"""A user's program in a thread with an event loop of its own, as `TestCluster.start` runs it in real time.

A thread can't be killed, its loop can: Killed ends it immediately. None of its code runs again, not even a `finally`; its sockets are
closed.
"""

import asyncio
from concurrent.futures import Future
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any

from lockstep.protocol.errors import StateError
from lockstep.runtime.host import Threads
from lockstep.testing.stage import STOP_S, TEST, Main

KILL_S = 10.0
"""A listener that blocks its loop for longer than that can't be killed in real time."""

RUNNING: ContextVar[str] = ContextVar("lockstep_worker", default=TEST)
"""The name of the worker that is executing."""

_kept: list[object] = []
"""The tasks of killed loops: kept, so that no coroutine is collected, which would run its `finally`."""


class Killed(SystemExit):
    """Ends a loop at once: asyncio passes only BaseExceptions on."""


class ThreadWorker:
    """One program, and its thread while it runs."""

    def __init__(self, threads: Threads, name: str, main: Main) -> None:
        self.name = name
        self.failure: BaseException | None = None
        """The exception of its main function."""
        self._threads = threads
        self._main = main
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._ended: Future[str] | None = None
        self._resumed: SimpleQueue[bool] | None = None
        """The thread of a paused worker waits for it: True resumes, False ends it."""

    @property
    def state(self) -> str:
        if self._ended is None:
            return "new"
        if self._ended.done():
            return self._ended.result()
        return "running" if self._resumed is None else "paused"

    async def start(self) -> None:
        if self.state in ("running", "paused"):
            raise StateError(f"{self.name} is {self.state}")
        self.failure = None
        begun: Future[None] = Future()
        self._ended = Future()
        self._threads.start_daemon(lambda: self._run(begun), self.name)
        await asyncio.wrap_future(begun)

    async def stop(self) -> None:
        loop, task, ended = self._running()
        loop.call_soon_threadsafe(task.cancel)
        await self._wait(ended, STOP_S, "was asked to stop and")

    async def kill(self) -> None:
        if self.state not in ("running", "paused"):
            return
        assert self._loop is not None
        assert self._ended is not None
        if self._resumed is None:
            self._loop.call_soon_threadsafe(_die)
        else:
            self._resumed.put(False)
            self._resumed = None
        await self._wait(self._ended, KILL_S, "blocks its event loop: a thread can't be killed, and it")

    async def pause(self) -> None:
        loop, _, _ = self._running()
        resumed: SimpleQueue[bool] = SimpleQueue()
        self._resumed = resumed
        stands: Future[None] = Future()

        def stand() -> None:
            stands.set_result(None)
            if not resumed.get():
                raise Killed

        loop.call_soon_threadsafe(stand)
        await asyncio.wrap_future(stands)

    async def resume(self) -> None:
        if self._resumed is not None:
            self._resumed.put(True)
            self._resumed = None

    def _running(self) -> "tuple[asyncio.AbstractEventLoop, asyncio.Task[Any], Future[str]]":
        if self.state != "running":
            raise StateError(f"{self.name} is {self.state}, not running")
        assert self._loop is not None
        assert self._task is not None
        assert self._ended is not None
        return self._loop, self._task, self._ended

    async def _wait(self, ended: "Future[str]", seconds: float, what: str) -> None:
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(asyncio.wrap_future(ended))
        except TimeoutError:
            raise StateError(f"{self.name} {what} has not ended within {seconds:.0f} s") from None

    # -------------------------------------------------------------------------------------------------------- in the thread

    def _run(self, begun: "Future[None]") -> None:
        assert self._ended is not None
        ended = self._ended
        runner = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
        how = "stopped"
        try:
            runner.run(self._program(begun))
            runner.close()
        except Killed:
            how = "killed"
            _bury(runner.get_loop())
        except asyncio.CancelledError:
            runner.close()
        except BaseException as error:  # listener: a user's program; the test gets the error
            how, self.failure = "failed", error
            runner.close()
        finally:
            ended.set_result(how)

    async def _program(self, begun: "Future[None]") -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        RUNNING.set(self.name)
        begun.set_result(None)
        await self._main()


def _die() -> None:
    raise Killed


def _bury(loop: asyncio.AbstractEventLoop) -> None:
    """Close the sockets of a killed loop, and prevent its tasks from running again."""
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        _kept.append(task)
    for transport in list(getattr(loop, "_transports", {}).values()):
        if transport._sock is not None:
            transport._sock.close()
            transport._sock = None  # what it would warn of when it is collected
            _kept.append(transport)
    loop.close()
