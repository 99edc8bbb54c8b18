"""A nameserver, brokers and, if wanted, the dashboard as one service, for `lockstep up`."""

import shlex
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from lockstep.broker.app import Broker
from lockstep.broker.config import BrokerConfig
from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.operations.client_file import ClientFile
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.names import INTERNAL_LISTENER
from lockstep.runtime.daemon import Service
from lockstep.runtime.host import Host
from lockstep.runtime.logs import log

DEFAULT_PORT = 9876
BROKER_PORT_AFTER = 1_035
"""Difference between the nameserver's port and the first broker's: 9876 and 10911 as in RocketMQ."""
BROKER_PORT_STEP = 10
VIP_PORT_BEFORE = 2
"""Where RocketMQ's Java clients before 4.4, and its dashboard, send most requests: at the broker's port minus 2."""
DASHBOARD_PORT_AFTER = 4
LOCAL_NAMES = ("127.0.0.1", "localhost")
CERTIFICATE_DAYS = 397
"""A start makes a new certificate, by the authority that is there."""


class DashboardService(Service, Protocol):
    """The dashboard as a service."""

    @property
    def url(self) -> str:
        """Return where a browser finds it, after the start."""
        ...


MakeDashboard = Callable[[str, int, Host], DashboardService]
"""Makes the dashboard of (the nameserver's address, its own port on this machine, host). Port 0: any free port."""


class ClusterFiles(Protocol):
    """The certificate and the users of a cluster (operations/secured_cluster.py, which needs an extra)."""

    def url(self, nameserver: str, user: str = ...) -> str:
        """Return the address of the cluster for one of its users, by default for the administrator."""
        ...

    def server_settings(self) -> dict[str, Any]:
        """Return the settings of a server that has these files."""
        ...


def load_dashboard() -> MakeDashboard:
    """Return what makes dashboards. Raise ModuleNotFoundError, which names the extra to install, if that is missing.

    By its name, because the dashboard is made of commands' code: it imports this package.
    """
    made: MakeDashboard = import_module("lockstep.dashboard.server").local_dashboard
    return made


def secure_standalone(store: str, broker_count: int, host: Host) -> ClusterFiles:
    """Make certificates for this machine, and the users that are missing, in the directory `security` of the store.

    Raise ModuleNotFoundError, which names the extra to install, if that is missing.
    """
    made: ClusterFiles = import_module("lockstep.operations.secured_cluster").secure_cluster(
        Path(store, "security"),
        "server",
        LOCAL_NAMES,
        CERTIFICATE_DAYS,
        brokers=[broker_name(index) for index in range(broker_count)],
        with_users=True,
        now_ms=host.clock.wall_ms(),
        random_bytes=host.random.token,
    )
    return made


def broker_name(index: int) -> str:
    return f"broker-{chr(ord('a') + index)}"


class StandaloneCluster:
    """Starts the nameserver, then one broker after the other, then the dashboard, and stops them in reverse order."""

    def __init__(
        self,
        host: Host,
        *,
        store: str,
        port: int,
        broker_count: int,
        trace_topic: bool = False,
        make_dashboard: MakeDashboard | None = None,
        secured: ClusterFiles | None = None,
    ) -> None:
        """`secured`: the certificate and the users, if clients have to connect by TLS and to log in."""
        self.on_fatal: Callable[[BaseException], None] | None = None
        self._host = host
        self._store = store
        self._port = port
        self._broker_count = broker_count
        self._trace_topic = trace_topic
        self._secured = secured
        self._settings = {} if secured is None else {**secured.server_settings(), "audit": "off"}  # its log is a terminal
        self._nameserver = Nameserver(NameserverConfig(listen=(f"127.0.0.1:{port}",), **self._settings), host)
        self._brokers: list[Broker] = []
        self._make_dashboard = make_dashboard
        self._dashboard: DashboardService | None = None

    @property
    def nameserver(self) -> str:
        """Return the address of the nameserver, after the start; a URL if clients have to log in."""
        return self._address_of()

    def _address_of(self, *user: str) -> str:
        """Return the address of the nameserver for a user, if there are users; for the administrator, if none is named."""
        address = self._nameserver.address
        return address if self._secured is None else self._secured.url(address, *user)

    @property
    def on_hangup(self) -> None:
        """Return None: SIGHUP, of a terminal that is closed, ends the process."""

    async def start(self) -> None:
        self._nameserver.on_fatal = self.on_fatal
        await self._nameserver.start()
        for index in range(self._broker_count):
            broker = Broker(self.broker_config(index, self._address_of(broker_name(index))), self._host)
            broker.on_fatal = self.on_fatal
            self._brokers.append(broker)
            await broker.start()
        known = {broker.name: broker.address for broker in self._nameserver.table.brokers(INTERNAL_LISTENER)}
        url = None
        if self._make_dashboard is not None:
            self._dashboard = self._make_dashboard(self.nameserver, self.dashboard_port, self._host)
            self._dashboard.on_fatal = self.on_fatal
            await self._dashboard.start()
            url = self._dashboard.url
        log.announce("up.started", nameserver=self.nameserver, brokers=known, dashboard=url, store=self._store)
        print(next_steps(self.nameserver, known, self._store, url), file=sys.stderr, flush=True)

    async def stop(self) -> None:
        if self._dashboard is not None:
            await self._dashboard.stop()
        for broker in reversed(self._brokers):
            await broker.stop()
        await self._nameserver.stop()

    @property
    def dashboard_port(self) -> int:
        """Return the port of the dashboard; 0 for any free port."""
        return self._port + DASHBOARD_PORT_AFTER if self._port else 0

    def broker_config(self, index: int, nameserver: str) -> BrokerConfig:
        """Return the settings of broker number `index`. Raise ConfigError if its port would be above 65,535."""
        name = broker_name(index)
        port = self._port + BROKER_PORT_AFTER + BROKER_PORT_STEP * index if self._port else 0
        if port > 65_535:
            raise ConfigError(f"{name} would listen on port {port}, above 65535: choose a lower --port, or 0 for free ports")
        return BrokerConfig(
            name=name,
            listen=(f"127.0.0.1:{port}", *((f"vip=127.0.0.1:{port - VIP_PORT_BEFORE}",) if port else ())),
            nameserver=nameserver,
            store=f"{self._store}/{name}",
            auto_create_topics=True,
            trace_topic=self._trace_topic,
            **self._settings,
        )


def next_steps(nameserver: str, brokers: Mapping[str, str], store: str, dashboard: str | None = None) -> str:
    """Return the text that is printed after the start: the addresses, and commands to try in another terminal."""
    elsewhere = nameserver != f"127.0.0.1:{DEFAULT_PORT}" or ClientFile.of_environment().exists()
    lines = [
        f"lockstep is up: nameserver {nameserver}, "
        + ", ".join(f"{name} {address}" for name, address in brokers.items())
        + f". Store: {store}",
        *([f"Dashboard: {dashboard}"] if dashboard else []),
        "The first send to a topic creates it. In another terminal:",
        "",
        *([f"  export LOCKSTEP_NAMESERVER={shlex.quote(nameserver)}"] if elsewhere else []),
        "  lockstep send greetings 'hello'",
        "  lockstep tail greetings --from-start",
        "  lockstep topic list",
        "  lockstep group list",
        "",
        f'In Python: Producer("my-service", nameserver="{nameserver}")',
        "Press Ctrl-C to stop.",
    ]
    return "\n".join(lines)
