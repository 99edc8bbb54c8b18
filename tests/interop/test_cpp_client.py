"""RocketMQ's C++ client, unchanged, by its Python wrapper from PyPI, against our servers."""

from pathlib import Path

import pytest

from support.interop import PROGRAMS, cpp_python, servers, trial

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

USES = ("sync", "asynchronous", "oneway", "batch", "compressed", "push", "tags", "retry", "delay", "ordered", "resume", "pull", "broadcast")


@pytest.fixture
def python(tmp_path: Path) -> str:
    return cpp_python(tmp_path)


async def test_cpp_client_runs_unchanged_in_every_use(python: str, tmp_path: Path) -> None:
    async with servers(tmp_path) as cluster:
        # The wrapper's pull consumer confuses the queues of two brokers.
        await cluster.command("topic", "create", "cpp-pull", "--broker", "broker-a")
        program = str(PROGRAMS / "cpp" / "trial.py")
        results, output = await trial(["env", f"HOME={tmp_path}", python, program, cluster.nameservers, *USES], tmp_path)
    assert results == [f"ok {use}" for use in USES], output
