"""Named listeners: a client of a nameserver's listener gets the brokers' addresses of that name, otherwise of `internal`."""

import json

import pytest

from support.cluster import QUICK, Cluster

pytestmark = pytest.mark.e2e


async def addresses(cluster: Cluster, nameserver: str) -> dict[str, str]:
    """Return broker → the address that this listener of the nameserver returns; a server responds at each."""
    brokers = json.loads(await cluster.command("cluster", "--json", "--nameserver", nameserver))["brokers"]
    assert all(broker["reached"] for broker in brokers), brokers
    return {broker["name"]: broker["address"] for broker in brokers}


async def test_clients_of_each_listener_get_its_addresses_and_work(cluster: Cluster) -> None:
    both = ["--listen", "internal=127.0.0.1:0", "--listen", "external=127.0.0.1:0"]
    process = await cluster.start("nameserver", ["-m", "lockstep.nameserver", *both], "nameserver.started")
    reported = (await process.wait_for_event("nameserver.started"))["listeners"]
    assert reported["internal"] != reported["external"]
    command = ["-m", "lockstep.broker", "--nameserver", reported["internal"], *QUICK]
    listeners = {}
    for name, options in (("broker-a", both), ("broker-b", ["--listen", "127.0.0.1:0"])):
        store = str(cluster.folder / f"store-{name}")
        broker = await cluster.start(name, [*command, "--name", name, "--store", store, *options], "broker.started")
        listeners[name] = (await broker.wait_for_event("broker.started"))["listeners"]
    assert await addresses(cluster, reported["internal"]) == {name: each["internal"] for name, each in listeners.items()}
    assert await addresses(cluster, reported["external"]) == {
        "broker-a": listeners["broker-a"]["external"],
        "broker-b": listeners["broker-b"]["internal"],
    }
    cluster.addresses["nameserver"] = reported["external"]
    await cluster.command("topic", "create", "orders", "--queues", "2")
    await cluster.consumer("consumer-1")
    cluster.addresses["nameserver"] = reported["internal"]
    await cluster.consumer("consumer-2")
    await cluster.until_held(4, "consumer-1", "consumer-2")
    await cluster.producer("producer", "--keys", "20", "--steps", "5")
    await cluster.until_handled(100)
    await cluster.finish_producer()
    await cluster.prove("consumer-1", "consumer-2")


async def test_advertised_address_replaces_the_bound_one(cluster: Cluster) -> None:
    await cluster.nameserver()
    reported = await cluster.broker("broker-a", *QUICK, "--advertise", "localhost:0")
    assert reported.startswith("localhost:")
    assert not reported.endswith(":0"), "port 0 stands for the one that it got"
    assert await addresses(cluster, cluster.addresses["nameserver"]) == {"broker-a": reported}
