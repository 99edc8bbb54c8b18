"""The first sends of a client of RocketMQ to a topic that does not exist: it spreads them over all brokers by the route of TBW102."""

import json

import pytest

from support.cluster import Cluster
from support.java_wire import BINARY, JSON, JavaWire, batch, java_wire

pytestmark = pytest.mark.e2e

KINDS = pytest.mark.parametrize("kind", [JSON, BINARY], ids=["json", "binary"])


def send(topic: str, queue_id: int, **changes: object) -> dict[str, object]:
    numbers = {"d": "4", "e": queue_id, "f": "0", "g": "1700000000000", "h": "0", "j": "0"}
    return {"a": "pg", "b": topic, "c": "TBW102", **numbers, "i": "", "k": "false", "m": "false", "n": "", **changes}


async def queues(names: JavaWire, topic: str) -> dict[str, int]:
    """Return broker → number of queues in the route, which exists."""
    route = await names.call(105, {"topic": topic})
    assert route.code == 0, route.remark
    return {each["brokerName"]: each["writeQueueNums"] for each in json.loads(route.body)["queueDatas"]}


@KINDS
async def test_each_broker_takes_first_sends_to_any_of_its_default_queues(cluster: Cluster, kind: int) -> None:
    await cluster.nameserver()
    for name in ("broker-a", "broker-b"):
        await cluster.broker(name, "--auto-create-topics")
    addresses = cluster.addresses
    async with (
        java_wire(addresses["nameserver"], kind) as names,
        java_wire(addresses["broker-a"], kind) as one,
        java_wire(addresses["broker-b"], kind) as other,
    ):
        for number in range(5):
            topic = f"new-{number}"
            for broker, queue_id in ((one, 1), (other, 3), (one, 0), (other, 0), (one, 3), (other, 2)):
                sent = await broker.call(310, send(topic, queue_id), b"x")
                assert (sent.code, sent.fields.get("queueId")) == (0, str(queue_id)), sent.remark
            assert await queues(names, topic) == {"broker-a": 4, "broker-b": 4}
        refused = await other.call(310, send("new-0", 4), b"x")
        assert (refused.code, "queue 4" in (refused.remark or "")) == (1, True)


@KINDS
async def test_first_batch_is_acknowledged_when_the_topic_has_a_route(cluster: Cluster, kind: int) -> None:
    """A client may start its consumers then: they ask for the route once."""
    await cluster.nameserver()
    await cluster.broker("broker-a", "--auto-create-topics")
    async with java_wire(cluster.addresses["nameserver"], kind) as names, java_wire(cluster.addresses["broker-a"], kind) as broker:
        for number in range(10):
            assert (await broker.call(320, send(f"new-{number}", 0, m="true"), batch((b"x", ""), (b"y", "")))).code == 0
            assert await queues(names, f"new-{number}") == {"broker-a": 4}
