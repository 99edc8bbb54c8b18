"""RocketMQ's own Java clients, unchanged, against our servers. Their libraries come from Maven Central."""

from pathlib import Path

import pytest

from support.cluster import QUICK, running_cluster
from support.interop import servers, trial
from support.java_programs import compiled
from support.ports import free_ports

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

USES = (
    *("sync", "async", "first", "oneway", "batch", "compressed", "push", "tags", "retry", "delay", "ordered", "resume", "litepull"),
    *("broadcast", "transaction", "sql"),
)
OLD = "4.3.2"
"""It sends and commits to the broker's port minus 2, and has no lite pull consumer."""
OPENED = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.nio", "sun.nio.ch")]
"""What its Netty needs of a newer JDK."""


@pytest.fixture(scope="module", params=("4.9.8", "5.3.3"))
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Compile the program against a version of the client. Return its class path."""
    return compiled(request.param, tmp_path_factory.mktemp(f"java-{request.param}"), "Trial", "LitePull")


def command(class_path: str, form: str, folder: Path, nameservers: str) -> list[str]:
    return ["java", *OPENED, f"-Drocketmq.serialize.type={form}", f"-Duser.home={folder}", "-cp", class_path, "Trial", nameservers]


@pytest.mark.parametrize("form", ["JSON", "ROCKETMQ"])
async def test_java_client_runs_unchanged_in_every_use(program: str, form: str, tmp_path: Path) -> None:
    async with servers(tmp_path) as cluster:
        results, output = await trial([*command(program, form, tmp_path, cluster.nameservers), *USES], tmp_path)
    assert results == [f"ok {use}" for use in USES], output


@pytest.mark.parametrize("form", ["JSON", "ROCKETMQ"])
async def test_old_java_client_uses_a_second_listener_at_port_minus_2(form: str, tmp_path: Path) -> None:
    class_path, uses = compiled(OLD, tmp_path, "Trial"), [use for use in USES if use != "litepull"]
    async with running_cluster(tmp_path) as cluster:
        await cluster.nameserver()
        for name in ("broker-a", "broker-b"):
            (port,) = free_ports(1)
            vip = ("--listen", f"vip=127.0.0.1:{port - 2}")
            await cluster.broker(name, "--auto-create-topics", *vip, *QUICK, listen=f"127.0.0.1:{port}")
        results, output = await trial([*command(class_path, form, tmp_path, cluster.nameservers), *uses], tmp_path)
    assert results == [f"ok {use}" for use in uses], output
