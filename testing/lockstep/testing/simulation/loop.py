"""An event loop whose time is virtual and on which whole machines run: what happens, and in which order, follows from one seed.

- Time stands still while anything is left to run, then jumps to the next timer, arrival or job.
- Each process has a ready queue of its own. Within a process callbacks run first in, first out, as in asyncio; which process has the next
  turn is drawn.
- A callback belongs to the process in whose context it was scheduled. Code outside any process is the world's, a process that is never
  killed, on a machine of its own whose clock is true.
"""

import asyncio
import contextvars
import traceback
from asyncio import base_events
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Any

from lockstep.runtime.host import Host
from lockstep.testing.simulation.disk import SimFiles
from lockstep.testing.simulation.network import Network
from lockstep.testing.simulation.process import Machine, Process

WORLD_NAME = "10.255.255.254"
"""The address of the world's own machine."""
TURNS_MAX = 1_000_000
"""Turns at one instant after which time is taken to stand still for ever."""
CLOCK_STEP_S = 1e-9
"""A timer fires so much late: never before its time for the rounding of a clock that drifts."""
CANCELLED_SLACK = 500
"""Cancelled timers that may wait for their time before the heap is swept."""
CLOSE_ROUNDS = 20
"""How often a coroutine that awaits again when it is closed is closed again."""

_process: contextvars.ContextVar[Process] = contextvars.ContextVar("lockstep_process")

_Entry = tuple[float, int, Process, asyncio.Handle, Callable[[], object] | None]
"""Global time, order, process, what to run there, what to run in the world's name where that process is gone."""


class SimulationStuck(RuntimeError):
    """Nothing will ever happen again, or time does not go on."""


@dataclass(frozen=True, slots=True)
class LoopError:
    """An exception that nobody handled: in a callback, or in a task that nobody looked at."""

    t: float
    machine: str
    process: int
    message: str
    error: BaseException | None

    def __str__(self) -> str:
        told = "" if self.error is None else "".join(traceback.format_exception(self.error))
        return f"{self.t:.6f} {self.machine} process {self.process}: {self.message}\n{told}".rstrip()


class SimLoop(base_events.BaseEventLoop):
    """One universe. Usable as a loop factory: `asyncio.Runner(loop_factory=lambda: SimLoop(seed))`.

    Kill every machine before the loop ends (`kill_all`): asyncio.Runner waits for whatever is still alive in it.
    """

    def __init__(self, seed: int = 0, *, trace: bool = True) -> None:
        super().__init__()
        self._clock_resolution = CLOCK_STEP_S
        self.seed = seed
        self.now = 0.0
        """True seconds since the universe began."""
        self.random = Random(f"{seed}/universe")
        """The only die for scheduling and network."""
        self.errors: list[LoopError] = []
        """Every exception that nobody handled, in whatever process."""
        self.time_limit_s = float("inf")
        """SimulationStuck beyond it: a wait that never ends while others go on."""
        self.machines: dict[str, Machine] = {}
        self.steps = 0
        """Callbacks run so far."""
        self._digest = blake2b(digest_size=16)
        self._tracing = trace
        self._heap: list[_Entry] = []
        self._order = 0
        self._runnable: list[Process] = []
        self._turns = 0
        self._until: float | None = None
        self._cancelled = 0
        self._numbers = 0
        self._dead: list[object] = []
        self.network = Network(self)
        self.world = self._new_process(self.machine(WORLD_NAME))
        self.set_task_factory(self._make_task)

    # -------------------------------------------------------------------------------------------------- machines, processes

    @property
    def current(self) -> Process:
        """The process whose code is running; the world outside any."""
        return _process.get(self.world)

    @property
    def lockstep_host(self) -> Host:
        """`Host.current()` of the code that is running."""
        return self.current.host

    def machine(self, name: str, *, disk: SimFiles | None = None) -> Machine:
        """The machine at address `name`, made where there is none yet: up, with an empty disk unless `disk` is given."""
        machine = self.machines.get(name)
        if machine is None:
            base_s = 0.0 if name == WORLD_NAME else Random(f"{self.seed}/{name}/boot/1").uniform(10, 100_000)
            machine = self.machines[name] = Machine(self, name, disk or SimFiles(f"{self.seed}/{name}/disk"), base_s)
        elif disk is not None and disk is not machine.disk:
            raise ValueError(f"{name} has a disk already: hand it over when the machine is made")
        return machine

    def start(self, machine: Machine, main: Callable[[], Coroutine[Any, Any, Any]]) -> Process:
        """Runs `main()` as a process of `machine`, which comes up if it was off. When main ends, the process ends as by asyncio.run."""
        raise NotImplementedError

    def kill(self, machine: Machine, *, power: bool = False) -> None:
        """kill −9 of every process on it: nothing of them runs again, not even a `finally`. `power`: the machine goes with them."""
        raise NotImplementedError

    def kill_all(self) -> None:
        """`kill` of every machine but the world's."""
        raise NotImplementedError

    def pause(self, machine: Machine) -> None:
        """SIGSTOP to every process on it."""
        raise NotImplementedError

    def resume(self, machine: Machine) -> None:
        """SIGCONT. Timers that were due meanwhile run before or behind what came in, as the dice fall."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------------------------ time

    def at(self, when: float, callback: Callable[..., object], *args: Any, process: Process | None = None) -> None:
        """Calls back at global time `when`, in `process`, if that is alive then. None: in the world."""
        raise NotImplementedError

    def run_until(self, when: float) -> None:
        """Runs everything up to global time `when` and leaves the clock there. Not to be called while the loop runs."""
        raise NotImplementedError

    def digest(self) -> str:
        """Hex over every delivered segment and its time: equal for equal seeds and programs."""
        return self._digest.hexdigest()
