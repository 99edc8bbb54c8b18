"""Faults drawn from a seed while a test's body runs, and calm at its end."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from random import Random
from types import TracebackType
from typing import Any

from lockstep.protocol.errors import ConfigError, LockstepError, TransportError
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.waiting import is_set_within
from lockstep.testing.cluster import TestCluster
from lockstep.testing.stage import TEST

EVERY_S = 2.0
DOWN_S = (0.1, 4.0)
"""How long a killed member stays down."""
SHORT_PAUSE_S = (0.1, 4.0)
LONG_PAUSE_S = (4.0, 40.0)
"""Longer than the grace, and sometimes than the session timeout: another member has the queues when it wakes."""
LINK_S = (0.2, 8.0)
"""How long a partition or a slow link lasts."""
SLOW_S = 1.0
RESTART_S, RESTARTS_MAX = 4.0, 5
"""A program that cannot start fails within 3 s."""
LATE_CHANCE, CHOP = 0.005, 0.2
"""Network noise while the chaos lasts: the shares of segments that are lost and sent again, and of writes that are cut in pieces."""


class Chaos:
    """`async with Chaos(cluster): …`: inject faults while the block runs. At its end all faults are over, and all killed members run again.

    A program that ends with a TransportError in the meantime, because it reached no server, is started again, as a service manager would.

    Args:
        seed: determines which faults happen, when and to which member; by default the seed of the universe.
        every_seconds: the mean time between two faults.
        faults: some of FAULTS; by default all that the cluster can have without losing acknowledged messages: power cuts of brokers only
            with flush="sync".
    """

    def __init__(
        self, cluster: TestCluster, *, seed: int | None = None, every_seconds: float = EVERY_S, faults: Collection[str] | None = None
    ) -> None:
        if unknown := sorted(set(faults or ()) - set(FAULTS)):
            raise ConfigError(f"there is no fault {unknown[0]!r}: known are {', '.join(FAULTS)}")
        if every_seconds <= 0:
            raise ConfigError(f"every_seconds is {every_seconds}, expected more than 0")
        possible = [name for name in FAULTS if not cluster.real or name in REAL]
        self._kinds = [name for name in FAULTS if name in faults] if faults is not None else _harmless(possible, cluster)
        self._cluster = cluster
        self._random = Random(f"{(cluster.seed or 0) if seed is None else seed}/chaos")
        self._every_s = every_seconds
        self._tasks = Tasks(self._fail)
        self._under_way: dict[asyncio.Task[None], None] = {}
        self._over = asyncio.Event()
        self._down: dict[str, None] = {}
        """Members that the chaos has taken down and not started again yet."""
        self._failure: BaseException | None = None
        self._restarted_s = -RESTART_S
        """When it last started a member again."""

    async def __aenter__(self) -> "Chaos":
        self._spawn(self._storm(), "chaos")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._heal()
        while self._under_way:
            await asyncio.wait(self._under_way)
        self._heal()
        for _ in range(RESTARTS_MAX):
            await asyncio.sleep(max(0.0, self._restarted_s + RESTART_S - self._cluster.now))
            if not await self._start_again():
                break
        if self._failure is not None and error is None:
            raise self._failure

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        task = self._tasks.spawn(coroutine, name)
        self._under_way[task] = None
        task.add_done_callback(lambda task: self._under_way.pop(task))

    async def _storm(self) -> None:
        self._cluster.set_noise(LATE_CHANCE, CHOP)
        while not await is_set_within(self._over, self._random.expovariate(1 / self._every_s)):
            await self._start_again()
            await FAULTS[self._random.choice(self._kinds)](self)
        self._cluster.set_noise(0, 0)

    async def _start_again(self) -> bool:
        """Start programs again that ended because they reached no server. Return False if there are none."""
        failed = [name for name in self._cluster.workers if isinstance(self._cluster.failure(name), TransportError)]
        for name in failed:
            await self._restart(name)
        return bool(failed)

    async def _restart(self, name: str) -> None:
        self._restarted_s = self._cluster.now
        await self._cluster.restart(name)

    def _heal(self) -> None:
        if not self._cluster.real:
            self._cluster.heal()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error

    # ------------------------------------------------------------------------------------------------------ for the faults

    def running(self, names: Collection[str]) -> str | None:
        """Return one of the members that runs; None if none does."""
        alive = [name for name in names if self._cluster.state(name) == "running" and name not in self._down]
        return self._random.choice(alive) if alive else None

    def later(self, span_s: tuple[float, float], undo: Callable[[], Awaitable[None]]) -> None:
        """Call `undo` after a time within the span, or at the end of the chaos."""

        async def run(seconds: float) -> None:
            await is_set_within(self._over, seconds)
            await undo()

        self._spawn(run(self._random.uniform(*span_s)), "chaos undo")

    async def take_down(self, name: str | None, how: Callable[[str], Awaitable[None]], span_s: tuple[float, float]) -> None:
        """Take a member down by `how`, and start or resume it later."""
        if name is None:
            return
        self._down[name] = None
        await how(name)
        self.later(span_s, lambda: self._bring_back(name))

    async def _bring_back(self, name: str) -> None:
        if self._cluster.state(name) == "paused":
            await self._cluster.resume(name)
        else:
            await self._restart(name)
        del self._down[name]

    @property
    def copies(self) -> tuple[str, ...]:
        """Return the members with a broker's log."""
        return (*map(self._cluster.master, self._cluster.brokers), *self._cluster.replicas)

    def link(self) -> tuple[str, str]:
        """Return a client (the test itself is one of them) and a broker."""
        cluster = self._cluster
        return self._random.choice([*cluster.workers, TEST]), self._random.choice(cluster.brokers)

    async def kill_worker(self) -> None:
        """Kill a program (SIGKILL), and start it again after 0.1 to 4 s."""
        await self.take_down(self.running(self._cluster.workers), self._cluster.kill, DOWN_S)

    async def stop_worker(self) -> None:
        """Stop a program in order, or kill it if it does not end in time, and start it again after 0.1 to 4 s."""

        async def stop(name: str) -> None:
            try:
                await self._cluster.stop(name)
            except LockstepError:  # a program that reaches no server may take long
                await self._cluster.kill(name)

        await self.take_down(self.running(self._cluster.workers), stop, DOWN_S)

    async def pause_worker(self) -> None:
        """Pause a program (SIGSTOP) for 0.1 to 4 s."""
        await self.take_down(self.running(self._cluster.workers), self._cluster.pause, SHORT_PAUSE_S)

    async def pause_worker_long(self) -> None:
        """Pause a program for 4 to 40 s: longer than the grace, so that other members get its queues."""
        await self.take_down(self.running(self._cluster.workers), self._cluster.pause, LONG_PAUSE_S)

    async def kill_broker(self) -> None:
        """Kill a broker or a replica (SIGKILL), and start it again after 0.1 to 4 s."""
        await self.take_down(self.running(self.copies), self._cluster.kill, DOWN_S)

    async def pause_broker(self) -> None:
        """Pause a broker or a replica (SIGSTOP) for 0.1 to 4 s."""
        await self.take_down(self.running(self.copies), self._cluster.pause, SHORT_PAUSE_S)

    async def cut_power_of_broker(self) -> None:
        """Switch the machine of a broker or a replica off, and boot it after 0.1 to 4 s."""
        await self.take_down(self.running(self.copies), self._cluster.cut_power, DOWN_S)

    async def kill_nameserver(self) -> None:
        """Kill a nameserver (SIGKILL), and start it again after 0.1 to 4 s."""
        await self.take_down(self.running(self._cluster.nameservers), self._cluster.kill, DOWN_S)

    async def partition(self) -> None:
        """Block the traffic between a client and a broker for 0.2 to 8 s, in one direction or both."""
        one, other = self.link()
        if self._random.random() < 0.5:
            one, other = other, one
        self._cluster.partition(one, other, one_way=self._random.random() < 0.5)
        self.later(LINK_S, self._heal_soon)

    async def slow_link(self) -> None:
        """Delay each segment between a client and a broker by up to 1 s, for 0.2 to 8 s."""
        self._cluster.slow_link(*self.link(), seconds=SLOW_S)
        self.later(LINK_S, self._heal_soon)

    async def _heal_soon(self) -> None:
        self._heal()

    async def reset_connections(self) -> None:
        """Cut all connections between a client and a broker."""
        self._cluster.reset_connections(*self.link())


FAULTS: Mapping[str, Callable[[Chaos], Awaitable[None]]] = {
    "kill_worker": Chaos.kill_worker,
    "stop_worker": Chaos.stop_worker,
    "pause_worker": Chaos.pause_worker,
    "pause_worker_long": Chaos.pause_worker_long,
    "kill_broker": Chaos.kill_broker,
    "pause_broker": Chaos.pause_broker,
    "cut_power_of_broker": Chaos.cut_power_of_broker,
    "kill_nameserver": Chaos.kill_nameserver,
    "partition": Chaos.partition,
    "slow_link": Chaos.slow_link,
    "reset_connections": Chaos.reset_connections,
}
REAL = ("kill_worker", "stop_worker", "pause_worker", "kill_broker", "pause_broker", "kill_nameserver")
"""The faults that real processes can have."""


def _harmless(possible: Collection[str], cluster: TestCluster) -> list[str]:
    return [name for name in possible if name != "cut_power_of_broker" or cluster.flush == "sync"]
