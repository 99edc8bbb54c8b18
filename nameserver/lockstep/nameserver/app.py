"""The nameserver as a service: table, processor, port. RocketMQ: NamesrvController. It has no disk and knows no other nameserver."""

import asyncio
from collections.abc import Callable, Mapping

from lockstep.nameserver.classic_admin import LANES, ClassicAdminProcessor
from lockstep.nameserver.config import NameserverConfig
from lockstep.nameserver.processor import RouteProcessor
from lockstep.nameserver.route_table import RouteTable
from lockstep.nameserver.settings import NameserverSettings
from lockstep.protocol.names import INTERNAL_LISTENER
from lockstep.protocol.native import implementation
from lockstep.runtime.admin_port import AdminPages, AdminPort, Health
from lockstep.runtime.connections.figures import add_access, add_connections
from lockstep.runtime.connections.listen_address import ADMIN
from lockstep.runtime.connections.server import Server
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.descriptors import DescriptorBudget
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import announce
from lockstep.runtime.metrics import MetricFamilies
from lockstep.runtime.requests.dispatch import Dispatcher
from lockstep.runtime.requests.login import LoginProcessor
from lockstep.runtime.security.security_watch import SecurityWatch
from lockstep.runtime.security.server_security import ServerSecurity

SCAN_MS = 5_000
"""The interval of the search for silent brokers: a broker that vanished without a close is noticed within its 120 s and this."""


class Nameserver:
    """The nameserver. All that it knows comes from the brokers that registered since its start."""

    def __init__(
        self,
        config: NameserverConfig,
        host: Host,
        origins: Mapping[str, str] | None = None,
        security: ServerSecurity | None = None,
    ) -> None:
        """`origins`: the source of each setting, if known. `security`: instead of that of the settings."""
        self.on_fatal: Callable[[BaseException], None] | None = None
        self.table = RouteTable()
        self._tasks = Tasks(self._failed)
        self._processor = RouteProcessor(self.table, host.clock, self._tasks)
        self._budget = DescriptorBudget.of(host.descriptors.limit, config.connections_max, 0)
        self._security = config.open_security() if security is None else security
        self._audit = config.open_audit(f"nameserver {host.name}", host.clock)
        self._watch = SecurityWatch(self._security, host, self._audit.on_hangup)
        login = LoginProcessor(host, self._security, self._audit)
        processors = [self._processor, NameserverSettings(config, origins or {}, login), ClassicAdminProcessor(self.table, config), login]
        self._dispatcher = Dispatcher(processors, lanes=LANES, admit=login.gate, audit=self._audit)
        self._server = Server(
            host,
            config.listeners(),
            self._dispatcher,
            on_connect=login.connected,
            connections_max=self._budget.connections_max,
            security=self._security,
        )
        self._failure: BaseException | None = None
        self._serving = False
        self.admin_port: AdminPort | None = None
        """The admin port, if the settings have one."""
        for listen in config.admin_listener().values():
            pages = AdminPages(self.health, self._metrics, self._watch.reload)
            self.admin_port = AdminPort(listen, pages, (host.name, *config.admin_host), self._security)

    @property
    def addresses(self) -> dict[str, str]:
        """Listener name → bound ip:port."""
        return self._server.addresses

    @property
    def address(self) -> str:
        """Return the main address: that of the listener named `internal`, or else of the first one."""
        return self.addresses.get(INTERNAL_LISTENER) or next(iter(self.addresses.values()))

    @property
    def on_hangup(self) -> Callable[[], None] | None:
        """Return what SIGHUP does: it reads the files of the security again, and opens that of the audit again. None if there are none."""
        return self._watch.on_hangup

    async def start(self) -> None:
        """Bind the ports and serve. Raise ConfigError if a port can't be bound."""
        if self.admin_port is not None:
            await self.admin_port.start()
        await self._server.start()
        self._tasks.spawn(self._scan(), "nameserver.scan")
        await self._watch.begin(self._tasks, self._server.renew)
        self._serving = True
        admin = {} if self.admin_port is None else {ADMIN: self.admin_port.address}
        limits = {"connections_max": self._budget.connections_max, "descriptor_limit": self._budget.limit}
        announce("nameserver.started", address=self.address, listeners=self.addresses, kernels=implementation(), **limits, **admin)

    async def stop(self) -> None:
        """Close the ports and every connection. Brokers and clients continue with what they know, or with another nameserver."""
        self._serving = False
        await self._tasks.cancel_all()
        await self._server.close("the nameserver stops")
        await self._dispatcher.close()
        if self.admin_port is not None:
            await self.admin_port.stop()

    def expire(self) -> None:
        """Unregister the brokers that are silent by now."""
        self._processor.expire()

    async def _scan(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + SCAN_MS / 1000
            await asyncio.sleep(SCAN_MS / 1000)
            # A timer that fires late means that the process was suspended or blocked: data from brokers may not have been read yet.
            self._processor.expire(pause_ms=round((loop.time() - due) * 1000))

    def health(self) -> Health:
        """Return the health. It is ready while its ports are open, even if it knows no broker, since brokers register only then."""
        failed = None if self._failure is None else f"the nameserver has failed: {self._failure}"
        return Health(failed, () if self._serving else ("it is not serving",))

    async def _metrics(self) -> bytes:
        figures = MetricFamilies({"node_type": "nameserver"})
        brokers = self.table.brokers(INTERNAL_LISTENER)
        rows = [((broker.name, broker.cluster), float(broker.registered)) for broker in brokers]
        figures.gauge("lockstep_broker_registered", "1 if routes send clients to this broker.", ("broker", "cluster"), rows)
        figures.gauge(
            "rocketmq_topic_number",
            "Topics, without system topics.",
            rows=[((), self.table.layouts.user_count)],
        )
        add_connections(figures, self._server)
        add_access(figures, self._audit)
        return await figures.render()

    def _failed(self, error: BaseException) -> None:
        self._failure = error
        if self.on_fatal is not None:
            self.on_fatal(error)
