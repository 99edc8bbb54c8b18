"""What test_hostile_input.py does, in the wire formats of RocketMQ's clients: JSON and binary headers, and JSON bodies."""

import asyncio
import json
from pathlib import Path
from random import Random
from struct import pack

import pytest

from lockstep.protocol.codes import RequestCode, ResponseCode
from support.background import Background, background
from support.effort import seeds
from support.hostile_java import HostileJava, broken_frames, classic_handlers, heartbeat
from support.hostile_world import UNFORESEEN, World, refusal_event
from support.java_wire import BINARY, JSON, Reply, java_wire
from support.native import native
from support.processes import LIMIT_S

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("undisturbed")]

MIB = 1 << 20
KINDS = pytest.mark.parametrize("kind", [JSON, BINARY], ids=["json", "binary"])
SERVERS = pytest.mark.parametrize("server", ["broker", "nameserver"])
SENTINEL = 99
EXPECTED = (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)
"""Codes of responses that need no remark."""


def place(world: World, server: str) -> tuple[Background, str]:
    """Return a server and its address."""
    return (world.broker, world.broker_address) if server == "broker" else (world.nameserver, world.nameserver_address)


def sentinel(kind: int) -> bytes:
    """Return a request that each server answers at once."""
    fields = {"topic": "fuzz", "queueId": "0"}
    plain = json.dumps({"code": 30, "opaque": SENTINEL, "extFields": fields}).encode()
    header = plain if kind == JSON else HostileJava(0).binary(30, SENTINEL, fields)
    return pack(">iI", 4 + len(header), kind << 24 | len(header)) + header


async def exchanged(address: str, data: bytes, kind: int) -> list[Reply]:
    """Send bytes, and return the responses until that to the sentinel, or until the connection ends."""
    found: list[Reply] = []
    async with java_wire(address, kind) as wire, asyncio.timeout(LIMIT_S):
        try:
            wire.writer.write(data)
            await wire.writer.drain()
            while True:
                flag, opaque, reply = await wire.read()
                if flag & 1:
                    found.append(reply)
                if flag & 1 and opaque == SENTINEL:
                    return found
        except (asyncio.IncompleteReadError, ConnectionError):
            return found


async def check_alive(address: str) -> None:
    """Check that a client of RocketMQ and one of lockstep are served."""
    for kind in (JSON, BINARY):
        async with java_wire(address, kind) as other:
            assert (await other.call(RequestCode.GET_MAX_OFFSET, {"topic": "fuzz", "queueId": "0"})).code in (0, 3)
    async with native(address) as client:
        response = await client.send_request(RequestCode.GET_MAX_OFFSET, {"topic": "fuzz", "queueId": 0})
        assert response.code in (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


@SERVERS
@pytest.mark.parametrize("name", broken_frames())
async def test_invalid_frame_closes_its_connection_with_a_logged_reason(world: World, server: str, name: str) -> None:
    background_of, address = place(world, server)
    data, reason = broken_frames()[name]
    logged = None
    while logged is None:  # again if the log already had its ten lines of this second
        before = len(background_of.events)
        async with java_wire(address, JSON) as wire:
            own = "{}:{}".format(*wire.writer.get_extra_info("sockname")[:2])
            wire.writer.write(data)
            assert await wire.reader.read() == b"", "closed"
        logged = await refusal_event(background_of, before, own)
    assert reason in logged["reason"]
    assert len(json.dumps(logged)) < 1_000


@SERVERS
@KINDS
async def test_random_headers_affect_no_other_client(world: World, server: str, kind: int) -> None:
    _, address = place(world, server)
    random = Random(7)
    for _ in range(40):
        header = random.randbytes(random.choice((0, 1, 20, 21, 300, 60_000)))
        await exchanged(address, pack(">iI", 4 + len(header), kind << 24 | len(header)) + header + sentinel(kind), kind)
    await check_alive(address)


@SERVERS
@KINDS
@pytest.mark.parametrize("seed", seeds(1, 3))
async def test_every_classic_request_handles_any_fields_and_bodies(world: World, server: str, kind: int, seed: int) -> None:
    background_of, address = place(world, server)
    before, logged = background_of.resident_bytes(), background_of.said.stat().st_size
    assert await fuzz(address, server, kind, seed, 60) > 100
    await check_alive(address)
    assert background_of.resident_bytes() - before < 64 * MIB
    with background_of.said.open("rb") as file:
        file.seek(logged)
        assert max(map(len, file), default=0) < 8_000, "a peer decides how long a line of the log is"


async def fuzz(address: str, server: str, kind: int, seed: int, count: int) -> int:
    """Send `count` requests of each code. Return how many got a response. A refusal has a reason, which is not long."""
    source, total = HostileJava(seed), 0
    for spec in classic_handlers(server).values():
        for _ in range(count // 10):
            frames = [source.frame(spec, kind, opaque) for opaque in range(1, 11)]
            last = sentinel(kind)
            for data in (b"".join(frames) + last, *(frame + last for frame in frames[:2])):
                found = await exchanged(address, data, kind)
                assert [reply for reply in found if reply.code not in EXPECTED and not reply.remark] == []
                assert [reply for reply in found if len(reply.remark or "") > 2_000] == []
                total += len(found)
    return total


async def test_hostile_heartbeats_are_refused_with_the_part_that_is_wrong(world: World) -> None:
    (consumer,) = heartbeat()["consumerDataSet"]
    (subscription, _) = consumer["subscriptionDataSet"]
    deep = json.loads("[" * 900 + "]" * 900)
    for changed, words in (
        ({"clientID": 7}, "clientID: expected a string"),
        ({"clientID": "x" * 256}, "longer than client id max length 255"),
        ({"consumerDataSet": {}}, "consumerDataSet: expected a list"),
        ({"consumerDataSet": [consumer] * 257}, "257 groups"),
        ({"consumerDataSet": [{**consumer, "messageModel": deep}]}, "messageModel: expected one of"),
        ({"consumerDataSet": [{**consumer, "subscriptionDataSet": [subscription] * 1_025}]}, "1025 topics"),
        ({"consumerDataSet": [{**consumer, "subscriptionDataSet": None, "subscriptionData": [subscription] * 1_025}]}, "1025 topics"),
        ({"consumerDataSet": [{**consumer, "subscriptionDataSet": [{**subscription, "subVersion": 10**400}]}]}, "subVersion"),
        ({"consumerDataSet": [{**consumer, "subscriptionDataSet": [{**subscription, "subVersion": 2**63}]}]}, "subVersion"),
        (
            {"consumerDataSet": [{**consumer, "subscriptionDataSet": [{**subscription, "subString": "\ud800"}]}]},
            "not JSON that can be read",
        ),
        ({"producerDataSet": [{"groupName": None}]}, "producerDataSet.groupName: expected a string"),
    ):
        async with java_wire(world.broker_address, JSON) as wire:
            refused = await wire.call(RequestCode.HEART_BEAT, None, json.dumps({**heartbeat(), **changed}).encode())
            assert (refused.code, words in (refused.remark or "")) == (ResponseCode.SYSTEM_ERROR, True), (words, refused)


@KINDS
async def test_text_that_can_not_be_stored_never_reaches_the_store(world: World, kind: int) -> None:
    """The broker goes on, and what it has acknowledged is there after a restart (see the last test)."""
    fields: dict[str, str]
    for code, fields, body in (
        (RequestCode.HEART_BEAT, {}, json.dumps({**heartbeat("g-\ud800"), "clientID": "c"}).encode()),
        (RequestCode.LOCK_BATCH_MQ, {}, b'{"clientId":"\\udc00","consumerGroup":"g","mqSet":[]}'),
        (RequestCode.UNLOCK_BATCH_MQ, {}, b'{"clientId":"c","consumerGroup":"\\ud83d","mqSet":[]}'),
        (RequestCode.CHECK_CLIENT_CONFIG, {}, b'{"clientId":"c","group":"g","subscriptionData":{"topic":"fuzz","subString":"\\ud800"}}'),
    ):
        async with java_wire(world.broker_address, kind) as wire:
            refused = await wire.call(code, fields, body)
            assert (refused.code, "not JSON that can be read" in (refused.remark or "")) == (ResponseCode.SYSTEM_ERROR, True), refused


@pytest.mark.parametrize("item", ["[]", "{}", "0"])
async def test_body_of_many_values_is_refused_without_the_memory_that_they_would_take(world: World, item: str) -> None:
    before = world.broker.resident_bytes()
    items = ",".join([item] * (2 * MIB // (len(item) + 1) - 20))
    body = f'{{"mqSet":[{items}]}}'
    for _ in range(10):
        async with java_wire(world.broker_address, JSON) as wire:
            refused = await wire.call(RequestCode.LOCK_BATCH_MQ, None, body.encode())
            assert (refused.code, "elements" in (refused.remark or "")) == (ResponseCode.SYSTEM_ERROR, True), refused
    await check_alive(world.broker_address)
    assert world.broker.resident_bytes() - before < 48 * MIB


@pytest.mark.parametrize("kind", [JSON, BINARY], ids=["json", "binary"])
async def test_longest_fields_are_refused_with_the_limit(world: World, kind: int) -> None:
    async with native(world.broker_address) as client:
        await client.create("longest", 4)  # other tests may have deleted theirs
    async with java_wire(world.broker_address, kind) as wire:
        long = await wire.call(RequestCode.GET_MAX_OFFSET, {"topic": "longest", "queueId": "0", "more": "x" * 200_000})
        assert long.code == ResponseCode.MESSAGE_ILLEGAL
        assert "a header of" in (long.remark or "")
        assert "at most 4096" in (long.remark or "")
        properties = await wire.call(
            10, {"producerGroup": "g", "topic": "longest", "queueId": "0", "properties": "K\x01" + "x" * 40_000}, b"x"
        )
        assert (properties.code, "at most 30720" in (properties.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True)


@pytest.mark.slow
async def test_broker_that_got_hostile_frames_restarts_on_its_store(tmp_path: Path) -> None:
    options = ("-m", "lockstep.broker", "--listen", "127.0.0.1:0", "--store", str(tmp_path / "store"), "--auto-create-topics")
    for number, kind in enumerate((JSON, BINARY)):
        with background(tmp_path, f"broker-{number}", *options, ready="broker.started") as broker:
            address = broker.started("broker.started")["address"]
            async with native(address) as client:
                await client.create("fuzz", 4)
            await fuzz(address, "broker", kind, 50 + number, 40)
            assert [each for each in broker.events if each["event"] in UNFORESEEN] == []
    with background(tmp_path, "last", *options, ready="broker.started") as broker:
        async with java_wire(broker.started("broker.started")["address"], JSON) as wire:
            sent = await wire.call(10, {"producerGroup": "g", "topic": "afterwards", "queueId": "0"}, b"x")
            assert (sent.code, sent.fields["queueOffset"]) == (0, "0")
        assert broker.stop() == 0
