"""Tasks with an owner, and the process around a service: signals, ordered stop, exit code."""

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from lockstep.protocol.errors import LockstepError, without_frames
from lockstep.protocol.object_text import text_of
from lockstep.runtime.connections.address import os_reason
from lockstep.runtime.descriptors import SHORTAGE
from lockstep.runtime.event_loop import new_event_loop
from lockstep.runtime.garbage_collector import collect_less_often
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited

log = get_logger("runtime.daemon")

STOP_MS = 30_000
"""How long an ordered stop may take before the process ends without it: longer than the longest held pull (15 s) and a last flush."""

ACCEPT_PAUSE_S = 1
"""How long asyncio stops accepting if no file descriptor is free."""


class Tasks:
    """Owns tasks. Apart from TaskGroup, only this class starts tasks. Each failure is logged, and the first one is passed to
    `on_failure`."""

    __slots__ = ("_on_failure", "_tasks", "failure")

    def __init__(self, on_failure: Callable[[BaseException], None] | None = None) -> None:
        self._on_failure = on_failure
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.failure: BaseException | None = None

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        """Start a task that this object owns until it ends."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    async def cancel_all(self) -> None:
        """Cancel the tasks one after the other, the latest first, and wait for each. The calling task is not cancelled."""
        current = asyncio.current_task()
        while rest := [task for task in self._tasks if task is not current]:  # again for those that began in the loop
            for task in reversed(rest):
                task.cancel()
                await asyncio.wait([task])
                self._tasks.pop(task, None)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        log_limited(log, "error", "task.failed", task=task.get_name(), error=text_of(error), exc_info=error)
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Pass an error on as if a task had raised it, unless one has failed before."""
        if self.failure is None:
            self.failure = without_frames(error)
            if self._on_failure is not None:
                self._on_failure(error)


def call_isolated(event: str, function: Callable[..., object], *args: object, **facts: object) -> None:
    """Call one of several independent callbacks. An error is logged as `event` with these facts, so that the others are called too.

    Only KeyboardInterrupt and SystemExit are raised. A CancelledError is the callback's own, such as that of a future that it looked at: no
    task is cancelled while it runs code that does not wait.
    """
    try:
        function(*args)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # listener: the callback has failed, and nothing else
        log_limited(log, "error", event, **facts, error=text_of(error), exc_info=error)


class Service(Protocol):
    """The service that a Daemon runs."""

    on_fatal: Callable[[BaseException], None] | None
    """Set by the Daemon before `start`. Call it with an error after which the service can't continue; the process stops with its exit
    code."""

    @property
    def on_hangup(self) -> Callable[[], None] | None:
        """Return what SIGHUP does. None: it ends the process."""
        ...

    async def start(self) -> None:
        """Start, and return when the service accepts requests. Raise the error that prevents that."""
        ...

    async def stop(self) -> None:
        """Stop in order. Also called after a `start` that failed or was cancelled half-way."""
        ...


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of an error (`exit_code`), or 1 if it has none."""
    code = getattr(error, "exit_code", 1)
    return code if isinstance(code, int) else 1


class Daemon:
    """Runs one service in one process. SIGTERM and SIGINT stop it in order (exit 0); a second signal ends it at once (exit 1). SIGHUP is
    the service's (`on_hangup`).

    | event                              | then                                                  | exit               |
    |------------------------------------|-------------------------------------------------------|--------------------|
    | start() raises                     | reported, stop()                                      | error's exit_code  |
    | signal during start()              | start() is cancelled, stop()                          | 0                  |
    | signal while serving               | stop()                                                | 0                  |
    | on_fatal(error)                    | reported, stop()                                      | error's exit_code  |
    | stop() raises or exceeds stop_ms   | logged                                                | 1 (or the above)   |
    | second signal                      | stop() is cancelled                                   | 1 (or the above)   |

    A fatal error is reported as the event `daemon.failed` on stdout and as one line on stderr; on a terminal that shows both, only as the
    line.
    """

    def __init__(self, name: str, *, stop_ms: int = STOP_MS) -> None:
        self._name = name
        self._stop_ms = stop_ms
        self._signals = 0
        self._error: BaseException | None = None
        self._wake: asyncio.Event | None = None
        self._hurry: asyncio.Event | None = None

    def run(self, service: Service) -> int:
        """Run until a signal or a failure, on uvloop if installed. Return the exit code."""
        collect_less_often()
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(self.serve(service))

    async def serve(self, service: Service) -> int:
        """Do the same as `run`, on the running loop."""
        loop = asyncio.get_running_loop()
        self._wake, self._hurry = asyncio.Event(), asyncio.Event()
        loop.set_exception_handler(LoopErrors())
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        if service.on_hangup is not None:
            loop.add_signal_handler(signal.SIGHUP, service.on_hangup)
        service.on_fatal = self._fatal
        try:
            await self._start(service)
            await self._wake.wait()
            clean = await self._stop(service)
        finally:
            for number, handler in before.items():
                if loop.remove_signal_handler(number):
                    signal.signal(number, handler)  # the loop leaves the default: `nohup` ignores SIGHUP
        if self._error is not None:
            return exit_code_of(self._error) or 1
        return 0 if clean else 1

    def _signalled(self, number: int) -> None:
        self._signals += 1
        log.info("signal.received", signal=signal.Signals(number).name)
        assert self._wake is not None
        assert self._hurry is not None
        self._wake.set()
        if self._signals > 1:
            self._hurry.set()

    def _fatal(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
            if not (sys.stdout.isatty() and sys.stderr.isatty()):
                log.error("daemon.failed", error=describe(error))
            print(f"{self._name}: {describe(error)}", file=sys.stderr, flush=True)
        assert self._wake is not None
        self._wake.set()

    async def _start(self, service: Service) -> None:
        assert self._wake is not None
        start = asyncio.create_task(service.start(), name=f"{self._name} start")
        wake = asyncio.create_task(self._wake.wait(), name=f"{self._name} wake")
        try:
            await asyncio.wait([start, wake], return_when=asyncio.FIRST_COMPLETED)
        finally:
            wake.cancel()
            start.cancel()
            await asyncio.wait([start, wake])
        if not start.cancelled() and (error := start.exception()) is not None:
            self._fatal(error)

    async def _stop(self, service: Service) -> bool:
        assert self._hurry is not None
        stop = asyncio.create_task(service.stop(), name=f"{self._name} stop")
        hurry = asyncio.create_task(self._hurry.wait(), name=f"{self._name} hurry")
        try:
            await asyncio.wait([stop, hurry], timeout=self._stop_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
            in_time = stop.done()
            if not in_time:
                log.error("stop.abandoned", after_ms=self._stop_ms if not hurry.done() else None, signals=self._signals)
        finally:
            hurry.cancel()
            stop.cancel()
            await asyncio.wait([stop, hurry], timeout=1)
        if in_time and not stop.cancelled() and (error := stop.exception()) is not None:
            log.error("stop.failed", error=describe(error), exc_info=error)
            return False
        return in_time


def describe(error: BaseException) -> str:
    """Return one line: the text of lockstep's errors, and type and text of others."""
    text = text_of(error)
    return text.removeprefix(f"{type(error).__name__}: ") if isinstance(error, LockstepError) else text


class LoopErrors:
    """A loop's exception handler, which logs errors that have no other receiver."""

    def __init__(self) -> None:
        self._paused_until_s = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if "socket" in context and isinstance(error, OSError) and error.errno in SHORTAGE:
            self._accept_paused(loop, error)
        else:
            log_limited(log, "error", "loop.failed", message=context.get("message"), error=text_of(error), exc_info=error)

    def _accept_paused(self, loop: asyncio.AbstractEventLoop, error: OSError) -> None:
        """Log that asyncio accepts nothing for a second. asyncio reports it once for each connection that it may accept in a turn.

        uvloop closes the connections that it can't accept, without a report.
        """
        if loop.time() >= self._paused_until_s:
            self._paused_until_s = loop.time() + ACCEPT_PAUSE_S
            log.warning("accept.paused", reason=os_reason(error), for_ms=int(ACCEPT_PAUSE_S * 1000))
