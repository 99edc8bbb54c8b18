"""The dashboard as a service: its port, its watch of the cluster, and an ordered stop."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from lockstep.dashboard.config import LISTENER, DashboardConfig
from lockstep.dashboard.connection import CONNECTIONS_MAX, LimitedConnection
from lockstep.dashboard.dashboard import Dashboard
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.connections.address import format_address, os_reason
from lockstep.runtime.connections.tls_listener import TlsListener
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import announce
from lockstep.runtime.security.security_watch import SecurityWatch

STOP_S = 2
"""How long a stop waits for responses that are being sent."""


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: the Daemon has its own."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepts = asyncio.Event()
        self.tls: TlsListener | None = None
        """The port, if it has TLS."""

    def make_connection(self) -> LimitedConnection:
        """Return the protocol of a connection, for `tls`."""
        return LimitedConnection(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.tls is not None:
            self.servers.append(self.tls)  # type: ignore[arg-type]
            await self.tls.start_serving(CONNECTIONS_MAX)
        self.accepts.set()


class DashboardServer:
    """Serves the dashboard at the address of its settings."""

    def __init__(self, config: DashboardConfig, host: Host) -> None:
        self.on_fatal: Callable[[BaseException], None] | None = None
        self.address = ""
        self._config = config
        self._security = config.open_security()
        self._watch = SecurityWatch(self._security, host)
        self._tasks = Tasks(self._failed)
        self._dashboard = Dashboard(
            config.nameserver,
            host=host,
            host_names=config.host_name,
            bodies=not config.no_bodies,
            changes=config.allow_changes,
            login=config.login,
        )
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Return where a browser on this machine finds it, after the start."""
        return f"http{'' if self._security.tls is None else 's'}://{self.address}{self._config.root_path}/"

    @property
    def on_hangup(self) -> Callable[[], None] | None:
        """Return what SIGHUP does: it reads the files of the security again. None if there are none."""
        return self._watch.on_hangup

    async def start(self) -> None:
        """Bind the port and begin to watch the cluster, which need not be there yet. Raise ConfigError if the port can't be bound."""
        options = uvicorn.Config(
            self._dashboard.app,
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            ws="none",
            http=LimitedConnection,
            server_header=False,
            timeout_graceful_shutdown=STOP_S,
            root_path=self._config.root_path,
        )
        self._server = server = _Server(options)
        bound = await self._bind(server)
        self._serving = self._tasks.spawn(server.serve(sockets=bound), "dashboard server")
        await self._dashboard.start()
        await server.accepts.wait()
        announce("dashboard.started", address=self.url, nameserver=self._config.nameserver)

    async def _bind(self, server: _Server) -> list[socket.socket]:
        """Bind the port. Return the sockets on which uvicorn accepts: none if the port has TLS."""
        host, port = self._config.address
        tls, requires_tls = self._security.tls, self._security.requires_tls(host)
        try:
            if tls is None:
                bound = [_bound_socket(host, port)]
                self.address = format_address(bound[0].getsockname())
                return bound
            make = server.make_connection
            server.tls = TlsListener(LISTENER, make, lambda: tls.context, lambda _: None if requires_tls else make)
            await server.tls.bind(host, port)
        except OSError as error:
            raise ConfigError(f"the dashboard can't listen on {host}:{port}: {os_reason(error)}") from error
        await self._watch.begin(self._tasks, lambda _reason, _concerns: None)
        self.address = format_address(server.tls.sockets[0].getsockname())
        return []

    async def stop(self) -> None:
        await self._dashboard.stop()
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.wait([self._serving])
        await self._tasks.cancel_all()

    def _failed(self, error: BaseException) -> None:
        if self.on_fatal is not None:
            self.on_fatal(error)


def local_dashboard(nameserver: str, port: int, host: Host) -> DashboardServer:
    """Return a dashboard for browsers on this machine. Port 0: any free port."""
    return DashboardServer(DashboardConfig(nameserver=nameserver, listen=f"127.0.0.1:{port}"), host)


def _bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound. uvicorn would end the process if it could not bind. Raises OSError."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(CONNECTIONS_MAX)
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound
