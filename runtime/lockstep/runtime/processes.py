"""Child processes that print events as JSON lines: start one, wait for an event, signal it, stop it, kill it."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.protocol.errors import LockstepError
from lockstep.runtime.connections.address import format_address
from lockstep.runtime.daemon import Tasks

START_S = 20.0
"""A Python process starts in well under this on a busy two-core machine."""
LINE_BYTES_MAX = 1 << 20


def free_address() -> str:
    """Return an address of this machine where nothing listens now, for a server that can't choose its port itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return format_address(probe.getsockname())


class ProcessError(LockstepError):
    """A child process ended, or did not print the awaited event in time. The message ends with the tail of its stderr."""


class ChildProcess:
    """A child process. The JSON objects with an `event` that it prints are stored in `events`; its stderr is appended to `log`."""

    def __init__(self, name: str, child: asyncio.subprocess.Process, log: Path, tasks: Tasks) -> None:
        self.name = name
        self.log = log
        self.events: list[dict[str, Any]] = []
        self.on_event: Callable[[dict[str, Any]], None] | None = None
        self._child = child
        self._changed = asyncio.Condition()
        self._reader = tasks.spawn(self._read(), f"read {name}")

    @classmethod
    async def start(
        cls,
        name: str,
        arguments: Sequence[str],
        *,
        log: Path,
        tasks: Tasks,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        program: str = sys.executable,
    ) -> "ChildProcess":
        """Start `program`, by default this Python interpreter, with `arguments` (such as `-m module …`)."""
        with log.open("ab") as stderr:
            child = await asyncio.create_subprocess_exec(
                program,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **(environment or {})},
                cwd=cwd,
                limit=LINE_BYTES_MAX,
            )
        return cls(name, child, log, tasks)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        return self._child.returncode

    async def wait_for_event(self, name: str, *, after: int = 0, timeout_s: float = START_S) -> dict[str, Any]:
        """Return the first event with this name from index `after` of `events` on. Raise ProcessError on timeout or if the process ends."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                while True:
                    for event in self.events[after:]:
                        if event["event"] == name:
                            return event
                    if self._reader.done():
                        raise ProcessError(
                            f"{self.name} ended with exit code {await self.wait()} before it printed {name}.\n{self.stderr_tail()}"
                        )
                    await self._changed.wait()
        except TimeoutError:
            raise ProcessError(f"{self.name} did not print {name} within {timeout_s:.0f} s.\n{self.stderr_tail()}") from None

    async def wait(self, timeout_s: float = START_S) -> int:
        """Wait until the process has ended and all its output is in `events`. Return the exit code."""
        async with asyncio.timeout(timeout_s):
            code = await self._child.wait()
            await asyncio.wait([self._reader])
            return code

    async def stop(self, timeout_s: float = START_S) -> int:
        """Send SIGTERM, wait for the end, and return the exit code."""
        self.signal(signal.SIGTERM)
        return await self.wait(timeout_s)

    async def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self.signal(signal.SIGKILL)
        await self.wait()

    def signal(self, number: signal.Signals) -> None:
        if self._child.returncode is None:
            self._child.send_signal(number)

    def stderr_tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""  # world: children run in no simulation

    async def _read(self) -> None:
        stdout = self._child.stdout
        assert stdout is not None
        try:
            async for line in stdout:
                await self._handle_line(line)
        finally:
            async with self._changed:
                self._changed.notify_all()

    async def _handle_line(self, line: bytes) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            # Not an event: other output of a job, all of which spark-submit writes to stdout.
            with self.log.open("ab") as log:
                log.write(line)
            return
        if isinstance(event, dict) and "event" in event:
            if self.on_event is not None:
                self.on_event(event)
            async with self._changed:
                self.events.append(event)
                self._changed.notify_all()
