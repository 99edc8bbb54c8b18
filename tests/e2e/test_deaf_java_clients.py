"""RocketMQ's clients that do not read what the broker sends, never answer its requests, or commit on many other connections.

The broker's memory stays bounded, and other clients are served. test_hostile_input.py has the same in lockstep's own format.
"""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

import pytest

from lockstep.protocol.codes import RequestCode, ResponseCode
from support.hostile_world import World, hostile_world
from support.java_requests import heartbeat, pull, send
from support.java_wire import BINARY, JSON, frame, java_wire
from support.native import native
from support.ports import free_ports
from support.processes import LIMIT_S

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("undisturbed")]

KINDS = pytest.mark.parametrize("kind", [JSON, BINARY], ids=["json", "binary"])
MIB = 1 << 20
REPLIES, REPLY_BYTES = 400, 256 << 10
DEAF, TOOLS, POOL = 30, 20, 30


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world whose broker has a second listener, as RocketMQ's has at its port − 2."""
    with hostile_world(tmp_path_factory.mktemp("world"), of_broker=("--listen", f"vip=127.0.0.1:{free_ports(1)[0]}")) as made:
        yield made


@pytest.fixture
async def _topic(world: World) -> None:
    async with native(world.broker_address) as client:
        await client.create("orders", 4)


@contextmanager
def deaf(address: str, *first: bytes) -> Iterator[socket.socket]:
    """Connect a client that sends and never reads."""
    host, _, port = address.rpartition(":")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.connect((host, int(port)))
        for each in first:
            connection.sendall(each)
        connection.setblocking(False)
        yield connection


@KINDS
@pytest.mark.usefixtures("_topic")
async def test_client_that_never_reads_its_messages_uses_bounded_memory(world: World, kind: int) -> None:
    async with java_wire(world.broker_address, kind) as sender:
        for _ in range(8):
            assert (await sender.call(RequestCode.SEND_MESSAGE_V2, send(), bytes(3 * MIB))).code == ResponseCode.SUCCESS
    before = world.broker.resident_bytes()
    request = frame(kind, 1, RequestCode.PULL_MESSAGE, pull(0))
    with deaf(world.broker_address) as connection:
        pushing = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(connection, request * 20_000))
        for _ in range(3):
            await world.until_progress()
            assert world.broker.resident_bytes() - before < 24 * MIB
        pushing.cancel()
        await asyncio.wait([pushing])


@KINDS
@pytest.mark.usefixtures("_topic")
async def test_members_that_never_read_hold_back_no_other_member(world: World, kind: int) -> None:
    """Each change of the list is announced to every member."""
    before = world.broker.resident_bytes()
    beat = RequestCode.HEART_BEAT
    async with AsyncExitStack() as connections:
        for number in range(DEAF):
            first = frame(kind, 1, beat, None, heartbeat("deaf-group", f"10.0.1.1@{number}"))
            connections.enter_context(deaf(world.broker_address, first))
        async with java_wire(world.broker_address, kind) as member, asyncio.timeout(LIMIT_S):

            async def members() -> int:
                listed = await member.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "deaf-group"})
                return len(json.loads(listed.body)["consumerIdList"]) if listed.code == ResponseCode.SUCCESS else 0

            while await members() < DEAF:
                pass
            for _ in range(200):
                assert (await member.call(beat, None, heartbeat("deaf-group", "10.0.1.2@m"))).code == ResponseCode.SUCCESS
                assert await members() == DEAF + 1
                left = {"clientID": "10.0.1.2@m", "consumerGroup": "deaf-group"}
                assert (await member.call(RequestCode.UNREGISTER_CLIENT, left)).code == ResponseCode.SUCCESS
        assert world.broker.resident_bytes() - before < 16 * MIB


@pytest.mark.usefixtures("_topic")
async def test_member_that_never_answers_holds_back_those_who_ask_it_alone(world: World) -> None:
    """One tool waits for it until the broker gives up, the others are refused at once."""
    asked = {"consumerGroup": "silent-group", "clientId": "10.0.2.1@silent", "jstackEnable": "false"}
    async with java_wire(world.broker_address, JSON) as silent, AsyncExitStack() as connections:
        await silent.call(RequestCode.HEART_BEAT, None, heartbeat("silent-group", "10.0.2.1@silent"))
        tools = [await connections.enter_async_context(java_wire(world.broker_address, JSON)) for _ in range(TOOLS)]
        calls = [asyncio.create_task(tool.call(RequestCode.GET_CONSUMER_RUNNING_INFO, asked)) for tool in tools]
        await world.until_progress()
        async with java_wire(world.broker_address, JSON) as other, asyncio.timeout(LIMIT_S):
            assert (await other.call(RequestCode.SEND_MESSAGE_V2, send(), b"x")).code == ResponseCode.SUCCESS
            assert (await other.call(RequestCode.PULL_MESSAGE, pull(0))).code == ResponseCode.SUCCESS
        codes = sorted([(await call).code for call in calls])
        assert codes == sorted([ResponseCode.SERVICE_NOT_AVAILABLE] * (TOOLS - 1) + [ResponseCode.CONSUME_MSG_TIMEOUT])


async def test_producer_that_never_reads_gets_a_bounded_number_of_replies(world: World) -> None:
    client_id = "10.0.3.1@deaf"
    beat = json.dumps({"clientID": client_id, "consumerDataSet": [], "producerDataSet": [{"groupName": "asking"}]}).encode()
    before = world.broker.resident_bytes()
    header = send("DefaultCluster_REPLY_TOPIC", f"REPLY_TO_CLIENT\x01{client_id}\x02CORRELATION_ID\x01c\x02MSG_TYPE\x01reply")
    with deaf(world.broker_address, frame(JSON, 1, RequestCode.HEART_BEAT, None, beat)):
        async with java_wire(world.broker_address, JSON) as consumer, asyncio.timeout(LIMIT_S):
            while (await consumer.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "asking"})).code != ResponseCode.SUCCESS:
                pass  # its heartbeat is not handled yet
            replies = frame(JSON, 7, RequestCode.SEND_REPLY_MESSAGE_V2, header, bytes(REPLY_BYTES))
            for _ in range(REPLIES):
                consumer.writer.write(replies)
                await consumer.writer.drain()
            found = [(await consumer.read())[2] for _ in range(REPLIES)]
            assert {reply.code for reply in found} <= {ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR}
            assert any("reads too slowly" in (reply.remark or "") for reply in found)
            assert any("did not accept the reply within 10 s" in (reply.remark or "") for reply in found)
        assert world.broker.resident_bytes() - before < 32 * MIB


@KINDS
@pytest.mark.usefixtures("_topic")
async def test_pool_of_connections_commits_for_its_member_alone(world: World, kind: int) -> None:
    """Java before 4.4 commits at the port − 2, other clients on pools. Half of the pool never reads."""
    vip = world.broker.started("broker.started")["listeners"]["vip"]
    queue = {"consumerGroup": "pool-group", "topic": "orders", "queueId": "0"}
    locks = {"clientId": "10.0.4.1@m", "consumerGroup": "pool-group"}
    refs = [{"topic": "orders", "brokerName": "broker-a", "queueId": 0}]
    before = world.broker.resident_bytes()
    async with java_wire(world.broker_address, kind) as member, AsyncExitStack() as connections:
        for _ in range(POOL):
            assert (await member.call(RequestCode.SEND_MESSAGE_V2, send(), b"x")).code == ResponseCode.SUCCESS
        await member.call(RequestCode.HEART_BEAT, None, heartbeat("pool-group", "10.0.4.1@m"))
        locked = await member.call(RequestCode.LOCK_BATCH_MQ, None, json.dumps({**locks, "mqSet": refs}).encode())
        assert json.loads(locked.body)["lockOKMQSet"] == refs
        commit = {**queue, "commitOffset": str(POOL)}
        for number in range(POOL):
            if number % 2:
                pooled = await connections.enter_async_context(java_wire(vip, kind))
                assert (await pooled.call(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == ResponseCode.SUCCESS
            else:
                connections.enter_context(deaf(vip, frame(kind, 1, RequestCode.UPDATE_CONSUMER_OFFSET, commit) * 1_000))
        assert (await member.call(RequestCode.QUERY_CONSUMER_OFFSET, queue)).fields["offset"] == str(POOL)
        assert (await member.call(RequestCode.UNLOCK_BATCH_MQ, None, json.dumps({**locks, "mqSet": refs}).encode())).code == 0
        assert world.broker.resident_bytes() - before < 32 * MIB
