"""Child processes that speak in JSON lines: start one, wait for what it says, stop it, kill it, pause it."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.protocol.errors import LockstepError
from lockstep.runtime.daemon import Tasks

START_S = 20.0
"""A Python process on a busy two-core machine is ready in well under this."""
LINE_BYTES_MAX = 1 << 20


class ProcessError(LockstepError):
    """A child process ended, or did not say in time what was awaited. The message ends with its last words on stderr."""


class Process:
    """One child. What it prints as JSON objects with an `event` is kept in `events`; its stderr goes to `log`."""

    def __init__(self, name: str, child: asyncio.subprocess.Process, log: Path, tasks: Tasks) -> None:
        self.name = name
        self.log = log
        self.events: list[dict[str, Any]] = []
        self.on_event: Callable[[dict[str, Any]], None] | None = None
        self._child = child
        self._said = asyncio.Condition()
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
    ) -> "Process":
        """Runs `program`, this Python, with `arguments` (as `-m module …`)."""
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

    async def event(self, name: str, *, after: int = 0, timeout_s: float = START_S) -> dict[str, Any]:
        """The first event of that name from place `after` of `events` on; ProcessError when the process ends or the time is over."""
        try:
            async with asyncio.timeout(timeout_s), self._said:
                while True:
                    for event in self.events[after:]:
                        if event["event"] == name:
                            return event
                    if self._reader.done():
                        raise ProcessError(
                            f"{self.name} ended with exit code {await self.wait()} and never said {name}.\n{self.last_words()}"
                        )
                    await self._said.wait()
        except TimeoutError:
            raise ProcessError(f"{self.name} did not say {name} within {timeout_s:.0f} s.\n{self.last_words()}") from None

    async def wait(self, timeout_s: float = START_S) -> int:
        """The exit code, once the process has ended and all that it said is in `events`."""
        async with asyncio.timeout(timeout_s):
            code = await self._child.wait()
            await asyncio.wait([self._reader])
            return code

    async def stop(self, timeout_s: float = START_S) -> int:
        """SIGTERM, then its exit code."""
        self.signal(signal.SIGTERM)
        return await self.wait(timeout_s)

    async def kill(self) -> None:
        """SIGKILL, and reap."""
        self.signal(signal.SIGKILL)
        await self.wait()

    def signal(self, number: signal.Signals) -> None:
        if self._child.returncode is None:
            self._child.send_signal(number)

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""

    async def _read(self) -> None:
        stdout = self._child.stdout
        assert stdout is not None
        try:
            async for line in stdout:
                await self._hear(line)
        finally:
            async with self._said:
                self._said.notify_all()

    async def _hear(self, line: bytes) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            # No event of ours: a job's own words, which spark-submit puts on stdout all together.
            with self.log.open("ab") as log:
                log.write(line)
            return
        if isinstance(event, dict) and "event" in event:
            if self.on_event is not None:
                self.on_event(event)
            async with self._said:
                self.events.append(event)
                self._said.notify_all()
