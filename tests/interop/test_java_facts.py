"""RocketMQ's Java clients, unchanged: what they do less often, and a reset of a group while its member runs."""

import asyncio
import json
from pathlib import Path

import pytest

from support.cluster import running_cluster
from support.java_programs import compiled

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

VERSIONS = ("4.9.8", "5.3.3")
RUN_S = 900
USES = ("properties", "retry", "dead", "ordered", "timer", "LZ4", "ZSTD", "queries", "trace", "reset")


@pytest.fixture(params=VERSIONS)
def program(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Compile the program against a version of the client. Return its class path."""
    return compiled(request.param, tmp_path, "Facts")


async def test_java_client_does_what_it_does_less_often(program: str, tmp_path: Path) -> None:
    results = []
    async with running_cluster(tmp_path) as cluster:
        await cluster.nameserver()
        await cluster.broker("broker-a", "--auto-create-topics", "--trace-topic")
        command = ["java", f"-Duser.home={tmp_path}", "-cp", program, "Facts", cluster.nameservers]
        run = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert run.stdout is not None
        try:
            async with asyncio.timeout(RUN_S):
                async for line in run.stdout:
                    word = line.decode().strip()
                    if word == "ready":
                        await cluster.command("group", "reset-offset", "group-facts-reset", "--topic", "facts-reset", "--to", "beginning")
                    elif word.startswith(("ok ", "failed ")):
                        results.append(word)
        finally:
            if run.returncode is None:
                run.kill()
            await run.wait()
        for topic in ("facts-LZ4", "facts-ZSTD"):  # our tools need the extras [lz4] and [zstd]
            (stored,) = (await cluster.command("tail", topic, "--from-start", "--no-follow", "--json")).splitlines()
            assert json.loads(stored)["body"] == "x" * 100_000, stored[:400]
    assert results == [f"ok {use}" for use in USES]
