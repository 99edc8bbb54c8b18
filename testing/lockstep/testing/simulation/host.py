"""What product code is handed as its Host in the simulator: clocks that drift and jump, seeded dice, threads in virtual time."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, TypeVar

from lockstep.runtime.clock import Clock
from lockstep.runtime.host import Calls, Host

if TYPE_CHECKING:
    from lockstep.testing.simulation.process import Machine, Process

T = TypeVar("T")


class SimClock(Clock):
    """The clocks of one machine. Its monotonic clock is also the time of the loop for the processes on it."""

    __slots__ = ("_machine",)

    def __init__(self, machine: "Machine") -> None:
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
    """The dice of one process: seeded by the universe, the machine, and which of its processes this is."""

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
    """Threads without threads: a job runs at one instant of virtual time, in the loop's own thread, when its delay is over.

    It can't await, `asyncio.get_running_loop()` fails in it as in a thread, and a call that blocks (time.sleep) blocks the universe
    without virtual time going on.
    """

    __slots__ = ("_process",)

    def __init__(self, process: "Process") -> None:
        self._process = process

    async def run(self, function: Callable[..., T], *args: object) -> T:
        result: T = await self._process.loop.run_in_executor(None, function, *args)  # world: the universe's own
        return result

    def start_daemon(self, function: Callable[[], None], name: str) -> None:
        process = self._process
        process.loop.start_job(process, function, process.machine.listener_delay_s)

    def close(self) -> None:
        pass


def host_of(process: "Process", random: Random) -> Host:
    """The Host of one process."""
    machine = process.machine
    return Host(SimClock(machine), SimRandom(random), machine.disk, SimThreads(process), machine.boot_id, process.number, "/home", Calls())
