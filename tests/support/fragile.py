"""A whole broker on real sockets, on files that forget like a disk: cut its power, start it again on the remaining data."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from lockstep.broker.app import Broker
from lockstep.broker.config import BrokerConfig
from lockstep.protocol.errors import LockstepError
from lockstep.runtime.host import Host
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import LoopThreads

GRACE_MS = 1_000
"""The shortest that a broker allows: nothing here waits for more."""


class Machine:
    """One disk, boot after boot."""

    def __init__(self, seed: int = 0, *, flush: str = "async") -> None:
        self.files = SimFiles(seed)
        self.boot = 1
        self.flush = flush
        self.starts = 0

    async def start(self) -> Broker:
        """A broker that serves; the error of one that does not."""
        self.starts += 1
        threads: Any = LoopThreads()
        real = Host.real()
        host = Host(real.clock, real.random, self.files, threads, lambda: f"boot-{self.boot}")
        config = BrokerConfig(
            listen=("127.0.0.1:0",),
            store="/store",
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
        """The process ends now; `power`: the machine too, and unsynced data is kept, lost or torn."""
        self.files.crash(power=power)
        if power:
            self.boot += 1
        if broker is not None:
            await end(broker)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Broker]:
        """A broker that is killed at the end, unless the power was cut before."""
        broker = await self.start()
        try:
            yield broker
        finally:
            await self.crash(broker, power=False)


async def end(broker: Broker) -> None:
    """Whatever it still tries, its disk is gone and its connections are cut."""
    broker._fail(RuntimeError("the process is gone"))
    try:
        await broker.stop()
    except (LockstepError, OSError):
        pass
