"""The admin port: the responses to a probe, to Prometheus and to curl, and to bad requests."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from lockstep.protocol.errors import ConfigError
from lockstep.runtime import admin_port
from lockstep.runtime.admin_port import INCOMPLETE_MAX, REQUEST_BYTES_MAX, RESPONDING_MAX, AdminPages, AdminPort, Health
from lockstep.runtime.logs.log import ROOT, get_logger
from lockstep.runtime.security.security_watch import Reloaded
from support.http import fetch, raw


class Program:
    def __init__(self) -> None:
        self.health = Health()
        self.reloaded = Reloaded((), None, None)
        self.reload_count = 0

    async def metrics(self) -> bytes:
        return b"up 1\n"

    async def reload(self) -> Reloaded:
        self.reload_count += 1
        return self.reloaded


@asynccontextmanager
async def served(program: Program, *hosts: str) -> AsyncIterator[str]:
    port = AdminPort(("127.0.0.1", 0), AdminPages(lambda: program.health, lambda: program.metrics(), program.reload), hosts)
    await port.start()
    try:
        yield port.address
    finally:
        await port.stop()


@pytest.fixture(autouse=True)
def restored_log_level() -> Iterator[None]:
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
async def test_livez_and_readyz_report_liveness_and_readiness_with_reasons(
    health: Health, live: int, ready: int, reasons: list[str]
) -> None:
    program = Program()
    program.health = health
    async with served(program) as address:
        assert (await fetch(address, "/livez"))[0] == live
        status, body = await fetch(address, "/readyz")
        assert (status, json.loads(body)["reasons"]) == (ready, reasons)


async def test_metrics_page_is_rendered_by_the_program() -> None:
    async with served(Program()) as address:
        assert await fetch(address, "/metrics") == (200, "up 1\n")


async def test_log_level_can_be_changed_at_run_time() -> None:
    logger = get_logger("tested")
    async with served(Program()) as address:
        assert await fetch(address, "/log-level", "PUT", "error\n") == (200, "error\n")
        assert not logger.isEnabledFor(logging.WARNING)
        assert await fetch(address, "/log-level", "PUT", "debug") == (200, "debug\n")
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
        (b"GET /reload HTTP/1.1\r\nX-Lockstep: 1\r\n\r\n", 405),
        (b"\x00\x01\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nContent-Length: many\r\n\r\n", 400),
        (b"GET /" + b"a" * REQUEST_BYTES_MAX, 400),
        (b"GET /livez?verbose=1 HTTP/1.1\r\n\r\n", 200),
    ],
)
async def test_bad_request_gets_an_error_and_the_next_one_is_served(request_bytes: bytes, status: int) -> None:
    async with served(Program()) as address:
        assert (await raw(address, request_bytes))[0] == status
        assert (await fetch(address, "/livez"))[0] == 200


async def test_request_may_arrive_in_pieces() -> None:
    async with served(Program()) as address:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for piece in (b"PUT /log-level HTTP/1.1\r\nContent-", b"Length: 7\r\n\r\nwarn", b"ing"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        assert (await reader.read()).endswith(b"\r\n\r\nwarning\n")
        writer.close()


PUT = "PUT /log-level HTTP/1.1\r\nHost: {host}\r\n{fields}Content-Length: 5\r\n\r\ndebug"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:10912", 200),
        ("192.168.1.5:5557", 200),
        ("[::1]:10912", 200),
        ("::1", 200),
        (":10912", 403),
        ("localhost:1", 200),
        ("LocalHost", 200),
        ("localhost.", 200),
        ("broker-a:5557", 200),
        ("Broker-A", 200),
        ("", 200),
        ("evil.example:10912", 403),
        ("127.0.0.1.evil.example", 403),
        ("broker-a.evil.example", 403),
        ("localhost@evil.example", 403),
        ("0x7f.1", 403),
        ("2130706433", 403),
        ("a b", 403),
    ],
)
async def test_host_header_must_be_an_address_or_a_name_of_this_machine(host: str, status: int) -> None:
    async with served(Program(), "broker-a") as address:
        for path in ("/livez", "/readyz", "/metrics", "/log-level", "/nothing"):
            request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
            assert (await raw(address, request))[0] == (404 if path == "/nothing" and status == 200 else status)
        response = await raw(address, PUT.format(host=host, fields="").encode())
        assert response[0] == status
        if status == 403:
            assert "--admin-host" in response[1]


async def test_request_with_two_host_headers_is_rejected() -> None:
    async with served(Program()) as address:
        assert (await raw(address, b"GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n"))[0] == 400


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ("", 200),
        ("Content-Type: application/x-www-form-urlencoded\r\n", 200),
        ("Content-Type: application/json\r\n", 200),
        ("Content-Type: text/plain\r\n", 415),
        ("content-type:TEXT/PLAIN;charset=UTF-8\r\n", 415),
        ("Content-Type: text/plain\r\nX-Lockstep: 1\r\n", 200),
    ],
)
async def test_plain_text_change_requires_the_x_lockstep_header(fields: str, status: int) -> None:
    async with served(Program()) as address:
        before = (await fetch(address, "/log-level"))[1]
        assert (await raw(address, PUT.format(host="localhost", fields=fields).encode()))[0] == status
        assert (await fetch(address, "/log-level"))[1] == ("debug\n" if status == 200 else before)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ("", 415),
        ("Content-Type: text/plain\r\n", 415),
        ("Host: evil.example\r\nX-Lockstep: 1\r\n", 403),
        ("X-Lockstep: 1\r\n", 200),
    ],
)
async def test_reload_requires_a_header_that_no_page_may_send(fields: str, status: int) -> None:
    program = Program()
    async with served(program) as address:
        assert (await raw(address, f"POST /reload HTTP/1.1\r\n{fields}\r\n".encode()))[0] == status
    assert program.reload_count == (status == 200)


@pytest.mark.parametrize(
    ("reloaded", "status"), [(Reloaded(("users.toml",), None, "0a0a0a0a"), 200), (Reloaded((), "it is not TOML", "0b0b0b0b"), 409)]
)
async def test_reload_says_what_was_read_or_what_is_wrong_with_it(reloaded: Reloaded, status: int) -> None:
    program = Program()
    program.reloaded = reloaded
    async with served(program) as address:
        found, body = await raw(address, b"POST /reload HTTP/1.1\r\nX-Lockstep: 1\r\n\r\n")
    assert (found, json.loads(body)) == (
        status,
        {"files": list(reloaded.files), "digest": reloaded.digest, "problem": reloaded.problem},
    )


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
async def test_simple_cross_origin_post_is_rejected(kind: str) -> None:
    """Method and content types of a simple request (Fetch, CORS-safelisted)."""
    async with served(Program()) as address:
        before = await fetch(address, "/log-level")
        request = f"POST /log-level HTTP/1.1\r\nHost: localhost\r\nX-Lockstep: 1\r\nContent-Type: {kind}\r\nContent-Length: 5\r\n\r\ndebug"
        assert (await raw(address, request.encode()))[0] == 405
        assert await fetch(address, "/log-level") == before


async def ended(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def test_oldest_connection_with_an_incomplete_request_is_closed_for_a_new_one() -> None:
    async with served(Program()) as address:
        host, _, port = address.rpartition(":")
        idle = []
        for number in range(2 * INCOMPLETE_MAX):
            idle.append(await asyncio.open_connection(host, int(port)))
            idle[-1][1].write(b"GET /livez" * (number % 2))
            assert (await fetch(address, "/livez"))[0] == 200
        for reader, _ in idle[:INCOMPLETE_MAX]:
            assert await ended(reader) == b""
        last = idle[-1]
        last[1].write(b" HTTP/1.1\r\n\r\n")
        assert (await last[0].read()).startswith(b"HTTP/1.1 200")
        for _, writer in idle:
            writer.close()


async def scrape(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Request /metrics; return the connection on which the response comes."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert (await fetch(address, "/livez"))[0] == 200  # the request was read before this one
    return reader, writer


class HeldMetrics:
    """Metrics whose rendering ends when `may_end` is set."""

    def __init__(self, program: Program) -> None:
        self.render_count = 0
        self.may_end = asyncio.Event()
        program.metrics = self.render  # type: ignore[method-assign]

    async def render(self) -> bytes:
        self.render_count += 1
        number = self.render_count
        await self.may_end.wait()
        return b"render %d\n" % number


async def test_concurrent_scrapes_share_one_rendering() -> None:
    program = Program()
    held = HeldMetrics(program)
    async with served(program) as address:
        scrapes = [await scrape(address) for _ in range(RESPONDING_MAX)]
        assert held.render_count == 1
        held.may_end.set()
        for reader, writer in scrapes:
            assert (await reader.read()).endswith(b"\r\n\r\nrender 1\n")
            writer.close()
        assert await fetch(address, "/metrics") == (200, "render 2\n")


async def test_connection_that_waits_for_its_response_is_not_closed_for_new_ones() -> None:
    program = Program()
    held = HeldMetrics(program)
    async with served(program) as address:
        host, _, port = address.rpartition(":")
        scrapes = [await scrape(address) for _ in range(RESPONDING_MAX)]
        for _ in range(RESPONDING_MAX):
            refused, body = await fetch(address, "/metrics")
            assert (refused, body) == (503, "8 connections wait for a response, the maximum: retry in a second\n")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(2 * INCOMPLETE_MAX)]
        assert (await fetch(address, "/livez"))[0] == 200
        held.may_end.set()
        for reader, writer in scrapes:
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()
        for _, writer in idle:
            writer.close()


async def test_rendering_that_times_out_is_abandoned_and_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program()
    held = HeldMetrics(program)
    monkeypatch.setattr(admin_port, "REQUEST_S", 0)
    port = AdminPort(("127.0.0.1", 0), AdminPages(Health, program.metrics, program.reload))
    assert (await port._metrics()).status == 503
    held.may_end.set()
    monkeypatch.setattr(admin_port, "REQUEST_S", 5)
    assert (await port._metrics()).body == b"render 2\n"


async def test_failing_page_responds_500_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    program = Program()

    async def fails() -> bytes:
        raise KeyError("missing")

    program.metrics = fails  # type: ignore[method-assign]
    async with served(program) as address:
        assert (await fetch(address, "/metrics"))[0] == 500
        assert (await fetch(address, "/livez"))[0] == 200
    assert [record.getMessage().split()[0] for record in caplog.records if record.exc_info] == ["task.failed"]


async def test_error_for_an_admin_port_in_use_names_it() -> None:
    async with served(Program()) as address:
        host, _, port = address.rpartition(":")
        with pytest.raises(ConfigError, match=rf"the admin port can't listen on 127\.0\.0\.1:{port}"):
            await AdminPort((host, int(port)), AdminPages(Health, Program().metrics, Program().reload)).start()
