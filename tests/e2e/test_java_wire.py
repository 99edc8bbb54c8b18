"""RocketMQ's own wire formats against real servers: every request that its clients send, byte by byte as they send it."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lockstep.broker.classic.batch import BATCH_MAX
from lockstep.protocol.frame import FRAME_BYTES_MAX
from support.cluster import Cluster
from support.java_requests import CLIENT, GROUP, send
from support.java_wire import BINARY, JSON, JavaWire, batch, java_wire, records

pytestmark = pytest.mark.e2e

QUEUE = {"topic": "orders", "queueId": "0"}
PULL = {"maxMsgNums": "32", "commitOffset": "0", "suspendTimeoutMillis": "15000", "subVersion": "1700000000000", "expressionType": "TAG"}


def heartbeat(group: str = "cg", expression: str = "*", **changes: object) -> bytes:
    subscription = {"classFilterMode": False, "codeSet": [], "expressionType": "TAG", "subString": expression, "subVersion": 1700000000000}
    consumer = {
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": group,
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [{**subscription, "tagsSet": [], "topic": "orders"}],
        "unitMode": False,
        **changes,
    }
    return json.dumps({"clientID": CLIENT, "consumerDataSet": [consumer], "producerDataSet": [{"groupName": "pg"}]}).encode()


@pytest.fixture(params=[JSON, BINARY], ids=["json", "binary"])
async def wires(cluster: Cluster, request: pytest.FixtureRequest) -> AsyncIterator[tuple[JavaWire, JavaWire]]:
    """Connections to a nameserver and to the only broker, which creates topics."""
    await cluster.nameserver()
    await cluster.broker("broker-a", "--auto-create-topics")
    await cluster.command("topic", "create", "orders", "--queues", "4")
    addresses = cluster.addresses["nameserver"], cluster.addresses["broker-a"]
    async with java_wire(addresses[0], request.param) as names, java_wire(addresses[1], request.param) as broker:
        yield names, broker


async def test_routes_have_the_form_that_each_version_reads(cluster: Cluster, wires: tuple[JavaWire, JavaWire]) -> None:
    names, _ = wires
    address = cluster.addresses["broker-a"]
    for version, number, acting, flag in (
        (317, "0", "", '"topicSynFlag":0,"topicSysFlag":0'),
        (409, '"0"', "", '"topicSysFlag":0'),
        (474, '"0"', ',"enableActingMaster":false', '"topicSysFlag":0'),
    ):
        route = await names.call(105, {"topic": "orders"}, version=version)
        assert route.code == 0
        assert route.body.decode() == (
            f'{{"brokerDatas":[{{"brokerAddrs":{{{number}:"{address}"}},"brokerName":"broker-a","cluster":"DefaultCluster"{acting}}}],'
            f'"filterServerTable":{{}},"queueDatas":[{{"brokerName":"broker-a","perm":6,"readQueueNums":4,{flag},"writeQueueNums":4}}]}}'
        )
    quoted = await names.call(105, {"topic": "orders", "acceptStandardJsonOnly": "true"}, version=317)
    assert b'{"0":"' in quoted.body
    assert b'"enableActingMaster":false' in (await names.call(106, version=474)).body
    missing = await names.call(105, {"topic": "missing"})
    assert (missing.code, missing.body) == (17, b"")
    assert "no topic 'missing'" in (missing.remark or "")
    clusters = await names.call(106)
    assert json.loads(clusters.body.replace(b"{0:", b'{"0":')) == {
        "brokerAddrTable": {"broker-a": {"brokerAddrs": {"0": address}, "brokerName": "broker-a", "cluster": "DefaultCluster"}},
        "clusterAddrTable": {"DefaultCluster": ["broker-a"]},
    }
    assert json.loads((await names.call(206)).body) == {"topicList": ["orders"]}


async def test_topics_that_rocketmqs_brokers_register_have_routes(wires: tuple[JavaWire, JavaWire]) -> None:
    names, _ = wires
    expected = {"TBW102": 8, "broker-a": 1, "DefaultCluster": 16, "DefaultCluster_REPLY_TOPIC": 1, "SELF_TEST_TOPIC": 1}
    for topic, count in expected.items():
        (queues,) = json.loads((await names.call(105, {"topic": topic})).body)["queueDatas"]
        assert (queues["readQueueNums"], queues["writeQueueNums"]) == (count, count), topic
    assert json.loads((await names.call(206)).body) == {"topicList": ["orders"]}, "they are in no list"


async def test_sends_in_every_form_are_stored_and_pulled(wires: tuple[JavaWire, JavaWire]) -> None:
    _, broker = wires
    unique = "7F0000010A1B18B4AAC21234567800AB"
    first = await broker.call(310, send(properties=f"TAGS\x01TagA\x02UNIQ_KEY\x01{unique}\x02WAIT\x01true"), b"hello")
    assert (first.code, first.fields["queueId"], first.fields["queueOffset"]) == (0, "0", "0")
    assert (len(first.fields["msgId"]), first.fields["MSG_REGION"], first.fields["TRACE_ON"]) == (32, "DefaultRegion", "false")
    assert "transactionId" not in first.fields
    newer = await broker.call(310, send(properties=f"UNIQ_KEY\x01{unique}"), b"5.x", version=479)
    assert newer.fields["transactionId"] == unique
    long_names = {"producerGroup": "pg", **QUEUE, "sysFlag": 0, "bornTimestamp": 1700000000000, "flag": 7, "properties": "A\x01b\x02"}
    assert (await broker.call(10, long_names, b"V1")).fields["queueOffset"] == "2"
    many = await broker.call(320, send(properties="B\x01batch", m="true"), batch((b"x", "WAIT\x01true\x02TAGS\x01TagA"), (b"y", "")))
    assert (many.code, many.fields["queueOffset"], len(many.fields["msgId"].split(","))) == (0, "3", 2)
    also = await broker.call(310, send(m="true"), batch((b"z", "C\x011")))
    assert also.fields["queueOffset"] == "5", "the flag decides, not the code"
    pulled = await broker.call(11, {**GROUP, **PULL, "queueOffset": "0", "sysFlag": "6", "subscription": "*"})
    assert (pulled.code, pulled.fields["nextBeginOffset"], pulled.fields["minOffset"], pulled.fields["maxOffset"]) == (0, "6", "0", "6")
    assert pulled.fields["suggestWhichBrokerId"] == "0"
    found = records(pulled.body)
    assert [(offset, body) for offset, body, _ in found] == [(0, b"hello"), (1, b"5.x"), (2, b"V1"), (3, b"x"), (4, b"y"), (5, b"z")]
    cluster = {"CLUSTER": "DefaultCluster"}
    assert found[0][2] == {"TAGS": "TagA", "UNIQ_KEY": unique, **cluster}, "WAIT is not stored"
    own = [{"TAGS": "TagA", "B": "batch"}, {"B": "batch"}, {"C": "1"}]
    assert [properties for _, _, properties in found[3:]] == [{**each, **cluster} for each in own]
    lite = await broker.call(361, {**GROUP, **PULL, "queueOffset": "0", "sysFlag": "20", "subscription": "TagA"})
    assert [body for _, body, _ in records(lite.body)] == [b"hello", b"x"]
    viewed = await broker.call(33, {"offset": int(first.fields["msgId"][16:], 16)})
    assert records(viewed.body)[0][1] == b"hello"


async def test_first_send_creates_the_topic_as_its_default_topic_says(wires: tuple[JavaWire, JavaWire]) -> None:
    names, broker = wires
    assert (await broker.call(310, send("fresh", d="2"), b"x")).code == 0
    route = await names.call(105, {"topic": "fresh"})
    assert json.loads(route.body)["queueDatas"][0]["writeQueueNums"] == 2


async def test_member_consumes_by_heartbeat_lock_offset_and_list(wires: tuple[JavaWire, JavaWire]) -> None:
    names, broker = wires
    await broker.call(310, send(properties="TAGS\x01TagA"), b"1")
    beat = await broker.call(34, None, heartbeat())
    assert (beat.code, beat.fields, beat.body) == (0, {}, b"")
    assert json.loads((await names.call(105, {"topic": "%RETRY%cg"})).body)["queueDatas"][0]["readQueueNums"] == 1
    assert json.loads((await broker.call(38, {"consumerGroup": "cg"})).body) == {"consumerIdList": [CLIENT]}
    assert (40, {"consumerGroup": "cg"}) in [(code, request.fields) for code, request in broker.pushed], "and nothing of ours"
    queues = [{"brokerName": "broker-a", "queueId": 0, "topic": "orders"}]
    asked = json.dumps({"clientId": CLIENT, "consumerGroup": "cg", "mqSet": queues, "onlyThisBroker": False}).encode()
    assert json.loads((await broker.call(41, None, asked)).body) == {"lockOKMQSet": queues}
    other = json.dumps({"clientId": "another", "consumerGroup": "cg", "mqSet": queues}).encode()
    assert json.loads((await broker.call(41, None, other)).body) == {"lockOKMQSet": []}
    assert (await broker.call(14, GROUP)).fields == {"offset": "0"}
    pulled = await broker.call(11, {**GROUP, **PULL, "queueOffset": "0", "sysFlag": "2"})
    assert [body for _, body, _ in records(pulled.body)] == [b"1"]
    assert (await broker.call(15, {**GROUP, "commitOffset": "1"})).code == 0
    assert (await broker.call(14, GROUP)).fields == {"offset": "1"}
    assert [(await broker.call(code, QUEUE)).fields["offset"] for code in (30, 31)] == ["1", "0"]
    assert (await broker.call(29, {**QUEUE, "timestamp": "0"})).fields == {"offset": "0"}
    position = int.from_bytes(pulled.body[28:36], "big")
    assert (await broker.call(36, {"offset": position, "group": "cg", "delayLevel": 1, "originTopic": "orders"})).code == 0
    retried = await broker.call(11, {**GROUP, **PULL, "topic": "%RETRY%cg", "queueOffset": "0", "sysFlag": "6", "subscription": "*"})
    ((_, body, properties),) = records(retried.body)
    assert (body, properties["RETRY_TOPIC"]) == (b"1", "orders")
    assert (await broker.call(42, None, asked)).code == 0
    assert (await broker.call(35, {"clientID": CLIENT, "producerGroup": "", "consumerGroup": "cg"})).code == 0
    assert (await broker.call(38, {"consumerGroup": "cg"})).code == 1


@pytest.mark.parametrize("name", ["subscriptionDataSet", "subscriptionData"])
async def test_heartbeats_of_other_clients_are_read(wires: tuple[JavaWire, JavaWire], name: str) -> None:
    _, broker = wires
    subscription = {"topic": "orders", "subString": "TagA", "subVersion": "17", "codeSet": ["2598919"]}
    changes: dict[str, Any] = {
        "subscriptionDataSet": None,
        name: [subscription],
        "consumeFromWhere": 4,
        "consumeType": 1,
        "messageModel": 1,
    }
    assert (await broker.call(34, None, heartbeat("numbers", **changes))).code == 0
    await broker.call(310, send(properties="TAGS\x01TagB"), b"b")
    await broker.call(310, send(properties="TAGS\x01TagA"), b"a")
    pulled = await broker.call(11, {**GROUP, **PULL, "consumerGroup": "numbers", "subVersion": "17", "queueOffset": "0", "sysFlag": "0"})
    assert [body for _, body, _ in records(pulled.body)] == [b"a"]


async def test_what_is_not_supported_is_refused_with_words(wires: tuple[JavaWire, JavaWire]) -> None:
    names, broker = wires
    other, wrong = (
        json.dumps({"clientId": CLIENT, "group": "cg", "subscriptionData": {"topic": "orders", "subString": text, "expressionType": kind}})
        for kind, text in (("XPATH", "a > 1"), ("SQL92", "a >> 1"))
    )
    for code, fields, body, wanted, said in (
        (9_999, {}, b"", 3, "not supported"),
        (25, {}, b"flushDiskType=SYNC_FLUSH", 16, "settings are not changed"),
        (30_001, {}, b"", 3, "not supported"),
        (46, {}, other.encode(), 1, "does not support filters of type XPATH"),
        (46, {}, wrong.encode(), 23, "got '>', at character 4 of the SQL92 expression"),
        (310, send(properties="TRAN_MSG\x01true"), b"x", 13, "transactions are not supported"),
        (310, send(f="4"), b"x", 13, "transactions are not supported"),
        (310, send(properties="PGROUP\x01pg"), b"x", 13, "property PGROUP is set by the broker"),
        (310, send(properties="REAL_TOPIC\x01other"), b"x", 13, "property REAL_TOPIC is set by the broker"),
        (310, send(properties="REAL_QID\x010\x02DELAY\x013"), b"x", 13, "property REAL_QID is set by the broker"),
        (320, send(m="true"), batch((b"x", "REAL_TOPIC\x01other")), 13, "property REAL_TOPIC is set by the broker"),
        (310, send(properties="TIMER_DELAY_SEC\x015"), b"x", 13, "TIMER_DELAY_SEC: only delay levels are supported, choose one of 1s 5s"),
        (310, send(properties="TIMER_DELAY_MS\x015000\x02DELAY\x013"), b"x", 13, "TIMER_DELAY_MS: only delay levels are supported"),
        (10, {"producerGroup": "pg", **QUEUE, "properties": "TIMER_DELIVER_MS\x011"}, b"x", 13, "only delay levels are supported"),
        (320, send(m="true"), batch((b"x", "TIMER_DELAY_MS\x011")), 13, "TIMER_"),
        (310, send(properties="DELAY\x013", m="true"), batch((b"x", "")), 13, "a batch can't be delayed"),
        (320, send(m="true"), batch((b"x", ""), (b"y", "DELAY\x013")), 13, "batch: message 2 is delayed or a retry"),
        (320, send(m="true"), batch((b"x", "RETRY_TOPIC\x01t")), 13, "batch: message 1 is delayed or a retry"),
        (320, send(m="true"), batch((b"x", "TRAN_MSG\x01true")), 13, "transactions are not supported"),
        (320, send(properties="K\x01" + "x" * 1_023, m="true"), batch((b"x", "")), 13, "1025 characters of properties: at most 1024"),
        (310, send(m="true"), b"x", 13, "cut off"),
        (310, send("LOCKSTEP_SYS_STATE"), b"x", 16, "written by the broker alone"),
        (310, send(e="77"), b"x", 1, "queue 77"),
        (310, {"a": "pg"}, b"x", 1, "missing"),
        (34, {}, b"\xff", 1, "not JSON"),
        (34, {}, b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":"ROUND"}]}', 1, "messageModel"),
    ):
        refused = await broker.call(code, fields, body)
        assert (refused.code, said in (refused.remark or "")) == (wanted, True), (code, refused)
    assert (await names.call(103, {"brokerName": "apache", "brokerAddr": "10.0.0.9:10911", "clusterName": "c", "brokerId": "0"})).code == 1
    assert (await broker.call(30, QUEUE)).code == 0, "the connection is still served"


async def test_limits_of_a_batch(wires: tuple[JavaWire, JavaWire]) -> None:
    """The response has the id of each message, and each message gets the properties of the batch, which makes its frame larger."""
    _, broker = wires
    stored = await broker.call(320, send(m="true"), batch(*[(b"x", "")] * BATCH_MAX))
    assert (stored.code, len(stored.fields["msgId"].split(","))) == (0, BATCH_MAX)
    body = b"x" * ((FRAME_BYTES_MAX - (1 << 20)) // BATCH_MAX - 22)
    for messages, said in (
        ([(b"x", "")] * (BATCH_MAX + 1), "a batch of more than"),
        ([(body, "")] * BATCH_MAX, "the records of the batch have"),
    ):
        refused = await broker.call(320, send(properties="K\x01" + "x" * 1_000, m="true"), batch(*messages))
        assert (refused.code, said in (refused.remark or "")) == (13, True), refused.remark
    assert (await broker.call(30, QUEUE)).fields == {"offset": str(BATCH_MAX)}


async def test_stored_subscription_of_another_type_fails_its_pulls_with_words(wires: tuple[JavaWire, JavaWire]) -> None:
    _, broker = wires
    subscription = {"topic": "orders", "subString": "a > 1", "expressionType": "XPATH", "subVersion": 1}
    assert (await broker.call(34, None, heartbeat("xpath", subscriptionDataSet=[subscription]))).code == 0
    await broker.call(310, send(), b"x")
    pulled = await broker.call(11, {**GROUP, **PULL, "consumerGroup": "xpath", "subVersion": "1", "queueOffset": "0", "sysFlag": "0"})
    assert (pulled.code, "XPATH" in (pulled.remark or "")) == (1, True)


async def test_subscription_by_sql_filters_by_properties(wires: tuple[JavaWire, JavaWire]) -> None:
    _, broker = wires
    subscription = {"topic": "orders", "subString": "amount > 100 AND region IN ('eu')", "expressionType": "SQL92", "subVersion": 1}
    check = json.dumps({"clientId": CLIENT, "group": "priced", "subscriptionData": subscription})
    assert (await broker.call(46, {}, check.encode())).code == 0
    assert (await broker.call(34, None, heartbeat("priced", subscriptionDataSet=[subscription]))).code == 0
    for number, (amount, region) in enumerate((("150", "eu"), ("50", "eu"), ("150", "us"), ("101.5", "eu"))):
        await broker.call(310, send(properties=f"amount\x01{amount}\x02region\x01{region}\x02"), b"%d" % number)
    pull = {**GROUP, **PULL, "consumerGroup": "priced", "subVersion": "1", "queueOffset": "0", "sysFlag": "0"}
    assert [body for _, body, _ in records((await broker.call(11, pull)).body)] == [b"0", b"3"]
    given = {**pull, "consumerGroup": "other", "sysFlag": "4", "subscription": "amount = 50", "expressionType": "SQL92"}
    assert [body for _, body, _ in records((await broker.call(11, given)).body)] == [b"1"]


async def test_text_that_is_no_text_fails_its_request_and_not_the_broker(cluster: Cluster, wires: tuple[JavaWire, JavaWire]) -> None:
    _, broker = wires
    if broker.kind == JSON:
        for broken in ('"\\ud800"', '"a":' * 3, "[" * 100_000, "9" * 5_000):
            async with java_wire(cluster.addresses["broker-a"], JSON) as other:
                header = b'{"code":310,"opaque":1,"extFields":{"b":' + broken.encode() + b"}}"
                other.writer.write((4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header)
                assert await other.reader.read() == b"", "closed"
    body = heartbeat().replace(b'"orders"', b'"\\ud83d"')
    assert (await broker.call(34, None, body)).code == 1
    assert (await broker.call(310, send(), b"x")).code == 0


async def test_properties_of_30720_bytes_are_stored_and_one_byte_more_is_refused(wires: tuple[JavaWire, JavaWire]) -> None:
    _, broker = wires
    longest = "A\x01" + "a" * (30_720 - 2)
    assert (await broker.call(310, send(properties=longest), b"x")).code == 0
    refused = await broker.call(310, send(properties=longest + "a"), b"x")
    assert (refused.code, "have 30721 bytes: at most 30720" in (refused.remark or "")) == (13, True), refused
