"""The server: named listeners, binding before accepting, and a close that waits for its connections."""

import asyncio
import socket
from contextlib import AsyncExitStack

import pytest

from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import ConfigError, TransportError
from lockstep.protocol.frame import encode_frame
from lockstep.runtime.connections.dial import call, connect
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.connections.server import Server
from lockstep.runtime.host import Host
from support.loops import until
from support.peers import RawPeer, dialled, raw_peer, serving

pytestmark = pytest.mark.both_loops

ASK = RequestCode.GET_MAX_OFFSET


def name_listener(command: Command, endpoint: Endpoint) -> None:
    endpoint.send(command.reply(remark=endpoint.listener))


async def test_endpoint_has_the_name_of_its_listener() -> None:
    server = Server(Host.real(), {"internal": ("127.0.0.1", 0), "external": ("127.0.0.1", 0)}, name_listener)
    await server.start()
    assert server.addresses["internal"] != server.addresses["external"]
    for name, address in server.addresses.items():
        assert (await call(Host.real(), address, ASK, timeout_ms=5000)).remark == name
    await server.close()


async def test_bound_port_is_known_and_refuses_connections_until_start() -> None:
    server = Server(Host.real(), {"internal": ("127.0.0.1", 0)}, name_listener)
    await server.bind()
    address = server.addresses["internal"]
    assert int(address.rpartition(":")[2]) > 0
    with pytest.raises(TransportError, match="refused"):
        await connect(Host.real(), address)
    await server.start()
    assert (await call(Host.real(), address, ASK, timeout_ms=5000)).code == 0
    await server.close()


async def test_error_for_a_port_in_use_names_the_listener_and_other_ports_are_released() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = Server(Host.real(), {"internal": ("127.0.0.1", 0), "external": ("127.0.0.1", port)}, name_listener)
        words = (
            rf"listener 'external' can't listen on 127\.0\.0\.1:{port}: address already in use: stop what listens there, or choose another"
        )
        with pytest.raises(ConfigError, match=words):
            await server.start()
        with pytest.raises(TransportError):
            await connect(Host.real(), server.addresses["internal"])
        await server.close()


async def test_connections_are_reported_and_have_increasing_numbers() -> None:
    came: list[int] = []
    went: list[int] = []
    async with serving(name_listener, on_connect=lambda e: came.append(e.id), on_close=lambda e, _: went.append(e.id)) as server:
        async with dialled(server) as first, dialled(server) as second:
            await first.request(ASK, timeout_ms=5000)
            await second.request(ASK, timeout_ms=5000)
            assert came == list(server.endpoints) == [1, 2]
        await until(lambda: went != [] and len(went) == 2, "both closed")
        assert server.endpoints == {}
        async with dialled(server) as third:
            await third.request(ASK, timeout_ms=5000)
            assert list(server.endpoints) == [3], "a number is never used again"


async def test_connection_beyond_the_limit_is_closed_and_the_others_remain() -> None:
    async with serving(name_listener, connections_max=2) as server, dialled(server) as first, dialled(server) as second:
        await first.request(ASK, timeout_ms=5000)
        await second.request(ASK, timeout_ms=5000)
        async with raw_peer(server) as third:
            assert await third.ended() == b""
        assert (await first.request(ASK, timeout_ms=5000)).code == 0
        first.close("room for another")
        await until(lambda: len(server.endpoints) == 1, "first gone")
        async with dialled(server) as fourth:
            assert (await fourth.request(ASK, timeout_ms=5000)).code == 0


async def test_connection_with_the_largest_partial_frame_is_closed_beyond_the_limit() -> None:
    frame = encode_frame(Command(ASK, 5, body=bytes(90_000)))
    async with serving(name_listener, partial_bytes_max=100_000) as server, AsyncExitStack() as stack:
        small, large, late = [await stack.enter_async_context(raw_peer(server)) for _ in range(3)]

        async def send(peer: RawPeer, data: bytes, total: int) -> None:
            await peer.send(data)
            await until(lambda: sum(endpoint.partial_bytes for endpoint in server.endpoints.values()) == total, f"{total} bytes are there")

        await send(small, frame[:30_000], 30_000)
        await send(large, frame[:70_000], 100_000)
        await send(late, frame[:1], 30_001)
        assert await large.ended() == b""
        await until(lambda: len(server.endpoints) == 2, "only that one is gone")
        await send(late, frame[1:70_000], 100_000)
        await send(small, frame[30_000:], 70_000)
        assert (await small.next()).opaque == 5
        await send(late, frame[70_000:], 0)
        assert (await late.next()).opaque == 5


async def test_partial_bytes_of_a_closed_connection_are_released() -> None:
    frame = encode_frame(Command(ASK, 5, body=bytes(90_000)))
    async with serving(name_listener, partial_bytes_max=100_000) as server:
        for _ in range(3):
            async with raw_peer(server) as peer:
                await peer.send(frame[:60_000])
                await until(lambda: [endpoint.partial_bytes for endpoint in server.endpoints.values()] == [60_000], "it has begun")
            await until(lambda: not server.endpoints, "gone")


async def test_close_sends_the_last_frames_and_waits_until_all_connections_are_closed() -> None:
    went: list[str] = []
    server = Server(Host.real(), {"internal": ("127.0.0.1", 0)}, name_listener, on_close=lambda _, reason: went.append(reason))
    await server.start()
    async with raw_peer(server) as peer:
        await until(lambda: bool(server.endpoints), "accepted")
        next(iter(server.endpoints.values())).oneway(ASK, body=b"x" * 200_000)
        closing = asyncio.get_running_loop().create_task(server.close("going down"))
        assert len((await peer.next()).body) == 200_000
        assert await peer.ended() == b""
        await closing
    assert went == ["going down"]
    assert server.endpoints == {}


async def test_stop_accepting_keeps_existing_connections() -> None:
    async with serving(name_listener) as server, dialled(server) as endpoint:
        await endpoint.request(ASK, timeout_ms=5000)
        server.stop_accepting()
        assert (await endpoint.request(ASK, timeout_ms=5000)).code == 0
        with pytest.raises(TransportError):
            await connect(Host.real(), server.addresses["internal"])
