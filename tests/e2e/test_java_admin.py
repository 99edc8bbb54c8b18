"""Requests of RocketMQ's tools (mqadmin, dashboard), byte by byte as they send them, and the text of each body of a response."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.cluster import LOOK_S, WAIT_S, Cluster
from support.java_wire import JSON, JavaWire, Reply, java_wire, records

pytestmark = pytest.mark.e2e

V5 = 479
"""RocketMQ 5.3.3."""
TOPIC = {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "perm": "6"}
ORDER = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders"}


def put(topic: str, read: int, write: int, **changes: object) -> dict[str, object]:
    """Return the header of UPDATE_AND_CREATE_TOPIC."""
    return {**TOPIC, "topic": topic, "readQueueNums": read, "writeQueueNums": write, **changes}


def config(topic: str, read: int, write: int, perm: int = 6) -> str:
    """Return the text of a TopicConfig."""
    return (
        f'{{"attributes":{{}},"order":false,"perm":{perm},"readQueueNums":{read},"topicFilterType":"SINGLE_TAG","topicName":"{topic}",'
        f'"topicSysFlag":0,"writeQueueNums":{write}}}'
    )


def group(name: str, **changes: object) -> dict[str, Any]:
    """Return a SubscriptionGroupConfig as `mqadmin updateSubGroup` sends it."""
    policy = {"nextDelayDuration": None, "type": "CUSTOMIZED"}
    numbers = {"brokerId": 0, "consumeTimeoutMinute": 15, "groupSysFlag": 0, "retryMaxTimes": 16, "retryQueueNums": 1}
    flags = {"consumeBroadcastEnable": False, "consumeEnable": True, "consumeFromMinEnable": False, "consumeMessageOrderly": False}
    others = {"attributes": {}, "groupRetryPolicy": policy, "notifyConsumerIdsChangedEnable": True, "whichBrokerWhenConsumeSlowly": 1}
    return {**numbers, **flags, **others, "groupName": name, **changes}


def group_text(name: str, *, consume: str = "true") -> str:
    """Return the text of a SubscriptionGroupConfig in a response."""
    return (
        f'{{"attributes":{{}},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":{consume},"consumeFromMinEnable":true,'
        f'"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"{name}","groupSysFlag":0,'
        '"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}'
    )


def without_version(body: bytes) -> str:
    """Return the text of a table without its DataVersion, whose time is that of the response."""
    plain = json.loads(body)
    assert plain["dataVersion"]["counter"] == plain["dataVersion"]["stateVersion"] == 0
    assert plain["dataVersion"]["timestamp"] > 1_700_000_000_000
    head, _, rest = body.decode().partition("},")
    assert head.startswith('{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":')
    return rest


async def send(broker: JavaWire, topic: str, queue_id: int = 0) -> Reply:
    numbers = {"d": "4", "f": "0", "g": "1700000000000", "h": "0", "j": "0"}
    header = {"a": "pg", "b": topic, "c": "TBW102", **numbers, "e": queue_id, "i": "", "k": "false", "m": "false"}
    stored = await broker.call(310, header, b"x")
    assert stored.code == 0, stored.remark
    return stored


@pytest.fixture
async def wires(cluster: Cluster) -> AsyncIterator[tuple[JavaWire, JavaWire, JavaWire]]:
    """Connections to a nameserver and two brokers."""
    await cluster.nameserver()
    for name in ("broker-a", "broker-b"):
        await cluster.broker(name)
    addresses = [cluster.addresses[name] for name in ("nameserver", "broker-a", "broker-b")]
    async with java_wire(addresses[0], JSON) as names, java_wire(addresses[1], JSON) as a, java_wire(addresses[2], JSON) as b:
        yield names, a, b


async def refused(wire: JavaWire, code: int, fields: dict[str, Any] | None = None, body: bytes = b"") -> tuple[int, str]:
    reply = await wire.call(code, fields, body)
    assert (reply.fields, reply.body) == ({}, b"")
    return reply.code, reply.remark or ""


async def queue_data(names: JavaWire, topic: str) -> list[tuple[str, int, int, int]]:
    route = json.loads((await names.call(105, {"topic": topic})).body)
    return [(each["brokerName"], each["perm"], each["readQueueNums"], each["writeQueueNums"]) for each in route["queueDatas"]]


async def test_topic_is_created_grown_and_closed_to_writers(wires: tuple[JavaWire, JavaWire, JavaWire]) -> None:
    names, a, b = wires
    assert (await a.call(17, put("orders", 2, 2))).code == 0
    assert await queue_data(names, "orders") == [("broker-a", 6, 2, 2)], "the response waits for the nameserver"
    assert (await b.call(17, put("orders", 1, 1))).code == 0
    assert (await a.call(17, put("orders", 4, 4))).code == 0
    assert await queue_data(names, "orders") == [("broker-a", 6, 4, 4), ("broker-b", 6, 1, 1)]
    assert (await a.call(351, {"topic": "orders", "lo": "true"}, version=V5)).body.decode() == config("orders", 4, 4)
    assert (await a.call(17, put("orders", 4, 4, perm=4))).code == 0
    assert await queue_data(names, "orders") == [("broker-a", 4, 4, 0), ("broker-b", 6, 1, 1)]
    assert (await a.call(351, {"topic": "orders"})).body.decode() == config("orders", 4, 0, 4)
    sent = {"topic": "orders", "queueId": "0", "producerGroup": "pg", "sysFlag": 0, "bornTimestamp": 1, "flag": 0}
    assert (await a.call(10, sent, b"x")).code == 1, "the queue is closed"
    assert (await a.call(17, put("orders", 4, 0))).code == 0, "updateTopicPerm -p 6 sends the counts of the route"
    assert await queue_data(names, "orders") == [("broker-a", 6, 4, 4), ("broker-b", 6, 1, 1)]
    assert (await a.call(17, put("orders", 2, 2))).code == 0
    assert await queue_data(names, "orders") == [("broker-a", 6, 2, 2), ("broker-b", 6, 1, 1)]


async def test_queues_of_every_broker_remain_when_brokers_are_asked_in_turn(wires: tuple[JavaWire, JavaWire, JavaWire]) -> None:
    names, a, b = wires
    for number in range(20):
        topic = f"topic-{number}"
        for broker in (a, b, a):
            assert (await broker.call(17, put(topic, 1 + (broker is b), 1))).code == 0
        assert await queue_data(names, topic) == [("broker-a", 6, 1, 1), ("broker-b", 6, 2, 1)], topic


async def test_what_a_topic_cannot_be_is_refused_with_words(wires: tuple[JavaWire, JavaWire, JavaWire]) -> None:
    names, a, _ = wires
    assert (await a.call(17, put("orders", 2, 2))).code == 0
    for header, code, said in (
        (put("orders", 2, 2, perm=2), 13, "perm 2"),
        (put("orders", 2, 2, perm=4), 16, "no queue to write to"),
        (put("orders", 0, 2), 13, "0 queues to read"),
        (put("orders", 2, 4), 13, "could not be read"),
        (put("orders", 2, 2, topicSysFlag=1), 13, "topicSysFlag"),
        (put("orders", 2, 2, attributes="+cleanup.policy=COMPACTION"), 13, "cleanup.policy"),
        (put("TBW102", 8, 8), 1, "the broker's own"),
        (put("SCHEDULE_TOPIC_XXXX", 8, 8), 1, "the broker's own"),
        (put("no/topic", 8, 8), 1, "illegal characters"),
        (put("orders", "many", 2), 1, "readQueueNums"),  # type: ignore[arg-type]
        ({"readQueueNums": "2"}, 1, "topic: missing"),
    ):
        found = await refused(a, 17, header)
        assert (found[0], said in found[1]) == (code, True), (header, found)
    assert await queue_data(names, "orders") == [("broker-a", 6, 2, 2)], "nothing was changed"


async def test_queues_with_messages_that_a_group_lacks_are_not_removed(wires: tuple[JavaWire, JavaWire, JavaWire]) -> None:
    _, a, _ = wires
    await a.call(17, put("orders", 2, 2))
    await send(a, "orders", queue_id=1)
    progress = {"consumerGroup": "billing", "topic": "orders", "queueId": "1"}
    assert (await a.call(15, {**progress, "commitOffset": "0"})).code == 0
    code, remark = await refused(a, 17, put("orders", 1, 1))
    assert code == 16
    assert "group billing has not consumed 1 messages" in remark
    assert (await a.call(15, {**progress, "commitOffset": "1"})).code == 0
    assert (await a.call(17, put("orders", 1, 1))).code == 0
    assert (await a.call(351, {"topic": "orders"})).body.decode() == config("orders", 1, 1)


async def test_list_of_topics_is_created_or_refused(wires: tuple[JavaWire, JavaWire, JavaWire]) -> None:
    names, a, _ = wires
    topics = [json.loads(config(topic, 2, 2)) for topic in ("one", "two")]
    assert (await a.call(18, None, json.dumps({"topicConfigList": topics}).encode())).code == 0
    assert json.loads((await names.call(206)).body) == {"topicList": ["one", "two"]}
    topics = [json.loads(config("three", 1, 1)), json.loads(config("four", 1, 1, perm=2))]
    assert (await refused(a, 18, None, json.dumps({"topicConfigList": topics}).encode()))[0] == 13
    assert json.loads((await names.call(206)).body) == {"topicList": ["one", "two"]}, "none of a list that has an impossible one"
    many = json.dumps({"topicConfigList": [{"topicName": f"t{number}"} for number in range(1_001)]}).encode()
    assert (await refused(a, 18, None, many)) == (13, "1001 topics in one request: at most 1000")
    assert (await refused(a, 18, None, b"{}"))[0] == 1


async def test_configs_of_all_topics_have_javas_text(wires: tuple[JavaWire, JavaWire, JavaWire]) -> None:
    _, a, b = wires
    await a.call(17, put("orders", 4, 4))
    await b.call(17, put("bills", 1, 1))
    every = (await a.call(21)).body
    assert without_version(every) == f'"topicConfigTable":{{"orders":{config("orders", 4, 4)}}}}}'
    assert (await refused(a, 351, {"topic": "missing"}))[0] == 17


async def test_offsets_of_a_topic_are_keyed_by_queues(wires: tuple[JavaWire, JavaWire, JavaWire]) -> None:
    _, a, _ = wires
    await a.call(17, put("orders", 2, 2))
    await send(a, "orders", queue_id=1)
    stats = (await a.call(202, {"topic": "orders"})).body.decode()
    pull = {"consumerGroup": "cg", "topic": "orders", "queueId": "1", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4"}
    pulled = await a.call(11, {**pull, "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"})
    stored_ms = int.from_bytes(pulled.body[56:64], "big")
    assert records(pulled.body)
    assert stats == (
        '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0},'
        f'{{"brokerName":"broker-a","queueId":1,"topic":"orders"}}:{{"lastUpdateTimestamp":{stored_ms},"maxOffset":1,"minOffset":0}}}}}}'
    )
    assert (await refused(a, 202, {"topic": "missing"}))[0] == 17


async def test_topic_is_deleted_in_the_whole_cluster(wires: tuple[JavaWire, JavaWire, JavaWire]) -> None:
    names, a, b = wires
    for broker in (a, b):
        assert (await broker.call(17, put("orders", 2, 2))).code == 0
    assert (await a.call(215, {"topic": "orders"})).code == 0
    assert (await names.call(105, {"topic": "orders"})).code == 17, "the response waits for the nameserver"
    assert (await b.call(215, {"topic": "orders"})).code == 0, "mqadmin asks every broker"
    assert (await names.call(216, {"topic": "orders"})).code == 0
    assert json.loads((await names.call(206)).body) == {"topicList": []}
    assert (await a.call(215, {"topic": "unknown"})).code == 0, "as in RocketMQ"
    assert (await refused(a, 215, {"topic": "LOCKSTEP_SYS_STATE"}))[0] == 1
    assert (await a.call(17, put("%DLQ%cg", 1, 1))).code == 0
    await send(a, "%DLQ%cg")
    code, remark = await refused(a, 215, {"topic": "%DLQ%cg"})
    assert code == 16
    assert "holds 1 messages" in remark


async def test_topic_lists_have_javas_text(cluster: Cluster, wires: tuple[JavaWire, JavaWire, JavaWire]) -> None:
    names, a, _ = wires
    await a.call(17, put("orders", 2, 2))
    assert (await names.call(224, {"cluster": "DefaultCluster"})).body == b'{"topicList":["orders"]}'
    assert (await names.call(224, {"cluster": "another"})).body == b'{"topicList":[]}'
    system = (await names.call(304)).body.decode()
    assert system == f'{{"brokerAddr":"{cluster.addresses["broker-a"]}","topicList":["DefaultCluster","broker-a","broker-b"]}}'
    own = json.loads((await a.call(305)).body)["topicList"]
    assert {"broker-a", "DefaultCluster", "SCHEDULE_TOPIC_XXXX", "LOCKSTEP_SYS_STATE", "SELF_TEST_TOPIC"} <= set(own)
    assert "orders" not in own
    assert "TBW102" not in own, "it creates no topics"
    for code in (311, 312, 313):
        assert (await names.call(code)).body == b'{"topicList":[]}'


async def test_groups_are_stopped_and_listed(wires: tuple[JavaWire, JavaWire, JavaWire]) -> None:
    _, a, _ = wires
    assert (await a.call(200, None, json.dumps(group("billing", consumeEnable=False)).encode())).code == 0
    assert (await a.call(352, {"group": "billing"}, version=V5)).body.decode() == group_text("billing", consume="false")
    await a.call(17, put("orders", 1, 1))
    pull = {"consumerGroup": "billing", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4"}
    pull |= {"commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}
    assert (await refused(a, 11, pull))[0] == 16
    many = json.dumps({"groupConfigList": [group("billing"), group("audit")]}).encode()
    assert (await a.call(225, None, many, version=V5)).code == 0
    assert (await a.call(11, pull)).code == 19
    every = (await a.call(201)).body
    texts = f'"audit":{group_text("audit")},"billing":{group_text("billing")}'
    assert without_version(every) == f'"subscriptionGroupTable":{{{texts}}}}}'
    assert (await refused(a, 352, {"group": "missing"}))[0] == 26


async def test_other_settings_of_a_group_remain(cluster: Cluster, wires: tuple[JavaWire, JavaWire, JavaWire]) -> None:
    _, a, b = wires
    await cluster.command("group", "create", "billing", "--subscription-policy", "classic")
    for broker in (a, b):
        assert (await broker.call(200, None, json.dumps(group("billing", consumeEnable=False)).encode())).code == 0
    shown = json.loads(await cluster.command("group", "show", "billing", "--json"))
    assert shown["settings"] == {"subscription_policy": "classic", "consume": False}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"retryMaxTimes": 3}, "retryMaxTimes 3"),
        ({"retryQueueNums": "2"}, "retryQueueNums 2"),
        ({"consumeMessageOrderly": True}, "consumeMessageOrderly True"),
        ({"notifyConsumerIdsChangedEnable": False}, "notifyConsumerIdsChangedEnable"),
        ({"groupSysFlag": 1}, "groupSysFlag 1"),
        ({"consumeTimeoutMinute": 30}, "consumeTimeoutMinute 30"),
        ({"groupRetryPolicy": {"type": "EXPONENTIAL"}}, "EXPONENTIAL"),
        ({"groupRetryPolicy": {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000]}}}, "customizedRetryPolicy"),
        ({"subscriptionDataSet": [{"topic": "orders"}]}, "subscriptionDataSet"),
        ({"attributes": {"+a": "b"}}, "attributes"),
        ({"groupName": "no/group"}, "illegal characters"),
        ({"groupName": None}, "groupName"),
    ],
)
async def test_what_a_group_cannot_be_is_refused_with_words(
    wires: tuple[JavaWire, JavaWire, JavaWire], changes: dict[str, Any], said: str
) -> None:
    _, a, _ = wires
    for code, body in ((200, group("billing", **changes)), (225, {"groupConfigList": [group("audit"), group("billing", **changes)]})):
        found = await refused(a, code, None, json.dumps(body).encode())
        assert (found[0] in (1, 13), said in found[1]) == (True, True), found
    assert without_version((await a.call(201)).body) == '"subscriptionGroupTable":{}}'


async def test_settings_are_shown_and_never_changed(wires: tuple[JavaWire, JavaWire, JavaWire]) -> None:
    names, a, _ = wires
    shown = (await a.call(26)).body.decode().splitlines()
    values = dict(line.split("=", 1) for line in shown)
    assert (values["name"], values["brokerName"], values["flush"], values["flushDiskType"]) == (
        "broker-a",
        "broker-a",
        "async",
        "ASYNC_FLUSH",
    )
    assert (values["disconnect_grace_ms"], values["fileReservedTime"], values["autoCreateTopicEnable"]) == ("1000", "72", "false")
    assert (values["listenPort"], values["traceTopicEnable"]) == (str(a.writer.get_extra_info("peername")[1]), "false")
    assert values["messageDelayLevel"].startswith("1s 5s")
    assert not [name for name in values if "proof" in name or "store_id" in name]
    for body in (b"flushDiskType=SYNC_FLUSH\n", b"retention_hours=1\n", b"filterServerNums=1\nrocketmqHome=;id\n", b""):
        code, remark = await refused(a, 25, None, body)
        assert (code, "settings are not changed" in remark) == (16, True)
        code, remark = await refused(names, 318, None, body)
        assert (code, "settings are not changed" in remark) == (16, True)
    assert (await a.call(26)).body.decode().splitlines() == shown
    own = (await names.call(319)).body.decode()
    assert own.splitlines()[1:] == ["connectionsMax=10000", "orderMessageEnable=false"]
    assert own.startswith("listen=127.0.0.1:")


EXPORTED = """
    bootTimestamp brokerVersion brokerVersionDesc commitLogDirCapacity commitLogDiskRatio commitLogMaxOffset commitLogMinOffset
    consumeQueueDiskRatio dispatchBehindBytes dispatchMaxBuffer earliestMessageTimeStamp getFoundTps getMessageEntireTimeMax getMissTps
    getTotalTps getTransferredTps msgGetTotalTodayMorning msgGetTotalTodayNow msgGetTotalYesterdayMorning msgPutTotalTodayMorning
    msgPutTotalTodayNow msgPutTotalYesterdayMorning pageCacheLockTimeMills pullThreadPoolQueueCapacity pullThreadPoolQueueHeadWaitTimeMills
    pullThreadPoolQueueSize putMessageAverageSize putMessageDistributeTime putMessageEntireTimeMax putMessageSizeTotal putMessageTimesTotal
    putTps queryThreadPoolQueueCapacity queryThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize remainHowManyDataToFlush
    remainTransientStoreBufferNumbs runtime sendThreadPoolQueueCapacity sendThreadPoolQueueHeadWaitTimeMills sendThreadPoolQueueSize
    startAcceptSendRequestTimeStamp
"""
"""What rocketmq-exporter reads. It shows nothing of a broker that leaves one of them out."""
RANGES = "[<=0ms] [0~10ms] [10~50ms] [50~100ms] [100~200ms] [200~500ms] [500ms~1s] [1~2s] [2~3s] [3~4s] [4~5s] [5~10s] [10s~]"


async def test_runtime_information_is_text_that_tools_can_read(wires: tuple[JavaWire, JavaWire, JavaWire]) -> None:
    _, a, _ = wires
    body = (await a.call(28)).body
    table: dict[str, str] = json.loads(body)["table"]
    assert body.startswith(b'{"table":{"bootTimestamp":"')
    assert list(table) == sorted(table)
    assert all(isinstance(value, str) and value for value in table.values())
    for name in ("putTps", "getTransferedTps", "getTransferredTps", "getTotalTps", "getFoundTps", "getMissTps"):
        assert [f"{float(part):.3f}" for part in table[name].split(" ")] == table[name].split(" ")
        assert len(table[name].split(" ")) == 3
    assert (table["brokerVersionDesc"], table["brokerVersion"], table["brokerActive"]) == ("V4_9_8", "409", "true")
    assert 0 <= float(table["commitLogDiskRatio"]) <= 1
    assert int(table["bootTimestamp"]) > 1_700_000_000_000
    assert not set(EXPORTED.split()) - set(table)
    assert 0 == int(table["commitLogMinOffset"]) < int(table["commitLogMaxOffset"])
    assert 1_700_000_000_000 < int(table["earliestMessageTimeStamp"]) <= int(table["bootTimestamp"])
    ranges = [each.partition(":") for each in table["putMessageDistributeTime"].split(" ")]
    assert [name for name, _, count in ranges if count.isdecimal()] == RANGES.split()
    assert table["runtime"].startswith("[ 0 days, 0 hours, ")


async def test_statistics_have_the_text_that_tools_read(wires: tuple[JavaWire, JavaWire, JavaWire]) -> None:
    _, a, b = wires
    await a.call(17, put("orders", 1, 1))
    sent = await send(a, "orders")
    back = {"offset": str(int(sent.fields["msgId"][16:], 16)), "group": "billing", "delayLevel": "-1"}
    assert (await a.call(36, back)).code == 0
    names = "TOPIC_PUT_NUMS, TOPIC_PUT_SIZE, GROUP_GET_NUMS, GROUP_GET_SIZE, SNDBCK_PUT_NUMS, BROKER_PUT_NUMS, BROKER_GET_NUMS"
    for fields in ({"statsName": "TOPIC_PUT_NUMS", "statsKey": "missing"}, {"statsName": "BROKER_ACK_NUMS", "statsKey": "orders"}):
        code, remark = await refused(b, 315, fields)
        assert (code, f"there are {names}" in remark) == (1, True)
    expected = {("BROKER_PUT_NUMS", "DefaultCluster"): 2, ("SNDBCK_PUT_NUMS", "orders@billing"): 1, ("TOPIC_PUT_NUMS", "orders"): 1}
    counted: dict[tuple[str, str], Any] = {}
    async with asyncio.timeout(WAIT_S):
        while {each: found["statsMinute"]["sum"] for each, found in counted.items()} != expected:  # a sample is taken every 10 s
            await asyncio.sleep(LOOK_S)
            for name, key in expected:
                answer = await a.call(315, {"statsName": name, "statsKey": key})
                counted |= {(name, key): json.loads(answer.body)} if answer.code == 0 else {}
    found = json.loads(answer.body)
    assert list(found) == ["statsDay", "statsHour", "statsMinute"]
    assert answer.body.startswith(b'{"statsDay":{"sum":1,"tps":0.')
    table = json.loads((await a.call(28)).body)["table"]
    assert (table["msgPutTotalTodayNow"], table["putMessageTimesTotal"]) == ("2", "2"), "the message, and the dead letter"
    size = int(table["putMessageSizeTotal"])
    assert (size > 200, table["putMessageAverageSize"]) == (True, f"{size / 2:.3f}")
    assert sum(int(each.rpartition(":")[2]) for each in table["putMessageDistributeTime"].split()) >= 1


async def test_key_value_settings_have_one_namespace(wires: tuple[JavaWire, JavaWire, JavaWire]) -> None:
    names, _, _ = wires
    assert (await refused(names, 101, ORDER))[0] == 22
    assert (await refused(names, 219, {"namespace": "ORDER_TOPIC_CONFIG"}))[0] == 22
    assert (await names.call(100, {**ORDER, "value": "broker-a:4;broker-b:4"})).code == 0
    assert (await names.call(101, ORDER)).fields == {"value": "broker-a:4;broker-b:4"}
    assert (await names.call(219, {"namespace": "ORDER_TOPIC_CONFIG"})).body == b'{"table":{"orders":"broker-a:4;broker-b:4"}}'
    assert (await names.call(102, ORDER)).code == 0
    assert (await refused(names, 101, ORDER))[0] == 22
    other = {"namespace": "PROJECT_CONFIG", "key": "a"}
    assert (await refused(names, 100, {**other, "value": "b"}))[0] == 16
    assert (await refused(names, 102, other))[0] == 16
    assert (await refused(names, 219, {"namespace": "PROJECT_CONFIG"}))[0] == 22
    assert (await refused(names, 100, {**ORDER, "key": "no/topic", "value": "b"}))[0] == 1


async def test_what_nameservers_do_not_do_is_refused_with_words(wires: tuple[JavaWire, JavaWire, JavaWire]) -> None:
    names, a, _ = wires
    apache = {"brokerName": "apache", "brokerAddr": "10.0.0.9:10911", "clusterName": "c", "brokerId": "0", "haServerAddr": "10.0.0.9:10912"}
    body = b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":0,"timestamp":1},"topicConfigTable":{}}}'
    for code in (103, 104):
        answer, remark = await refused(names, code, apache, body)
        assert (answer, "Apache RocketMQ can't register here" in remark) == (1, True)
    for code in (205, 327):
        answer, remark = await refused(names, code, {"brokerName": "broker-a"})
        assert (answer, "lockstep topic alter" in remark) == (16, True)
    clusters = (await names.call(106)).body
    assert b"apache" not in clusters
    for code in (306, 316, 329):
        assert (await a.call(code)).code == 0, "there is nothing to clean"
    for code in (322, 401, 513, 901, 1_001, 2_001, 3_001):
        assert (await refused(names, code))[0] == 3
        assert (await refused(a, code))[0] == 3


CODES = (
    *(17, 18, 21, 25, 26, 28, 100, 101, 102, 103, 104, 200, 201, 202, 205, 215, 216, 219, 224, 225),
    *(304, 305, 306, 311, 312, 313, 315, 316, 318, 319, 327, 329, 351, 352),
)
NAMES = ("topic", "group", "namespace", "key", "value", "cluster", "statsName", "statsKey", "readQueueNums", "writeQueueNums", "perm")
BODIES = (
    *(b"", b"null", b"[]", b"{}", b"7", b"\xff", b"[" * 50_000, b'{"a":NaN}', b'{"topicConfigList":null}', b'{"topicConfigList":[7]}'),
    *(b'{"topicConfigList":[{"topicName":null}]}', b'{"topicConfigList":[{"topicName":"t","perm":"x"}]}', b'{"groupName":"\\ud800"}'),
    *(
        b'{"groupConfigList":{}}',
        b'{"groupConfigList":[[]]}',
        b'{"groupName":"g","attributes":[1]}',
        b'{"groupName":"g","groupRetryPolicy":7}',
    ),
)
VALUES = ("", "x", "-1", "99999999999999999999", "\u0000", "%RETRY%", "a" * 3_000, "\U0001f600")


async def test_malformed_requests_fail_alone_and_are_foreseen(cluster: Cluster, wires: tuple[JavaWire, JavaWire, JavaWire]) -> None:
    names, a, _ = wires
    for wire in (names, a):
        for code in CODES:
            for body in BODIES:
                assert (await wire.call(code, {"topic": "orders"}, body)).code in (0, 1, 3, 13, 16, 17, 22, 26), (code, body[:40])
            for value in VALUES:
                found = await wire.call(code, dict.fromkeys(NAMES, value))
                assert found.code in (0, 1, 3, 13, 16, 17, 22, 26), (code, value[:40])
    assert (await a.call(17, put("orders", 1, 1))).code == 0, "the connections are still served"
    assert await queue_data(names, "orders") == [("broker-a", 6, 1, 1)]
    for process in ("nameserver", "broker-a"):
        assert not cluster.reported_events(process, "request.failed"), "no error that was not foreseen"
