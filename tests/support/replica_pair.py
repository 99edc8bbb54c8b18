"""Places for copies of one log: the master is killed, the other one promoted, and the old one comes back as its replica."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.protocol.bodies import ReplicaStanding, ReplicaStatus
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.responses import checked
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.host import Host
from support.cluster import LOOK_S, QUICK, WAIT_S, Cluster, now_us
from support.group_loads import BROKER, QUEUES, quantiles
from support.ports import free_ports


@dataclass(frozen=True, slots=True)
class Promotion:
    """When a replica was told to become the master, and when it answered as one."""

    asked_us: int
    done_us: int


@dataclass
class ReplicaPair:
    """The places of a master, of its replica, and of a third copy, and the commands by which an operator changes them."""

    cluster: Cluster
    addresses: dict[str, str]
    options: tuple[str, ...] = QUICK
    master: str = "first"
    replica: str = "second"
    promotions: list[Promotion] = field(default_factory=list)

    def store(self, place: str) -> Path:
        return self.cluster.folder / f"store-{place}"

    def command(self, place: str, *more: str) -> list[str]:
        given = ["--name", BROKER, "--listen", self.addresses[place], "--store", str(self.store(place))]
        return ["-m", "lockstep.broker", *given, "--nameserver", self.cluster.nameservers, *self.options, *more]

    async def start(self, place: str, *more: str) -> None:
        await self.cluster.start(place, self.command(place, *more), "broker.started")

    async def copy(self, place: str, of: str = "") -> None:
        """Start a copy that follows the master at the address `of`, by default that of this pair."""
        await self.start(place, "--replica-of", of or self.addresses[self.master])

    async def follow(self, of: str = "") -> None:
        """Start the replica, and wait until it is in the set of its master."""
        await self.copy(self.replica, of)
        await self.until_in_set()

    async def until_in_set(self, count: int = 1) -> None:
        """Wait until so many replicas follow and are in the set."""
        async with asyncio.timeout(WAIT_S):
            while sum(each.in_set and each.connected for each in await self.replicas()) != count:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)

    async def replicas(self) -> tuple[ReplicaStanding, ...]:
        status = await self.status(self.master)
        return () if status is None else status.replicas

    async def ask(self, place: str, code: RequestCode, fields: dict[str, object] | None = None) -> Command:
        endpoint = await connect(Host.real(), self.addresses[place])
        try:
            return await endpoint.request(code, fields, timeout_ms=10_000)
        finally:
            endpoint.close("asked")

    async def status(self, place: str) -> ReplicaStatus | None:
        try:
            return decode_body(ReplicaStatus, checked(await self.ask(place, RequestCode.REPLICA_STATUS)).body)
        except LockstepError:
            return None

    async def end(self, place: str) -> int:
        """Return where the log of a copy ends, -1 for one that does not answer."""
        status = await self.status(place)
        return -1 if status is None else status.end

    async def promote(self, place: str, *, force: bool = False) -> str:
        """Promote, and wait until the copy answers as a master. Return the remark of a refusal."""
        asked_us = now_us()
        answer = await self.ask(place, RequestCode.REPLICA_PROMOTE, {"force": force})
        if answer.code:
            return answer.remark or ""
        async with asyncio.timeout(WAIT_S):
            while (status := await self.status(place)) is None or status.role != "master":  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
        self.promotions.append(Promotion(asked_us, now_us()))
        return ""

    async def promote_replica(self) -> Promotion:
        """Promote the replica. The roles of the places are swapped then."""
        while refused := await self.promote(self.replica):
            # The master was killed before the replica heard that it was in the set again.
            assert "was not in the set" in refused, (refused, self.cluster.output_tails())
            await self.start(self.master)
            await self.until_in_set()
            await self.kill_master()
        self.master, self.replica = self.replica, self.master
        return self.promotions[-1]

    async def kill_master(self) -> None:
        """Kill the master while its replica is in its set. On a busy machine a replica may leave it at any time, and come back."""
        await self.cluster.kill(self.master)
        while not json.loads((self.store(self.master) / "lockstep" / "replica").read_text())["members"]:
            await self.start(self.master)
            await self.until_in_set()
            await self.cluster.kill(self.master)

    async def replace_masters(self, rounds: int, went_on: Callable[[int], Awaitable[object]]) -> None:
        """Kill the master, promote the replica, wait until `went_on` returns, and let the old master follow; all that `rounds` times.

        `went_on` is called with the time (µs) at which the promotion had ended.
        """
        for _ in range(rounds):
            await self.kill_master()
            promotion = await self.promote_replica()
            await went_on(promotion.done_us)
            await self.follow()

    def promotion_times(self) -> str:
        """Return how long promotions took, and how long after their request a worker_producer's sends to the last queue went on."""
        times = self.cluster.acknowledged_times().values()
        first_us = [max(next(at for at in of_queue if at > each.asked_us) for of_queue in times) for each in self.promotions]
        sent = [(at - each.asked_us) / 1e6 for at, each in zip(first_us, self.promotions, strict=True)]
        done = [(each.done_us - each.asked_us) / 1e6 for each in self.promotions]
        return f"promoted after {quantiles(done)}; first send of the last queue {quantiles(sent)} after the request"


async def started_pair(cluster: Cluster, *options: str) -> ReplicaPair:
    """Return a master at `first` with a replica at `second` in its set, and the topic `orders`. `options` of both, default: QUICK.

    Starts a nameserver if there is none yet.
    """
    if not cluster.addresses:
        await cluster.nameserver()
    places = dict(zip(("first", "second", "third"), free_ports(3), strict=True))
    pair = ReplicaPair(cluster, {place: f"127.0.0.1:{port}" for place, port in places.items()}, options or QUICK)
    await pair.start(pair.master)
    await cluster.command("topic", "create", "orders", "--queues", str(QUEUES))
    await pair.follow()
    return pair
