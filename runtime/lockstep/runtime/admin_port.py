"""The admin port: a little HTTP/1.1 for probes, Prometheus and people with curl.

    GET  /livez      200 while the process answers and has not failed, else 503: start it anew
    GET  /readyz     200 while clients may be sent here, else 503 and why not
    GET  /metrics    Prometheus' text format
    GET  /log-level  what is logged; PUT another one of debug, info, warning, error: it holds until the process ends

One request a connection, at most 8 KiB, complete and answered within 5 s. At most 64 connections may be open without a whole request: with
one more the oldest of them is closed, so that a new one is always served. A connection that is being answered is never closed for another
one: requests for /metrics that come while the figures are rendered get the result of that rendering, and while 8 connections are being
answered another request for /metrics is answered 503. The other pages are answered in the turn in which they are asked for.

There is no authentication: whoever reaches the port reads the names of topics and groups and turns the log up. A web page in a browser on
this machine can't: the Host of a request must be an address or a name of this machine (not another name that resolves to its address),
and nothing is changed by a request that a browser sends without asking the port first (POST, `Content-Type: text/plain`).
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import cast

from lockstep.protocol.errors import ConfigError
from lockstep.runtime import log as logging
from lockstep.runtime.address import format_address, os_reason
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.metrics import CONTENT_TYPE, load

log = logging.get_logger("runtime.admin")

REQUEST_BYTES_MAX = 8 * 1024
REQUEST_S = 5
WAITING_MAX = 64
"""Connections that have not sent a whole request."""
ANSWERED_MAX = 8
"""Connections that are being answered, above which a request for /metrics is refused."""
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
REASONS = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    415: "Unsupported Media Type",
    500: "Internal Server Error",
    503: "Unavailable",
}


@dataclass(frozen=True, slots=True)
class Health:
    """Empty `failed`: alive. Both empty: ready."""

    failed: str | None = None
    """What makes going on impossible."""
    unready: tuple[str, ...] = ()
    """Why no client should be sent here now."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    path: str
    fields: dict[str, str]
    """By name in lower case."""
    body: str


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    body: bytes
    content_type: str = TEXT


FAILED = HttpResponse(500, b"the request failed: see the log\n")


@dataclass(frozen=True, slots=True)
class AdminPages:
    """What a program shows."""

    health: Callable[[], Health]
    metrics: Callable[[], Awaitable[bytes]]


@dataclass(slots=True)
class AdminPort:
    """`await start()`, `address`, `await stop()`."""

    listen: tuple[str, int]
    pages: AdminPages
    hosts: Collection[str] = ()
    """Names of this machine by which it may be asked, beside `localhost` and the one that it listens on. Addresses always may."""
    address: str = ""
    """As bound."""
    _server: asyncio.Server | None = None
    _tasks: Tasks = field(default_factory=Tasks)
    _open: dict["_Connection", None] = field(default_factory=dict)
    _scrape: "asyncio.Task[HttpResponse] | None" = None
    """The rendering of /metrics that runs, or the last one."""

    async def start(self) -> None:
        """ConfigError where the port can't be had."""
        load()
        host, port = self.listen
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: _Connection(self._answer, self._tasks, self._open), host, port
            )
        except OSError as error:
            raise ConfigError(f"the admin port can't listen on {host}:{port}: {os_reason(error)}") from error
        self.address = format_address(self._server.sockets[0].getsockname())

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._open):
            connection.abort()
        await self._tasks.cancel_all()

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        host = request.fields.get("host", "")
        if host and not self._is_ours(_host_name(host)):
            step = "ask by its address, or start it with --admin-host"
            return HttpResponse(403, f"host {host[:80]!r} is no name of this machine: {step}\n".encode())
        method, path = request.method, request.path.partition("?")[0]
        if path == "/log-level" and method == "PUT":
            if request.fields.get("content-type", "").strip().lower().startswith("text/plain") and "x-lockstep" not in request.fields:
                return HttpResponse(415, b"Content-Type text/plain: expected the header X-Lockstep, with any value, beside it\n")
            return _set_level(request.body.strip())
        if path not in ("/livez", "/readyz", "/metrics", "/log-level"):
            return HttpResponse(404, b"expected /livez, /readyz, /metrics or /log-level\n")
        if method != "GET":
            return HttpResponse(405, f"{method[:20]} {path}: expected GET{' or PUT' if path == '/log-level' else ''}\n".encode())
        if path == "/metrics":
            return await self._metrics()
        if path == "/log-level":
            return HttpResponse(200, f"{logging.level()}\n".encode())
        health = self.pages.health()
        reasons = ([] if health.failed is None else [health.failed]) + (list(health.unready) if path == "/readyz" else [])
        word = "ok" if not reasons else "failed" if health.failed is not None else "not ready"
        return HttpResponse(503 if reasons else 200, json.dumps({"status": word, "reasons": reasons}).encode() + b"\n", JSON)

    async def _metrics(self) -> HttpResponse:
        """The result of the rendering that runs, else of a new one."""
        if sum(connection.asked for connection in self._open) > ANSWERED_MAX:
            return HttpResponse(
                503, f"{ANSWERED_MAX} connections are being answered, no more are allowed: ask again in a second\n".encode()
            )
        if self._scrape is None or self._scrape.done():
            self._scrape = self._tasks.spawn(self._render(), "admin metrics")
        scrape = self._scrape
        await asyncio.wait([scrape])
        return scrape.result() if scrape.exception() is None else FAILED  # an error was logged by the owner of the task

    async def _render(self) -> HttpResponse:
        try:
            async with asyncio.timeout(REQUEST_S):
                return HttpResponse(200, await self.pages.metrics(), CONTENT_TYPE)
        except TimeoutError:
            return HttpResponse(503, f"the figures were not ready within {REQUEST_S} s\n".encode())

    def _is_ours(self, host: str) -> bool:
        """Browsers always name a host, so a request without one needs no check."""
        return _is_address(host) or host in {"localhost", self.listen[0].lower(), *(name.lower() for name in self.hosts)}


def _host_name(field: str) -> str:
    """The name or address of a Host field, in lower case, without the port."""
    field = field.lower()
    if field.startswith("["):
        return field[1:].partition("]")[0]
    return field if field.count(":") > 1 else field.partition(":")[0].rstrip(".")


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _set_level(wanted: str) -> HttpResponse:
    if wanted not in logging.LEVELS:
        return HttpResponse(400, f"log level {wanted[:20]!r}: expected one of {', '.join(logging.LEVELS)}\n".encode())
    before = logging.level()
    logging.set_level(wanted)
    logging.announce("log.level_changed", before=before, level=wanted)
    return HttpResponse(200, f"{wanted}\n".encode())


class _Connection(asyncio.Protocol):
    """Gathers one request, answers it, closes."""

    def __init__(
        self, answer: Callable[[HttpRequest], Awaitable[HttpResponse]], tasks: Tasks, open_ones: dict["_Connection", None]
    ) -> None:
        self._answer = answer
        self._tasks = tasks
        self._open = open_ones
        self._read = bytearray()
        self.asked = False
        """A whole request has come, or what can't become one."""
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._open[self] = None
        waiting = [connection for connection in self._open if not connection.asked]
        if len(waiting) > WAITING_MAX:
            waiting[0].abort()
        self._deadline = asyncio.get_running_loop().call_later(REQUEST_S, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()

    def abort(self) -> None:
        self._open.pop(self, None)
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.asked:
            return
        self._read += data
        head, end, body = bytes(self._read).partition(b"\r\n\r\n")
        if len(self._read) > REQUEST_BYTES_MAX:
            self._say(HttpResponse(400, f"a request of more than {REQUEST_BYTES_MAX} bytes\n".encode()))
            return
        if not end:
            return
        try:
            first, *fields = head.decode("latin-1").split("\r\n")
            method, path, _ = first.split(" ")
            named = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(":") for line in fields)]
            lengths = [int(value) for name, value in named if name == "content-length"]
            if [name for name, _ in named].count("host") > 1 or any(length < 0 for length in lengths):
                raise ValueError
        except ValueError:
            self._say(HttpResponse(400, b"expected an HTTP/1.1 request\n"))
            return
        if len(body) >= sum(lengths):
            self.asked = True
            request = HttpRequest(method, path, dict(named), body.decode("utf-8", "replace"))
            self._tasks.spawn(self._serve(request), "admin request")

    async def _serve(self, request: HttpRequest) -> None:
        try:
            answer = await self._answer(request)
        except BaseException:  # re-raised: the owner of the task logs it
            self._say(FAILED)
            raise
        self._say(answer)

    def _say(self, answer: HttpResponse) -> None:
        self.asked = True
        if self._transport is None or self._transport.is_closing():
            return
        head = f"HTTP/1.1 {answer.status} {REASONS[answer.status]}\r\nContent-Type: {answer.content_type}\r\n"
        self._transport.write(f"{head}Content-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n".encode() + answer.body)
        self._transport.close()
