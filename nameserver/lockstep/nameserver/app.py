"""The nameserver as a service: table, processor, port. RocketMQ: NamesrvController. It has no disk and knows no other nameserver."""

import asyncio
from collections.abc import Callable

from lockstep.nameserver.config import NameserverConfig
from lockstep.nameserver.processor import RouteProcessor
from lockstep.nameserver.route_table import INTERNAL, RouteTable
from lockstep.runtime.admin_port import AdminPages, AdminPort, Health
from lockstep.runtime.config import ADMIN
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.descriptors import DescriptorBudget
from lockstep.runtime.dispatch import Dispatcher
from lockstep.runtime.host import Host
from lockstep.runtime.log import announce
from lockstep.runtime.metrics import MetricFamilies
from lockstep.runtime.server import Server

SCAN_MS = 5_000
"""How often silent brokers are looked for: a broker that vanished without a close is seen within its 120 s and this."""


class Nameserver:
    """`await start()`, `addresses`, `await stop()`. What it knows it has been told by brokers since its start."""

    def __init__(self, config: NameserverConfig, host: Host) -> None:
        self.on_fatal: Callable[[BaseException], None] | None = None
        self.table = RouteTable()
        self._tasks = Tasks(self._failed)
        self._processor = RouteProcessor(self.table, host.clock, self._tasks)
        self._budget = DescriptorBudget.of(host.descriptors.limit, config.connections_max, 0)
        self._server = Server(host, config.listeners(), Dispatcher([self._processor]), connections_max=self._budget.connections_max)
        self._failure: BaseException | None = None
        self._serving = False
        self.admin_port: AdminPort | None = None
        """Where the settings name one."""
        for listen in config.admin_listener().values():
            self.admin_port = AdminPort(listen, AdminPages(self.health, self._metrics), (host.name, *config.admin_host))

    @property
    def addresses(self) -> dict[str, str]:
        """Listener name → ip:port as bound."""
        return self._server.addresses

    @property
    def address(self) -> str:
        """The address that others are told first: the listener named `internal`, else the first one."""
        return self.addresses.get(INTERNAL) or next(iter(self.addresses.values()))

    async def start(self) -> None:
        """Take the ports and answer. ConfigError where a port can't be had."""
        if self.admin_port is not None:
            await self.admin_port.start()
        await self._server.start()
        self._tasks.spawn(self._scan(), "nameserver.scan")
        self._serving = True
        admin = {} if self.admin_port is None else {ADMIN: self.admin_port.address}
        limits = {"connections_max": self._budget.connections_max, "descriptor_limit": self._budget.limit}
        announce("nameserver.started", address=self.address, listeners=self.addresses, **limits, **admin)

    async def stop(self) -> None:
        """Close the ports and every connection; brokers and clients go on with what they know, or with another nameserver."""
        self._serving = False
        await self._tasks.cancel_all()
        await self._server.close("the nameserver stops")
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
            # A timer that fires late means that the process stood still: what brokers sent meanwhile may not have been read yet.
            self._processor.expire(stood_still_ms=round((loop.time() - due) * 1000))

    def health(self) -> Health:
        """Ready while its ports are open: brokers register at it only then, so it need not know one."""
        failed = None if self._failure is None else f"the nameserver has failed: {self._failure}"
        return Health(failed, () if self._serving else ("it does not serve yet, or any more",))

    async def _metrics(self) -> bytes:
        figures = MetricFamilies({"node_type": "nameserver"})
        brokers = self.table.brokers(INTERNAL)
        rows = [((broker.name, broker.cluster), float(broker.registered)) for broker in brokers]
        figures.gauge("lockstep_broker_registered", "1: clients are sent to this broker.", ("broker", "cluster"), rows)
        figures.gauge(
            "rocketmq_topic_number",
            "Topics, the brokers' own not counted.",
            rows=[((), self.table.layouts.user_count)],
        )
        figures.gauge("lockstep_connections", "Open connections.", rows=[((), len(self._server.endpoints))])
        return await figures.render()

    def _failed(self, error: BaseException) -> None:
        self._failure = error
        if self.on_fatal is not None:
            self.on_fatal(error)
