"""`lockstep replica forget`: when it has ended, nobody names the replica any more, and no later master does."""

import asyncio

import pytest

from lockstep.operations.admin_client import AdminClient
from lockstep.operations.brokers.replica_query import read_copies
from lockstep.operations.brokers.replicas import LogCopy
from lockstep.operations.changes.replica_forget import ReplicaForget
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster

LEFT_S = 2
"""Longer than a lost replica stays in the set."""
by_each = pytest.mark.parametrize(
    "ha",
    [
        pytest.param(False, marks=pytest.mark.lockstep(brokers=1, replicas=2, seeds=3), id="promoted"),
        pytest.param(True, marks=pytest.mark.lockstep(brokers=1, replicas=2, ha=True, seeds=3), id="elected"),
    ],
)


async def listed(cluster: TestCluster) -> dict[str, LogCopy]:
    """Return address → copy, as a new client is told."""
    return {each.address: each for each in await read_copies(AdminClient(Host.current(), cluster.nameserver))}


async def forget_lost(cluster: TestCluster, *, in_set: bool) -> str:
    """Let the master forget the only replica that does not run. Return its address."""
    (lost,) = [each for each in (await listed(cluster)).values() if each.status is None]
    assert lost.in_set is in_set
    plan = await ReplicaForget(broker=lost.broker, member=lost.member, yes=True).plan(AdminClient(Host.current(), cluster.nameserver))
    assert (await plan.carry_out()).failed is None
    return lost.address


@pytest.mark.parametrize("in_set", [True, False])
@by_each
async def test_forgotten_replica_is_listed_no_more_also_by_the_next_master(lockstep_cluster: TestCluster, ha: bool, in_set: bool) -> None:
    cluster = lockstep_cluster
    await cluster.replicated("broker-a")
    await cluster.kill("broker-a-replica-1")
    await asyncio.sleep(0 if in_set else LEFT_S)
    gone = await forget_lost(cluster, in_set=in_set)
    assert gone not in await listed(cluster)
    await cluster.kill("broker-a")
    assert await (cluster.elected("broker-a") if ha else cluster.promote("broker-a")) == "broker-a-replica-2"
    await asyncio.sleep(LEFT_S)
    assert gone not in await listed(cluster)


@pytest.mark.lockstep(brokers=1, replicas=1, ha=True)
@pytest.mark.parametrize("slow", ["nameserver-1", "witness"])
async def test_forget_ends_when_nameserver_and_register_know_it_also_over_a_slow_link(lockstep_cluster: TestCluster, slow: str) -> None:
    cluster = lockstep_cluster
    await cluster.replicated("broker-a")
    await cluster.kill("broker-a-replica-1")
    await asyncio.sleep(LEFT_S)
    cluster.slow_link("broker-a", slow, seconds=0.4)
    await forget_lost(cluster, in_set=False)
    (master,) = (await listed(cluster)).values()
    assert master.status is not None
    assert master.status.register is not None
    assert [*master.status.register.replicas.values()] == [master.address]
