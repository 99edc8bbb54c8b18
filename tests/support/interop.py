"""Runs programs that use RocketMQ's own clients, against servers of ours."""

import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.cluster import Cluster, running_cluster
from support.processes import completed

PROGRAMS = Path(__file__).resolve().parents[1] / "interop"
TRIAL_S = 600
FETCH_S = 600


def require(*tools: str, of: str) -> None:
    """Skip the test unless these programs are installed."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: {of} needs it")


@asynccontextmanager
async def servers(folder: Path) -> AsyncIterator[Cluster]:
    """Run a nameserver and two brokers, which create topics."""
    async with running_cluster(folder) as cluster:
        await cluster.nameserver()
        for name in ("broker-a", "broker-b"):
            await cluster.broker(name, "--auto-create-topics")
        yield cluster


def run(*command: str, cwd: Path, limit_s: int = FETCH_S) -> None:
    """Run a command that fetches or builds a program."""
    subprocess.run(command, cwd=cwd, check=True, timeout=limit_s, capture_output=True)


def go_program(folder: Path, package: str) -> str:
    """Build a package of tests/interop/go. Its module comes from the module proxy. Return the program."""
    require("go", of="RocketMQ's Go client")
    program = str(folder / "go-program")
    run("go", "build", "-o", program, package, cwd=PROGRAMS / "go")
    return program


def cpp_python(folder: Path) -> str:
    """Make an environment with the wrapper of RocketMQ's C++ client from PyPI. Return its Python."""
    environment = folder / "environment"
    python = str(environment / "bin" / "python")
    run(sys.executable, "-m", "venv", str(environment), cwd=folder)
    run(python, "-m", "pip", "install", "-q", "--only-binary=:all:", "rocketmq==0.4.4", cwd=folder)
    loaded = subprocess.run([python, "-c", "import rocketmq.client"], capture_output=True, text=True, check=False)
    if loaded.returncode:
        pytest.skip(f"the library of RocketMQ's C++ client can't be loaded here: {loaded.stderr[-200:]}")
    return python


def node_folder(folder: Path) -> Path:
    """Copy the programs of tests/interop/node, and fetch from npm what they need. Return their folder."""
    require("node", "npm", of="the Node.js client")
    copy = folder / "node"
    shutil.copytree(PROGRAMS / "node", copy, ignore=shutil.ignore_patterns("node_modules"))
    run("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", cwd=copy)
    return copy


async def trial(command: Sequence[str], cwd: Path) -> tuple[list[str], str]:
    """Run a program. Return its lines "ok USE" and "failed USE: WHY", and the end of its other output."""
    _, out, errors = await completed(*command, directory=cwd, limit_s=TRIAL_S)
    return [line for line in out.splitlines() if line.startswith(("ok ", "failed "))], out[-1_000:] + errors[-2_000:]
