"""RocketMQ's Go client, unchanged, against our servers. Its module comes from the module proxy."""

from pathlib import Path

import pytest

from support.interop import PROGRAMS, require, run, servers, trial

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

USES = (
    *("sync", "async", "oneway", "batch", "compressed", "push", "tags", "retry", "delay", "ordered", "resume", "pull", "broadcast"),
    *("transaction", "sql"),
)


@pytest.fixture
def program(tmp_path: Path) -> str:
    require("go", of="RocketMQ's Go client")
    run("go", "build", "-o", str(tmp_path / "trial"), ".", cwd=PROGRAMS / "go")
    return str(tmp_path / "trial")


async def test_go_client_runs_unchanged_in_every_use(program: str, tmp_path: Path) -> None:
    async with servers(tmp_path) as cluster:
        results, output = await trial([program, cluster.nameservers, *USES], tmp_path)
    assert results == [f"ok {use}" for use in USES], output
