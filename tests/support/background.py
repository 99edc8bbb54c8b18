"""Background processes for tests. Their output goes to files, so that they never block on a pipe."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.processes import LIMIT_S, clean_environment

LOOK_S = 0.01
TESTS = Path(__file__).resolve().parents[1]


class Background:
    """A process whose JSON lines on stdout are its events."""

    def __init__(self, folder: Path, name: str, *arguments: str, own_group: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.said = folder / f"{name}.out"
        self.complained = folder / f"{name}.err"
        self._read = 0
        self._events: list[dict[str, Any]] = []
        with self.said.open("wb") as out, self.complained.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=own_group,
                env=clean_environment(PYTHONPATH=os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])),
            )

    @property
    def events(self) -> list[dict[str, Any]]:
        """Return all events so far."""
        with self.said.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        complete = data[: data.rfind(b"\n") + 1]
        self._read += len(complete)
        self._events += [json.loads(line) for line in complete.splitlines()]
        return self._events

    def find(self, event: str, *, after: int = 0, **facts: Any) -> list[dict[str, Any]]:
        """Return the events of that name with these fields, from index `after` on."""
        return [each for each in self.events[after:] if each["event"] == event and facts.items() <= each.items()]

    def started(self, event: str) -> dict[str, Any]:
        """Wait for the event and return it."""
        end = time.monotonic() + LIMIT_S
        while not (found := self.find(event)):
            assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}: {self.words()}"
            assert time.monotonic() < end, f"{self.name} never said {event}: {self.words()}"
            time.sleep(LOOK_S)
        return found[0]

    async def until(self, what: str, true: Callable[[], bool]) -> None:
        """Wait until this process has done it."""
        end = time.monotonic() + LIMIT_S
        while not true():
            assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}: {self.words()}"
            assert time.monotonic() < end, f"not within {LIMIT_S:.0f} s: {what}\n{self.words()}"
            await asyncio.sleep(LOOK_S)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the signal. Return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)

    def words(self) -> str:
        """Return the end of its output and its errors."""
        return self.said.read_text(errors="replace")[-1_500:] + self.complained.read_text(errors="replace")[-1_500:]

    def resident_bytes(self) -> int:
        """Return the memory in use (bytes)."""
        return resident_bytes(self.process.pid)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def resident_bytes(pid: int) -> int:
    """Return the memory that a process uses (bytes)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


@contextmanager
def background(folder: Path, name: str, *arguments: str, ready: str) -> Iterator[Background]:
    """Run a process that has reported `ready`; kill it at the end."""
    made = Background(folder, name, *arguments)
    try:
        made.started(ready)
        yield made
    finally:
        made.end()
