"""The parts of a simulated Host: clocks that drift and jump, randomness with a seed, threads in virtual time."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Protocol, TypeVar

from lockstep.runtime.clock import Clock

T = TypeVar("T")


class Clocks(Protocol):
    """The clocks of a machine, in seconds."""

    def local_s(self) -> float: ...
    def wall_s(self) -> float: ...


class SimClock(Clock):
    """The clocks of one machine. Its monotonic clock is also the time of the loop for the processes on it."""

    __slots__ = ("_machine",)

    def __init__(self, machine: Clocks) -> None:
        self._machine = machine

    def monotonic_ms(self) -> int:
        return int(self._machine.local_s() * 1_000)

    def monotonic_us(self) -> int:
        return int(self._machine.local_s() * 1_000_000)

    def boot_ms(self) -> int:
        return int(self._machine.local_s() * 1_000)

    def wall_ms(self) -> int:
        return int(self._machine.wall_s() * 1_000)


class SimRandom:
    """The randomness of one process: seeded by the universe, the machine, and which of its processes this is."""

    __slots__ = ("_random",)

    def __init__(self, random: Random) -> None:
        self._random = random

    def token(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def below(self, limit: int) -> int:
        return self._random.randrange(limit)


class SimThreads:
    """Simulates threads: a job runs at one instant of virtual time, in the loop's own thread, when its delay is over.

    It can't await, `asyncio.get_running_loop()` fails in it as in a thread, and a call that blocks (time.sleep) blocks the universe
    while virtual time does not pass.
    """

    __slots__ = ("_execute", "_start")

    def __init__(self, execute: Callable[..., Awaitable[Any]], start: Callable[[Callable[[], None]], None]) -> None:
        self._execute = execute
        self._start = start

    async def run(self, function: Callable[..., T], *args: object) -> T:
        result: T = await self._execute(function, *args)
        return result

    def start_daemon(self, function: Callable[[], None], name: str) -> None:
        self._start(function)

    def ident(self) -> int:
        """Return 0: nobody can look at a job while it runs."""
        return 0

    def close(self) -> None:
        pass
