"""The admin port: what a probe, Prometheus and somebody with curl are answered, and what bad requests are."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.admin_port import CONNECTIONS_MAX, REQUEST_BYTES_MAX, AdminPages, AdminPort, Health
from lockstep.runtime.log import ROOT, get_logger
from support.http import fetch, raw
from support.until import until


class Program:
    def __init__(self) -> None:
        self.health = Health()

    async def metrics(self) -> bytes:
        return b"up 1\n"


@asynccontextmanager
async def served(program: Program) -> AsyncIterator[str]:
    port = AdminPort(("127.0.0.1", 0), AdminPages(lambda: program.health, program.metrics))
    await port.start()
    try:
        yield port.address
    finally:
        await port.stop()


@pytest.fixture(autouse=True)
def level_as_it_was() -> Iterator[None]:
    before = logging.getLogger(ROOT).level
    yield
    logging.getLogger(ROOT).setLevel(before)


@pytest.mark.parametrize(
    ("health", "live", "ready", "reasons"),
    [
        (Health(), 200, 200, []),
        (Health(unready=("the disk is full",)), 200, 503, ["the disk is full"]),
        (Health("the log can't be written"), 503, 503, ["the log can't be written"]),
        (Health("broken", ("not registered",)), 503, 503, ["broken", "not registered"]),
    ],
)
async def test_alive_and_ready_are_different_questions(health: Health, live: int, ready: int, reasons: list[str]) -> None:
    program = Program()
    program.health = health
    async with served(program) as address:
        assert (await fetch(address, "/livez"))[0] == live
        status, body = await fetch(address, "/readyz")
        assert (status, json.loads(body)["reasons"]) == (ready, reasons)


async def test_metrics_are_what_the_program_renders() -> None:
    async with served(Program()) as address:
        assert await fetch(address, "/metrics") == (200, "up 1\n")


async def test_the_log_level_can_be_changed_while_it_runs() -> None:
    logger = get_logger("tested")
    async with served(Program()) as address:
        assert await fetch(address, "/log-level", "PUT", "error\n") == (200, "error\n")
        assert not logger.isEnabledFor(logging.WARNING)
        assert await fetch(address, "/log-level", "POST", "debug") == (200, "debug\n")
        assert logger.isEnabledFor(logging.DEBUG)
        assert await fetch(address, "/log-level") == (200, "debug\n")
        status, body = await fetch(address, "/log-level", "PUT", "loud")
        assert (status, body) == (400, "log level 'loud': expected one of debug, info, warning, error\n")
        assert await fetch(address, "/log-level") == (200, "debug\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"DELETE /livez HTTP/1.1\r\n\r\n", 405),
        (b"PUT /metrics HTTP/1.1\r\n\r\n", 405),
        (b"\x00\x01\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nContent-Length: many\r\n\r\n", 400),
        (b"GET /" + b"a" * REQUEST_BYTES_MAX, 400),
        (b"GET /livez?verbose=1 HTTP/1.1\r\n\r\n", 200),
    ],
)
async def test_a_bad_request_is_answered_and_the_next_one_served(request_bytes: bytes, status: int) -> None:
    async with served(Program()) as address:
        assert (await raw(address, request_bytes))[0] == status
        assert (await fetch(address, "/livez"))[0] == 200


async def test_a_request_may_come_in_pieces() -> None:
    async with served(Program()) as address:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for piece in (b"PUT /log-level HTTP/1.1\r\nContent-", b"Length: 7\r\n\r\nwarn", b"ing"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        assert (await reader.read()).endswith(b"\r\n\r\nwarning\n")
        writer.close()


async def test_more_connections_than_allowed_are_cut_and_the_others_stay() -> None:
    async with served(Program()) as address:
        host, _, port = address.rpartition(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(CONNECTIONS_MAX)]
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            assert await reader.read() == b""
        except ConnectionError:
            pass
        idle[0][1].write(b"GET /livez HTTP/1.1\r\n\r\n")
        assert (await idle[0][0].read()).startswith(b"HTTP/1.1 200")
        for _, open_writer in [*idle, (reader, writer)]:
            open_writer.close()
        await until(lambda: all(writer.is_closing() for _, writer in idle))


async def test_a_port_that_is_taken_is_named() -> None:
    async with served(Program()) as address:
        host, _, port = address.rpartition(":")
        with pytest.raises(ConfigError, match=rf"the admin port can't listen on 127\.0\.0\.1:{port}"):
            await AdminPort((host, int(port)), AdminPages(Health, Program().metrics)).start()
