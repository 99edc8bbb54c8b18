"""`lockstep doctor` against real processes: well, and with each thing wrong that one machine can show."""

import json
from typing import Any

import pytest

from support.cluster import QUICK, Cluster

pytestmark = pytest.mark.e2e


async def doctor(cluster: Cluster, *options: str, healthy: bool = True) -> list[dict[str, Any]]:
    """The findings that are problems."""
    text = await cluster.run_command("doctor", "--json", *options, code=0 if healthy else 1)
    told = json.loads(text)
    assert told["healthy"] is healthy, told
    return [finding for finding in told["findings"] if finding["problem"]]


async def test_a_healthy_cluster_has_no_findings_and_exit_0(cluster: Cluster) -> None:
    await cluster.servers()
    await cluster.consumer("consumer-1")
    await cluster.until_held(8, "consumer-1")
    assert await doctor(cluster) == []
    shown = await cluster.command("doctor")
    assert shown.splitlines()[-1].endswith("checks, 0 problems")


async def test_what_is_down_is_named_with_the_next_step(cluster: Cluster) -> None:
    await cluster.nameserver("nameserver-1")
    await cluster.nameserver("nameserver-2")
    await cluster.broker("broker-a")
    await cluster.broker("broker-b")
    await cluster.kill("nameserver-2")
    found = await doctor(cluster, healthy=False)
    down = cluster.addresses["nameserver-2"]
    assert {(each["check"], down in each["where"]) for each in found} == {("nameserver", True), ("broker registered", True)}
    await cluster.kill("broker-b")
    found = await doctor(cluster, healthy=False)
    assert ("broker registered", "is not registered now") in {(each["check"], each["problem"]) for each in found}
    assert all(each["step"] for each in found)


async def test_an_advertised_address_that_can_not_be_dialled_is_named(cluster: Cluster) -> None:
    await cluster.nameserver()
    await cluster.broker("broker-a", *QUICK, "--advertise", "127.0.0.1:1")
    (found,) = await doctor(cluster, healthy=False)
    assert (found["check"], found["where"]) == ("broker reached", "broker-a 127.0.0.1:1")
    assert "--advertise" in found["step"]


async def test_a_disk_below_the_reserve_is_named(cluster: Cluster) -> None:
    await cluster.nameserver()
    await cluster.broker("broker-a", *QUICK, "--disk-reserve-mib", str(1 << 30))
    (found,) = await doctor(cluster, healthy=False)
    assert found["check"] == "store writable"
    assert "sends are refused" in found["problem"]


async def test_two_brokers_of_one_name_are_named_with_their_nameservers(cluster: Cluster) -> None:
    """Each knows one nameserver only, so neither could be refused."""
    first = await cluster.nameserver("nameserver-1")
    await cluster.broker("broker-a")
    second = await cluster.nameserver("nameserver-2")
    store = str(cluster.folder / "another-store")
    command = ["-m", "lockstep.broker", "--name", "broker-a", "--listen", "127.0.0.1:0", "--nameserver", second, "--store", store]
    await cluster.start("another", command, "broker.started")
    found = [each for each in await doctor(cluster, healthy=False) if each["check"] == "one broker a name"]
    assert found[0]["where"] == "broker-a"
    assert first in found[0]["problem"]
    assert second in found[0]["problem"]


async def test_a_member_that_reaches_only_some_brokers_is_named_with_those_that_it_misses(cluster: Cluster) -> None:
    """It asks at a listener whose address of broker-b leads nowhere; from here everything is reached."""
    both = ["--listen", "internal=127.0.0.1:0", "--listen", "external=127.0.0.1:0"]
    process = await cluster.start("nameserver", ["-m", "lockstep.nameserver", *both], "nameserver.started")
    told = (await process.event("nameserver.started"))["listeners"]
    for name, options in (("broker-a", both), ("broker-b", [*both, "--advertise", "external=127.0.0.1:1"])):
        store = str(cluster.folder / f"store-{name}")
        command = ["-m", "lockstep.broker", "--nameserver", told["internal"], *QUICK, "--name", name, "--store", store, *options]
        await cluster.start(name, command, "broker.started")
    cluster.addresses["nameserver"] = told["internal"]
    await cluster.command("topic", "create", "orders", "--queues", "2")
    cluster.addresses["nameserver"] = told["external"]
    await cluster.consumer("consumer-1")
    await cluster.until_held(2, "consumer-1")
    cluster.addresses["nameserver"] = told["internal"]
    (found,) = await doctor(cluster, healthy=False)
    assert (found["check"], found["problem"]) == ("members complete", "is missing at broker-b")
    assert found["where"].startswith("billing ")
