"""The operator of a broker with replicas: deals with lost masters as docs/replication.md says.

While it does so it holds the machines of the copies: nobody else starts a broker there. It knows that the old master is down: it has killed
it. A promotion whose response is lost may have happened: it is asked for again at the same replica until it is certain. A promoted replica
that was killed at once is started again: it is a master, which refuses connections until it opens, and no other copy is promoted then.
"""

import asyncio
from collections.abc import Callable
from random import Random

from lockstep.protocol.bodies import ReplicaStatus
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import BrokerError, LockstepError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.replication import ReplicaPromoteHeader
from lockstep.protocol.responses import checked
from lockstep.runtime.connections.dial import call
from lockstep.runtime.host import Host
from lockstep.testing.simulated import BROKER_PORT
from sweep.events.replicas import CopiesAsked
from sweep.events.universe import Fault
from sweep.universe import Loss, Main, Universe

OPERATOR = "10.0.3.41"
"""The address of the first operator's machine."""
LOOK_S = 0.2
TIMEOUT_MS = 3_000
REFUSED_CODES = (1, 4)
"""The exit codes of a master that may not open."""
TRIES = 3
"""How often a replica may refuse before the operator tries another copy."""
UNREACHED_MAX = 6
OPENS_S = 8.0
"""How long the operator waits for a broker to open."""


async def ask(address: str) -> ReplicaStatus | None:
    """Return the status of a copy; None if it does not answer."""
    try:
        response = await call(Host.current(), f"{address}:{BROKER_PORT}", RequestCode.REPLICA_STATUS, {}, timeout_ms=TIMEOUT_MS)
        return decode_body(ReplicaStatus, checked(response).body)
    except LockstepError:
        return None


class Operator:
    """One operator, of one broker."""

    def __init__(self, universe: Universe, name: str) -> None:
        self._universe = universe
        self._name = name
        self._random = Random(f"{universe.setting.seed}/{name}/operator")

    async def run(self, stop: asyncio.Event) -> int:
        universe, losses = self._universe, self._universe.losses[self._name]
        while not stop.is_set():
            await asyncio.sleep(LOOK_S)
            if universe.exit_codes.get(self._master) in REFUSED_CODES:
                losses.insert(0, Loss(0.0, False, True, False, False, False, False, 1.0))
            if losses:
                await self._handle(losses.pop(0))
            elif universe.is_open(self._name, self._master):
                for address in universe.replicas(self._name):
                    if address in universe.held or universe.replica_of[address] != self._master:
                        await self._end(address)
                        await self._start(address, self._master)
        return 0

    @property
    def _master(self) -> str:
        return self._universe.brokers[self._name]

    # -------------------------------------------------------------------------------------------------- actions on machines

    async def _do(self, action: Callable[..., object], *arguments: object) -> None:
        """Act as the universe, outside of this process."""
        self._universe.loop.at(self._universe.loop.now, action, *arguments)
        await asyncio.sleep(0.001)

    async def _start(self, address: str, master: str) -> None:
        """Start a broker with these settings, which remain: `master` is itself for a master."""
        universe = self._universe
        universe.replica_of[address] = master
        universe.held.discard(address)
        await self._do(universe.start, address)

    async def _end(self, address: str) -> None:
        self._universe.held.add(address)
        await self._do(self._universe.kill, address)

    def _note(self, kind: str, target: str, facts: str = "") -> None:
        self._universe.history.append(Fault(*self._universe.origin(), kind, target, facts))

    async def _opens(self, address: str) -> bool:
        """Return whether the broker on a machine opens as a master, within some seconds."""
        universe, until_s = self._universe, self._universe.loop.now + OPENS_S
        while universe.loop.now < until_s and universe.exit_codes.get(address) not in REFUSED_CODES:
            if universe.is_open(self._name, address):
                return True
            await asyncio.sleep(LOOK_S)
        return False

    # ------------------------------------------------------------------------------------------------------- a lost master

    async def _handle(self, loss: Loss) -> None:
        universe, old, losses = self._universe, self._master, self._universe.losses[self._name]
        await self._end(old)
        for address in universe.copies[self._name]:
            if universe.copies_watch is not None and universe.copies_watch.disk(address).identity.get("role") == "master":
                await self._end(address)  # it was promoted, and has not opened yet
        await asyncio.sleep(0.0 if universe.calm else loss.wait_s)
        if loss.tries_old:
            await self._start(old, old)
            if await self._opens(old):
                universe.record_reached("old master opened again", old)
                return
            universe.record_reached("old master did not open", f"{old} {universe.exit_codes.get(old, 'waits')}")
            await self._end(old)
        promoted = await self._promote_one(loss)
        if promoted == old:
            return
        if loss.again and not universe.calm:
            await self._end(promoted)
            universe.record_reached("promoted replica killed at once", promoted)
            await self._start(promoted, universe.replica_of[promoted])
        if not loss.stale_settings:
            universe.replica_of[promoted] = promoted
        while not losses:  # until it is lost again
            if await self._opens(promoted):
                await self._restart_others(loss, old, promoted)
                return
            await asyncio.sleep(LOOK_S)

    async def _promote_one(self, loss: Loss) -> str:
        """Promote a replica, or start a master again, until one has accepted. Return its machine."""
        universe, watch = self._universe, self._universe.copies_watch
        assert watch is not None
        old = self._master
        tries = 0
        while True:
            others = [address for address in universe.copies[self._name] if address != old]
            safe = [address for address in others if watch.is_safe(self._name, address)]
            target = self._random.choice(safe if safe and (loss.careful or tries) else others)
            # Where all copies have lost something, none is promoted without force.
            if await self._promote(target, force=loss.force or tries >= 2 * TRIES):
                universe.record_reached("replica promoted", f"{target} {'in the set' if target in safe else 'outside of the set'}")
                return target
            tries += 1
            if tries % TRIES == 0:
                await self._start(old, old)
                if await self._opens(old):
                    universe.record_reached("old master opened after refused promotions", old)
                    return old
                await self._end(old)

    async def _promote(self, target: str, *, force: bool) -> bool:
        """Return whether the replica is promoted. False: it refused, or can't be reached. Tried until one of both is certain."""
        universe, watch, refusals, unreached, is_certain = self._universe, self._universe.copies_watch, 0, 0, True
        assert watch is not None
        universe.held.discard(target)
        while True:
            await self._do(universe.start, target)
            status = await ask(target)
            if status is not None and status.role == "master":
                return True
            if self._master == target:  # it has opened, and is silent again
                return True
            watch.promoting(self._name, target, force=force, at=universe.origin())
            header = to_plain(ReplicaPromoteHeader(force))
            try:
                checked(await call(Host.current(), f"{target}:{BROKER_PORT}", RequestCode.REPLICA_PROMOTE, header, timeout_ms=TIMEOUT_MS))
                return True
            except BrokerError as error:
                refusals += 1
                universe.record_reached("promotion refused", f"{target}: {error!r:.200}")
                if refusals == TRIES:
                    return False
            except LockstepError as error:
                unreached += 1
                is_certain = is_certain and ("refused" in str(error) or "no connection" in str(error))
                universe.record_reached("promotion without a response", f"{target}: {error!r:.120}")
                if is_certain and unreached == UNREACHED_MAX:
                    return False
            await asyncio.sleep(0.5)

    async def _restart_others(self, loss: Loss, old: str, promoted: str) -> None:
        universe = self._universe
        for address in universe.copies[self._name]:
            if address not in (old, promoted):
                await self._end(address)
                await asyncio.sleep(self._random.choice([0.05, 0.5, 2.0]))
                await self._start(address, promoted)
        await asyncio.sleep(0.5 if universe.calm else loss.back_s)
        if loss.old_as_master and not universe.calm:
            self._note("started as master", old)
            await self._start(old, old)
            opened = await self._opens(old)
            if opened:
                return  # the checker decides
            universe.record_reached("old master refused", f"{old} {universe.exit_codes.get(old, 'waits')}")
            await self._end(old)
        await self._start(old, promoted)


def operator_main(universe: Universe, name: str) -> Main:
    return Operator(universe, name).run


async def ask_copies(universe: Universe, write: Callable[[CopiesAsked], object]) -> dict[str, int]:
    """Write CopiesAsked of each broker. Return where each master has confirmed its log."""
    confirmed = {}
    for name, addresses in universe.copies.items():
        answers = {address: await ask(address) for address in addresses}
        masters = {address: status for address, status in answers.items() if status is not None and status.role == "master"}
        members = {one.member for status in masters.values() for one in status.replicas if one.in_set}
        outside = [
            f"{address}: {status}"
            for address, status in answers.items()
            if address not in masters and (status is None or status.member not in members or not status.following)
        ]
        write(CopiesAsked(*universe.origin(), name, tuple(masters), tuple(outside)))
        if len(masters) == 1:
            confirmed[name] = next(iter(masters.values())).confirmed
    return confirmed
