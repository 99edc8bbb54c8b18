"""Child processes that do not outlive this one: each has a session of its own, and ends with its descendants."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from compare.procfs import is_running, tree
from lockstep.protocol.errors import LockstepError

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LIBC = ctypes.CDLL(None)
START_S = 60.0
END_S = 10.0
POLL_S = 0.05
TAIL_LINES = 25


class ChildError(LockstepError):
    """A child process ended, or was not ready in time. The message ends with the last lines of its log."""


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ends, so that they can be found and ended."""
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def free_ports(count: int) -> list[int]:
    """Return TCP ports of 127.0.0.1 that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Children:
    """The processes of one server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None, *, ready: str | None = None) -> Path:
        """Start a process whose output goes to a log file, and return that file.

        Args:
            name: The name of the process in errors and of its log file.
            command: The program and its arguments.
            environment: Variables besides those of this process.
            ready: Wait until the log contains this text.

        Raises:
            ChildError: The process ended before, or the text did not appear within START_S.
        """
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                cwd=self.folder,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self._running.append(child)
        if ready is not None:
            self.wait_until(name, child, log, lambda: ready.encode() in log.read_bytes())
        return log

    def wait_until(self, name: str, child: subprocess.Popen[bytes], log: Path, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S
        while not ready():
            if child.poll() is not None:
                raise ChildError(f"{name} ended with exit code {child.returncode} before it was ready. The end of its log:\n{tail(log)}")
            if time.monotonic() > deadline:
                raise ChildError(f"{name} was not ready within {START_S:.0f} s. The end of its log:\n{tail(log)}")
            time.sleep(POLL_S)

    @property
    def pids(self) -> list[int]:
        """Return all processes of the server, descendants too."""
        return tree(child.pid for child in self._running)

    def check(self) -> None:
        """Raise ChildError if a process has ended."""
        for child in self._running:
            if child.poll() is not None:
                raise ChildError(f"a server process ended with exit code {child.returncode}: {child.args!r}")

    def end(self) -> None:
        """Kill the processes and their descendants. What they stored is not needed any more."""
        for child in reversed(self._running):
            end(child)
        self._running.clear()


def end(child: subprocess.Popen[bytes]) -> None:
    """Kill the process, its descendants and its process group, and wait for their end."""
    pids = tree([child.pid]) if child.poll() is None else []
    for pid in pids:
        _kill(pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    deadline = time.monotonic() + END_S
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(POLL_S / 10)


def end_orphans() -> None:
    """Kill what is left of this process's descendants, and wait for their end."""
    for pid in tree([os.getpid()])[1:]:
        _kill(pid)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def tail(log: Path) -> str:
    """Return the last lines of a log."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-TAIL_LINES:]) or "(empty)"


def die_with_parent() -> None:
    """Let the kernel kill the new process when its parent ends in whichever way. Called between fork and exec."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
