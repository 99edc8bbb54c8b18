"""Brokers are drained, lost and removed, with real processes."""

import json
from typing import Any

import pytest

from lockstep.client import ConsumeFromWhere, Message, MessageQueue, Producer, PullConsumer
from support.cluster import QUICK, Cluster
from support.copies import Copies
from support.registers import RegisterServer

pytestmark = pytest.mark.e2e


async def states(cluster: Cluster) -> dict[str, str]:
    return {each["name"]: each["state"].partition(":")[0] for each in json.loads(await cluster.command("cluster", "--json"))["brokers"]}


async def brokers_of(cluster: Cluster, topic: str, code: int = 0) -> set[str]:
    """Return the brokers that have queues of the topic. `code`: 1 if one of them is down."""
    shown: dict[str, Any] = json.loads(await cluster.run_command("topic", "show", topic, "--json", code=code))
    return {each["broker"] for each in shown["queues"]}


async def consume(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    """Consume so many messages in the group `billing`, and commit them."""
    consumer = PullConsumer("billing", nameserver=cluster.nameservers, consume_from_where=ConsumeFromWhere.FIRST_OFFSET).subscribe(topic)
    bodies: list[bytes] = []
    async with consumer:
        while len(bodies) < count:
            bodies += [message.body for message in await consumer.poll()]
        await consumer.commit()
    return sorted(bodies)


async def test_broker_is_drained_stopped_and_gone(cluster: Cluster) -> None:
    await cluster.nameserver()
    for name in ("broker-a", "broker-b"):
        await cluster.broker(name, *QUICK)
    await cluster.command("topic", "create", "orders", "--queues", "2")
    await cluster.command("topic", "create", "alone", "--queues", "2", "--broker", "broker-a")
    assert await brokers_of(cluster, "alone") == {"broker-a"}
    async with Producer("shop", nameserver=cluster.nameservers) as producer:
        sent = [
            (await producer.send(Message("orders", b"%d" % number, sharding_key=f"k{number}"))).queue.broker_name for number in range(20)
        ]
        assert set(sent) == {"broker-a", "broker-b"}
        assert await consume(cluster, "orders", 20) == sorted(b"%d" % number for number in range(20))
        said = await cluster.command("broker", "drain", "broker-a")
        assert "broker broker-a is drained" in said
        assert await brokers_of(cluster, "orders") == await brokers_of(cluster, "alone") == {"broker-b"}
        assert "is drained" in await cluster.command("broker", "drain", "broker-a"), "again"
        sent = [(await producer.send(Message("orders", b"later", sharding_key=f"k{number}"))).queue.broker_name for number in range(20)]
        assert set(sent) == {"broker-b"}
    await cluster.stop("broker-a")
    assert "there is nothing to remove" in await cluster.command("broker", "remove", "broker-a")
    assert await states(cluster) == {"broker-a": "gone", "broker-b": "registered"}
    await cluster.command("doctor")


async def test_lost_broker_is_removed_after_what_is_lost_was_said(cluster: Cluster) -> None:
    await cluster.nameserver()
    for name in ("broker-a", "broker-b"):
        await cluster.broker(name, *QUICK)
    await cluster.command("topic", "create", "orders", "--queues", "2")
    async with Producer("shop", nameserver=cluster.nameservers) as producer:
        await producer.send(Message("orders", b"lost"), queue=MessageQueue("orders", "broker-a", 0))
        assert "is registered: drain it instead" in await cluster.command("broker", "remove", "broker-a", code=1)
        await cluster.kill("broker-a")
        assert (await states(cluster))["broker-a"] == "lost"
        assert "lockstep broker remove broker-a" in await cluster.run_command("doctor", code=1)
        assert "is not registered" in await cluster.command("broker", "drain", "broker-a", code=1)
        said = await cluster.command("broker", "remove", "broker-a", code=1)
        assert "orders: 2 queues on broker-a. Their messages that were not consumed are lost" in said
        assert await brokers_of(cluster, "orders", 1) == {"broker-a", "broker-b"}
        assert "is removed from 1 topics" in await cluster.command("broker", "remove", "broker-a", "--force")
        assert await brokers_of(cluster, "orders") == {"broker-b"}
        for number in range(8):
            sent = await producer.send(Message("orders", b"1", sharding_key=f"k{number}"))
            assert sent.queue.broker_name == "broker-b"
    assert await states(cluster) == {"broker-a": "gone", "broker-b": "registered"}
    await cluster.restart("broker-a")
    while (await states(cluster))["broker-a"] != "registered":
        pass
    assert await brokers_of(cluster, "orders") == {"broker-b"}, "it does not bring its queues back"


async def test_broker_is_not_lost_while_a_copy_of_it_runs(copies: Copies, cluster: Cluster, register_server: RegisterServer) -> None:
    """No register, so nobody is elected: a failover that takes long."""
    await cluster.broker("broker-b")
    master = await copies.until_in_sync()
    (replica,) = copies.addresses.keys() - {master}
    register_server.kill()
    await cluster.kill(master)
    for command in (("drain", "broker-a"), ("remove", "broker-a"), ("remove", "broker-a", "--force")):
        said = await cluster.command("broker", *command, code=1)
        assert ("is not registered now" if command[0] == "drain" else f"answers at {copies.addresses[replica]}. Wait until") in said
    assert await brokers_of(cluster, "orders", 1) == {"broker-a"}
    await cluster.kill(replica)
    for name, address in zip(("broker-c", "broker-d"), copies.addresses.values(), strict=True):
        await cluster.broker(name, listen=address)
    await cluster.command("broker", "remove", "broker-a", "--force")
    assert "broker-a" not in await brokers_of(cluster, "orders"), "others have its addresses by now"
