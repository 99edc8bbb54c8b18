"""QUERY_ASSIGNMENT, as RocketMQ's Java consumers of 5.x send it with `clientRebalance=false`."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from support.cluster import Cluster
from support.java_requests import heartbeat
from support.java_wire import JSON, JavaWire, java_wire

pytestmark = pytest.mark.e2e

QUEUES = [(name, number) for name in ("broker-a", "broker-b") for number in range(3)]
FIRST, SECOND = "10.0.0.1@1", "10.0.0.2@1"


def question(client_id: str = FIRST, strategy: str = "AVG", **changes: str) -> bytes:
    fields = {"clientId": client_id, "consumerGroup": "cg", "messageModel": "CLUSTERING", "strategyName": strategy, "topic": "orders"}
    return json.dumps({**fields, **changes}).encode()


async def assigned(wire: JavaWire, body: bytes) -> list[tuple[str, int]]:
    """Return the queues that the broker assigns."""
    answer = await wire.call(400, None, body)
    assert answer.code == 0, answer.remark
    found = json.loads(answer.body)["messageQueueAssignments"]
    assert all((each["mode"], each["messageQueue"]["topic"]) == ("PULL", "orders") for each in found)
    return [(each["messageQueue"]["brokerName"], each["messageQueue"]["queueId"]) for each in found]


@pytest.fixture
async def wires(cluster: Cluster) -> AsyncIterator[list[JavaWire]]:
    """Connections of two members of the group `cg` to the first one of two brokers, with the topic `orders` of 3 queues at each."""
    await cluster.nameserver()
    for name in ("broker-a", "broker-b"):
        await cluster.broker(name)
    await cluster.command("topic", "create", "orders", "--queues", "3")
    async with AsyncExitStack() as stack:
        found = [await stack.enter_async_context(java_wire(cluster.addresses["broker-a"], JSON)) for _ in range(2)]
        for wire, client_id in zip(found, (FIRST, SECOND), strict=True):
            assert (await wire.call(34, None, heartbeat(client_id=client_id))).code == 0
        yield found


async def test_members_get_the_queues_that_they_would_compute_themselves(wires: list[JavaWire]) -> None:
    for wire, client_id, average, circle in zip(wires, (FIRST, SECOND), (QUEUES[:3], QUEUES[3:]), (QUEUES[::2], QUEUES[1::2]), strict=True):
        assert await assigned(wire, question(client_id)) == average
        assert await assigned(wire, question(client_id, "AVG_BY_CIRCLE")) == circle
        assert await assigned(wire, question(client_id, messageModel="BROADCASTING")) == QUEUES
    shares = [await assigned(wire, question(each, "CONSISTENT_HASH")) for wire, each in zip(wires, (FIRST, SECOND), strict=True)]
    assert sorted(shares[0] + shares[1]) == QUEUES


async def test_queues_of_a_broker_that_is_not_registered_are_not_assigned(wires: list[JavaWire], cluster: Cluster) -> None:
    await cluster.stop("broker-b")
    assert [await assigned(wire, question(each)) for wire, each in zip(wires, (FIRST, SECOND), strict=True)] == [QUEUES[:2], QUEUES[2:3]]


async def test_what_the_broker_can_not_assign_is_refused_so_that_the_client_keeps_its_queues(
    wires: list[JavaWire], cluster: Cluster
) -> None:
    for body, code, said in (
        (question(strategy="CONFIG"), 3, "use one of AVG, AVG_BY_CIRCLE, CONSISTENT_HASH, or clientRebalance=true"),
        (question("10.0.0.3@1"), 1, "client 10.0.0.3@1 is no member of group cg here: send HEART_BEAT first"),
        (question(consumerGroup="nobody"), 1, "is no member of group nobody"),
        (question(topic="missing"), 17, "no topic 'missing'"),
        (b"{}", 1, "AssignmentQuestion"),
    ):
        answer = await wires[0].call(400, None, body)
        assert (answer.code, said in (answer.remark or "")) == (code, True), answer
    await cluster.stop("nameserver")
    answer = await wires[0].call(400, None, question())
    assert (answer.code, "can't learn the route of topic orders" in (answer.remark or "")) == (1, True), answer
