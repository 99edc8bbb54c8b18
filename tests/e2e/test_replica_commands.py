"""What operators see and do of replicas, with real processes: `lockstep replica ls`, `promote`, `forget`, and `lockstep doctor`."""

import asyncio
import json
import re
import shutil
from typing import Any

import pytest

from lockstep.client import ConsumeFromWhere, Message, Producer, PullConsumer
from lockstep.operations.admin_client import AdminClient
from lockstep.runtime.host import Host
from lockstep.runtime.processes import ProcessError
from support.cluster import LOOK_S, QUICK, WAIT_S, Cluster
from support.http import fetch
from support.ports import free_ports

pytestmark = pytest.mark.e2e


class Pair:
    """A broker named broker-a with a replica. Both have admin ports."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.listen = {"broker-a": "127.0.0.1:0", "replica": "127.0.0.1:0"}
        """A broker that is started again has the port of before, as a replica that is promoted has."""
        self.admin = {name: f"127.0.0.1:{port}" for name, port in zip(self.listen, free_ports(2), strict=True)}

    async def start(self, name: str, *more: str, replica_of: str | None = None) -> str:
        """Start the broker with the store of the process `name`. Return its address."""
        cluster = self.cluster
        of = more if replica_of is None else ("--replica-of", replica_of)
        store = ["--store", str(cluster.folder / f"store-{name}"), "--nameserver", cluster.nameservers]
        options = ["--listen", self.listen[name], "--admin-listen", self.admin[name], *store, *QUICK, *of]
        process = await cluster.start(name, ["-m", "lockstep.broker", "--name", "broker-a", *options])
        address = str((await process.wait_for_event("broker.started"))["listeners"]["internal"])
        cluster.addresses[name] = self.listen[name] = address
        return address

    async def copies(self, *arguments: str) -> dict[str, dict[str, Any]]:
        """Return address → copy."""
        shown = json.loads(await self.cluster.command("replica", "ls", "--json", *arguments))["copies"]
        return {each["address"]: each for each in shown}

    async def until_in_set(self, replica: str) -> dict[str, dict[str, Any]]:
        async with asyncio.timeout(WAIT_S):
            while True:
                found = await self.copies()
                of_replica = found.get(replica, {})
                if of_replica.get("in_set") and of_replica.get("connected"):
                    return found
                await asyncio.sleep(LOOK_S)

    async def metric(self, name: str, metric: str) -> float | None:
        """Return the value of the only series of `lockstep_METRIC`, None if it has none."""
        _, text = await fetch(self.admin[name], "/metrics")
        found = re.findall(rf"^lockstep_{metric}{{.*}} (.+)$", text, re.MULTILINE)
        assert len(found) < 2, found
        return float(found[0]) if found else None


async def counts(cluster: Cluster, address: str) -> tuple[int | None, dict[str, int] | None]:
    """Return what a copy counts, when a replica has applied all."""
    async with asyncio.timeout(WAIT_S):
        while True:
            status = await AdminClient(Host.current(), cluster.nameservers).copy_status(address, counts=True)
            if status.applied == status.end:
                return status.messages, status.consumed
            await asyncio.sleep(LOOK_S)


async def consume(cluster: Cluster, count: int) -> list[int]:
    """Consume so many messages in the group `billing`, in order, and commit them."""
    consumer = PullConsumer("billing", nameserver=cluster.nameservers, consume_from_where=ConsumeFromWhere.FIRST_OFFSET).subscribe("orders")
    bodies: list[int] = []
    async with consumer:
        while len(bodies) < count:
            bodies += [int(message.body) for message in await consumer.poll()]
        await consumer.commit()
    return bodies


async def test_replica_is_promoted_serves_and_gets_the_old_master_as_its_replica(cluster: Cluster) -> None:
    pair = Pair(cluster)
    await cluster.nameserver()
    master = await pair.start("broker-a")
    (alone,) = (await pair.copies()).values()
    assert (alone["role"], alone["member"], alone["in_set"]) == ("master", None, None)
    assert "replica in the set" not in await cluster.command("doctor"), "a broker without replicas has no line"
    assert [await pair.metric("broker-a", name) for name in ("role", "replicas_in_sync", "replica_connected")] == [1, None, None]

    replica = await pair.start("replica", replica_of=master)
    await cluster.command("topic", "create", "orders", "--queues", "1")
    found = await pair.until_in_set(replica)
    assert [(each["role"], each["failure"]) for each in found.values()] == [("master", None), ("replica", None)]
    assert (found[replica]["connected"], found[replica]["master"], found[replica]["term"]) == (True, master, found[master]["term"])
    assert "replica in the set" in await cluster.command("doctor")
    assert "1 of 1" in await cluster.command("cluster")
    assert [await pair.metric("broker-a", name) for name in ("replicas_in_sync", "replica_connected", "replica_behind_bytes")] == [1, 1, 0]
    assert [await pair.metric("replica", name) for name in ("role", "replica_following", "replica_missing_bytes")] == [1, 1, 0]

    async with Producer("shop", nameserver=cluster.nameservers) as producer:
        for number in range(20):
            await producer.send(Message("orders", b"%d" % number, sharding_key="k"))
        refused = await cluster.command("replica", "promote", replica, "--yes", code=1)
        assert f"the master of broker broker-a at {master} answers" in refused

        assert await counts(cluster, master) == (20, {})
        assert await counts(cluster, replica) == (20, {})
        await cluster.kill("broker-a")
        found = await pair.copies("--address", replica)
        assert (found[master]["role"], found[replica]["following"]) == (None, False)
        assert "refused" in found[master]["failure"]
        planned = await cluster.command("replica", "promote", replica, "--dry-run")
        assert f"The replica at {replica} becomes the master of broker broker-a." in planned
        assert f"Where the logs of {master} end is not known" in planned
        assert "The generations of all groups rise" in planned
        assert "nothing was changed: to do it, run" in await cluster.command("replica", "promote", replica, code=1)
        done = await cluster.command("replica", "promote", replica, "--yes")
        assert f"start the old master as its replica: --replica-of {replica}" in done
        for number in range(20, 30):
            await producer.send(Message("orders", b"%d" % number, sharding_key="k"))
    assert await consume(cluster, 30) == list(range(30))
    assert "is the master of broker broker-a already" in await cluster.command("replica", "promote", replica, "--yes")

    (broker,) = json.loads(await cluster.command("cluster", "--json"))["brokers"]
    assert (broker["address"], broker["replicas"], broker["replicas_in_set"]) == (replica, 1, 0)
    missing = await cluster.run_command("doctor", code=1)
    assert "has not been connected for" in missing
    assert "lockstep replica forget broker-a" in missing
    assert await pair.start("broker-a", replica_of=replica) == master
    found = await pair.until_in_set(master)
    assert [(found[each]["role"], found[each]["failure"]) for each in (replica, master)] == [("master", None), ("replica", None)]
    assert found[master]["behind_bytes"] == 0
    member = found[master]["member"]
    assert "is connected: stop it first" in await cluster.command("replica", "forget", "broker-a", member, "--yes", code=1)
    await cluster.stop("broker-a")
    await cluster.command("replica", "forget", "broker-a", member, "--yes")
    assert list(await pair.copies()) == [replica]
    assert f"broker broker-a knows no replica {member}; its replicas: none" in await cluster.command(
        "replica", "forget", "broker-a", member, code=1
    )
    await cluster.command("doctor")


async def test_replica_of_a_master_that_stopped_in_order_goes_on_without_a_loss(cluster: Cluster) -> None:
    pair = Pair(cluster)
    await cluster.nameserver()
    replica = await pair.start("replica", replica_of=await pair.start("broker-a"))
    await cluster.command("topic", "create", "orders", "--queues", "1")
    await pair.until_in_set(replica)
    await cluster.stop("broker-a")
    planned = json.loads(await cluster.command("replica", "promote", replica, "--dry-run", "--json"))
    assert "nothing is lost" in planned["effect"][1]
    done = json.loads(await cluster.command("replica", "promote", replica, "--yes", "--json"))
    assert (done["promoted"], done["complete"]) == (True, True)
    (broker,) = json.loads(await cluster.command("cluster", "--json"))["brokers"]
    assert (broker["address"], broker["term"], broker["registered"]) == (replica, done["term"], True)


async def send(cluster: Cluster, first: int, end: int) -> None:
    async with Producer("shop", nameserver=cluster.nameservers) as producer:
        for number in range(first, end):
            await producer.send(Message("orders", b"%d" % number, sharding_key="k"))


async def back_up(cluster: Cluster, pair: Pair, name: str, **settings: str) -> None:
    """Stop the broker, copy its store, and start it again."""
    await cluster.stop(name)
    shutil.copytree(cluster.folder / f"store-{name}", cluster.folder / "backup")
    await pair.start(name, **settings)


async def restore(cluster: Cluster, name: str) -> None:
    """Restore the backup as the store of the broker."""
    shutil.rmtree(cluster.folder / f"store-{name}", ignore_errors=True)
    await cluster.command("store", "restore", str(cluster.folder / f"store-{name}"), "--from", str(cluster.folder / "backup"))


async def test_restored_backup_waits_for_no_replica_that_has_lost_everything_too(cluster: Cluster) -> None:
    pair = Pair(cluster)
    await cluster.nameserver()
    master = await pair.start("broker-a")
    replica = await pair.start("replica", replica_of=master)
    await cluster.command("topic", "create", "orders", "--queues", "1")
    await pair.until_in_set(replica)
    await send(cluster, 0, 10)
    await back_up(cluster, pair, "broker-a")
    await pair.until_in_set(replica)
    await send(cluster, 10, 20)
    for name in ("broker-a", "replica"):
        await cluster.kill(name)
        shutil.rmtree(cluster.folder / f"store-{name}")
    await restore(cluster, "broker-a")
    starting = asyncio.create_task(pair.start("broker-a"))
    await pair.start("replica", replica_of=master)
    await starting
    await pair.until_in_set(replica)
    await send(cluster, 20, 25)
    assert await consume(cluster, 15) == [*range(10), *range(20, 25)]


@pytest.mark.parametrize("was_promoted", [False, True])
async def test_restored_backup_does_not_open_while_its_replica_has_more(was_promoted: bool, cluster: Cluster) -> None:
    pair, master, replica = Pair(cluster), "broker-a", "replica"
    await cluster.nameserver()
    address = await pair.start(master)
    await pair.start(replica, replica_of=address)
    await cluster.command("topic", "create", "orders", "--queues", "1")
    await pair.until_in_set(cluster.addresses[replica])
    if was_promoted:
        await cluster.kill(master)
        await cluster.command("replica", "promote", cluster.addresses[replica], "--yes")
        master, replica = replica, master
        await pair.start(replica, replica_of=cluster.addresses[master])
        await pair.until_in_set(cluster.addresses[replica])
    await send(cluster, 0, 10)
    await back_up(cluster, pair, master)
    await pair.until_in_set(cluster.addresses[replica])
    await send(cluster, 10, 20)
    await cluster.kill(master)
    await restore(cluster, master)
    with pytest.raises(ProcessError, match=r"exit code 4[\s\S]*this store is older[\s\S]*`lockstep replica promote"):
        await pair.start(master)

    # Going back on purpose: the replica is cut to what the backup has.
    await cluster.kill(replica)
    await pair.start(master, "--alone")
    await pair.start(replica, replica_of=cluster.addresses[master])
    await pair.until_in_set(cluster.addresses[replica])
    await send(cluster, 20, 25)
    assert await consume(cluster, 15) == [*range(10), *range(20, 25)]


async def test_backup_of_a_replica_is_restored_by_a_promotion(cluster: Cluster) -> None:
    pair = Pair(cluster)
    await cluster.nameserver()
    master = await pair.start("broker-a")
    replica = await pair.start("replica", replica_of=master)
    await cluster.command("topic", "create", "orders", "--queues", "1")
    await pair.until_in_set(replica)
    await send(cluster, 0, 10)
    await back_up(cluster, pair, "replica", replica_of=master)
    for name in ("broker-a", "replica"):
        await cluster.kill(name)
        shutil.rmtree(cluster.folder / f"store-{name}")
    await restore(cluster, "replica")
    await pair.start("replica", replica_of=master)
    refused = await cluster.command("replica", "promote", replica, "--yes", code=1)
    assert "or it was restored" in refused
    await cluster.command("replica", "promote", replica, "--yes", "--force")
    await send(cluster, 20, 25)
    assert await consume(cluster, 15) == [*range(10), *range(20, 25)]
