"""An event loop that runs whole machines: the events and their order follow from one seed.

Code outside any process belongs to the world: a process that is never killed, on a machine of its own whose clock is true. Tasks hash by
their number, not by their memory address, so that sets of tasks (asyncio.TaskGroup has one) have the same order in every run.
"""

import asyncio
import errno
import logging
import socket
import traceback
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from lockstep.runtime.host import Host
from lockstep.testing.simulation.disk import SimFiles
from lockstep.testing.simulation.network import LOOPBACK, Network, ProtocolFactory
from lockstep.testing.simulation.process import CURRENT, Machine, Process
from lockstep.testing.simulation.scheduler import Scheduler, SimulationStuckError
from lockstep.testing.simulation.transport import SimListener, SimTransport

__all__ = ["LoopError", "SimLoop", "SimulationStuckError"]

WORLD_NAME = "10.255.255.254"
"""The address of the world's own machine."""
WILDCARDS = ("0.0.0.0", "::", "", None)
CLOSE_ROUNDS = 20
"""How often a coroutine that awaits again when it is closed is closed again."""
SIGKILL, SIGTERM = 9, 15
MAIN_FAILED = "the main function failed"
EPHEMERAL_FIRST = 20_000

ExceptionHandler = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]


@dataclass(frozen=True, slots=True)
class LoopError:
    """An unhandled exception: of a callback, of the main function of a process, or of a task whose result was not read."""

    t: float
    machine: str
    process: int
    message: str
    error: BaseException | None

    def __str__(self) -> str:
        trace = "" if self.error is None else "".join(traceback.format_exception(self.error))
        return f"{self.t:.6f} {self.machine} process {self.process}: {self.message}\n{trace}".rstrip()


class SimTask(asyncio.Task[Any]):
    """A task that hashes by its number."""

    def __init__(self, number: int, coroutine: Generator[Any, None, Any] | Coroutine[Any, Any, Any], **keywords: Any) -> None:
        self.number = number
        super().__init__(coroutine, **keywords)

    def __hash__(self) -> int:
        return self.number


class SimLoop(Scheduler):
    """One universe. Usable as a loop factory: `asyncio.Runner(loop_factory=lambda: SimLoop(seed))`.

    `asyncio.all_tasks` returns the world's tasks only: a Runner cancels and awaits those of the test, not those of the machines.
    """

    def __init__(self, seed: int = 0, *, trace: bool = True) -> None:
        super().__init__(seed, trace=trace)
        self.errors: list[LoopError] = []
        """All unhandled exceptions, of all processes."""
        self._numbers = 0
        self._tasks = 0
        self._dead: list[tuple[Process, list[asyncio.Handle]]] = []
        self._left: list[asyncio.Task[Any]] = []
        """Tasks of dead processes: kept, so that no coroutine is collected, which would run its `finally`."""
        self.network = Network(self)
        self.world = Process(self, self.machine(WORLD_NAME), 0)
        self.set_task_factory(self._make_task)

    @property
    def lockstep_host(self) -> Host:
        """`Host.current()` of the code that is running."""
        return self.current.host

    # -------------------------------------------------------------------------------------------------- machines, processes

    def machine(self, name: str, *, disk: SimFiles | None = None) -> Machine:
        """Return the machine at address `name`. If there is none, make one that is up, with an empty disk unless `disk` is given."""
        machine = self.machines.get(name)
        if machine is None:
            disk = SimFiles(f"{self.seed}/{name}/disk") if disk is None else disk
            machine = self.machines[name] = Machine(self, name, disk, 0.0 if name == WORLD_NAME else self._boot_s(name, 1))
        elif disk is not None and disk is not machine.disk:
            raise ValueError(f"{name} has a disk already: pass `disk` when the machine is made")
        return machine

    def _boot_s(self, name: str, boots: int) -> float:
        """Return the first value of its monotonic clock."""
        return Random(f"{self.seed}/{name}/boot/{boots}").uniform(10, 100_000)

    def start(self, machine: Machine, main: Callable[[], Coroutine[Any, Any, Any]]) -> Process:
        """Run `main()` as a process of `machine`, which is booted if it is off. When main ends, the process ends as by asyncio.run."""
        if not machine.up:
            machine.boot(self._boot_s(machine.name, machine.boots + 1))
            self.network.booted(machine.name)
        self._numbers += 1
        process = Process(self, machine, self._numbers)
        name = f"{machine.name} main {process.number}"
        process.main = self._make_task(self, _program(self, process, main), name=name, context=process.context.copy())
        process.main.add_done_callback(lambda main: self._main_ended(process, main), context=process.context)
        return process

    def kill(self, machine: Machine, *, power: bool = False) -> None:
        """Kill every process on the machine (kill −9): none of their code runs again, not even a `finally`. `power`: switch it off too."""
        if machine is self.world.machine:
            raise ValueError("the world's machine is never killed")
        if not machine.up:
            return
        for process in list(machine.processes.values()):
            self._end(process, "power" if power else "kill")
        machine.disk.crash(power=power)
        machine.up = not power

    def kill_all(self) -> None:
        """Kill the processes of every machine but the world's."""
        for machine in self.machines.values():
            if machine is not self.world.machine:
                self.kill(machine)

    def signal(self, machine: Machine, number: int = SIGTERM) -> None:
        """Send a signal to every process on the machine: its handler is called if it has one, else the process ends."""
        for process in list(machine.processes.values()):
            handle = process.signals.get(number)
            if handle is not None and number != SIGKILL:
                self.push(process, handle)
            else:
                self._end(process, "kill")

    def terminate(self, process: Process) -> None:
        """Send SIGTERM to a process that handles it; one that does not is left alone."""
        handle = process.signals.get(SIGTERM)
        if process.alive and handle is not None:
            self.push(process, handle)

    def pause(self, machine: Machine) -> None:
        """Pause every process on the machine (SIGSTOP)."""
        if machine is self.world.machine:
            raise ValueError("the world is never paused")
        for process in machine.processes.values():
            process.paused = True
            if process.queued:
                process.queued = False
                self._runnable.remove(process)

    def resume(self, machine: Machine) -> None:
        """Resume every process on the machine (SIGCONT). Timers that were due in the pause run before or after received data, at random."""
        for process in machine.processes.values():
            if process.paused:
                process.paused = False
                self.release(process)

    def _main_ended(self, process: Process, main: "asyncio.Task[Any]") -> None:
        if not process.alive:
            return
        error = None if main.cancelled() else main.exception()
        if error is not None:
            self._record(process, MAIN_FAILED, error)
        self._end(process, "exit" if error is None else "failed")
        if not process.machine.processes:
            process.machine.disk.crash(power=False)

    def _end(self, process: Process, how: str) -> None:
        """End a process. Its sockets are closed by the kernel, unless the machine is off too."""
        process.alive, process.ended = False, how
        del process.machine.processes[process.number]
        self._left += process.tasks.values()
        self._dead.append((process, self.drop(process)))
        for server in list(process.machine.listeners.values()):
            if server.process is process:
                server.close()
        for end in list(process.transports):
            end.abandon(power=how == "power")

    def _make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **keywords: Any) -> "asyncio.Task[Any]":
        self._tasks += 1
        process, context = self.current, keywords.get("context")
        if context is not None:
            process = context.get(CURRENT, process)
            if process is not self.world:
                context.run(CURRENT.set, process)  # one that a program has made itself
        task = SimTask(self._tasks, coroutine, loop=self, **keywords)
        process.tasks[self._tasks] = task
        if process is not self.world:
            asyncio.tasks._unregister_task(task)
        if not process.alive:
            self._left.append(task)
        return task

    def close(self) -> None:
        """End the universe: every coroutine in it is closed."""
        if self.is_running():
            raise RuntimeError("the loop is running")
        if self.is_closed():
            return
        left = [*self._left]
        for machine in self.machines.values():
            for process in machine.processes.values():
                process.alive = False
                left += process.tasks.values()
        outside, logged_above = asyncio._get_running_loop(), logging.root.manager.disable
        asyncio._set_running_loop(self)
        logging.disable()  # log lines of closing coroutines are not events of the universe
        try:
            while left:
                self._left = []
                for task in left:
                    _discard(task)
                left = self._left
        finally:
            logging.disable(logged_above)
            asyncio._set_running_loop(outside)
        super().close()
        self._dead.clear()
        self._heap.clear()

    # ---------------------------------------------------------------------------------------------------------------- errors

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        process = self.running or self.current
        if self.is_closed() or not process.alive:
            return
        self._record(process, str(context.get("message")), context.get("exception"))
        self._exception_handler = process.exception_handler or self.world.exception_handler
        super().call_exception_handler(context)

    def _record(self, process: Process, message: str, error: BaseException | None) -> None:
        self.errors.append(LoopError(self.now, process.machine.name, process.number, message, error))

    def set_exception_handler(self, handler: ExceptionHandler | None) -> None:
        """Set the handler of the running process; processes without one use the world's."""
        self.current.exception_handler = handler

    def get_exception_handler(self) -> ExceptionHandler | None:
        return self.current.exception_handler

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        self.current.signals[sig] = asyncio.Handle(callback, args, self, None)

    def remove_signal_handler(self, sig: int) -> bool:
        return self.current.signals.pop(sig, None) is not None

    # --------------------------------------------------------------------------------------------------------------- network

    async def getaddrinfo(  # type: ignore[override]
        self, host: str | None, port: int | None, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[tuple[Any, Any, int, str, tuple[str, int]]]:
        name = "127.0.0.1" if host in LOOPBACK else self.network.resolve(host).name
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (name, port or 0))]

    async def create_server(  # type: ignore[override]
        self, protocol_factory: ProtocolFactory, host: str | Iterable[str] | None = None, port: int | None = None, **options: Any
    ) -> SimListener:
        """Open a port of this machine. OSError EADDRINUSE if it is taken, EADDRNOTAVAIL for an address of another machine."""
        _refuse_options(options, "ssl", "sock")
        process = self.current
        machine = process.machine
        names = [host] if host is None or isinstance(host, str) else list(host)
        for name in names:
            if name not in WILDCARDS and self.network.resolve(name) is not machine:
                raise OSError(errno.EADDRNOTAVAIL, f"{name} is not an address of {machine.name}")
        if not port:
            port = next(free for free in range(EPHEMERAL_FIRST, 65_536) if free not in machine.listeners)
        if port in machine.listeners:
            raise OSError(errno.EADDRINUSE, f"port {port} of {machine.name} is in use")
        server = SimListener(self, process, protocol_factory, (names[0] or "0.0.0.0", port))
        if options.get("start_serving", True):
            await server.start_serving()
        return server

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: ProtocolFactory, host: str | None = None, port: int | None = None, **options: Any
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        _refuse_options(options, "ssl", "sock")
        return await self.network.connect(protocol_factory, host, port or 0)

    async def create_datagram_endpoint(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError("the simulation has streams between its machines, no datagrams")

    # --------------------------------------------------------------------------------------------------------------- threads

    def run_in_executor(  # type: ignore[override]  # world: this is it
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Run `func(*args)` at one instant within the machine's `thread_delay_s`. Its result comes after that and the time of the disk."""
        process = self.current
        delay_s = self.random.uniform(*process.machine.thread_delay_s)
        effect_s = delay_s * self.random.random()
        future: asyncio.Future[Any] = self.create_future()

        def job() -> None:
            try:
                settle, outcome = future.set_result, func(*args)
            except BaseException as error:  # re-raised where the future is awaited
                settle, outcome = future.set_exception, error
            answers.append(lambda: None if future.done() else settle(outcome))

        def run() -> None:
            cost_s = self._run_job(process, job)
            self.at(self.now + (delay_s - effect_s) + cost_s, answers[0], process=process)

        answers: list[Callable[[], None]] = []
        self.at(self.now + effect_s, run, process=process)
        return future

    def start_job(self, process: Process, function: Callable[[], object], delay_s: tuple[float, float]) -> None:
        """Run it as in a thread of `process` after a time within `delay_s`."""
        self.at(self.now + self.random.uniform(*delay_s), self._run_job, process, function, process=process)

    def _run_job(self, process: Process, function: Callable[[], object]) -> float:
        """Run it now, with no running loop, as in a thread. Return the seconds that its disk operations take."""
        asyncio._set_running_loop(None)
        try:
            return process.machine.run_job(function)
        finally:
            asyncio._set_running_loop(self)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        pass


async def _program(loop: SimLoop, process: Process, main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run main, then end all other tasks, as asyncio.run does."""
    try:
        return await main()
    except SystemExit as ended:
        return ended.code
    finally:
        others = [task for task in process.tasks.values() if task is not process.main and not task.done()]
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)
        for task in others:
            if not task.cancelled() and (error := task.exception()) is not None:
                loop.call_exception_handler({"message": f"{task.get_name()} failed while its process ended", "exception": error})


class _Over(BaseException):
    """The universe has ended."""


def _discard(task: "asyncio.Task[Any]") -> None:
    """Close a coroutine that will never continue, whatever it raises or awaits."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine: Any = task.get_coro()
    for _ in range(CLOSE_ROUNDS):
        if getattr(coroutine, "cr_frame", None) is None:  # ended, or a step of an asynchronous generator
            return
        with suppress(BaseException):
            coroutine.throw(_Over())


def _refuse_options(options: dict[str, Any], *names: str) -> None:
    for name in names:
        if options.get(name) is not None:
            raise NotImplementedError(f"{name}= is not simulated: plain connections between machines only")
