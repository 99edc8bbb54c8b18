"""RocketMQ's Go client, unchanged, against our servers. Its module comes from the module proxy."""

from pathlib import Path

import pytest

from support.interop import go_program, servers, trial

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

USES = (
    *("sync", "async", "oneway", "batch", "compressed", "push", "tags", "retry", "delay", "ordered", "resume", "pull", "broadcast"),
    *("transaction", "sql"),
)


@pytest.fixture
def program(tmp_path: Path) -> str:
    return go_program(tmp_path, ".")


async def test_go_client_runs_unchanged_in_every_use(program: str, tmp_path: Path) -> None:
    async with servers(tmp_path) as cluster:
        results, output = await trial([program, cluster.nameservers, *USES], tmp_path)
    assert results == [f"ok {use}" for use in USES], output
