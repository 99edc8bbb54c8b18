"""The witness as a service: its values, their requests, and its ports."""

from collections.abc import Callable

from lockstep.broker.witness.config import WitnessConfig
from lockstep.broker.witness.processor import LANES, RegisterProcessor
from lockstep.broker.witness.values import WitnessValues
from lockstep.protocol.names import INTERNAL_LISTENER
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


class Witness:
    """The witness. All that it knows is in its files."""

    def __init__(self, config: WitnessConfig, host: Host, security: ServerSecurity | None = None) -> None:
        """`security`: instead of that of the settings."""
        self.on_fatal: Callable[[BaseException], None] | None = None
        self._host = host
        self._store = config.store
        self._values = WitnessValues(host, config.store)
        self._tasks = Tasks(self._failed)
        self._budget = DescriptorBudget.of(host.descriptors.limit, config.connections_max, 0)
        self._security = config.open_security() if security is None else security
        self._audit = config.open_audit(f"witness {host.name}", host.clock)
        self._watch = SecurityWatch(self._security, host, self._audit.on_hangup)
        login = LoginProcessor(host, self._security, self._audit)
        self._dispatcher = Dispatcher([RegisterProcessor(self._values), login], lanes=LANES, admit=login.gate, audit=self._audit)
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
    def address(self) -> str:
        """Return the main address: that of the listener named `internal`, or else of the first one."""
        addresses = self._server.addresses
        return addresses.get(INTERNAL_LISTENER) or next(iter(addresses.values()))

    @property
    def on_hangup(self) -> Callable[[], None] | None:
        """Return what SIGHUP does: it reads the files of the security again, and opens that of the audit again. None if there are none."""
        return self._watch.on_hangup

    async def start(self) -> None:
        """Read the files, bind the ports and serve. Raise StoreError, or ConfigError if a port can't be bound."""
        await self._values.open()
        if self.admin_port is not None:
            await self.admin_port.start()
        await self._server.start()
        await self._watch.begin(self._tasks, self._server.renew)
        self._serving = True
        admin = {} if self.admin_port is None else {ADMIN: self.admin_port.address}
        limits = {"connections_max": self._budget.connections_max, "descriptor_limit": self._budget.limit}
        known = {"store": self._store, "entries": len(self._values)}
        announce("witness.started", address=self.address, listeners=self._server.addresses, **known, **limits, **admin)

    async def stop(self) -> None:
        """Close the ports and every connection, then the files."""
        self._serving = False
        await self._tasks.cancel_all()
        await self._server.close("the witness stops")
        await self._dispatcher.close()
        await self._values.close()
        if self.admin_port is not None:
            await self.admin_port.stop()

    def health(self) -> Health:
        """Return the health. It is ready while its ports are open and its last change could be written."""
        failed = None if self._failure is None else f"the witness has failed: {self._failure}"
        unready = () if self._serving else ("it is not serving",)
        return Health(failed, unready if self._values.trouble is None else (*unready, self._values.trouble))

    async def _metrics(self) -> bytes:
        figures = MetricFamilies({"node_type": "witness"})
        figures.gauge("lockstep_register_entries", "Broker names of which the witness keeps the register.", rows=[((), len(self._values))])
        add_connections(figures, self._server)
        add_access(figures, self._audit)
        return await figures.render()

    def _failed(self, error: BaseException) -> None:
        self._failure = error
        if self.on_fatal is not None:
            self.on_fatal(error)
