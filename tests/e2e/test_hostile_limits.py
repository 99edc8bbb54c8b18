"""Bodies, the admin port, remarks and the log: the limits for one peer, and that no other client is affected.

A producer and a consumer run through the whole file, and afterwards the broker starts again on its store.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lockstep.protocol.codec.plain import ELEMENTS_MAX, ITEMS_MAX
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import RESPONSE_FLAG, Command
from lockstep.protocol.frame import FrameBuffer, encode_frame
from lockstep.protocol.headers.offsets import QueueHeader
from lockstep.protocol.headers.routes import CreateTopicHeader, RegisterBrokerHeader
from lockstep.runtime.limits import HEARTBEAT_BYTES_MAX, LAYOUTS_BYTES_MAX, MEMBER_BYTES_MAX, REQUEST_BYTES_MAX
from support.background import Background, background
from support.hostile_world import UNFORESEEN, World
from support.http import fetch, raw
from support.native import native
from support.peers import RawPeer
from support.processes import clean_environment, run_program

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("undisturbed")]

MIB = 1 << 20
SERVER_OPTIONS = ("--admin-listen", "127.0.0.1:0")


# ------------------------------------------------------------------------------------------------------------------- bodies


def small_values(size: int, each: bytes) -> bytes:
    """Return a map of `size` bytes with an unknown member: lists with as many of `each` as possible."""
    head = b"\x81\xa7unknown"
    inner = b"\xdc\xff\xff" + each * 65_535
    lists, rest = divmod(size - len(head) - 5 - 5, len(inner))
    return head + b"\xdd" + (lists + 1).to_bytes(4, "big") + inner * lists + b"\xc6" + rest.to_bytes(4, "big") + bytes(rest)


REGISTER = RegisterBrokerHeader("broker-x", "DefaultCluster", "127.0.0.1:1", "e" * 32, 1, "d" * 32, 0)
LIMITED = [
    ("broker", RequestCode.HEART_BEAT, None, HEARTBEAT_BYTES_MAX),
    ("broker", RequestCode.SYNC, None, MEMBER_BYTES_MAX),
    ("broker", RequestCode.LOCK_BATCH_MQ, None, MEMBER_BYTES_MAX),
    ("broker", RequestCode.UNLOCK_BATCH_MQ, None, MEMBER_BYTES_MAX),
    ("broker", RequestCode.RESET_OFFSETS, None, MEMBER_BYTES_MAX),
    ("broker", RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("fuzz"), LAYOUTS_BYTES_MAX),
    ("broker", RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, REQUEST_BYTES_MAX),
    ("nameserver", RequestCode.REGISTER_BROKER, REGISTER, LAYOUTS_BYTES_MAX),
]


@pytest.mark.parametrize(
    ("who", "code", "header", "limit"), LIMITED, ids=lambda value: value.name if isinstance(value, RequestCode) else ""
)
@pytest.mark.parametrize(
    "each",
    [
        pytest.param(b"\x00", id="numbers"),
        pytest.param(b"\x80", id="maps"),
        pytest.param(b"\xa1x", id="texts", marks=pytest.mark.slow),
        pytest.param(b"\xcd\x7f\xff", id="large numbers", marks=pytest.mark.slow),
    ],
)
async def test_body_of_small_values_is_rejected_and_the_connection_stays_open(
    world: World, who: str, code: RequestCode, header: object, limit: int, each: bytes
) -> None:
    server, address = (world.broker, world.broker_address) if who == "broker" else (world.nameserver, world.nameserver_address)
    before = server.resident_bytes()
    async with native(address) as client:
        refused, remark = await client.refused(code, header, small_values(16 * MIB - 100_000, each))
        assert (refused, f"at most {limit}" in remark) == (ResponseCode.MESSAGE_ILLEGAL, True), remark
        for _ in range(5):
            _, remark = await client.refused(code, header, small_values(limit, each))
            assert limit <= ITEMS_MAX or len(each) == 3 or "elements" in remark
            assert limit <= ITEMS_MAX or len(each) == 3 or f"more than {min(ELEMENTS_MAX, limit // 4)}" in remark
        response = await client.send_request(RequestCode.GET_MAX_OFFSET, QueueHeader("fuzz", 0))
        assert response.code in (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    # The sent 16 MiB, and the values of 5 bodies: 64 bytes per element at most.
    assert server.resident_bytes() - before < 3 * 16 * MIB + 64 * ELEMENTS_MAX


@pytest.mark.parametrize("who", ["broker", "nameserver"])
async def test_nested_lists_with_false_lengths_are_rejected(world: World, who: str) -> None:
    server, address = (world.broker, world.broker_address) if who == "broker" else (world.nameserver, world.nameserver_address)
    code, header = (RequestCode.SYNC, None) if who == "broker" else (RequestCode.REGISTER_BROKER, REGISTER)
    before = server.resident_bytes()
    async with native(address) as client:
        for _ in range(3):
            _, remark = await client.refused(code, header, b"\x81\xa1x" + b"\xdc\xff\xff" * 1_000 + bytes(200_000))
            assert "is not msgpack within its limits" in remark
    assert server.resident_bytes() - before < 256 * MIB


# --------------------------------------------------------------------------------------------------------------- admin port


@pytest.mark.parametrize("who", ["broker", "nameserver"])
async def test_silent_connections_to_the_admin_port_do_not_block_probes(world: World, who: str) -> None:
    server = world.broker if who == "broker" else world.nameserver
    address = server.started(f"{who}.started")["admin"]
    host, _, port = address.rpartition(":")
    silent = []
    for _ in range(5):
        silent += [await asyncio.open_connection(host, int(port)) for _ in range(64)]
        for _, writer in silent[-32:]:
            writer.write(b"GET /livez HTTP/1.1\r\n")
        for path in ("/livez", "/readyz"):
            assert (await fetch(address, path))[0] == 200
    await world.until_progress()
    for _, writer in silent:
        writer.close()


@pytest.mark.parametrize("who", ["broker", "nameserver"])
async def test_browser_page_can_neither_read_nor_change_the_admin_port(world: World, who: str) -> None:
    server = world.broker if who == "broker" else world.nameserver
    address = server.started(f"{who}.started")["admin"]
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        simple = (
            f"POST /log-level HTTP/1.1\r\nHost: {address}\r\nOrigin: http://evil\r\nContent-Type: {kind}\r\nContent-Length: 5\r\n\r\ndebug"
        )
        assert (await raw(address, simple.encode()))[0] == 405
    for path in ("/metrics", "/livez", "/log-level"):
        status, body = await raw(address, f"GET {path} HTTP/1.1\r\nHost: rebound.example:{address.rpartition(':')[2]}\r\n\r\n".encode())
        assert (status, "--admin-host" in body, "lockstep_" in body) == (403, True, False)
    assert await fetch(address, "/log-level") == (200, "info\n")


# ------------------------------------------------------------------------------------------------------------------ remarks

EVIL = "gone\r\n\x1b[2J\x1b[31m2026-01-01 [info] broker.started\x9b1m\x00\u202e\u2028end"


@asynccontextmanager
async def invalid_remark_server(code: ResponseCode) -> AsyncIterator[str]:
    """Run a server that responds to every request with that code and an invalid remark."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameBuffer()
        while data := await reader.read(1 << 16):
            frames.feed(data)
            while (request := frames.next()) is not None:
                writer.write(encode_frame(Command(code, request.opaque, RESPONSE_FLAG, remark=EVIL)))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield "{}:{}".format(*server.sockets[0].getsockname()[:2])
    finally:
        server.close()


def check_escaped(text: str) -> None:
    """Check that the remark is printed, without any character that a terminal or a line reader interprets."""
    assert "broker.started" in text
    assert all(line.isprintable() for line in text.split("\n"))
    assert not any(line.startswith(("2026-01-01", "\\x1b")) for line in text.split("\n"))


@pytest.mark.parametrize(
    "command", [("topic", "list"), ("topic", "create", "t"), ("group", "list"), ("cluster",), ("doctor",), ("send", "t", "x")]
)
async def test_remark_of_a_server_is_escaped_before_it_is_printed(world: World, command: tuple[str, ...]) -> None:
    async with invalid_remark_server(ResponseCode.SYSTEM_ERROR) as address:
        environment = clean_environment(LOCKSTEP_NAMESERVER=address)
        ended = await asyncio.to_thread(run_program, "lockstep.cli.main", *command, environment=environment)
    assert ended.returncode == 1
    check_escaped(ended.stdout + ended.stderr)
    if command != ("doctor",):
        assert ended.stderr.count("\n") == 1


async def test_remark_of_a_nameserver_is_escaped_before_a_broker_logs_it(world: World, tmp_path: Path) -> None:
    async with invalid_remark_server(ResponseCode.BROKER_NAME_TAKEN) as address:
        options = ("--listen", "127.0.0.1:0", "--store", str(tmp_path / "store"), "--nameserver", address)
        broker = Background(tmp_path, "refused", "-m", "lockstep.broker", *options)
        assert await asyncio.to_thread(broker.process.wait, 30) == 4
    check_escaped(broker.complained.read_text())
    for line in broker.said.read_text().splitlines():
        assert line.isprintable()
        json.loads(line)


# ---------------------------------------------------------------------------------------------------------------------- log


@pytest.mark.parametrize("who", ["broker", "nameserver"])
async def test_repeated_errors_of_a_peer_are_counted_and_not_all_logged(world: World, who: str) -> None:
    server, address = (world.broker, world.broker_address) if who == "broker" else (world.nameserver, world.nameserver_address)
    host, _, port = address.rpartition(":")
    before, count = len(server.events), 300
    for _ in range(count // 50):
        peers = [RawPeer(*await asyncio.open_connection(host, int(port))) for _ in range(50)]
        for peer in peers:
            await peer.send(b"GET / HTTP/1.1\r\n\r\n")
        for peer in peers:
            assert await peer.ended() == b""
            await peer.close()

    def reported() -> int:
        left_out = sum(each["count"] for each in server.find("events.left_out", after=before, left_out="connection.refused"))
        return len(server.find("connection.refused", after=before)) + int(left_out)

    await server.until("each is written or counted", lambda: reported() >= count)
    assert reported() == count
    assert len(server.find("connection.refused", after=before)) < count


# ------------------------------------------------------------------------------------------------------------- and afterwards


async def test_attacked_broker_restarts_on_its_store_and_serves(folder: Path) -> None:
    options = ("-m", "lockstep.broker", "--listen", "127.0.0.1:0", "--store", str(folder / "again"))
    with background(folder, "attacked", *options, ready="broker.started") as attacked:
        async with native(attacked.started("broker.started")["address"]) as client:
            await client.create("fuzz")
            assert (await client.send("fuzz", b"x")).code == ResponseCode.SUCCESS
            for who, code, header, limit in LIMITED:
                if who == "broker":
                    await client.refused(code, header, small_values(limit + 1, b"\x80"))
                    await client.refused(code, header, small_values(limit, b"\x80"))
        assert [each for each in attacked.events if each["event"] in UNFORESEEN] == []
        assert attacked.stop() == 0
    with background(folder, "later", *options, ready="broker.started") as later:
        async with native(later.started("broker.started")["address"]) as client:
            assert (await client.done(RequestCode.GET_MAX_OFFSET, QueueHeader("fuzz", 0))).fields["offset"] == 1
            assert (await client.send("fuzz", b"x")).code == ResponseCode.SUCCESS
