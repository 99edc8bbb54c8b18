"""The nameserver as a service: table, processor, port. RocketMQ: NamesrvController. It has no disk and knows no other nameserver."""

import asyncio
from collections.abc import Callable

from lockstep.nameserver.config import NameserverConfig
from lockstep.nameserver.processor import RouteProcessor
from lockstep.nameserver.route_table import INTERNAL, RouteTable
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.dispatch import Dispatcher
from lockstep.runtime.host import Host
from lockstep.runtime.log import announce
from lockstep.runtime.server import Server

SCAN_MS = 5_000
"""How often silent brokers are looked for: a broker that vanished without a close is seen within its 120 s and this."""


class Nameserver:
    """`await start()`, `addresses`, `await stop()`. What it knows it has been told by brokers since its start."""

    def __init__(self, config: NameserverConfig, host: Host) -> None:
        self.on_fatal: Callable[[BaseException], None] | None = None
        self.table = RouteTable()
        self._processor = RouteProcessor(self.table, host.clock)
        self._server = Server(host, config.listeners(), Dispatcher([self._processor]))
        self._tasks = Tasks(self._failed)

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
        await self._server.start()
        self._tasks.spawn(self._scan(), "nameserver.scan")
        announce("nameserver.started", address=self.address, listeners=self.addresses)

    async def stop(self) -> None:
        """Close the ports and every connection; brokers and clients go on with what they know, or with another nameserver."""
        await self._tasks.cancel_all()
        await self._server.close("the nameserver stops")

    def expire(self) -> None:
        """Unregister the brokers that are silent by now."""
        self._processor.expire()

    async def _scan(self) -> None:
        while True:
            await asyncio.sleep(SCAN_MS / 1000)
            self.expire()

    def _failed(self, error: BaseException) -> None:
        if self.on_fatal is not None:
            self.on_fatal(error)
