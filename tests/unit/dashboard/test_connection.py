"""Connections that send no request are closed, and take no place of those that do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from lockstep.dashboard.connection import CONNECTIONS_MAX, READ_S, REQUEST_S, LimitedConnection

pytestmark = pytest.mark.simulated

CHUNK = 64 * 1024
HOST, PORT = "127.0.0.1", 9880
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
OPENED: list[asyncio.StreamWriter] = []
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class App:
    """Answers at once, or when it is allowed to. `unread`: bytes before the body that the tests read."""

    def __init__(self, unread: int = 0) -> None:
        self.unread = unread
        self.free = asyncio.Event()
        self.free.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.free.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % (self.unread + 2))]})
        for _ in range(0, self.unread, CHUNK):
            await send({"type": "http.response.body", "body": b"x" * CHUNK, "more_body": True})
        await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def serving(app: App) -> AsyncIterator[ServerState]:
    config, state = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none"), ServerState()
    config.load()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: LimitedConnection(config=config, server_state=state, app_state={}), HOST, PORT)
    yield state
    for writer in OPENED:
        writer.close()
    OPENED.clear()
    server.close()
    await asyncio.sleep(1)
    assert not state.connections


async def opened(sent: bytes = b"") -> Streams:
    reader, writer = await asyncio.open_connection(HOST, PORT)
    writer.write(sent)
    OPENED.append(writer)
    return reader, writer


async def answered(streams: Streams) -> bool:
    """Return whether a response comes; if not, the connection has ended."""
    try:
        return (await streams[0].readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200")
    except (ConnectionError, asyncio.IncompleteReadError):
        streams[1].close()
        return False


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("drops", [[b""], [b"GET / HT"], [b"GET / HTTP/1.1\r\n", b"Host:", b" a", b"\r\n", b"x: y\r\n", b"z", b": z\r\n"]])
async def test_connection_without_a_whole_header_is_closed(drops: list[bytes]) -> None:
    async with serving(App()) as state:
        began, (reader, writer) = now(), await opened()
        for each in drops:
            writer.write(each)
            await asyncio.sleep(1)
        assert not await answered((reader, writer))
        assert REQUEST_S <= now() - began <= max(len(drops), REQUEST_S) + 1
        assert not state.connections


async def test_header_of_the_next_request_has_a_limit_too() -> None:
    async with serving(App()) as state:
        streams = await opened(REQUEST)
        assert await answered(streams)
        await asyncio.sleep(3)
        streams[1].write(REQUEST[:-2])
        began = now()
        assert not await answered(streams)
        assert REQUEST_S <= now() - began <= REQUEST_S + 1
        assert not state.connections


async def test_body_that_nobody_reads_keeps_no_connection_open() -> None:
    async with serving(App()) as state:
        streams = await opened(REQUEST[:-2] + b"Content-Length: 1000\r\n\r\n")
        assert await answered(streams)
        for _ in range(REQUEST_S + 2):
            streams[1].write(b"x")
            await asyncio.sleep(1)
        assert not state.connections
        assert not await answered(streams)


async def test_request_that_is_served_and_those_in_time_have_no_limit() -> None:
    app = App()
    async with serving(app):
        app.free.clear()
        streams = await opened(REQUEST)
        await asyncio.sleep(10 * REQUEST_S)
        app.free.set()
        for _ in range(4):
            assert await answered(streams)
            await asyncio.sleep(REQUEST_S - 1)
            streams[1].write(REQUEST)
        assert await answered(streams)


async def test_connection_that_waited_longest_makes_way_for_a_new_one() -> None:
    app = App()
    async with serving(app) as state:
        app.free.clear()
        served = await opened(REQUEST)
        await asyncio.sleep(1)
        silent = [await opened() for _ in range(CONNECTIONS_MAX - 1)]
        await asyncio.sleep(1)
        last = await opened(REQUEST)
        assert not await answered(silent[0])
        assert len(state.connections) == CONNECTIONS_MAX
        app.free.set()
        assert await answered(served)
        assert await answered(last)


async def test_new_connection_is_closed_if_all_others_have_a_request() -> None:
    app = App()
    async with serving(app) as state:
        app.free.clear()
        served = [await opened(REQUEST) for _ in range(CONNECTIONS_MAX)]
        await asyncio.sleep(1)
        assert not await answered(await opened(REQUEST))
        assert len(state.connections) == CONNECTIONS_MAX
        app.free.set()
        assert all([await answered(each) for each in served])


async def test_client_that_does_not_read_its_response_is_closed_and_a_slow_one_is_not() -> None:
    size = 400 * CHUNK
    async with serving(App(size)) as state:
        began, deaf, slow = now(), await opened(REQUEST), await opened(REQUEST)
        await slow[0].readuntil(b"\r\n\r\n")
        assert len(state.connections) == 2
        read = 0
        while len(state.connections) == 2:
            read += len(await slow[0].read(CHUNK))
            await asyncio.sleep(1)
        assert READ_S <= now() - began <= READ_S + 2
        assert read < size
        deaf[1].close()
        assert await slow[0].readexactly(size - read) == b"x" * (size - read)
        assert await slow[0].readexactly(2) == b"ok"
