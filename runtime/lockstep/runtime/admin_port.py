"""The admin port: a small HTTP/1.1 server for probes, Prometheus and curl.

    GET  /livez      200 while the process responds and has not failed, else 503: restart it
    GET  /readyz     200 while clients may connect to it, else 503 with the reasons
    GET  /metrics    Prometheus' text format
    GET  /log-level  the log level; PUT one of debug, info, warning, error to change it until the process ends
    POST /reload     reads the files of certificates and users again: 200 with those that have changed, 409 with what is wrong with one

A connection carries one request of at most 8 KiB, which must be complete and responded to within 5 s. At most 64 connections may be open
without a complete request: one more closes the oldest of them, so that a new connection is always accepted. A connection that has sent its
request is never closed in favor of another one. Requests for /metrics that arrive during a rendering get its result, and while 8
connections wait for their response another request for /metrics gets 503. The other pages respond in the same turn of the loop.

Pages that `ServerSecurity.guarded` names need the token of the admin port (`Authorization: Bearer TOKEN`), which is read again when its
file changes. While there are such pages, /livez and /readyz tell their reasons, which have names in them, to requests with the token only.
On this machine there are none, unless there is a token.

A web page in a browser on this machine reaches nothing: the Host of a request must be an address or a name of this machine (not another
name that resolves to its address), and a request that a browser sends without a preflight (POST, `Content-Type: text/plain`) changes
nothing without the header X-Lockstep, which needs one.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import cast

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.connections.address import format_address, os_reason
from lockstep.runtime.connections.http_host import is_own_host
from lockstep.runtime.connections.listen_address import ADMIN
from lockstep.runtime.connections.tls_listener import TlsListener
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.logs import log as logging
from lockstep.runtime.metrics import CONTENT_TYPE, load
from lockstep.runtime.security.security_watch import Reloaded
from lockstep.runtime.security.server_security import OPEN, ServerSecurity

log = logging.get_logger("runtime.admin")

REQUEST_BYTES_MAX = 8 * 1024
REQUEST_S = 5
INCOMPLETE_MAX = 64
"""The maximum number of connections that have not sent a complete request."""
RESPONDING_MAX = 8
"""The number of connections waiting for their response above which a request for /metrics or /reload is rejected."""
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    415: "Unsupported Media Type",
    500: "Internal Server Error",
    503: "Unavailable",
}


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a process. It is alive if `failed` is None, and ready if `unready` is empty too."""

    failed: str | None = None
    """The error that keeps the process from continuing."""
    unready: tuple[str, ...] = ()
    """The reasons why no client should connect now."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    path: str
    fields: dict[str, str]
    """Header fields by name in lower case."""
    body: str


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    body: bytes
    content_type: str = TEXT


CHALLENGE = "WWW-Authenticate: Bearer\r\n"
HIDDEN = "the token of this port shows the reasons (--admin-token-file)"
FAILED = HttpResponse(500, b"the request failed: see the log\n")
BUSY = HttpResponse(503, f"{RESPONDING_MAX} connections wait for a response, the maximum: retry in a second\n".encode())


@dataclass(frozen=True, slots=True)
class AdminPages:
    """The contents that a program provides."""

    health: Callable[[], Health]
    metrics: Callable[[], Awaitable[bytes]]
    reload: Callable[[], Awaitable[Reloaded]]


@dataclass(slots=True)
class AdminPort:
    """The admin server. `start` binds the port, `stop` closes it and its connections."""

    listen: tuple[str, int]
    pages: AdminPages
    hosts: Collection[str] = ()
    """Names of this machine accepted as Host, in addition to `localhost` and the name of the listen address. Addresses are always
    accepted."""
    security: ServerSecurity = OPEN
    address: str = ""
    """The bound address."""
    _server: asyncio.Server | TlsListener | None = None
    _tasks: Tasks = field(default_factory=Tasks)
    _open: dict["_Connection", None] = field(default_factory=dict)
    _scrape: "asyncio.Task[HttpResponse] | None" = None
    """The running rendering of /metrics, or the last one."""

    async def start(self) -> None:
        """Bind the port. Raise ConfigError if that fails."""
        load()
        host, port = self.listen
        try:
            self._server = await self._listen(host, port)
        except OSError as error:
            raise ConfigError(f"the admin port can't listen on {host}:{port}: {os_reason(error)}") from error
        self.address = format_address(self._server.sockets[0].getsockname())

    async def _listen(self, host: str, port: int) -> asyncio.Server | TlsListener:
        def make() -> _Connection:
            return _Connection(self._handle, self._tasks, self._open)

        tls, requires_tls = self.security.tls, self.security.requires_tls(host)
        if tls is None:
            return await asyncio.get_running_loop().create_server(make, host, port)
        listener = TlsListener(ADMIN, make, lambda: tls.context, lambda _: None if requires_tls else make, half_open_max=INCOMPLETE_MAX)
        await listener.bind(host, port)
        await listener.start_serving(INCOMPLETE_MAX)
        return listener

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._open):
            connection.abort()
        await self._tasks.cancel_all()
        if isinstance(self._server, TlsListener):
            await self._server.wait_closed()

    async def _handle(self, request: HttpRequest) -> HttpResponse:
        host = request.fields.get("host", "")
        if host and not is_own_host(host, (self.listen[0], *self.hosts)):  # browsers always send one
            step = "use its address, or start it with --admin-host"
            return HttpResponse(403, f"host {host[:80]!r} is not a name of this machine: {step}\n".encode())
        method, path = request.method, request.path.partition("?")[0]
        if path not in ("/livez", "/readyz", "/metrics", "/log-level", "/reload"):
            return HttpResponse(404, b"expected /livez, /readyz, /metrics, /log-level or /reload\n")
        if path in self.security.guarded and not self._has_token(request):
            if self.security.admin_token is None:
                return HttpResponse(403, f"{path} needs a token, and this server has none: set admin_token_file\n".encode())
            return HttpResponse(401, f"{path} needs the token of this port: Authorization: Bearer TOKEN\n".encode())
        if path == "/log-level" and method == "PUT":
            if request.fields.get("content-type", "").strip().lower().startswith("text/plain") and "x-lockstep" not in request.fields:
                return HttpResponse(415, b"Content-Type text/plain: the header X-Lockstep, with any value, is required too\n")
            return _set_level(request.body.strip())
        if path == "/reload":
            return await self._reload(request)
        if method != "GET":
            return HttpResponse(405, f"{method[:20]} {path}: expected GET{' or PUT' if path == '/log-level' else ''}\n".encode())
        if path == "/metrics":
            return await self._metrics()
        if path == "/log-level":
            return HttpResponse(200, f"{logging.level()}\n".encode())
        return self._health(request, path)

    def _has_token(self, request: HttpRequest) -> bool:
        token = self.security.admin_token
        return token is not None and token.value.is_in(request.fields.get("authorization", ""))

    def _health(self, request: HttpRequest, path: str) -> HttpResponse:
        health = self.pages.health()
        reasons = ([] if health.failed is None else [health.failed]) + (list(health.unready) if path == "/readyz" else [])
        if reasons and self.security.guarded and not self._has_token(request):
            reasons = [HIDDEN]
        status = "ok" if not reasons else "failed" if health.failed is not None else "not ready"
        return HttpResponse(503 if reasons else 200, json.dumps({"status": status, "reasons": reasons}).encode() + b"\n", JSON)

    async def _reload(self, request: HttpRequest) -> HttpResponse:
        if request.method != "POST":
            return HttpResponse(405, f"{request.method[:20]} /reload: expected POST\n".encode())
        if "x-lockstep" not in request.fields:
            return HttpResponse(415, b"POST /reload: the header X-Lockstep, with any value, is required\n")
        if self._is_busy():
            return BUSY
        found = await self.pages.reload()
        facts = {"files": found.files, "digest": found.digest, "problem": found.problem}
        return HttpResponse(200 if found.problem is None else 409, json.dumps(facts).encode() + b"\n", JSON)

    def _is_busy(self) -> bool:
        return sum(connection.is_complete for connection in self._open) > RESPONDING_MAX

    async def _metrics(self) -> HttpResponse:
        """Return the result of the running rendering, or else of a new one."""
        if self._is_busy():
            return BUSY
        if self._scrape is None or self._scrape.done():
            self._scrape = self._tasks.spawn(self._render(), "admin metrics")
        scrape = self._scrape
        await asyncio.wait([scrape])
        return scrape.result() if scrape.exception() is None else FAILED  # the owner of the task has logged the error

    async def _render(self) -> HttpResponse:
        try:
            async with asyncio.timeout(REQUEST_S):
                return HttpResponse(200, await self.pages.metrics(), CONTENT_TYPE)
        except TimeoutError:
            return HttpResponse(503, f"the metrics were not ready within {REQUEST_S} s\n".encode())


def _set_level(wanted: str) -> HttpResponse:
    if wanted not in logging.LEVELS:
        return HttpResponse(400, f"log level {wanted[:20]!r}: expected one of {', '.join(logging.LEVELS)}\n".encode())
    before = logging.level()
    logging.set_level(wanted)
    logging.announce("log.level_changed", before=before, level=wanted)
    return HttpResponse(200, f"{wanted}\n".encode())


class _Connection(asyncio.Protocol):
    """Reads one request, sends the response, closes."""

    def __init__(
        self, handle: Callable[[HttpRequest], Awaitable[HttpResponse]], tasks: Tasks, open_connections: dict["_Connection", None]
    ) -> None:
        self._handle = handle
        self._tasks = tasks
        self._open = open_connections
        self._read = bytearray()
        self.is_complete = False
        """Whether a complete request, or an invalid one, has arrived."""
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._open[self] = None
        waiting = [connection for connection in self._open if not connection.is_complete]
        if len(waiting) > INCOMPLETE_MAX:
            waiting[0].abort()
        self._deadline = asyncio.get_running_loop().call_later(REQUEST_S, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None  # it refers back to this connection

    def abort(self) -> None:
        self._open.pop(self, None)
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.is_complete:
            return
        self._read += data
        head, end, body = bytes(self._read).partition(b"\r\n\r\n")
        if len(self._read) > REQUEST_BYTES_MAX:
            self._respond(HttpResponse(400, f"a request of more than {REQUEST_BYTES_MAX} bytes\n".encode()))
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
            self._respond(HttpResponse(400, b"expected an HTTP/1.1 request\n"))
            return
        if len(body) >= sum(lengths):
            self.is_complete = True
            request = HttpRequest(method, path, dict(named), body.decode("utf-8", "replace"))
            self._tasks.spawn(self._serve(request), "admin request")

    async def _serve(self, request: HttpRequest) -> None:
        try:
            response = await self._handle(request)
        except BaseException:  # re-raised: the owner of the task logs it
            self._respond(FAILED)
            raise
        self._respond(response)

    def _respond(self, response: HttpResponse) -> None:
        self.is_complete = True
        if self._transport is None or self._transport.is_closing():
            return
        head = f"HTTP/1.1 {response.status} {REASONS[response.status]}\r\nContent-Type: {response.content_type}\r\n"
        head += CHALLENGE if response.status == 401 else ""
        self._transport.write(f"{head}Content-Length: {len(response.body)}\r\nConnection: close\r\n\r\n".encode() + response.body)
        self._transport.close()
