"""The topic for the message traces of RocketMQ's clients."""

import json

import pytest

from support.cluster import Cluster
from support.java_requests import pull, send
from support.java_wire import JSON, java_wire, records

pytestmark = pytest.mark.e2e

TRACES = "RMQ_SYS_TRACE_TOPIC"


async def test_each_broker_that_takes_traces_has_a_queue_and_asks_for_them(cluster: Cluster) -> None:
    await cluster.nameserver()
    for name, options in (("broker-a", ("--trace-topic",)), ("broker-b", ("--trace-topic",)), ("broker-c", ("--flush", "async"))):
        await cluster.broker(name, *options)
    await cluster.command("topic", "create", "orders", "--queues", "1")
    async with java_wire(cluster.addresses["nameserver"], JSON) as names:
        route = json.loads((await names.call(105, {"topic": TRACES})).body)
        assert {each["brokerName"]: each["writeQueueNums"] for each in route["queueDatas"]} == {"broker-a": 1, "broker-b": 1}
        assert json.loads((await names.call(206)).body) == {"topicList": ["orders"]}
    for name, traced in (("broker-a", "true"), ("broker-b", "true"), ("broker-c", "false")):
        async with java_wire(cluster.addresses[name], JSON) as broker:
            assert (await broker.call(310, send(), b"x")).fields["TRACE_ON"] == traced
            sent = await broker.call(310, send(TRACES), b"Pub\x01\x02")
            assert sent.code == (0 if traced == "true" else 1), sent.remark
            if traced == "true":
                assert [body for _, body, _ in records((await broker.call(11, pull(0, topic=TRACES))).body)] == [b"Pub\x01\x02"]


async def test_java_consumers_receive_what_their_traces_need_from_whomever_the_message_comes(cluster: Cluster) -> None:
    await cluster.nameserver()
    await cluster.broker("broker-a", "--trace-topic")
    await cluster.command("topic", "create", "orders", "--queues", "1")
    await cluster.command("send", "orders", "native", "--property", "shop=7")
    async with java_wire(cluster.addresses["broker-a"], JSON) as broker:
        for properties in ("KEYS\x01k", "KEYS\x01k\x02TRACE_ON\x01false\x02", "A\x01" + 30_700 * "a"):
            assert (await broker.call(310, send(properties=properties), b"java")).code == 0
        found = records((await broker.call(11, pull(0))).body)
    assert [(each["MSG_REGION"], each["TRACE_ON"]) for _, _, each in found] == 4 * [("DefaultRegion", "true")]
    assert [offset for offset, _, _ in found] == [0, 1, 2, 3]
    assert [body for _, body, _ in found] == [b"native", b"java", b"java", b"java"]
    assert (found[0][2]["shop"], found[1][2]["KEYS"], len(found[3][2]["A"])) == ("7", "k", 30_700)
    stored = await cluster.command("tail", "orders", "--from-start", "--count", "4", "--json")
    assert "MSG_REGION" not in stored


async def test_nobody_else_creates_or_deletes_the_topic_for_traces(cluster: Cluster) -> None:
    await cluster.nameserver()
    await cluster.broker("broker-a", "--auto-create-topics")
    async with java_wire(cluster.addresses["broker-a"], JSON) as broker:
        refused = await broker.call(310, send(TRACES), b"x")
        assert (refused.code, "broker's own" in (refused.remark or "")) == (16, True)
    await cluster.kill("broker-a")
    for _ in range(2):  # a restart changes nothing
        await cluster.broker("broker-a", "--trace-topic")
        assert "neither altered nor deleted" in await cluster.command("topic", "delete", TRACES, code=1)
        async with java_wire(cluster.addresses["nameserver"], JSON) as names:
            (queues,) = json.loads((await names.call(105, {"topic": TRACES})).body)["queueDatas"]
            assert queues["readQueueNums"] == 1
        await cluster.stop("broker-a")
