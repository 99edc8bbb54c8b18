"""A client that breaks the protocol gets an error or is disconnected, and no other client is affected.

A nameserver, a broker, a producer and an ordered consumer run through the whole file. After each test the producer and the consumer
have continued, got no error and kept every epoch, and neither server has logged an unexpected error.
"""

import asyncio
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from struct import pack

import pytest

from lockstep.client import LocalProtocolError, Message, Producer, PushConsumer, TopicNotExistError
from lockstep.protocol.bodies import DataVersion, RegisterBody, RegisterReply
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import TransportError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.frame import encode_frame
from lockstep.protocol.headers.clients import GroupHeader
from lockstep.protocol.headers.offsets import QueueHeader, TopicHeader, UpdateConsumerOffsetHeader
from lockstep.protocol.headers.pull import SUBSCRIPTION, PullHeader
from lockstep.protocol.headers.routes import CreateTopicHeader, RegisterBrokerHeader
from lockstep.protocol.headers.send import SendRecordsHeader
from lockstep.protocol.messages.record import encode_record
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from support.background import Background, background
from support.effort import seeds
from support.hostile import BROKER_CODES, NAMESERVER_CODES, Hostile
from support.hostile_world import UNFORESEEN, World, refusal_event
from support.native import Native, native
from support.peers import RawPeer
from support.processes import clean_environment, run_program

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("undisturbed")]

MIB = 1 << 20
REGISTER = RegisterBrokerHeader("broker-x", "DefaultCluster", "127.0.0.1:1", "e" * 32, 1, "d" * 32, 0)


@pytest.fixture(params=["broker", "nameserver"])
def target(request: pytest.FixtureRequest, world: World) -> tuple[Background, str]:
    """Return the server under attack and its address."""
    if request.param == "broker":
        return world.broker, world.broker_address
    return world.nameserver, world.nameserver_address


async def connected(address: str) -> RawPeer:
    host, _, port = address.rpartition(":")
    return RawPeer(*await asyncio.open_connection(host, int(port)))


async def check_alive(address: str) -> None:
    """Check that another client is served."""
    async with native(address) as other:
        response = await other.send_request(RequestCode.GET_MAX_OFFSET, QueueHeader("fuzz", 0))
        assert response.code in (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


# --------------------------------------------------------------------------------------------- bytes that are not a frame


def framed(header: bytes, codec: int = 0x4D) -> bytes:
    return pack(">iI", 4 + len(header), codec << 24 | len(header)) + header


BROKEN = {
    "claims 2 GiB": (b"\x7f\xff\xff\xff", "frame length 2147483647 is refused: 4 … 16777212"),
    "claims a negative length": (b"\xff\xff\xff\xff", "frame length -1 is refused"),
    "claims length 0": (bytes(8), "frame length 0 is refused"),
    "claims one byte more than 16 MiB": (pack(">i", 16 * MIB - 3), "frame length 16777213 is refused"),
    "header beyond its frame": (pack(">iI", 10, 0x4D << 24 | 11), "header length 11 is refused: at most 6"),
    "header beyond its limit": (pack(">iI", MIB, 0x4D << 24 | (256 * 1024 + 1)), "header length 262145 is refused: at most 262144"),
    "unknown codec": (framed(b"\x96", 0x37), "serialize type 0x37 is unknown"),
    "header is not msgpack": (framed(b"\xc1\xc1\xc1"), "header is not msgpack"),
    "header is a number": (framed(b"\x07"), "header is not an array of 6"),
    "header array of 5": (framed(b"\x95\x00\x00\x00\x00\xc0"), "header is not an array of 6"),
    "header array claims 4 billion": (framed(b"\xdd\xff\xff\xff\xff"), "header is not msgpack within its limits"),
    "header map claims 4 billion": (framed(b"\x96\x00\x00\x00\x00\xc0\xdf\xff\xff\xff\xff"), "header is not msgpack within its limits"),
    "header nests 5,000 deep": (framed(b"\x91" * 5_000), "header is not msgpack within its limits"),
    "code is a text": (framed(b"\x96\xa1x\x00\x00\x00\xc0\x80"), "not an int32"),
    "opaque beyond int32": (framed(b"\x96\x00\x00\xcf\xff\xff\xff\xff\xff\xff\xff\xff\x00\xc0\x80"), "not an int32"),
    "field is a list": (framed(b"\x96\x00\x00\x00\x00\xc0\x81\xa1x\x90"), "not a map of names to scalar values"),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", "frame length 1195725856 is refused"),
    "TLS": (bytes.fromhex("1603010200010001fc0303") + bytes(40), "is refused"),
    "text": (b"hello, is this redis?\r\n", "is refused"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_invalid_frame_closes_its_connection_with_a_logged_reason(target: tuple[Background, str], name: str) -> None:
    server, address = target
    data, reason = BROKEN[name]
    logged = None
    while logged is None:  # again if the log already had its ten lines of this second
        before = len(server.events)
        peer = await connected(address)
        own = "{}:{}".format(*peer.writer.get_extra_info("sockname")[:2])
        await peer.send(data)
        assert await peer.ended() == b""
        await peer.close()
        logged = await refusal_event(server, before, own)
    assert reason in logged["reason"]


async def test_valid_request_before_garbage_gets_its_response(target: tuple[Background, str]) -> None:
    _, address = target
    peer = await connected(address)
    await peer.send(encode_frame(Command(12_345, opaque=9)) + b"garbage, and more of it")
    response = await peer.next()
    assert (response.opaque, response.code) == (9, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    assert "12345" in (response.remark or "")
    assert await peer.ended() == b""
    await peer.close()


async def test_random_bytes_affect_no_other_client(target: tuple[Background, str]) -> None:
    _, address = target
    random = Random(1)
    for _ in range(60):
        peer = await connected(address)
        data = random.randbytes(random.choice((1, 7, 8, 50, 5_000)))
        if random.random() < 0.5:
            data = pack(">iI", len(data) + 4, 0x4D << 24 | min(len(data), random.choice((0, 5, 60)))) + data
        await peer.send(data)
        await peer.close()
    await check_alive(address)


async def test_claimed_lengths_allocate_no_memory(target: tuple[Background, str]) -> None:
    server, address = target
    before = server.resident_bytes()
    async with AsyncExitStack() as peers:
        for _ in range(100):
            peer = await connected(address)
            peers.push_async_callback(peer.close)
            await peer.send(pack(">iI", 16 * MIB - 8, 0x4D << 24 | 200_000) + b"x")
        await check_alive(address)
        assert server.resident_bytes() - before < 16 * MIB


async def test_slow_frames_delay_no_other_client(world: World, target: tuple[Background, str]) -> None:
    """A frame is accepted if it is complete within 30 s."""
    _, address = target
    frame = encode_frame(Command(RequestCode.GET_MAX_OFFSET, opaque=5, fields=to_plain(QueueHeader("fuzz", 0))))
    peers = [await connected(address) for _ in range(20)]
    for byte in frame[:3]:
        for peer in peers:
            await peer.send(bytes([byte]))
        await world.until_progress()
    for byte in frame[3:]:
        await peers[0].send(bytes([byte]))
    assert (await peers[0].next()).opaque == 5
    for peer in peers:
        await peer.close()


@pytest.mark.slow
async def test_frame_that_arrives_a_byte_per_second_is_cut_off_with_a_logged_reason(target: tuple[Background, str]) -> None:
    """Its sleep is part of the fault, and the test waits for nothing in it. The boundary (30 s) is tested with time passed in."""
    server, address = target
    frame = encode_frame(Command(RequestCode.GET_MAX_OFFSET, opaque=5, fields=to_plain(QueueHeader("fuzz", 0)), body=bytes(100)))
    before = len(server.events)
    peer = await connected(address)
    own = "{}:{}".format(*peer.writer.get_extra_info("sockname")[:2])
    ended = asyncio.ensure_future(peer.ended())
    sent = 0
    while not ended.done():
        peer.writer.write(frame[sent : sent + 1])
        sent += 1
        await asyncio.wait([ended], timeout=1)
    assert await ended == b""
    assert sent < len(frame), "it was not waited for until it was whole"
    await peer.close()
    await server.until("the reason is logged", lambda: bool(server.find("connection.refused", after=before, peer=own)))
    assert "the rest did not within 30000 ms" in server.find("connection.refused", after=before, peer=own)[0]["reason"]


# --------------------------------------------------------------------------------------------------------- connections


async def test_half_closed_connection_gets_its_responses_and_is_closed(target: tuple[Background, str]) -> None:
    _, address = target
    request = encode_frame(Command(RequestCode.GET_MAX_OFFSET, opaque=3, fields=to_plain(QueueHeader("fuzz", 0))))
    for sent, responses in ((b"", 0), (request[:5], 0), (request, 1), (request * 3, 3)):
        peer = await connected(address)
        await peer.send(sent)
        peer.writer.write_eof()
        for _ in range(responses):
            assert (await peer.next()).opaque == 3
        assert await peer.ended() == b""
        await peer.close()


async def test_reset_connections_leave_the_server_working(target: tuple[Background, str]) -> None:
    _, address = target
    host, _, port = address.rpartition(":")
    request = encode_frame(Command(RequestCode.GET_MAX_OFFSET, opaque=3, fields=to_plain(QueueHeader("fuzz", 0))))
    for count in range(50):
        with socket.create_connection((host, int(port))) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
            connection.sendall((request * 4)[: count * 7])
    await check_alive(address)


async def test_idle_connections_do_not_affect_other_clients(world: World, target: tuple[Background, str]) -> None:
    server, address = target
    before = server.resident_bytes()
    peers = await asyncio.gather(*(connected(address) for _ in range(500)))
    await world.until_progress()
    await check_alive(address)
    assert server.resident_bytes() - before < 32 * MIB
    for peer in peers:
        await peer.close()


async def test_client_that_never_reads_its_messages_uses_bounded_memory(world: World) -> None:
    """A connection requests 24 MiB of messages over and over and never reads."""
    async with native(world.broker_address) as sender:
        await sender.create("large")
        for _ in range(24):
            assert (await sender.send("large", bytes(MIB))).code == ResponseCode.SUCCESS
        await sender.everything("large")
    before = world.broker.resident_bytes()
    host, _, port = world.broker_address.rpartition(":")
    header = to_plain(PullHeader("g", "large", 0, 0, max_msg_nums=1_000, sys_flag=SUBSCRIPTION, max_msg_bytes=MIB))
    request = encode_frame(Command(RequestCode.PULL_MESSAGE, opaque=1, fields=header))
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        deaf.connect((host, int(port)))
        deaf.setblocking(False)
        loop = asyncio.get_running_loop()
        pushing = asyncio.ensure_future(loop.sock_sendall(deaf, request * 20_000))
        for _ in range(3):
            await world.until_progress()
            assert world.broker.resident_bytes() - before < 24 * MIB
        pushing.cancel()
        await asyncio.wait([pushing])
    await check_alive(world.broker_address)


async def test_client_that_never_reads_small_responses_is_no_longer_read(world: World) -> None:
    """The client never reads its responses: the broker stops reading, so that the client's own sends block."""
    before = world.broker.resident_bytes()
    host, _, port = world.broker_address.rpartition(":")
    with socket.create_connection((host, int(port))) as deaf:
        deaf.settimeout(1)
        assert await asyncio.to_thread(send_until_blocked, deaf, encode_frame(Command(12_345, opaque=1)) * 10_000, 48 * MIB) < 48 * MIB
        await world.until_progress()
        assert world.broker.resident_bytes() - before < 16 * MIB


def send_until_blocked(connection: socket.socket, data: bytes, limit: int) -> int:
    """Return how many bytes the other end accepted before it accepted none for the connection's timeout."""
    taken = at = 0
    while taken < limit:
        try:
            count = connection.send(data[at:])
        except TimeoutError:
            break
        taken, at = taken + count, (at + count) % len(data)
    return taken


# ------------------------------------------------------------------------------------------------- requests that can't be


async def test_missing_topic_is_reported_with_the_next_step(world: World) -> None:
    async with native(world.broker_address) as client:
        record = encode_record(b"nowhere", 0, b"x", b"", born_ms=1)
        requested = {
            "send": client.send("nowhere", b"x"),
            "send records": client.send_request(RequestCode.SEND_RECORDS, SendRecordsHeader("nowhere", 0, 1), record),
            "pull": client.pull("nowhere"),
            "offsets": client.send_request(RequestCode.TOPIC_OFFSETS, TopicHeader("nowhere")),
            "commit": client.send_request(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader("g", "nowhere", 0, 1)),
        }
        for what, response in requested.items():
            assert ((await response).code, what) == (ResponseCode.TOPIC_NOT_EXIST, what)
            assert "nowhere" in ((await response).remark or ""), what
        assert "lockstep topic create nowhere" in ((await requested["send"]).remark or "")
    async with native(world.nameserver_address) as client:
        code, remark = await client.refused(RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicHeader("nowhere"))
        assert (code, "lockstep topic create nowhere" in remark) == (ResponseCode.TOPIC_NOT_EXIST, True)
    async with Producer("hostile", nameserver=world.nameserver_address) as producer:
        with pytest.raises(TopicNotExistError, match=r"nowhere.*lockstep topic create nowhere"):
            await producer.send(Message("nowhere", b"x"))


async def test_unknown_queue_is_rejected_with_the_number_of_queues(world: World) -> None:
    async with native(world.broker_address) as client:
        for queue_id in (4, 10_000, 2**31 - 1):
            for response in (client.send("fuzz", b"x", queue_id), client.pull("fuzz", 0, queue_id), client.pull("fuzz", 0, -queue_id)):
                remark = (await response).remark or ""
                assert f"{queue_id} of topic fuzz" in remark
                assert "broker-a has 4" in remark


@pytest.mark.parametrize(
    ("name", "words"),
    [("t" * 128, "has 128 characters: longer than topic max length 127"), ("a b", "illegal characters"), ("", "blank"), ("ü", "illegal")],
)
async def test_invalid_topic_name_is_rejected_with_the_limit(world: World, name: str, words: str) -> None:
    """Both the broker and the SDK reject it."""
    async with native(world.broker_address) as client:
        for code, header in (
            (RequestCode.SEND_MESSAGE, {"producerGroup": "g", "topic": name, "queueId": 0}),
            (RequestCode.UPDATE_AND_CREATE_TOPIC, to_plain(CreateTopicHeader(name))),
            (RequestCode.PULL_MESSAGE, to_plain(PullHeader("g", name, 0, 0, sys_flag=SUBSCRIPTION))),
        ):
            _, remark = await client.refused(code, header, b"x" if code == RequestCode.SEND_MESSAGE else b"")
            assert words in remark
    with pytest.raises(LocalProtocolError, match=words):
        Message(name, b"x")


async def test_invalid_group_name_is_rejected_with_the_limit(world: World) -> None:
    group, words = "g" * 256, "has 256 characters: longer than group max length 255"
    async with native(world.broker_address) as client:
        _, remark = await client.refused(RequestCode.PULL_MESSAGE, PullHeader(group, "fuzz", 0, 0, sys_flag=SUBSCRIPTION))
        assert words in remark
        _, remark = await client.refused(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader(group, "fuzz", 0, 0))
        assert words in remark
        assert (await client.send_request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GroupHeader(group))).code != ResponseCode.SUCCESS
    with pytest.raises(LocalProtocolError, match=words):
        PushConsumer(group)
    with pytest.raises(LocalProtocolError, match=words):
        Producer(group)


async def test_keys_and_properties_above_the_limit_are_rejected(world: World) -> None:
    with pytest.raises(LocalProtocolError, match=r"40005 bytes.*at most 30720"):
        Message("fuzz", b"x", keys=["k" * 40_000])
    async with native(world.broker_address) as client:
        response = await client.send("fuzz", b"x", properties="KEYS\x01" + "k" * 40_000)
        assert response.code == ResponseCode.MESSAGE_ILLEGAL
        assert "40005 bytes: at most 30720" in (response.remark or "")
        response = await client.send("fuzz", b"x", properties="KEYS\x01k")
        assert response.code == ResponseCode.SUCCESS


async def test_empty_and_too_large_bodies_are_rejected_and_the_connection_stays_open(world: World) -> None:
    with pytest.raises(LocalProtocolError, match="1 byte"):
        Message("fuzz", b"")
    with pytest.raises(LocalProtocolError, match=f"{5 * MIB} bytes.*{4 * MIB}"):
        Message("fuzz", bytes(5 * MIB))
    async with native(world.broker_address) as client:
        empty = await client.send("fuzz", b"")
        assert (empty.code, empty.remark) == (
            ResponseCode.MESSAGE_ILLEGAL,
            "the body is empty: RocketMQ's clients refuse it too, put one byte in",
        )
        large = await client.send("fuzz", bytes(5 * MIB))
        assert large.code == ResponseCode.MESSAGE_ILLEGAL
        assert f"{5 * MIB} bytes: at most {4 * MIB}" in (large.remark or "")
        record = encode_record(b"fuzz", 0, bytes(5 * MIB), b"", born_ms=1)
        frame = await client.send_request(RequestCode.SEND_RECORDS, SendRecordsHeader("fuzz", 0, 1), record)
        assert frame.code == ResponseCode.MESSAGE_ILLEGAL
        assert f"size {len(record)}, expected" in (frame.remark or "")
        assert (await client.send("fuzz", bytes(4 * MIB))).code == ResponseCode.SUCCESS
        assert (await client.send("fuzz", b"still there")).code == ResponseCode.SUCCESS


async def test_brokers_own_topic_is_hidden(world: World) -> None:
    async with native(world.broker_address) as client:
        name = "LOCKSTEP_SYS_STATE"
        record = encode_record(name.encode(), 0, b"x", b"", born_ms=1)
        for response in (
            client.send(name, b"x"),
            client.send_request(RequestCode.SEND_RECORDS, SendRecordsHeader(name, 0, 1), record),
            client.pull(name),
            client.send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader(name)),
        ):
            assert (await response).code in (ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST)
            assert name in ((await response).remark or "")


async def test_invalid_layout_in_a_registration_is_skipped(world: World) -> None:
    """Otherwise every broker would adopt it. The broker that registers it is accepted: one invalid topic affects no other."""
    huge = TopicLayout("huge", LayoutVersion(1, 7), (LayoutEntry("broker-a", 1 << 40, 1 << 40, 1),))
    async with native(world.nameserver_address) as client:
        body = encode_body(RegisterBody({"internal": "127.0.0.1:1"}, (huge,), DataVersion(1, 1)))
        response = await client.send_request(RequestCode.REGISTER_BROKER, REGISTER, body)
        (refused,) = decode_body(RegisterReply, response.body).refused
        assert refused.topic == "huge"
        assert "topic huge: 1099511627776 queues at broker-a, expected 0 to 16384" in refused.reason
    async with native(world.broker_address) as client:
        code, remark = await client.refused(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("huge"), encode_body(huge))
        assert (code, "expected 0 to 16384" in remark) == (ResponseCode.MESSAGE_ILLEGAL, True)


@pytest.mark.parametrize("empty", [b"\x80", b"\x90"], ids=["maps", "lists"])
async def test_body_of_many_empty_values_is_rejected_without_delaying_others(target: tuple[Background, str], empty: bytes) -> None:
    """16 MiB that would be 1 GiB as objects, and seconds without service for others: the world's clients would lose their connections."""
    server, address = target
    code = RequestCode.SYNC if server.find("broker.started") else RequestCode.REGISTER_BROKER
    header = None if code is RequestCode.SYNC else REGISTER
    before = server.resident_bytes()
    async with native(address) as client:
        _, remark = await client.refused(code, header, b"\xdc\x00\xf0" + (b"\xdc\xff\xff" + empty * 65_535) * 240)
        assert "elements" in remark or "has a body of" in remark
    await check_alive(address)
    assert server.resident_bytes() - before < 160 * MIB


# -------------------------------------------------------------------------------------------------------------------- fuzz


async def fuzz(address: str, codes: dict[int, tuple[type | None, type | None]], seed: int, count: int) -> int:
    """Send `count` requests of each code; return how many got a response. A rejection has a reason."""
    hostile = Hostile(seed)
    responded = 0
    for code, (header, body) in codes.items():
        requests = [hostile.request(header, body) for _ in range(count)]
        while requests:
            async with native(address) as client:
                responded += await volley(client, code, requests)
    return responded


async def volley(client: Native, code: int, requests: list[tuple[dict[str, object], bytes]]) -> int:
    """Send the rest of `requests` until the connection ends; return how many got a response."""
    requested = []
    while requests and not client.endpoint.closed:
        requested += [client.send_request(code, *requests.pop()) for _ in range(min(25, len(requests)))]
        try:
            await client.send_request(RequestCode.GET_MAX_OFFSET, QueueHeader("fuzz", 0))
        except TransportError:
            break
    client.endpoint.abort("enough")
    found = await asyncio.gather(*requested, return_exceptions=True)
    responses = [response for response in found if isinstance(response, Command)]
    assert [response for response in found if not isinstance(response, Command | TransportError)] == []
    silent = [
        response
        for response in responses
        if response.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND) and not response.remark
    ]
    assert silent == []
    return len(responses)


@pytest.mark.parametrize("seed", seeds(1, 3))
async def test_every_broker_request_handles_any_fields(world: World, seed: int) -> None:
    assert await fuzz(world.broker_address, BROKER_CODES, seed, 120) > 1_500
    await check_alive(world.broker_address)


@pytest.mark.parametrize("seed", seeds(1, 3))
async def test_every_nameserver_request_handles_any_fields(world: World, seed: int) -> None:
    assert await fuzz(world.nameserver_address, NAMESERVER_CODES, 100 + seed, 120) > 800
    await check_alive(world.nameserver_address)
    environment = clean_environment(LOCKSTEP_NAMESERVER=world.nameserver_address)
    listed = run_program("lockstep.cli.main", "topic", "show", "good", environment=environment)
    assert listed.returncode == 0, listed.stderr


async def test_broker_that_got_random_requests_restarts_on_its_store(tmp_path: Path) -> None:
    options = ("-m", "lockstep.broker", "--listen", "127.0.0.1:0", "--store", str(tmp_path / "store"))
    for number in range(2):
        with background(tmp_path, f"broker-{number}", *options, ready="broker.started") as broker:
            address = broker.started("broker.started")["address"]
            async with native(address) as client:
                await client.create("fuzz", 4)
            await fuzz(address, BROKER_CODES, 200 + number, 60)
            assert [each for each in broker.events if each["event"] in UNFORESEEN] == []
    with background(tmp_path, "last", *options, ready="broker.started") as broker:
        async with native(broker.started("broker.started")["address"]) as client:
            await client.create("afterwards", 4)  # a request may have changed the queues of the other topic
            sent = await client.done(RequestCode.SEND_MESSAGE, {"producerGroup": "g", "topic": "afterwards", "queueId": 3}, b"x")
            assert sent.fields["queueId"] == 3
        assert broker.stop() == 0
