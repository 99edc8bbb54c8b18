"""Copies of one broker under a register, as real processes: the master is elected, and nobody types anything."""

import asyncio
import signal
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.broker.office.register import Entry
from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.protocol.bodies import ReplicaStatus
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.responses import checked
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.files import RealFiles
from lockstep.runtime.host import Host
from support.cluster import LOOK_S, QUICK, WAIT_S, Cluster
from support.ports import free_ports
from support.registers import RegisterServer

ASK_MS = 2_000
LOST_BYTES_MAX = 64 << 20
"""More than a test can have written since the last sync."""


@dataclass
class Copies:
    """The copies of broker-a: place → address."""

    cluster: Cluster
    register: RegisterServer
    addresses: dict[str, str]
    options: tuple[str, ...] = QUICK
    registers: dict[str, str] = field(default_factory=dict)
    """Place → address of the register, where that is not its own."""
    nameservers: dict[str, str] = field(default_factory=dict)
    """Place → nameservers of the copy, where they are not the cluster's."""
    advertised: dict[str, str] = field(default_factory=dict)
    """Place → address at which others reach the copy, where that is not its own."""
    listeners: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Place → options of further listeners."""

    @classmethod
    async def start_all(cls, cluster: Cluster, register: RegisterServer, count: int = 2, *options: str) -> "Copies":
        """Start a register, a nameserver, and that many copies; create the topic `orders` with 4 queues. `options` of all copies."""
        copies = await cls.begun(cluster, register, count, *options)
        for place in copies.addresses:
            await copies.start(place)
        await copies.until_in_sync(count)
        await cluster.command("topic", "create", "orders", "--queues", "4")
        return copies

    @classmethod
    async def begun(cls, cluster: Cluster, register: RegisterServer, count: int = 2, *options: str) -> "Copies":
        """Start a register and a nameserver. Return places for that many copies."""
        await register.start()
        await cluster.nameserver()
        places = {f"copy-{n}": f"127.0.0.1:{port}" for n, port in enumerate(free_ports(count), 1)}
        return cls(cluster, register, places, (*QUICK, *options))

    def command(self, place: str, *role: str) -> list[str]:
        """Return the command of a copy. `role`: options instead of those of the register."""
        given = ["--name", "broker-a", "--listen", self.addresses[place], "--store", str(self.store(place))]
        if place in self.advertised:
            given += ["--advertise", self.advertised[place]]
        given += ["--nameserver", self.nameservers.get(place, self.cluster.nameservers), *self.listeners.get(place, ())]
        return ["-m", "lockstep.broker", *given, *(role or self.role(place)), *self.options]

    def role(self, place: str) -> tuple[str, ...]:
        """Return the options of a copy under the register."""
        return "--ha", f"{self.register.scheme}://{self.registers.get(place, self.register.address)}"

    def store(self, place: str) -> Path:
        return self.cluster.folder / f"store-{place}"

    async def start(self, place: str, *role: str) -> None:
        await self.cluster.start(place, self.command(place, *role), "broker.started")

    async def entry(self) -> Entry | None:
        """Return what the register says."""
        register = self.register.register(cluster="DefaultCluster")
        try:
            return (await register.read())[0]
        finally:
            await register.close()

    async def status(self, place: str) -> ReplicaStatus | None:
        try:
            endpoint = await connect(Host.real(), self.addresses[place], timeout_ms=ASK_MS)
            try:
                return decode_body(ReplicaStatus, checked(await endpoint.request(RequestCode.REPLICA_STATUS, timeout_ms=ASK_MS)).body)
            finally:
                endpoint.close("asked")
        except (LockstepError, TimeoutError):
            return None

    async def statuses(self) -> dict[str, ReplicaStatus]:
        """Return the status of each copy that answers."""
        found = {place: await self.status(place) for place in self.addresses}
        return {place: status for place, status in found.items() if status is not None}

    async def master(self) -> str:
        """Return the place of the master, when there is one."""
        async with asyncio.timeout(WAIT_S):
            while True:
                masters = {place: status.term for place, status in (await self.statuses()).items() if status.role == "master"}
                if masters:
                    return max(masters, key=lambda place: masters[place])
                await asyncio.sleep(LOOK_S)

    async def until_in_sync(self, count: int | None = None) -> str:
        """Wait until there is a master with this many copies in its set, itself included; by default all. Return its place."""
        wanted = (len(self.addresses) if count is None else count) - 1
        async with asyncio.timeout(WAIT_S):
            while True:
                for place, status in (await self.statuses()).items():
                    if status.role == "master" and sum(each.in_set and each.connected for each in status.replicas) == wanted:
                        return place
                await asyncio.sleep(LOOK_S)

    async def kill_in_sync(self) -> tuple[str, Entry]:
        """Kill all copies while all are in the set. Return the place of the master, and what the register says.

        On a busy machine a copy may leave the set, or be elected, at any time, and come back.
        """
        while True:
            master = await self.until_in_sync()
            await self.cluster.kill(*self.addresses)
            entry = await self.entry()
            assert entry is not None
            if entry.replicas[entry.master] == self.addresses[master] and len(entry.in_sync) == len(self.addresses):
                return master, entry
            for place in self.addresses:
                await self.start(place)

    async def until_elected(self, after_term: int) -> str:
        """Wait for a master of a later term. Return its place."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for place, status in (await self.statuses()).items():
                    if status.role == "master" and status.term > after_term:
                        return place
                await asyncio.sleep(LOOK_S)

    async def until_named(self, after_term: int) -> str:
        """Wait until the register names the master of a later term. Return its place."""
        async with asyncio.timeout(WAIT_S):
            while (entry := await self.entry()) is None or entry.term <= after_term:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
        places = {address: place for place, address in self.addresses.items()}
        return places[entry.replicas[entry.master]]

    async def pause(self, place: str, seconds: float) -> None:
        """Stop a process for so long."""
        self.cluster.signal(signal.SIGSTOP, place)
        await asyncio.sleep(seconds)
        self.cluster.signal(signal.SIGCONT, place)

    def lose_power(self, place: str, synced: int | None = None) -> int:
        """Leave of the store of a killed copy what a machine that lost power has at least. Return the size of the rest.

        `synced`: up to where the log was certainly synced, by default what the store has recorded, which may be less.
        """
        lost, directory = 0, StoreDirectory(RealFiles(), str(self.store(place)))
        synced = directory.read_synced()[1] if synced is None else synced
        for path in sorted((self.store(place) / "commitlog").iterdir()):
            with path.open("r+b") as file:
                size = path.stat().st_size
                kept = min(size, max(0, synced - int(path.name)))
                file.seek(kept)
                lost += len(file.read(LOST_BYTES_MAX).rstrip(b"\0"))
                file.truncate(kept)
                file.truncate(size)
        flush = (self.store(place) / "lockstep" / "boot").read_text().split()[1]
        directory.mark_boot("earlier-boot", flush)
        return lost
