"""Runs docker-compose.yml with a real compose tool, if one is available."""

import asyncio
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from lockstep.runtime.files import RealFiles
from support.cluster import LOOK_S
from support.processes import completed

ROOT = Path(__file__).resolve().parents[2]
COMMAND_S = 600
"""The first build fetches an image and every package."""
ADMIN_PORTS = {"nameserver-a": 9877, "nameserver-b": 9887, "broker-a": 10912, "broker-b": 10922}
NAMESERVERS = "127.0.0.1:9876;127.0.0.1:9886"
DASHBOARD_PORT = 9880
HOST_PORTS = (9876, 9886, 10911, 10921, 10931, 10932, 10941, 10942, DASHBOARD_PORT, *ADMIN_PORTS.values())
"""The published ports."""


def compose_tool() -> list[str] | None:
    """Return LOCKSTEP_TEST_COMPOSE, else a running Docker, else a compose tool next to the checkout, or None if none is available."""
    if named := os.environ.get("LOCKSTEP_TEST_COMPOSE"):
        return shlex.split(named)
    if shutil.which("docker") and not subprocess.run(["docker", "compose", "ls"], capture_output=True, check=False).returncode:
        return ["docker", "compose"]
    beside = sorted(path for path in ROOT.parent.glob("*/tools/compose-*") if os.access(path, os.X_OK))
    return [str(beside[0])] if beside else None


@asynccontextmanager
async def exclusive_compose() -> AsyncIterator[None]:
    """Allow one composed cluster at a time on this machine, across checkouts and workers. The lock ends with its process."""
    path = str(Path(tempfile.gettempdir()) / "lockstep-test-compose.lock")
    while True:
        try:
            release = RealFiles().lock(path)
            break
        except BlockingIOError:
            await asyncio.sleep(LOOK_S)
    try:
        yield
    finally:
        release()


class Compose:
    """A project of docker-compose.yml. `output` contains the output of every command."""

    def __init__(self, tool: list[str], project: str, log: Path, *beside: Path, **variables: str) -> None:
        """`beside` are files to merge with docker-compose.yml, `variables` the variables of the files to set."""
        files = [word for path in (ROOT / "docker-compose.yml", *beside) for word in ("-f", str(path))]
        self._command = [*tool, *files, "-p", project]
        self._log = log
        self._environment = {**os.environ, **variables}

    async def run(self, *arguments: str, code: int | None = 0) -> str:
        """Run a command that exits with `code` (None: any code). Return its standard output."""
        return (await self._ended(arguments, code))[1]

    async def _ended(self, arguments: tuple[str, ...], code: int | None) -> tuple[int | None, str]:
        command = [*self._command, *arguments]
        ended, out, error = await completed(*command, directory=ROOT, environment=self._environment, limit_s=COMMAND_S)
        with self._log.open("a") as file:
            file.write(f"$ {' '.join(arguments)}\n{out}{error}")
        assert code is None or ended == code, (arguments, ended, (out + error)[-2000:])
        return ended, out

    async def exit_code(self, service: str, *command: str) -> int | None:
        """Return the exit code of a command in a container of the service."""
        return (await self._ended(("exec", "-T", service, *command), None))[0]

    async def inside(self, service: str, *command: str) -> str:
        """Return the standard output of a command in a container of the service."""
        return await self.run("exec", "-T", service, *command)
