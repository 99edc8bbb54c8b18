"""Runs programs that use RocketMQ's own clients, against servers of ours."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.cluster import Cluster, running_cluster

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


async def trial(command: Sequence[str], cwd: Path) -> tuple[list[str], str]:
    """Run a program. Return its lines "ok USE" and "failed USE: WHY", and the end of its other output."""
    run = await asyncio.create_subprocess_exec(*command, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(TRIAL_S):
            out, errors = await run.communicate()
    finally:
        if run.returncode is None:
            run.kill()
            await run.wait()
    lines = out.decode(errors="replace").splitlines()
    return [line for line in lines if line.startswith(("ok ", "failed "))], (out[-1_000:] + errors[-2_000:]).decode(errors="replace")
