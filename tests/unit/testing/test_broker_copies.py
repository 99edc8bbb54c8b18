"""TestCluster(replicas=…): a broker is lost, its replica is promoted, and handlers go on over it."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from lockstep.client import ConfigError, LockstepError, Message, Producer, PushConsumer, StateError
from lockstep.testing import Chaos, NotReachedError, OrderChecker, TestCluster

Main = Callable[[], Coroutine[Any, Any, None]]


def consuming(cluster: TestCluster, checker: OrderChecker) -> Main:
    async def main() -> None:
        consumer = PushConsumer("billing", nameserver=cluster.nameserver)
        consumer.subscribe("orders")

        @consumer.orderly
        @checker.watch
        async def listen(messages: Any, context: Any) -> None:
            pass

        async with consumer:
            await consumer.wait_closed()

    return main


async def send(producer: Producer, first: int, end: int) -> None:
    for step in range(first, end):
        await producer.send(Message("orders", b"%d" % step, sharding_key=f"{step % 3}"))


@pytest.mark.lockstep(replicas=1, seeds=5)
async def test_nothing_is_lost_with_a_machine_twice(lockstep_cluster: TestCluster) -> None:
    """Each machine of the pair is lost in turn, with its disk, and the other one goes on."""
    cluster, checker = lockstep_cluster, OrderChecker(lockstep_cluster)
    assert cluster.brokers == ("broker-a", "broker-b")
    assert cluster.replicas == ("broker-a-replica-1", "broker-b-replica-1")
    await cluster.create_topic("orders")
    for name in ("worker-1", "worker-2"):
        await cluster.start(name, consuming(cluster, checker))
    async with checker.producer(Producer("shop", nameserver=cluster.nameserver)) as producer:
        await send(producer, 0, 30)
        for lost, promoted in (("broker-a", "broker-a-replica-1"), ("broker-a-replica-1", "broker-a")):
            assert cluster.master("broker-a") == lost
            await cluster.lose(lost)
            assert cluster.state(lost) == "lost"
            assert await cluster.promote("broker-a") == promoted
            await send(producer, 30, 60)
            await cluster.restart(lost)
            assert lost in cluster.replicas
            await cluster.replicated("broker-a")
    await cluster.settled("billing")
    checker.verify(max_repeats=2)


@pytest.mark.lockstep(brokers=1, replicas=1, ha=True, seeds=5)
async def test_copies_of_a_lost_machine_elect_another_by_themselves(lockstep_cluster: TestCluster) -> None:
    cluster, checker = lockstep_cluster, OrderChecker(lockstep_cluster)
    await cluster.create_topic("orders")
    await cluster.start("worker", consuming(cluster, checker))
    async with checker.producer(Producer("shop", nameserver=cluster.nameserver)) as producer:
        await send(producer, 0, 30)
        for lost, elected in (("broker-a", "broker-a-replica-1"), ("broker-a-replica-1", "broker-a")):
            assert cluster.master("broker-a") == lost
            await cluster.lose(lost)
            await send(producer, 30, 60)
            assert await cluster.elected("broker-a") == cluster.master("broker-a") == elected
            await cluster.restart(lost)
            await cluster.replicated("broker-a")
        with pytest.raises(StateError, match="elect their master by themselves"):
            await cluster.promote("broker-a")
        await cluster.kill("witness")
        await cluster.kill("broker-a")
        with pytest.raises(NotReachedError, match="broker-a has no master after 30 s"):
            await cluster.elected("broker-a", timeout=30)
        await cluster.restart("witness")
        assert await cluster.elected("broker-a") == "broker-a-replica-1"
        await send(producer, 60, 90)
    await cluster.settled("billing")
    checker.verify(max_repeats=3)


@pytest.mark.lockstep(brokers=1, replicas=2)
async def test_killed_master_returns_as_a_replica_of_the_one_that_has_the_most(lockstep_cluster: TestCluster) -> None:
    cluster, checker = lockstep_cluster, OrderChecker(lockstep_cluster)
    await cluster.create_topic("orders")
    await cluster.start("worker", consuming(cluster, checker))
    async with checker.producer(Producer("shop", nameserver=cluster.nameserver)) as producer:
        with pytest.raises(LockstepError, match="Stop it for good first"):
            await cluster.promote("broker-a")
        await cluster.kill("broker-a-replica-1")
        await send(producer, 0, 30)
        await cluster.kill("broker-a")
        with pytest.raises(NotReachedError, match="is not replicated after 3 s"):
            await cluster.replicated("broker-a", timeout=3)
        await cluster.restart("broker-a-replica-1")
        assert await cluster.promote("broker-a") == "broker-a-replica-2"
        assert cluster.replicas == ("broker-a", "broker-a-replica-1")
        for name in cluster.replicas:
            await cluster.restart(name)
        await cluster.replicated("broker-a")
        async with Chaos(cluster, every_seconds=1, faults=["kill_broker", "pause_broker"]):
            await send(producer, 30, 60)
    await cluster.settled("billing")
    checker.verify()


async def test_cluster_without_replicas_has_nothing_to_promote(lockstep_cluster: TestCluster) -> None:
    await lockstep_cluster.replicated("broker-a")
    await lockstep_cluster.kill("broker-a")
    with pytest.raises(StateError, match=r"no replica of broker-a responds \(it has none: TestCluster\(replicas=1\)\)"):
        await lockstep_cluster.promote("broker-a")
    with pytest.raises(StateError, match="no broker 'broker-c' in the cluster: known are broker-a, broker-b"):
        await lockstep_cluster.promote("broker-c")
    with pytest.raises(StateError, match="'worker' is no server"):
        await lockstep_cluster.lose("worker")
    with pytest.raises(ConfigError, match="10 replicas of each: 1 to 9, 1 to 26 and 0 to 9 are possible"):
        TestCluster(replicas=10)


@pytest.mark.parametrize("ahead_s", [-3_600, 3_600])
@pytest.mark.lockstep(brokers=1, replicas=1, ha=True, seeds=2)
async def test_delay_is_kept_over_a_failover_to_a_machine_with_another_wall_clock(lockstep_cluster: TestCluster, ahead_s: int) -> None:
    cluster, handled = lockstep_cluster, asyncio.Event()

    async def main() -> None:
        consumer = PushConsumer("billing", nameserver=cluster.nameserver)
        consumer.subscribe("orders")

        @consumer.orderly
        async def listen(messages: Any, context: Any) -> None:
            handled.set()

        async with consumer:
            await consumer.wait_closed()

    await cluster.create_topic("orders")
    await cluster.start("worker", main)
    cluster.set_wall_clock("broker-a-replica-1", ahead_seconds=ahead_s)
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await cluster.replicated("broker-a")
        await producer.send(Message("orders", b"later"), delay=timedelta(seconds=30))
        sent_s = cluster.now
        await cluster.lose("broker-a")
        assert await cluster.elected("broker-a") == "broker-a-replica-1"
        await handled.wait()
    assert 29.9 < cluster.now - sent_s < 35
