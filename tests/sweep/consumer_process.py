"""Consumer processes: every group of the universe in each of them."""

import asyncio
from dataclasses import replace

from lockstep.runtime.host import Host
from sweep.broadcast import BroadcastRunner
from sweep.concurrent import ConcurrentRunner
from sweep.consumers import GroupRunner
from sweep.pull_readers import PullRunner
from sweep.settings import CLASSIC, MAILING, NEWS, READERS
from sweep.universe import Controls, Main, Universe


class CopiedRandom:
    """Randomness whose second token of 8 bytes, the client id's, is another client's: two clients of one id."""

    def __init__(self, own: Host, identity: bytes) -> None:
        self._own = own.random
        self._identity = identity

    def token(self, count: int) -> bytes:
        own = self._own.token(count)
        return self._identity if count == len(self._identity) else own

    def uniform(self, low: float, high: float) -> float:
        return self._own.uniform(low, high)

    def below(self, limit: int) -> int:
        return self._own.below(limit)


def consumer_main(universe: Universe, *, impersonates: str | None = None) -> Main:
    """Return a program with all groups of the universe. `impersonates`: the client id that it uses."""

    async def main(stop: asyncio.Event) -> int:
        process = universe.loop.current
        host = process.host
        if impersonates is not None:
            pid, identity = impersonates.partition("@")[2].split("#")
            host = replace(host, pid=int(pid), random=CopiedRandom(host, bytes.fromhex(identity)))
        controls = universe.controls[process.number] = Controls()
        universe.expressions[process.number] = universe.expression
        async with asyncio.TaskGroup() as group:
            for name in [name for name in universe.setting.groups if name != CLASSIC]:
                toggle = controls.toggles[name] = asyncio.Event()
                group.create_task(GroupRunner(universe, process, name, host, stop, toggle).run())
            if universe.setting.concurrent:
                toggle = controls.toggles[MAILING] = asyncio.Event()
                group.create_task(ConcurrentRunner(universe, process, MAILING, host, stop, toggle).run())
            if universe.setting.broadcast:
                toggle = controls.toggles[NEWS] = asyncio.Event()
                member = BroadcastRunner(universe, process, NEWS, host, stop, toggle)
                controls.written = member.written
                group.create_task(member.run())
            if universe.setting.readers:
                toggle = controls.toggles[READERS] = asyncio.Event()
                group.create_task(PullRunner(universe, process, READERS, host, stop, toggle).run())
        return 0

    return main
