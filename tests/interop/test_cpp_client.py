"""RocketMQ's C++ client, unchanged, by its Python wrapper from PyPI, against our servers."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.interop import PROGRAMS, run, servers, trial

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

USES = ("sync", "asynchronous", "oneway", "batch", "compressed", "push", "tags", "retry", "delay", "ordered", "resume", "pull", "broadcast")


@pytest.fixture
def python(tmp_path: Path) -> str:
    """Return a Python that has the wrapper."""
    environment = tmp_path / "environment"
    python = str(environment / "bin" / "python")
    run(sys.executable, "-m", "venv", str(environment), cwd=tmp_path)
    run(python, "-m", "pip", "install", "-q", "--only-binary=:all:", "rocketmq==0.4.4", cwd=tmp_path)
    loaded = subprocess.run([python, "-c", "import rocketmq.client"], capture_output=True, text=True, check=False)
    if loaded.returncode:
        pytest.skip(f"the library of RocketMQ's C++ client can't be loaded here: {loaded.stderr[-200:]}")
    return python


async def test_cpp_client_runs_unchanged_in_every_use(python: str, tmp_path: Path) -> None:
    async with servers(tmp_path) as cluster:
        # The wrapper's pull consumer confuses the queues of two brokers.
        await cluster.command("topic", "create", "cpp-pull", "--broker", "broker-a")
        program = str(PROGRAMS / "cpp" / "trial.py")
        results, output = await trial(["env", f"HOME={tmp_path}", python, program, cluster.nameservers, *USES], tmp_path)
    assert results == [f"ok {use}" for use in USES], output
