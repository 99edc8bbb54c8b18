"""Runs the commands of a documentation page as a reader would."""

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.ports import is_free
from support.processes import clean_environment

PORT = 9876
OTHERS_AFTER = (4, 1_035)
"""Differences between the nameserver's port and those of the dashboard and the broker."""
LIMIT_S = 600
"""An installation compiles the native kernels, on a machine that runs other tests as well."""


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    before: str
    """The text since the previous block."""

    @property
    def commands(self) -> list[str]:
        return [line.removeprefix("$ ") for line in self.text.splitlines() if line.startswith("$ ")]


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    found, end = [], 0
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        found.append(Block(match[1], match[2], page[end : match.start()]))
        end = match.end()
    return found


class Newcomer:
    """A terminal in an empty folder, with the environment of this run. Ports and the store's path are rewritten if they are taken."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._installed_here = True
        """Whether commands of lockstep and Python are those of an environment in the folder."""
        self.port = next(port for port in range(PORT, 60_000, 100) if all(is_free(port + after) for after in (0, *OTHERS_AFTER)))
        self.environment = clean_environment(COLUMNS="140", NO_COLOR="1")
        if self.port != PORT:
            self.environment["LOCKSTEP_NAMESERVER"] = f"127.0.0.1:{self.port}"

    def use_this_environment(self) -> None:
        """Use this run's environment, which has lockstep, instead of creating and filling .venv."""
        if not (Path(sys.prefix) / "bin" / "lockstep").exists():
            pytest.skip("lockstep is not installed in this environment: run ./scripts/test")
        (self.folder / ".venv").symlink_to(sys.prefix)
        self._installed_here = False

    def here(self, text: str) -> str:
        text = text.replace("/tmp/lockstep-store", str(self.folder / "store")).replace(f"127.0.0.1:{PORT}", f"127.0.0.1:{self.port}")
        return f"{text} --port {self.port}" if re.match(r"\S*lockstep up\b", text) and self.port != PORT else text

    def _program(self, command: str, before: str = "") -> list[str]:
        """Return the arguments of a program: a shell, or lockstep or Python itself, which may be forked (support/fork_server.py)."""
        line = self.here(command)
        if not self._installed_here and not re.search(r"[|&;<>$*`\\~#]|^\w+=", line):
            name, *words = shlex.split(line)
            match name.removeprefix(".venv/bin/"):
                case "lockstep":
                    return [sys.executable, "-m", "lockstep.cli.main", *words]
                case "python":
                    return [sys.executable, *words]
        return ["bash", "-c", before + line]

    def types(self, command: str) -> str:
        done = subprocess.run(
            self._program(command),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    @contextmanager
    def terminal(self, command: str) -> Iterator["subprocess.Popen[str]"]:
        """Run the command in its own terminal until Ctrl-C."""
        process = subprocess.Popen(
            self._program(command, "exec "), cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True
        )
        try:
            yield process
            process.send_signal(signal.SIGINT)
            process.wait(LIMIT_S)
        finally:
            process.kill()
            process.communicate()
