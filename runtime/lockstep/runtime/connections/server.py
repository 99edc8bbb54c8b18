"""Listens on named ports and keeps the accepted connections. RocketMQ: NettyRemotingServer."""

import asyncio
import errno
from collections.abc import Callable, Mapping
from functools import partial

from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.connections.address import format_address, os_reason
from lockstep.runtime.connections.endpoint import Endpoint, Handler
from lockstep.runtime.connections.tls_listener import HALF_OPEN_MAX, TlsListener
from lockstep.runtime.host import Host
from lockstep.runtime.limits import DEFAULT_LIMITS, REQUEST_BYTES_MAX, EndpointLimits
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.security.server_security import OPEN, ServerSecurity

log = get_logger("runtime.server")

BACKLOG = 1024
"""Connections that the kernel queues until they are accepted: all clients of a restarted broker reconnect at once."""
CONNECTIONS_MAX = 10_000
"""The maximum number of connections: each may hold some MiB of unsent responses."""
PARTIAL_BYTES_MAX = 256 * 1024 * 1024
"""The maximum number of bytes of incomplete frames over all connections: 16 of the largest, or 1,000 of a producer's largest batches."""
REFUSED_LIMITS = EndpointLimits(frame_bytes_max=REQUEST_BYTES_MAX)
"""Of a connection without TLS whose first request is refused."""
FRAME_FIRST = 0x00
"""The first byte of a connection without TLS: a frame has at most 16 MiB, so its length begins with 0."""
RENEW_S = 10.0
"""Within how long connections are closed so that their clients show their certificates again."""


class Server:
    """Named listeners with one handler. `bind()` takes the ports, `start()` accepts connections, `close()` ends everything."""

    def __init__(
        self,
        host: Host,
        listeners: Mapping[str, tuple[str, int]],
        handler: Handler,
        limits: EndpointLimits = DEFAULT_LIMITS,
        *,
        on_connect: Callable[[Endpoint], None] | None = None,
        on_close: Callable[[Endpoint, str], None] | None = None,
        connections_max: int = CONNECTIONS_MAX,
        partial_bytes_max: int = PARTIAL_BYTES_MAX,
        security: ServerSecurity = OPEN,
        half_open_max: int = HALF_OPEN_MAX,
    ) -> None:
        self._host = host
        self._listeners = dict(listeners)
        self._handler = handler
        self._limits = limits
        self._on_connect = on_connect
        self._on_close = on_close
        self._connections_max = connections_max
        self._partial_bytes_max = partial_bytes_max
        self._partial_bytes = 0
        self.security = security
        self._half_open_max = half_open_max
        self._servers: list[asyncio.Server | TlsListener] = []
        self._next_id = 0
        self._open = False
        self.addresses: dict[str, str] = {}
        """Listener name → bound "ip:port"; a port 0 is replaced by the one that the system chose."""
        self.endpoints: dict[int, Endpoint] = {}
        """Open connections by Endpoint.id, oldest first."""

    async def bind(self) -> None:
        """Take every port without accepting: connections are refused until `start`. Raise ConfigError if a port can't be bound."""
        for name, (host, port) in self._listeners.items():
            try:
                server = await self._listen(name, host, port)
            except OSError as error:
                self.stop_accepting()
                step = ": stop what listens there, or choose another port (0: any free one)" if error.errno == errno.EADDRINUSE else ""
                raise ConfigError(f"listener {name!r} can't listen on {host}:{port}: {os_reason(error)}{step}") from error
            self._servers.append(server)
            self.addresses[name] = format_address(server.sockets[0].getsockname()) if server.sockets else f"{host}:{port}"

    async def _listen(self, name: str, host: str, port: int) -> asyncio.Server | TlsListener:
        """Take one port. Without TLS asyncio accepts its connections."""
        make, tls = self._factory(name, self._handler, self._limits), self.security.tls
        if tls is None:
            return await asyncio.get_running_loop().create_server(make, host, port, backlog=BACKLOG, start_serving=False)
        plain = self._factory(name, partial(_refuse_plain, name), REFUSED_LIMITS) if self.security.requires_tls(host) else make
        listener = TlsListener(name, make, lambda: tls.context, {FRAME_FIRST: plain}.get, self._refusal, self._half_open_max)
        await listener.bind(host, port)
        return listener

    async def start(self) -> None:
        """Bind, unless `bind` was called, and accept connections from now on."""
        if not self._servers:
            await self.bind()
        self._open = True
        for server in self._servers:
            await (server.start_serving(BACKLOG) if isinstance(server, TlsListener) else server.start_serving())

    def stop_accepting(self) -> None:
        """Close the ports; connections stay open."""
        self._open = False
        for server in self._servers:
            server.close()

    async def close(self, reason: str = "server closed") -> None:
        """Close the ports and every connection, and wait until all are closed (their unsent bytes have `linger_ms`)."""
        self.stop_accepting()
        for endpoint in list(self.endpoints.values()):
            endpoint.close(reason)
        for endpoint in list(self.endpoints.values()):
            await endpoint.wait_closed()
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()

    @property
    def connections_max(self) -> int:
        return self._connections_max

    @property
    def half_open_count(self) -> int:
        """Return the number of connections that shake hands, or have sent nothing yet."""
        return sum(server.half_open_count for server in self._servers if isinstance(server, TlsListener))

    @property
    def plain_count(self) -> int:
        """Return the number of open connections without TLS."""
        return sum(not endpoint.is_encrypted for endpoint in self.endpoints.values())

    @property
    def refused_count(self) -> int:
        """Return the number of connections that did not become open: their handshake failed, or they began with something else."""
        return sum(server.refused_count for server in self._servers if isinstance(server, TlsListener))

    def renew(self, reason: str, concerns: Callable[[Endpoint], bool] = lambda _: True) -> None:
        """Close the connections that this concerns, each at a random time within RENEW_S: clients connect again at once."""
        loop = asyncio.get_running_loop()
        for endpoint in self.endpoints.values():
            if concerns(endpoint):
                loop.call_later(self._host.random.uniform(0, RENEW_S), endpoint.close, reason)

    def _factory(self, name: str, handler: Handler, limits: EndpointLimits) -> Callable[[], Endpoint]:
        def accept() -> Endpoint:
            self._next_id += 1
            endpoint = Endpoint(self._host, handler, limits, name, self._next_id)
            endpoint.on_open = self._opened
            return endpoint

        return accept

    def _opened(self, endpoint: Endpoint) -> None:
        reason = self._refusal()
        if reason is not None:
            log_limited(log, "warning", "connection.refused", peer=endpoint.peer, listener=endpoint.listener, reason=reason)
            endpoint.abort(reason)
            return
        self.endpoints[endpoint.id] = endpoint
        endpoint.on_close.append(self._closed)
        endpoint.on_partial = self._partial
        log.debug("connection.opened", peer=endpoint.peer, listener=endpoint.listener, id=endpoint.id)
        if self._on_connect is not None:
            self._on_connect(endpoint)

    def _refusal(self) -> str | None:
        """Return why no connection may be added now, or None."""
        if not self._open:
            return "the server is closing"
        if (count := len(self.endpoints) + self.half_open_count) >= self._connections_max:
            return f"{count} connections are open, the limit"
        if self._host.descriptors.is_short():
            return f"{len(self.endpoints)} connections and the files have taken all {self._host.descriptors.limit} file descriptors"
        return None

    def _partial(self, change: int) -> None:
        """Beyond the limit, close the connection with the largest incomplete frame, never one with a small one."""
        self._partial_bytes += change
        while self._partial_bytes > self._partial_bytes_max:
            largest = max(self.endpoints.values(), key=lambda endpoint: endpoint.partial_bytes)
            self._forget_partial(largest)
            largest.reject(f"unfinished frames of all connections have more than {self._partial_bytes_max} bytes, its own the most")

    def _forget_partial(self, endpoint: Endpoint) -> None:
        self._partial_bytes -= endpoint.partial_bytes
        endpoint.partial_bytes = 0
        endpoint.on_partial = None

    def _closed(self, endpoint: Endpoint, reason: str) -> None:
        self._forget_partial(endpoint)
        log.debug("connection.closed", peer=endpoint.peer, listener=endpoint.listener, id=endpoint.id, reason=reason)
        del self.endpoints[endpoint.id]
        if self._on_close is not None:
            self._on_close(endpoint, reason)


def _refuse_plain(name: str, request: Command, endpoint: Endpoint) -> None:
    """Refuse the first request of a connection without TLS, with words that its client shows."""
    remark = f"listener {name!r} requires TLS: connect with TLS"
    endpoint.send(request.reply(ResponseCode.NO_PERMISSION, remark))
    endpoint.reject("it begins without TLS")
