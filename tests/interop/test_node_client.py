"""The Node.js client ali-ons, unchanged, against our servers. It comes from npm, with what it depends on."""

from pathlib import Path

import pytest

from support.interop import node_folder, servers, trial

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

USES = ("sync", "compressed", "push", "tags", "retry", "delay", "resume", "broadcast", "sql")
"""It has no ordered sends and consumers, and neither one-way sends nor batches."""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return node_folder(tmp_path) / "trial.js"


async def test_node_client_runs_unchanged_in_every_use(program: Path, tmp_path: Path) -> None:
    async with servers(tmp_path) as cluster:
        for use in USES:  # its first sends create no topic: it ends at the response that there is none
            await cluster.command("topic", "create", f"node-{use}", "--queues", "4")
        results, output = await trial(["node", str(program), cluster.nameservers, *USES], program.parent)
    assert results == [f"ok {use}" for use in USES], output
