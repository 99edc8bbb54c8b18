"""A broker on real sockets and simulated files that lose unsynced data: cut its power, restart it on the remaining data."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from lockstep.broker.app import Broker
from lockstep.broker.config import BrokerConfig
from lockstep.protocol.errors import LockstepError
from lockstep.runtime.host import Host
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import LoopThreads

GRACE_MS = 1_000
"""The shortest intervals that a broker allows."""


@contextmanager
def hold_syncs(broker: Broker) -> Iterator[asyncio.Event]:
    """Hold the syncs of the log until the event is set."""
    threads = broker._host.threads
    assert isinstance(threads, LoopThreads)
    threads.held = asyncio.Event()
    try:
        yield threads.held
    finally:
        threads.held.set()


class Machine:
    """A machine whose disk persists across boots."""

    def __init__(self, seed: int = 0, *, flush: str = "async", nameserver: str = "") -> None:
        self.files = SimFiles(seed)
        self.boot = 1
        self.flush = flush
        self.nameserver = nameserver
        self.starts = 0

    async def start(self) -> Broker:
        """Start a broker. Return it, or raise the error that prevents its start."""
        self.starts += 1
        threads: Any = LoopThreads()
        real = Host.real()
        host = Host(real.clock, real.random, self.files, threads, lambda: f"boot-{self.boot}")
        config = BrokerConfig(
            listen=("127.0.0.1:0",),
            store="/store",
            nameserver=self.nameserver,
            flush=self.flush,  # type: ignore[arg-type]
            segment_mib=1,
            disk_reserve_mib=0,
            disk_used_percent_max=100,
            disconnect_grace_ms=GRACE_MS,
        )
        broker = Broker(config, host)
        try:
            await broker.start()
        except BaseException:  # re-raised
            await end(broker)
            raise
        return broker

    async def crash(self, broker: Broker | None, *, power: bool) -> None:
        """Kill the process. If `power`, cut the machine's power too: unsynced data is kept, lost or torn."""
        self.files.crash(power=power)
        if power:
            self.boot += 1
        if broker is not None:
            await end(broker)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Broker]:
        """Run a broker that is killed at the end, unless the power was cut before."""
        broker = await self.start()
        try:
            yield broker
        finally:
            await self.crash(broker, power=False)


async def end(broker: Broker) -> None:
    """Kill the broker: its disk fails from now on and its connections are cut."""
    broker._fail(RuntimeError("the process is gone"))
    try:
        await broker.stop()
    except (LockstepError, OSError):
        pass
