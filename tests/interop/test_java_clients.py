"""RocketMQ's own Java clients, unchanged, against our servers. Their libraries come from Maven Central."""

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from support.cluster import Cluster, running_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

JAVA = Path(__file__).parent / "java"
TOOLS = ("java", "javac", "mvn")
VERSIONS = ("4.9.8", "5.3.3")
FETCH_S, TRIAL_S = 600, 900
USES = (
    *("sync", "async", "oneway", "batch", "compressed", "push", "tags", "retry", "delay", "ordered", "resume", "litepull"),
    "broadcast",
)
missing = [tool for tool in TOOLS if shutil.which(tool) is None]


@pytest.fixture(scope="module", params=VERSIONS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Compile the program against a version of the client. Return its class path."""
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: RocketMQ's Java clients need a JDK and Maven")
    folder = tmp_path_factory.mktemp(f"java-{request.param}")
    libraries = folder / "lib"
    fetch = ["mvn", "-q", "-B", "-f", str(JAVA / "pom.xml"), f"-Drocketmq.version={request.param}", "dependency:copy-dependencies"]
    subprocess.run([*fetch, f"-DoutputDirectory={libraries}"], check=True, timeout=FETCH_S)
    subprocess.run(["javac", "-nowarn", "-cp", f"{libraries}/*", "-d", str(folder), str(JAVA / "Trial.java")], check=True, timeout=FETCH_S)
    return f"{folder}:{libraries}/*"


@pytest.mark.parametrize("form", ["JSON", "ROCKETMQ"])
async def test_java_client_runs_unchanged_in_every_use(program: str, form: str, tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await servers(cluster)
        command = ["java", f"-Drocketmq.serialize.type={form}", f"-Duser.home={tmp_path}", "-cp", program, "Trial", cluster.nameservers]
        run = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(TRIAL_S):
                said, errors = await run.communicate()
        finally:
            if run.returncode is None:
                run.kill()
    results = [line for line in said.decode().splitlines() if line.startswith(("ok ", "failed "))]
    assert results == [f"ok {use}" for use in USES], errors.decode()[-2_000:]


async def servers(cluster: Cluster) -> None:
    await cluster.nameserver()
    for name in ("broker-a", "broker-b"):
        await cluster.broker(name, "--auto-create-topics")
