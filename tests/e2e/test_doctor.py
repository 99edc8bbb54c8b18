"""`lockstep doctor` against real processes: healthy, and with each problem that can occur on one machine."""

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.certificates import write_authority, write_certificate
from support.cluster import QUICK, Cluster
from support.logins import PASSWORD, write_users

pytestmark = pytest.mark.e2e


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "lockstep-test", str(path)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        covered = "tests/unit/operations/brokers/test_diagnosis.py covers the finding"
        pytest.skip(f"a tmpfs can't be mounted here ({mounted.stderr.strip()}); {covered}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


async def doctor(cluster: Cluster, *options: str, healthy: bool = True) -> list[dict[str, Any]]:
    """Return the findings that are problems."""
    text = await cluster.run_command("doctor", "--json", *options, code=0 if healthy else 1)
    reported = json.loads(text)
    assert reported["healthy"] is healthy, reported
    return [finding for finding in reported["findings"] if finding["problem"]]


async def test_healthy_cluster_has_no_findings_and_exit_0(cluster: Cluster) -> None:
    await cluster.servers()
    await cluster.consumer("consumer-1")
    await cluster.until_held(8, "consumer-1")
    assert await doctor(cluster) == []
    shown = await cluster.command("doctor")
    assert shown.splitlines()[-1].endswith(", problems: 0")


async def test_servers_that_are_down_are_reported_with_the_next_step(cluster: Cluster) -> None:
    await cluster.nameserver("nameserver-1")
    await cluster.nameserver("nameserver-2")
    await cluster.broker("broker-a")
    await cluster.broker("broker-b")
    await cluster.command("topic", "create", "orders")
    await cluster.kill("nameserver-2")
    found = await doctor(cluster, healthy=False)
    down = cluster.addresses["nameserver-2"]
    assert {(each["check"], down in each["where"]) for each in found} == {("nameserver", True), ("broker registered", True)}
    await cluster.kill("broker-b")
    found = await doctor(cluster, healthy=False)
    problems = {(each["check"], each["problem"]) for each in found}
    assert ("broker registered", "is not registered now, and 1 topics have queues there") in problems
    assert all(each["step"] for each in found)


async def test_unreachable_advertised_address_is_reported(cluster: Cluster) -> None:
    await cluster.nameserver()
    await cluster.broker("broker-a", *QUICK, "--advertise", "127.0.0.1:1")
    (found,) = await doctor(cluster, healthy=False)
    assert (found["check"], found["where"]) == ("broker reached", "broker-a 127.0.0.1:1")
    assert "--advertise" in found["step"]


async def test_disk_below_the_reserve_is_reported(cluster: Cluster) -> None:
    await cluster.nameserver()
    await cluster.broker("broker-a", *QUICK, "--disk-reserve-mib", str(1 << 30))
    (found,) = await doctor(cluster, healthy=False)
    assert found["check"] == "store writable"
    assert "sends are refused" in found["problem"]


async def test_two_brokers_with_one_name_are_reported_with_their_nameservers(cluster: Cluster) -> None:
    """Each knows one nameserver only, so neither could be rejected."""
    first = await cluster.nameserver("nameserver-1")
    await cluster.broker("broker-a")
    second = await cluster.nameserver("nameserver-2")
    store = str(cluster.folder / "another-store")
    command = ["-m", "lockstep.broker", "--name", "broker-a", "--listen", "127.0.0.1:0", "--nameserver", second, "--store", store]
    await cluster.start("another", command, "broker.started")
    found = [each for each in await doctor(cluster, healthy=False) if each["check"] == "unique broker name"]
    assert found[0]["where"] == "broker-a"
    assert first in found[0]["problem"]
    assert second in found[0]["problem"]


async def test_member_missing_at_a_broker_is_reported_with_that_broker(cluster: Cluster) -> None:
    """It uses a listener whose address of broker-b is unreachable; from here everything is reachable."""
    both = ["--listen", "internal=127.0.0.1:0", "--listen", "external=127.0.0.1:0"]
    process = await cluster.start("nameserver", ["-m", "lockstep.nameserver", *both], "nameserver.started")
    reported = (await process.wait_for_event("nameserver.started"))["listeners"]
    for name, options in (("broker-a", both), ("broker-b", [*both, "--advertise", "external=127.0.0.1:1"])):
        store = str(cluster.folder / f"store-{name}")
        command = ["-m", "lockstep.broker", "--nameserver", reported["internal"], *QUICK, "--name", name, "--store", store, *options]
        await cluster.start(name, command, "broker.started")
    cluster.addresses["nameserver"] = reported["internal"]
    await cluster.command("topic", "create", "orders", "--queues", "2")
    cluster.addresses["nameserver"] = reported["external"]
    await cluster.consumer("consumer-1")
    await cluster.until_held(2, "consumer-1")
    cluster.addresses["nameserver"] = reported["internal"]
    (found,) = await doctor(cluster, healthy=False)
    assert (found["check"], found["problem"]) == ("members complete", "is missing at broker-b")
    assert found["where"].startswith("billing ")


async def test_nameserver_without_a_broker_is_reported(cluster: Cluster) -> None:
    address = await cluster.nameserver()
    (found,) = await doctor(cluster, healthy=False)
    assert (found["check"], found["where"], found["problem"]) == ("nameserver", address, "knows no registered broker")
    assert f"--nameserver {address}" in found["step"]


async def test_broker_with_a_wrong_clock_is_reported_with_the_difference(cluster: Cluster) -> None:
    await cluster.nameserver()
    await cluster.broker("broker-a")
    store = str(cluster.folder / "store-ahead")
    options = ["--name", "broker-b", "--listen", "127.0.0.1:0", "--nameserver", cluster.nameservers, "--store", store]
    await cluster.start("broker-b", ["-m", "support.broker_ahead", *options], "broker.started")
    (found,) = await doctor(cluster, healthy=False)
    assert (found["check"], found["where"].split()[0]) == ("clock", "broker-b")
    ahead_s = float(found["problem"].removeprefix("its clock is ").split()[0])
    assert abs(ahead_s - 3_600) < 60, found
    assert "s ahead of this machine's" in found["problem"]
    assert "NTP" in found["step"]


async def test_two_brokers_that_advertise_one_address_are_reported(cluster: Cluster) -> None:
    await cluster.nameserver()
    address = await cluster.broker("broker-a")
    await cluster.broker("broker-b", *QUICK, "--advertise", address)
    (found,) = await doctor(cluster, healthy=False)
    assert (found["check"], found["where"]) == ("broker reached", f"broker-b {address}")
    assert found["problem"] == "broker-a responds there: two brokers advertise one address"


async def test_broker_rejected_by_a_nameserver_is_reported_with_the_reason(cluster: Cluster) -> None:
    """The broker was suspended while a copy of its store registered at one of the two nameservers."""
    first, second = await cluster.nameserver("nameserver-1"), await cluster.nameserver("nameserver-2")
    await cluster.broker("broker-a")
    cluster.signal(signal.SIGSTOP, "broker-a")
    shutil.copytree(cluster.folder / "store-broker-a", cluster.folder / "store-copy")
    options = ["--name", "broker-a", "--listen", "127.0.0.1:0", "--nameserver", second, "--store", str(cluster.folder / "store-copy")]
    await cluster.start("copy", ["-m", "support.broker_ahead", *options], "broker.started")
    cluster.signal(signal.SIGCONT, "broker-a")
    await cluster.until_heard("broker-a", "registration.refused")
    cluster.addresses.pop("nameserver-2")
    found = await doctor(cluster, healthy=False)
    assert [each["check"] for each in found] == ["unique broker name"]
    assert f"at nameserver {second}" in found[0]["where"]
    assert found[0]["problem"].startswith("was refused: ")
    assert "delete neither store" in found[0]["step"]
    assert first == cluster.nameservers


async def test_brokers_with_different_group_settings_are_reported(cluster: Cluster) -> None:
    """One of them joined after its settings had been made."""
    await cluster.servers(queues=1, brokers=("broker-a",))
    await cluster.command("group", "create", "billing", "--no-consume")
    await cluster.broker("broker-b")
    await cluster.command("topic", "alter", "orders", "--queues", "1")
    await cluster.consumer("consumer-1")
    await cluster.until_held(2, "consumer-1")
    (found,) = await doctor(cluster, healthy=False)
    assert (found["check"], found["where"]) == ("one contract", "billing")
    assert "broker-b and broker-a have different settings" in found["problem"]
    command = found["step"].split("`")[1]
    assert command == "lockstep group update billing --subscription-policy strict --no-consume"
    await cluster.command(*command.split()[1:])
    assert await doctor(cluster) == [], "the step works as it is typed"


async def test_members_with_different_subscriptions_at_different_brokers_are_reported(cluster: Cluster) -> None:
    """Each reaches one broker only, so that no broker could reject it; from here both are reachable."""
    listeners = ["--listen", "internal=127.0.0.1:0", "--listen", "east=127.0.0.1:0", "--listen", "west=127.0.0.1:0"]
    process = await cluster.start("nameserver", ["-m", "lockstep.nameserver", *listeners], "nameserver.started")
    reported = (await process.wait_for_event("nameserver.started"))["listeners"]
    for name, away in (("broker-a", "west"), ("broker-b", "east")):
        options = ["--name", name, "--store", str(cluster.folder / f"store-{name}"), *listeners, "--advertise", f"{away}=127.0.0.1:1"]
        await cluster.start(name, ["-m", "lockstep.broker", "--nameserver", reported["internal"], *QUICK, *options], "broker.started")
    cluster.addresses["nameserver"] = reported["internal"]
    await cluster.command("topic", "create", "orders", "--queues", "1")
    for name, side, tags in (("consumer-1", "east", "even"), ("consumer-2", "west", "odd")):
        cluster.addresses["nameserver"] = reported[side]
        await cluster.consumer(name, "--tags", tags)
        await cluster.until_held(1, name)
    cluster.addresses["nameserver"] = reported["internal"]
    found = await doctor(cluster, healthy=False)
    assert sorted((each["check"], each["problem"]) for each in found) == [
        ("members complete", "is missing at broker-a"),
        ("members complete", "is missing at broker-b"),
        ("one contract", "broker-b and broker-a have different contracts: subscriptions"),
    ]
    assert "stop the members with the older settings" in found[-1]["step"]


async def test_nearly_full_disk_is_reported_before_sends_are_rejected(cluster: Cluster, small_disk: Path) -> None:
    await cluster.nameserver()
    command = ["-m", "lockstep.broker", "--name", "broker-a", "--listen", "127.0.0.1:0", "--nameserver", cluster.nameservers]
    options = ["--store", str(small_disk / "store"), "--disk-reserve-mib", "1", "--disk-used-percent-max", "100"]
    await cluster.start("broker-a", [*command, *options], "broker.started")
    await cluster.command("topic", "create", "orders", "--queues", "1")
    assert await doctor(cluster) == []
    free = shutil.disk_usage(small_disk).free
    (small_disk / "filler").write_bytes(bytes(free - (4 << 20)))
    await cluster.command("send", "orders", "there is room yet")
    (found,) = await doctor(cluster, healthy=False)
    assert found["check"] == "store writable"
    assert found["problem"].startswith("the disk is nearly full: ")
    assert "below 1 MiB" in found["step"]


async def test_secured_cluster_is_examined_too(cluster: Cluster, tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    ca = write_authority(tmp_path / "ca.pem")
    (tmp_path / "password").write_text(PASSWORD)
    users = write_users(tmp_path / "users.toml", {"ops": [PASSWORD]})
    cluster.server_options = ("--tls", "require", "--tls-cert", cert, "--tls-key", key, "--security", users)
    cluster.user, cluster.parameters = "ops", f"tls_ca={ca}&password_file={tmp_path / 'password'}"
    await cluster.servers(brokers=["broker-a"])
    assert await doctor(cluster, "--security", users) == []
    checks = {each["check"] for each in json.loads(await cluster.command("doctor", "--json", "--security", users))["findings"]}
    assert {"certificate valid", "certificate names", "one file of users", "users in force", "rights of a user"} <= checks
    other = write_users(tmp_path / "other.toml", {"ops": [PASSWORD], "late": [PASSWORD]})
    await cluster.broker("broker-b", *QUICK, "--security", other)
    found = await doctor(cluster, healthy=False)
    assert [each["check"] for each in found] == ["one file of users"]
    found = await doctor(cluster, "--security", other, healthy=False)
    assert {each["check"] for each in found} == {"one file of users", "users in force"}
