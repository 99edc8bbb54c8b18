"""What pyrocketmq sends that other clients of RocketMQ do not, against real servers."""

import json

import pytest

from support.cluster import Cluster
from support.java_wire import records
from support.pyrocketmq_wire import CLIENT, heartbeat, pull, pyrocketmq_wire, read_route, send, send_back

pytestmark = pytest.mark.e2e

GROUP, TOPIC = "cg", "orders"
OFFSET = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"}


@pytest.fixture
async def addresses(cluster: Cluster) -> tuple[str, str]:
    """Return the addresses of a nameserver and of the only broker, which creates topics."""
    await cluster.nameserver()
    await cluster.broker("broker-a", "--auto-create-topics")
    await cluster.command("topic", "create", TOPIC, "--queues", "4")
    return cluster.addresses["nameserver"], cluster.addresses["broker-a"]


async def test_routes_are_python_literals(addresses: tuple[str, str]) -> None:
    nameserver, broker = addresses
    async with pyrocketmq_wire(nameserver) as names:
        assert read_route((await names.call(105, {"topic": TOPIC})).body) == ({"broker-a": broker}, {"broker-a": 4})
        of_a_broker = await names.call(105, {"topic": "broker-a"})
        assert read_route(of_a_broker.body) == ({"broker-a": broker}, {"broker-a": 1}), "it finds brokers by their names"


async def test_pool_of_connections_consumes_and_commits(addresses: tuple[str, str]) -> None:
    """Heartbeats, pulls, locks and commits go over any connection of a pool."""
    _, address = addresses
    async with pyrocketmq_wire(address) as first, pyrocketmq_wire(address) as second, pyrocketmq_wire(address) as third:
        for wire in (first, second):
            beat = await wire.call(34, None, heartbeat(GROUP, TOPIC, "TagA", "TagC"))
            assert (beat.code, beat.body) == (0, b"")
        assert json.loads((await third.call(38, {"consumerGroup": GROUP})).body) == {"consumerIdList": [CLIENT]}
        for tag in ("TagA", "TagB", "TagC"):
            stored = await third.call(10, send(TOPIC, {"TAGS": tag, "KEYS": "k"}), tag.encode())
            assert (stored.code, stored.fields["queueId"]) == (0, "0"), stored.remark
        queues = [{"topic": TOPIC, "brokerName": "broker-a", "queueId": 0}]
        locked = await first.call(41, None, json.dumps({"consumerGroup": GROUP, "clientId": CLIENT, "mqSet": queues}).encode())
        assert json.loads(locked.body) == {"lockOKMQSet": queues}
        by_group = await second.call(11, pull(GROUP, TOPIC, 0))
        by_request = await third.call(11, pull(GROUP, TOPIC, 0, sys_flag=4, expression="TagB"))
        assert [body for _, body, _ in records(by_group.body)] == [b"TagA", b"TagC"]
        assert [body for _, body, _ in records(by_request.body)] == [b"TagB"]
        assert (await third.call(15, {**OFFSET, "commitOffset": "3"})).code == 0, "on a connection without a heartbeat"
        assert (await first.call(14, OFFSET)).fields == {"offset": "3"}


async def test_failed_message_is_retried_with_its_body_in_the_request(addresses: tuple[str, str]) -> None:
    _, address = addresses
    async with pyrocketmq_wire(address) as broker:
        assert (await broker.call(34, None, heartbeat(GROUP, TOPIC))).code == 0
        await broker.call(10, send(TOPIC, {"TAGS": "TagA"}), b"stored")
        found = await broker.call(11, pull(GROUP, TOPIC, 0))
        position = int.from_bytes(found.body[28:36], "big")
        assert (await broker.call(36, send_back(GROUP, TOPIC, position), b"of the request")).code == 0
        retried = await broker.call(11, pull(GROUP, f"%RETRY%{GROUP}", 0, sys_flag=6))
        ((_, body, properties),) = records(retried.body)
        assert (body, properties["RETRY_TOPIC"]) == (b"stored", TOPIC), "the log's message, as with RocketMQ's broker"
        own = {"RETRY_TOPIC": TOPIC, "ORIGIN_MESSAGE_ID": "AA", "RECONSUME_TIME": "1", "MAX_RECONSUME_TIMES": "16"}
        resent = await broker.call(10, send(f"%RETRY%{GROUP}", own, reconsume_times=1), b"its own retry")
        assert resent.code == 0, resent.remark
        last = await broker.call(11, pull(GROUP, f"%RETRY%{GROUP}", 1, sys_flag=6))
        assert [body for _, body, _ in records(last.body)] == [b"its own retry"]
        assert int.from_bytes(last.body[72:76], "big") == 1, "reconsume times"
