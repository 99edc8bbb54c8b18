"""What RocketMQ's tools ask about groups and clients, against a real broker, with the text of each body. And request–reply."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import pytest

from support.cluster import Cluster
from support.java_peer import Peer, granted, refused
from support.java_wire import BINARY, JSON, JavaWire, java_wire, records
from support.native import Member, native
from support.processes import LIMIT_S

pytestmark = pytest.mark.e2e

ORDERS = {"topic": "orders", "group": "cg"}
RESET = {**ORDERS, "timestamp": "0", "isForce": "true"}
KEY = '{"brokerName":"broker-a","queueId":%d,"topic":"orders"}'
SUBSCRIPTION = (
    '{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG","subString":"TagA || TagB","subVersion":17,'
    '"tagsSet":["TagA","TagB"],"topic":"orders"}'
)
NewPeer = Callable[..., Any]


@pytest.fixture(params=[JSON, BINARY], ids=["json", "binary"])
def kind(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
async def tool(cluster: Cluster, kind: int) -> AsyncIterator[JavaWire]:
    """A connection of a tool to the only broker, which has the topic `orders` with two queues."""
    await cluster.nameserver()
    await cluster.broker("broker-a")
    await cluster.command("topic", "create", "orders", "--queues", "2")
    async with java_wire(cluster.addresses["broker-a"], kind) as wire:
        yield wire


@pytest.fixture
async def new_peer(cluster: Cluster, kind: int, tool: JavaWire) -> AsyncIterator[NewPeer]:
    """Return a function that connects a client."""
    async with AsyncExitStack() as connections:

        async def connect(client_id: str = "10.0.0.1@m", **options: Any) -> Peer:
            context: AbstractAsyncContextManager[JavaWire] = java_wire(cluster.addresses["broker-a"], kind)
            return Peer(await connections.enter_async_context(context), client_id, **options)

        yield connect


async def send(wire: JavaWire, *bodies: bytes, tag: str = "TagA", queue_id: int = 0) -> list[str]:
    """Send messages to a queue of `orders`. Return their offsetMsgIds."""
    found = []
    for body in bodies:
        header = {"a": "pg", "b": "orders", "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1, "h": 0, "i": f"TAGS\x01{tag}"}
        reply = await wire.call(310, header, body)
        assert reply.code == 0, reply.remark
        found.append(reply.fields["msgId"])
    return found


async def commit(wire: JavaWire, offset: int, queue_id: int = 0, group: str = "cg") -> None:
    await granted(wire, 15, {"consumerGroup": group, "topic": "orders", "queueId": queue_id, "commitOffset": offset})


async def offsets(wire: JavaWire, group: str = "cg") -> list[int]:
    """Return the group's offset in each queue; 0 without one, because the queue is young."""
    found = []
    for queue_id in (0, 1):
        reply = await wire.call(14, {"consumerGroup": group, "topic": "orders", "queueId": queue_id})
        found.append(int(reply.fields["offset"]))
    return found


async def store_times(wire: JavaWire) -> list[int]:
    """Return when each message of queue 0 was stored."""
    pull = {"consumerGroup": "reader", "topic": "orders", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0}
    reply = await wire.call(11, {**pull, "subscription": "*", "subVersion": 1, "suspendTimeoutMillis": 0})
    found, data = [], reply.body
    for _ in records(reply.body):
        found.append(int.from_bytes(data[56:64], "big"))
        data = data[int.from_bytes(data[:4], "big") :]
    return found


# ------------------------------------------------------------------------------------------------------------ who is connected


async def test_members_are_listed_with_what_their_heartbeats_say(cluster: Cluster, tool: JavaWire, new_peer: NewPeer) -> None:
    assert await refused(tool, 203, {"consumerGroup": "cg"}, "no member that is connected") == 206
    member = await new_peer("10.0.0.1@m")
    await member.beat("cg")
    go = await new_peer("10.0.0.2@n", language="GO", version=317)
    await go.beat("cg", consumeType="CONSUME_ACTIVELY")
    reply = await granted(tool, 203, {"consumerGroup": "cg"})
    assert reply.body.decode() == (
        f'{{"connectionSet":[{{"clientAddr":"{member.address}","clientId":"10.0.0.1@m","language":"JAVA","version":409}},'
        f'{{"clientAddr":"{go.address}","clientId":"10.0.0.2@n","language":"GO","version":317}}],'
        '"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
        f'"subscriptionTable":{{"orders":{SUBSCRIPTION}}}}}'
    )
    member.wire.writer.close()
    go.wire.writer.close()
    async with asyncio.timeout(LIMIT_S):
        while (await tool.call(203, {"consumerGroup": "cg"})).code != 206:
            pass


async def test_member_of_the_sdk_is_listed_but_is_asked_nothing(cluster: Cluster, tool: JavaWire) -> None:
    async with native(cluster.addresses["broker-a"]) as client:
        await Member(client, "orders", "cg", client_id="sdk@1").join()
        found = json.loads((await granted(tool, 203, {"consumerGroup": "cg"})).body)
        assert [(each["clientId"], each["language"], each["version"]) for each in found["connectionSet"]] == [("sdk@1", "PYTHON", 409)]
        assert found["subscriptionTable"]["orders"]["subString"] == "*"
        asked = {"consumerGroup": "cg", "clientId": "sdk@1", "jstackEnable": "false"}
        assert await refused(tool, 307, asked, "lockstep's SDK") == 3
        assert await refused(tool, 223, {**ORDERS, "clientAddr": ""}, "lockstep why") == 3


async def test_producers_are_listed_while_they_are_connected(tool: JavaWire, new_peer: NewPeer) -> None:
    assert await refused(tool, 204, {"producerGroup": "pg"}, "no client that is connected") == 1
    assert (await granted(tool, 328, {})).body == b'{"data":{}}'
    producer = await new_peer("10.0.0.3@p")
    await producer.beat(producers=("pg", "other"))
    reply = await granted(tool, 204, {"producerGroup": "pg"})
    assert reply.body.decode() == (
        f'{{"connectionSet":[{{"clientAddr":"{producer.address}","clientId":"10.0.0.3@p","language":"JAVA","version":409}}]}}'
    )
    everyone = (await granted(tool, 328, {})).body
    heard_ms = json.loads(everyone)["data"]["pg"][0]["lastUpdateTimestamp"]
    entry = f'{{"clientId":"10.0.0.3@p","language":"JAVA","lastUpdateTimestamp":{heard_ms},"remoteIP":"{producer.address}","version":409}}'
    assert everyone.decode() == f'{{"data":{{"pg":[{entry}],"other":[{entry}]}}}}'
    await producer.beat(producers=("pg",))
    assert await refused(tool, 204, {"producerGroup": "other"}, "no client") == 1


# ------------------------------------------------------------------------------------------------------------------- progress


async def test_progress_is_reported_with_the_ends_of_the_queues(tool: JavaWire, new_peer: NewPeer) -> None:
    assert await refused(tool, 208, {"consumerGroup": "cg"}, "group cg is unknown") == 26
    await send(tool, b"1", b"2", b"3")
    await commit(tool, 2)
    times = await store_times(tool)
    first = f'"brokerOffset":3,"consumerOffset":2,"lastTimestamp":{times[1]},"pullOffset":2'
    body = f'{{"offsetTable":{{{KEY % 0}:{{{first}}},{KEY % 1}:{{"brokerOffset":0,"consumerOffset":0,"lastTimestamp":0,"pullOffset":0}}}}}}'
    assert (await granted(tool, 208, {"consumerGroup": "cg"})).body.decode() == body
    assert (await granted(tool, 208, {"consumerGroup": "cg", "topic": "orders"})).body.decode() == body
    assert await refused(tool, 208, {"consumerGroup": "cg", "topic": "missing"}, "missing") == 17
    await (await new_peer()).beat("cg", subscriptionDataSet=[{"topic": "others", "subString": "*", "subVersion": 1}])
    assert (await granted(tool, 208, {"consumerGroup": "cg"})).body == b'{"offsetTable":{}}', "its member no longer subscribes"


async def test_progress_of_all_groups(cluster: Cluster, tool: JavaWire) -> None:
    async def found(*, is_order: bool) -> str:
        return (await granted(tool, 317, {"isOrder": str(is_order).lower()})).body.decode()

    address = cluster.addresses["broker-a"]
    assert await found(is_order=False) == f'{{"brokerAddr":"{address}","consumeStatsList":[],"totalDiff":0}}'
    await send(tool, b"1", b"2", b"3")
    await commit(tool, 2, group="cg")
    await commit(tool, 3, group="fast")
    times = await store_times(tool)
    second = f'{KEY % 1}:{{"brokerOffset":0,"consumerOffset":0,"lastTimestamp":0,"pullOffset":0}}'
    groups = []
    for group, offset in (("cg", 2), ("fast", 3)):
        first = f'{KEY % 0}:{{"brokerOffset":3,"consumerOffset":{offset},"lastTimestamp":{times[offset - 1]},"pullOffset":{offset}}}'
        groups.append(f'{{"{group}":[{{"offsetTable":{{{first},{second}}}}}]}}')
    assert await found(is_order=False) == f'{{"brokerAddr":"{address}","consumeStatsList":[{",".join(groups)}],"totalDiff":1}}'
    assert await found(is_order=True) == f'{{"brokerAddr":"{address}","consumeStatsList":[],"totalDiff":0}}'
    async with native(address) as client:
        member = Member(client, "orders", "steps", client_id="sdk@1")
        await member.join()
        await member.lock()
        assert '{"steps":[{"offsetTable":' in await found(is_order=True)


async def test_groups_of_a_topic_and_topics_of_a_group(tool: JavaWire, new_peer: NewPeer) -> None:
    assert (await granted(tool, 300, {"topic": "orders"})).body == b'{"groupList":[]}'
    await commit(tool, 0, group="committed")
    await (await new_peer()).beat("cg")
    assert (await granted(tool, 300, {"topic": "orders"})).body == b'{"groupList":["cg","committed"]}'
    assert await refused(tool, 300, {"topic": "missing"}, "no topic 'missing'") == 17
    assert (await granted(tool, 343, {"group": "committed"})).body == b'{"topicList":["orders"]}'
    assert await refused(tool, 343, {"group": "nobody"}, "nobody is unknown") == 26
    body = (await granted(tool, 345, ORDERS)).body.decode()
    assert body == f'{{"group":"cg","subscriptionData":{SUBSCRIPTION},"topic":"orders"}}'
    assert (await granted(tool, 345, {"group": "cg", "topic": "others"})).body == b'{"group":"cg","topic":"others"}'
    assert await refused(tool, 345, {"group": "nobody", "topic": "orders"}, "nobody is unknown") == 26


async def test_times_of_what_was_consumed(tool: JavaWire) -> None:
    await send(tool, b"1", b"2", b"3")
    await commit(tool, 3)
    times = await store_times(tool)
    reply = await granted(tool, 303, ORDERS)
    first = f'"consumeTimeStamp":{times[2]},"delayTime":0,"maxTimeStamp":{times[2]},"messageQueue":{KEY % 0},"minTimeStamp":{times[0]}'
    second = f'"consumeTimeStamp":0,"delayTime":0,"maxTimeStamp":0,"messageQueue":{KEY % 1},"minTimeStamp":0'
    assert reply.body.decode() == f'{{"consumeTimeSpanSet":[{{{first}}},{{{second}}}]}}'
    await commit(tool, 1)
    behind = json.loads((await granted(tool, 303, ORDERS)).body)["consumeTimeSpanSet"][0]
    assert behind["consumeTimeStamp"] == times[0]
    assert behind["delayTime"] > 0
    assert await refused(tool, 303, {"topic": "missing", "group": "cg"}, "missing") == 17


async def test_lowest_offsets_of_all_groups(tool: JavaWire) -> None:
    await send(tool, b"1", b"2", b"3")
    for group, offset in (("cg", 2), ("slow", 1), ("fast", 3)):
        await commit(tool, offset, group=group)
    asked = {"topic": "orders", "compareGroup": "cg"}
    assert (await granted(tool, 308, asked)).body == b'{"correctionOffsets":{0:1}}'
    assert (await granted(tool, 308, {**asked, "filterGroups": "slow"})).body == b'{"correctionOffsets":{0:2}}'
    highest = b'{"correctionOffsets":{0:9223372036854775807}}'
    assert (await granted(tool, 308, {**asked, "filterGroups": "slow,cg"})).body == highest
    assert await refused(tool, 308, {**asked, "topic": "missing"}, "missing") == 17


async def test_entries_of_a_queue(tool: JavaWire, new_peer: NewPeer) -> None:
    (first,) = await send(tool, b"1", tag="TagA")
    (second,) = await send(tool, b"22", tag="TagC")
    places = [int(message_id[16:], 16) for message_id in (first, second)]
    size = places[1] - places[0]
    asked = {"topic": "orders", "queueId": 0, "index": 0, "count": 10}
    data = f'"queueData":[{{"eval":%s,"physicOffset":{places[0]},"physicSize":{size},"tagsCode":2598919}},'
    data += f'{{"eval":false,"physicOffset":{places[1]},"physicSize":{size + 1},"tagsCode":2598921}}]'
    plain = f'{{"maxQueueIndex":2,"minQueueIndex":0,{data % "false"}}}'
    assert (await granted(tool, 321, asked)).body.decode() == plain
    await (await new_peer()).beat("cg")
    filtered = f'{{"maxQueueIndex":2,"minQueueIndex":0,{data % "true"},"subscriptionData":{SUBSCRIPTION}}}'
    assert (await granted(tool, 321, {**asked, "consumerGroup": "cg"})).body.decode() == filtered
    last = json.loads((await granted(tool, 321, {**asked, "index": -1, "count": 1})).body)
    assert [each["physicOffset"] for each in last["queueData"]] == [places[1]]
    assert await refused(tool, 321, {**asked, "count": 1_001}, "expected 1 to 1000") == 13
    assert await refused(tool, 321, {**asked, "queueId": 2}, "no readable queue 2") == 17


# --------------------------------------------------------------------------------------------------------------------- relays


async def test_running_info_is_passed_on_as_it_comes(tool: JavaWire, new_peer: NewPeer) -> None:
    asked = {"consumerGroup": "cg", "clientId": "10.0.0.1@m", "jstackEnable": "true"}
    assert await refused(tool, 307, asked, "group cg has no member") == 206
    member = await new_peer("10.0.0.1@m")
    await member.beat("cg")
    assert await refused(tool, 307, {**asked, "clientId": "10.0.0.9@x"}, "no member 10.0.0.9@x") == 1
    body = b'{"mqTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:{"locked":false}},"jstack":"}{\\""}'
    for code, remark in ((0, None), (1, "The Consumer Group not exist")):
        call = asyncio.create_task(tool.call(307, asked))
        request = await member.next_request(307)
        assert (request.flag, request.fields) == (0, asked)
        member.respond(request, body, code=code, remark=remark)
        reply = await call
        assert (reply.code, reply.remark, reply.body) == (code, remark, body)


async def test_member_has_one_request_of_a_code_at_a_time(cluster: Cluster, kind: int, tool: JavaWire, new_peer: NewPeer) -> None:
    asked = {"consumerGroup": "cg", "clientId": "10.0.0.1@m", "jstackEnable": "false"}
    member = await new_peer("10.0.0.1@m")
    await member.beat("cg")
    call = asyncio.create_task(tool.call(307, asked))
    await member.next_request(307)
    async with java_wire(cluster.addresses["broker-a"], kind) as other:
        assert await refused(other, 307, asked, "has not responded to another GET_CONSUMER_RUNNING_INFO (307) yet") == 14
        assert (await other.call(307, asked, version=479)).code == 2
        member.wire.writer.close()
        reply = await call
        assert (reply.code, "connection closed" in (reply.remark or "")) == (1, True)
        assert await refused(other, 307, asked, "group cg has no member") == 206


async def test_member_consumes_a_message_directly(tool: JavaWire, new_peer: NewPeer) -> None:
    (message_id,) = await send(tool, b"body")
    asked = {"consumerGroup": "cg", "clientId": "10.0.0.1@m", "msgId": message_id}
    member = await new_peer("10.0.0.1@m")
    await member.beat("cg")
    call = asyncio.create_task(tool.call(309, {**asked, "topic": "orders", "groupSysFlag": "0"}))
    request = await member.next_request(309)
    assert request.fields == {**asked, "brokerName": "broker-a", "topic": "orders", "groupSysFlag": "0"}
    assert [body for _, body, _ in records(request.body)] == [b"body"]
    result = b'{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":1}'
    member.respond(request, result)
    assert (await call).body == result
    assert await refused(tool, 309, {**asked, "msgId": "7F0000010000000100000000000000FF"}, "no message") == 1
    assert await refused(tool, 309, {**asked, "msgId": "key"}, "expected 32 hex digits") == 1
    assert await refused(tool, 309, {"consumerGroup": "cg", "clientId": "10.0.0.1@m"}, "no msgId") == 1
    cpp = await new_peer("10.0.0.2@c", language="CPP", version=333)
    await cpp.beat("cg")
    assert await refused(tool, 309, {**asked, "clientId": "10.0.0.2@c"}, "language CPP") == 3


async def test_offsets_in_the_memory_of_members(tool: JavaWire, new_peer: NewPeer) -> None:
    assert await refused(tool, 223, ORDERS, "no member that is connected") == 206
    members = [await new_peer(f"10.0.0.{number}@m") for number in (1, 2)]
    for member in members:
        await member.beat("cg")

    async def answer(queue_id: int, member: Peer, body: bytes) -> None:
        request = await member.next_request(221)
        assert request.fields == ORDERS
        member.respond(request, body)

    tables = [f"{{{KEY % queue_id}:{7 + queue_id}}}" for queue_id in (0, 1)]
    bodies = [f'{{"consumerTable":{{}},"messageQueueTable":{table}}}'.encode() for table in tables]
    call = asyncio.create_task(tool.call(223, ORDERS))
    for queue_id, member in enumerate(members):
        await answer(queue_id, member, bodies[queue_id])
    wanted = f'{{"consumerTable":{{"10.0.0.1@m":{tables[0]},"10.0.0.2@m":{tables[1]}}},"messageQueueTable":{{}}}}'
    assert (await call).body.decode() == wanted
    call = asyncio.create_task(tool.call(223, {**ORDERS, "clientAddr": "10.0.0.2@m"}))
    await answer(1, members[1], bodies[1])
    assert json.loads((await call).body.replace(tables[1].encode(), b"1"))["consumerTable"] == {"10.0.0.2@m": 1}
    for bad, said in ((b"{" * 40, "nested more deeply than 32"), (b"[]", "no messageQueueTable")):
        call = asyncio.create_task(tool.call(223, {**ORDERS, "clientAddr": "10.0.0.1@m"}))
        await answer(0, members[0], bad)
        reply = await call
        assert (reply.code, said in (reply.remark or "")) == (1, True), reply.remark


# --------------------------------------------------------------------------------------------------------------------- resets


@pytest.mark.parametrize("language", ["JAVA", "GO", "CPP"])
async def test_reset_is_sent_to_older_members_in_the_form_of_their_language(tool: JavaWire, new_peer: NewPeer, language: str) -> None:
    await send(tool, b"1", b"2", b"3")
    member = await new_peer("10.0.0.1@m", language=language, version=333)
    await member.beat("cg")
    await commit(tool, 2)
    reply = await granted(tool, 222, RESET)
    assert reply.body.decode() == f'{{"offsetTable":{{{KEY % 0}:0,{KEY % 1}:0}}}}'
    assert await offsets(tool) == [0, 0]
    told = await member.next_request(220)
    assert (told.flag, told.fields) == (2, RESET)
    listed = ",".join(f'{{"brokerName":"broker-a","queueId":{queue_id},"topic":"orders","offset":0}}' for queue_id in (0, 1))
    keyed = f"{{{KEY % 0}:0,{KEY % 1}:0}}"
    assert told.body.decode() == f'{{"offsetTable":{f"[{listed}]" if language == "CPP" else keyed}}}'


async def test_reset_without_force_only_goes_back(tool: JavaWire, new_peer: NewPeer) -> None:
    await send(tool, b"1", b"2", b"3")
    member = await new_peer()
    await member.beat("cg")
    await commit(tool, 1)
    await commit(tool, 0, queue_id=1)
    unforced = {**ORDERS, "timestamp": "-1", "isForce": "false"}
    assert (await granted(tool, 222, unforced)).body.decode() == f'{{"offsetTable":{{{KEY % 0}:1,{KEY % 1}:0}}}}'
    assert (await granted(tool, 222, {**unforced, "isForce": "true"})).body.decode() == f'{{"offsetTable":{{{KEY % 0}:3,{KEY % 1}:0}}}}'
    assert await offsets(tool) == [3, 0]
    one = {**unforced, "queueId": "0", "offset": "2"}
    assert (await granted(tool, 222, one)).body.decode() == f'{{"offsetTable":{{{KEY % 0}:2}}}}'
    assert await offsets(tool) == [2, 0]


async def test_reset_is_not_sent_to_members_of_5_0(tool: JavaWire, new_peer: NewPeer) -> None:
    await send(tool, b"1", b"2")
    newer = await new_peer("10.0.0.1@m", version=413)
    await newer.beat("cg")
    await commit(tool, 2)
    await granted(tool, 222, RESET)
    assert await offsets(tool) == [0, 0]
    call = asyncio.create_task(tool.call(307, {"consumerGroup": "cg", "clientId": "10.0.0.1@m", "jstackEnable": "false"}))
    while (request := await newer.wire.read())[2].code != 307:
        assert request[2].code == 40, "nothing but notices comes before"
    call.cancel()


async def test_refused_resets_change_nothing(tool: JavaWire, new_peer: NewPeer) -> None:
    await send(tool, b"1", b"2")
    await commit(tool, 2)
    assert await refused(tool, 222, RESET, "nothing was reset") == 206
    assert await refused(tool, 222, {**RESET, "group": "nobody"}, "nobody is unknown") == 26
    assert await refused(tool, 222, {**RESET, "topic": "missing"}, "missing") == 17
    assert await refused(tool, 222, {**RESET, "queueId": "9"}, "no readable queue 9") == 17
    await (await new_peer()).beat("cg")
    assert await refused(tool, 222, {**RESET, "offset": "1"}, "without a queueId") == 1
    assert await refused(tool, 222, {**RESET, "queueId": "0", "offset": "9"}, "expected 0 to 2") == 1
    assert await offsets(tool) == [2, 0]


async def test_reset_reaches_a_member_of_the_sdk(cluster: Cluster, tool: JavaWire) -> None:
    await send(tool, b"1", b"2")
    async with native(cluster.addresses["broker-a"]) as client:
        member = Member(client, "orders", "cg", client_id="sdk@1")
        await member.join()
        granted_lock = await member.lock()
        await member.commit(granted_lock.epoch, 2)
        await granted(tool, 222, RESET)
        assert (await member.lock()).epoch > granted_lock.epoch
    assert (await offsets(tool))[0] == 0


async def test_group_gets_the_offsets_of_another(tool: JavaWire) -> None:
    await send(tool, b"1", b"2", b"3")
    asked = {"srcGroup": "cg", "destGroup": "copy", "offline": "false"}
    assert await refused(tool, 314, asked, "cg is unknown") == 26
    await commit(tool, 2)
    await granted(tool, 314, {**asked, "topic": "orders"})
    assert await offsets(tool, "copy") == [2, 0]
    await granted(tool, 314, {**asked, "destGroup": "other"})
    assert await offsets(tool, "other") == [2, 0]
    assert await refused(tool, 314, {**asked, "topic": "missing"}, "missing") == 17
    assert await refused(tool, 314, {**asked, "destGroup": "not allowed"}, "illegal characters") == 1


async def test_group_is_deleted_when_its_members_have_left(tool: JavaWire, new_peer: NewPeer) -> None:
    member = await new_peer("10.0.0.1@m")
    await member.beat("cg")
    await commit(tool, 0)
    assert await refused(tool, 207, {"groupName": "cg", "cleanOffset": "true"}, "10.0.0.1@m") == 1
    member.wire.writer.close()
    async with asyncio.timeout(LIMIT_S):
        while (await tool.call(203, {"consumerGroup": "cg"})).code != 206:
            pass
    await granted(tool, 207, {"groupName": "cg", "cleanOffset": "false"})
    assert await offsets(tool) == [0, 0], "its progress stays"
    await granted(tool, 207, {"groupName": "cg", "removeOffset": "true"})
    assert await refused(tool, 208, {"consumerGroup": "cg"}, "unknown") == 26


# --------------------------------------------------------------------------------------------------------------- request–reply


def reply_header(client_id: str | None = "10.0.0.3@p") -> dict[str, object]:
    asked = f"REPLY_TO_CLIENT\x01{client_id}\x02" if client_id else ""
    properties = f"{asked}CORRELATION_ID\x01c-1\x02MSG_TYPE\x01reply"
    numbers = {"d": 4, "e": 0, "f": 1, "g": 1700000000000, "h": 0, "j": 0}
    return {"a": "repliers", "b": "DefaultCluster_REPLY_TOPIC", "c": "TBW102", **numbers, "i": properties, "k": "false", "m": "false"}


async def test_reply_is_passed_on_to_the_producer_that_waits(tool: JavaWire, new_peer: NewPeer) -> None:
    producer = await new_peer("10.0.0.3@p")
    await producer.beat(producers=("asking",))
    for number, header in enumerate((reply_header(), reply_header())):
        call = asyncio.create_task(tool.call(325, header, b"answer"))
        request = await producer.next_request(326)
        sent = dict(pair.split("\x01") for pair in request.fields.pop("properties").split("\x02"))
        at_ms = request.fields.pop("storeTimestamp")
        assert sent.pop("PUSH_REPLY_TIME") == at_ms
        assert sent == {"REPLY_TO_CLIENT": "10.0.0.3@p", "CORRELATION_ID": "c-1", "MSG_TYPE": "reply"}
        host, port = tool.writer.get_extra_info("sockname")
        broker = ":".join(map(str, tool.writer.get_extra_info("peername")))
        names = {"producerGroup": "repliers", "topic": "DefaultCluster_REPLY_TOPIC", "defaultTopic": "TBW102", "unitMode": "false"}
        numbers = {"defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "1", "flag": "0", "reconsumeTimes": "0"}
        hosts = {"bornTimestamp": "1700000000000", "bornHost": f"{host}:{port}", "storeHost": broker}
        assert (request.flag, request.fields, request.body) == (0, {**names, **numbers, **hosts}, b"answer")
        producer.respond(request, code=number, remark="no such request" if number else None)
        reply = await call
        if number:
            assert (reply.code, "responded to the reply with 1: no such request" in (reply.remark or "")) == (1, True)
        else:
            assert (reply.code, reply.fields) == (0, {"msgId": "0", "queueId": "0", "queueOffset": "0"})
    assert (await tool.call(30, {"topic": "DefaultCluster_REPLY_TOPIC", "queueId": 0})).fields == {"offset": "0"}, "it is stored nowhere"


async def test_reply_in_the_long_form(tool: JavaWire, new_peer: NewPeer) -> None:
    producer = await new_peer("10.0.0.3@p")
    await producer.beat(producers=("asking",))
    header = {"producerGroup": "repliers", "topic": "DefaultCluster_REPLY_TOPIC", "queueId": 0, "properties": reply_header()["i"]}
    call = asyncio.create_task(tool.call(324, header, b"answer"))
    producer.respond(await producer.next_request(326))
    assert (await call).code == 0


async def test_reply_that_nobody_waits_for_is_refused(cluster: Cluster, tool: JavaWire, new_peer: NewPeer) -> None:
    async def refused_reply(header: dict[str, object], said: str) -> int:
        reply = await tool.call(325, header, b"answer")
        assert said in (reply.remark or ""), reply.remark
        return reply.code

    assert await refused_reply(reply_header(), "no producer with the client id 10.0.0.3@p is connected") == 1
    assert await refused_reply(reply_header(None), "no property REPLY_TO_CLIENT") == 13
    consumer = await new_peer("10.0.0.3@p")
    await consumer.beat("cg")
    assert await refused_reply(reply_header(), "no producer with the client id") == 1
    producer = await new_peer("10.0.0.4@p")
    await producer.beat(producers=("asking",))
    call = asyncio.create_task(refused_reply(reply_header("10.0.0.4@p"), "did not accept the reply"))
    await producer.next_request(326)
    producer.wire.writer.close()
    assert await call == 1
