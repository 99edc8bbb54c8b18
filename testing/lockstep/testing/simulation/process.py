"""A machine and the processes that run on it, in sequence or at the same time."""

import asyncio
import contextvars
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Protocol

from lockstep.runtime.host import Host, RunningCalls
from lockstep.testing.simulation.disk import SimFiles
from lockstep.testing.simulation.host import SimClock, SimRandom, SimThreads

CURRENT: contextvars.ContextVar["Process"] = contextvars.ContextVar("lockstep_process")
"""The process that is executing; unset in the world."""
EPOCH_S = 1_767_225_600
"""The wall clock at the begin of a universe: 2026-01-01 00:00 UTC."""


class Timeline(Protocol):
    """The loop, as machines and processes use it."""

    seed: int
    now: float

    @property
    def current(self) -> "Process": ...
    def retime(self, machine: "Machine") -> None: ...
    def stall(self, process: "Process", seconds: float) -> None: ...
    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]": ...  # world: virtual
    def start_job(self, process: "Process", function: Callable[[], object], delay_s: tuple[float, float]) -> None: ...


class OpenPort(Protocol):
    """A port that a process has opened."""

    process: "Process"
    accepts: Callable[[], asyncio.BaseProtocol] | None

    def close(self) -> None: ...


class Socket(Protocol):
    """A process' end of a connection."""

    def abandon(self, *, power: bool) -> None:
        """The process is gone; `power`: its machine too."""
        ...


class Machine:
    """One computer: its address, its clocks, its disk, and the processes on it. Made by `SimLoop.machine`."""

    def __init__(self, loop: Timeline, name: str, disk: SimFiles, base_s: float) -> None:
        self.loop = loop
        self.name = name
        """Its address: "10.0.0.11"."""
        self.disk = disk
        disk.stall = self._disk_waits
        disk.denied = lambda: not loop.current.alive
        self.up = True
        self.boots = 1
        """Raised each time that it comes up after a power cut."""
        self.starts = 0
        """The number of processes started on it so far."""
        self.wall_offset_s = 0.0
        """Wall clock minus the true time. Assign it to make the wall clock jump."""
        self.processes: dict[int, Process] = {}
        """Its live processes, by number, oldest first."""
        self.listeners: dict[int, OpenPort] = {}
        """Its open ports, by number."""
        self.sockets_max: int | None = None
        """The limit of open connections; beyond it `connect` fails with EMFILE, and incoming connections are not accepted."""
        self.thread_delay_s = (0.0002, 0.004)
        """The time of a job in a worker thread, in addition to its disk operations."""
        self.listener_delay_s = (0.0005, 0.01)
        """The time of a plain `def` listener."""
        self._rate = 1.0
        self._since_s = loop.now
        self._local_s = base_s
        self._job_cost_s: float | None = None

    def __repr__(self) -> str:
        return f"<Machine {self.name}{'' if self.up else ', off'}>"

    @property
    def process(self) -> "Process | None":
        """Return the process that was started last, if it is alive."""
        return next(reversed(self.processes.values()), None)

    def open_sockets(self) -> int:
        """Ends of connections that its processes have open."""
        return sum(len(process.transports) for process in self.processes.values())

    # ---------------------------------------------------------------------------------------------------------------- clocks

    @property
    def rate(self) -> float:
        """Return the seconds that this machine counts in a true second. Assign it to let its clock drift from now on: 1.02 is 2 % fast."""
        return self._rate

    @rate.setter
    def rate(self, rate: float) -> None:
        self._local_s, self._since_s, self._rate = self.local_s(), self.loop.now, rate
        self.loop.retime(self)

    def local_s(self) -> float:
        """Return the monotonic clock of this machine: it grows at `rate`, restarts with each boot, and runs while processes are paused."""
        return self._local_s + (self.loop.now - self._since_s) * self._rate

    def global_s(self, local_s: float) -> float:
        """Return the true time at which the machine's monotonic clock will show `local_s`, at the present rate."""
        return self._since_s + (local_s - self._local_s) / self._rate

    def wall_s(self) -> float:
        """Return the seconds since 1970 by the wall clock of this machine."""
        return EPOCH_S + self.loop.now + self.wall_offset_s

    def boot(self, base_s: float) -> None:
        """Boot after a power cut: with another boot id, and another start of the monotonic clock."""
        self.up = True
        self.boots += 1
        self._local_s, self._since_s = base_s, self.loop.now

    def boot_id(self) -> str:
        """Return an id that is the same until the power is cut."""
        return f"boot-{self.name}-{self.boots}"

    # ------------------------------------------------------------------------------------------------------------------ disk

    def run_job(self, function: Callable[[], object]) -> float:
        """Run a worker thread's job now. Return the seconds that its disk operations took."""
        self._job_cost_s = 0.0
        try:
            function()
            return self._job_cost_s
        finally:
            self._job_cost_s = None

    def _disk_waits(self, seconds: float) -> None:
        """Account for the time of a disk operation: in a worker thread only the job waits, in the loop its whole process."""
        if self._job_cost_s is None:
            self.loop.stall(self.loop.current, seconds)
        elif self.loop.now + self._job_cost_s < self.disk.slow_until_s:
            self._job_cost_s += seconds


class Process:
    """One incarnation of a process: from `SimLoop.start` to its end."""

    def __init__(self, loop: Timeline, machine: Machine, number: int) -> None:
        self.loop = loop
        self.machine = machine
        self.number = number
        """Its process id: no two in a universe have the same."""
        self.alive = True
        self.paused = False
        """Stopped as by SIGSTOP: its code does not run, its machine's clock does, its sockets still accept bytes."""
        self.stalled = 0
        """The number of disk operations in its loop that it waits for."""
        self.ended = ""
        """How it ended: "exit", "failed" (its main raised), "kill", "power"."""
        self.main: asyncio.Task[Any]
        """The task of its main function."""
        self.exception_handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        """The argument of its `loop.set_exception_handler`."""
        self.signals: dict[int, asyncio.Handle] = {}
        """The handlers that it gave to `loop.add_signal_handler`."""
        self.context = contextvars.Context()
        """All of its code runs in a copy of this context."""
        self.tasks: weakref.WeakValueDictionary[int, asyncio.Task[Any]] = weakref.WeakValueDictionary()
        """By number, oldest first."""
        self.transports: dict[Socket, None] = {}
        """Its ends of open connections, oldest first."""
        self.ready: deque[asyncio.Handle] = deque()
        self.late: list[asyncio.Handle] = []
        """Timers that were due while it was held."""
        self.queued = False
        """Whether it is in the loop's list of processes with callbacks to run."""
        self.context.run(CURRENT.set, self)
        machine.processes[number] = self
        machine.starts += 1
        random = SimRandom(Random(f"{loop.seed}/{machine.name}/{machine.starts}"))
        threads = SimThreads(partial(loop.run_in_executor, None), self._start_thread)  # world: the universe's own
        self.host = Host(SimClock(machine), random, machine.disk, threads, machine.boot_id, number, "/home", RunningCalls())

    def _start_thread(self, function: Callable[[], None]) -> None:
        self.loop.start_job(self, function, self.machine.listener_delay_s)

    @property
    def held(self) -> bool:
        """Return whether it is paused or waits for its disk."""
        return self.paused or self.stalled > 0

    def __repr__(self) -> str:
        state = "" if self.alive and not self.paused else ", paused" if self.alive else f", {self.ended}"
        return f"<Process {self.number} on {self.machine.name}{state}>"
