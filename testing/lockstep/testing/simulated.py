"""The simulated stage: members are processes on simulated machines."""

import asyncio
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from lockstep.broker.app import Broker
from lockstep.broker.config import BrokerConfig
from lockstep.broker.witness.app import Witness
from lockstep.broker.witness.config import WitnessConfig
from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.protocol.errors import StateError
from lockstep.runtime.daemon import Daemon, Service
from lockstep.runtime.host import Host
from lockstep.testing.simulation import Machine, Process, SimLoop
from lockstep.testing.simulation.loop import MAIN_FAILED
from lockstep.testing.stage import STOP_S, TEST, Main, StageSettings

NAMESERVER_PORT, WITNESS_PORT, BROKER_PORT = 9876, 9878, 10911
STORE = "/store"
SEGMENT_MIB = 5
"""Fits the longest message; a larger file costs time to be zeroed at each start."""


class _Observed:
    """A service that reports its start, and keeps its first failure."""

    def __init__(self, service: Service, started: Callable[[], None]) -> None:
        self.failure: BaseException | None = None
        self.on_fatal: Callable[[BaseException], None] | None = None
        self._service = service
        self._started = started

    @property
    def on_hangup(self) -> Callable[[], None] | None:
        """Return what SIGHUP does."""
        return self._service.on_hangup

    async def start(self) -> None:
        self._service.on_fatal = self._fatal
        with self._failing():
            await self._service.start()
        self._started()

    async def stop(self) -> None:
        with self._failing():
            await self._service.stop()

    def _fatal(self, error: BaseException) -> None:
        self.failure = self.failure or error
        if self.on_fatal is not None:
            self.on_fatal(error)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # re-raised
            self.failure = self.failure or error
            raise


class SimMember:
    """A program on a simulated machine.

    `exited` is called in its process when its main function has returned, with the exit code.
    """

    def __init__(self, loop: SimLoop, name: str, machine: Machine, main: Main, exited: Callable[[int], None] | None = None) -> None:
        self.name = name
        self.failure: BaseException | None = None
        self.exit_code: object = None
        """The result of main, if it is not a success."""
        self.machine = machine
        self._loop = loop
        self._main = main
        self._exited = exited
        self._process: Process | None = None
        self._failure_reported = False
        self._ended: asyncio.Future[str] = loop.create_future()
        """How the present process ended."""

    @property
    def process(self) -> Process | None:
        """Return the present process, if it is alive."""
        return self._process if self._process is not None and self._process.alive else None

    @property
    def state(self) -> str:
        if self._process is None:
            return "new"
        if self._ended.done():
            return self._ended.result()
        return "paused" if self._process.paused else "running"

    async def start(self) -> None:
        self.launch()

    def launch(self) -> Process:
        """Start it. StateError if it runs."""
        if self.process is not None:
            raise StateError(f"{self.name} is {self.state}")
        self.failure, self.exit_code, self._failure_reported = None, None, False
        self._ended = ended = self._loop.create_future()
        self._process = process = self._loop.start(self.machine, self._run)
        process.main.add_done_callback(lambda main: self._main_ended(main, process, ended))
        return process

    async def _run(self) -> Any:
        result = await self._main()
        if self._exited is not None:
            self._exited(result if isinstance(result, int) else 0)
        return result

    def _main_ended(self, main: "asyncio.Task[object]", process: Process, ended: "asyncio.Future[str]") -> None:
        if ended.done():
            return
        if process.alive:  # its last callbacks have not run yet
            self._loop.call_soon(self._main_ended, main, process, ended)
            return
        if not main.cancelled():
            self.failure = main.exception()
            self.exit_code = None if self.failure is not None else main.result()
        ended.set_result("stopped" if self.failure is None and not self._exited_with_failure() else "failed")

    def _exited_with_failure(self) -> bool:
        """Return whether its exit code is not 0. The result of a user's main function counts only if it is an exit code."""
        return isinstance(self.exit_code, int) and self.exit_code != 0

    async def stop(self) -> None:
        process = self._running()
        if signal.SIGTERM in process.signals:
            self._loop.signal(self.machine, signal.SIGTERM)
        else:
            process.main.cancel()
        await asyncio.wait([self._ended], timeout=STOP_S)
        if process.alive:
            raise StateError(f"{self.name} was asked to stop and has not ended within {STOP_S:.0f} s")

    async def kill(self) -> None:
        self._end("killed", power=False)

    async def cut_power(self) -> None:
        """Switch its machine off until it is started again; unsynced bytes are lost at random."""
        self._end("power cut", power=True)

    def _end(self, how: str, *, power: bool) -> None:
        self._loop.kill(self.machine, power=power)
        if not self._ended.done():
            self._ended.set_result(how)

    async def pause(self) -> None:
        self._running()
        self._loop.pause(self.machine)

    async def resume(self) -> None:
        self._loop.resume(self.machine)

    def report_failure(self) -> str:
        """Return how it failed, if it did and this has not been reported yet."""
        if self.state != "failed" or self._failure_reported:
            return ""
        self._failure_reported = True
        if self.failure is None:
            return f"{self.name} ended with exit code {self.exit_code}"
        return f"{self.name} failed:\n{''.join(traceback.format_exception(self.failure)).rstrip()}"

    def _running(self) -> Process:
        if self._process is None or self.state != "running":
            raise StateError(f"{self.name} is {self.state}, not running")
        return self._process


class SimServer(SimMember):
    """A nameserver or broker, run by its production program (Daemon).

    `started` and `failed` are called in its process: when it serves, and when it has ended with an error of its own.
    """

    def __init__(
        self,
        loop: SimLoop,
        name: str,
        machine: Machine,
        port: int,
        make: Callable[[], Service],
        *,
        started: Callable[[], None] | None = None,
        failed: Callable[[BaseException], None] | None = None,
        exited: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(loop, name, machine, self._serve, exited)
        self.address = f"{machine.name}:{port}"
        self._make = make
        self._started = started
        self._failed = failed
        self._ready: asyncio.Future[None] = loop.create_future()

    def launch(self) -> Process:
        self._ready = self._loop.create_future()
        return super().launch()

    async def start(self) -> None:
        self.launch()
        waits: list[asyncio.Future[Any]] = [self._ready, self._ended]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)

    async def lose(self) -> None:
        self._end("lost", power=True)
        self.machine.disk.remove_tree(STORE)

    async def _serve(self) -> int:
        service = _Observed(self._make(), self._serves)
        code = await Daemon(self.name).serve(service)
        if service.failure is not None and self._failed is not None:
            self._failed(service.failure)
        return code

    def _serves(self) -> None:
        self._ready.set_result(None)
        if self._started is not None:
            self._started()


MemberT = TypeVar("MemberT", bound=SimMember)


def nameserver_at(address: str) -> Callable[[], Service]:
    """Return a factory of nameservers for the machine at `address`."""
    config = NameserverConfig(listen=(f"{address}:{NAMESERVER_PORT}",), insecure=True)
    return lambda: Nameserver(config, Host.current())


@dataclass(slots=True)
class Places:
    """The addresses in use: 10.N.0.x for nameservers and brokers, 10.N.1.x for workers."""

    net: int
    servers: int = 0
    workers: int = 0


class SimStage:
    """Runs members on machines of the running SimLoop. Without faults its network loses nothing, and takes 0.5 to 2.5 ms."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.network = loop.network
        self.network.late_chance = self.network.chop = 0.0
        net = next(net for net in range(256) if f"10.{net}.0.1" not in loop.machines)
        self._places = Places(net)
        self._members: dict[str, SimMember] = {}
        """By address."""
        self._errors_seen = len(loop.errors)

    @property
    def here(self) -> str:
        """Return the address of the test itself."""
        return self.loop.world.machine.name

    def _machine(self, *, server: bool) -> Machine:
        places = self._places
        if server:
            places.servers += 1
        else:
            places.workers += 1
        return self.loop.machine(f"10.{places.net}.0.{places.servers}" if server else f"10.{places.net}.1.{places.workers}")

    def nameserver(self, name: str) -> SimServer:
        machine = self._machine(server=True)
        return self._added(SimServer(self.loop, name, machine, NAMESERVER_PORT, nameserver_at(machine.name)))

    def witness(self, name: str) -> SimServer:
        machine = self._machine(server=True)
        config = WitnessConfig(listen=(f"{machine.name}:{WITNESS_PORT}",), store=STORE, insecure=True)
        return self._added(SimServer(self.loop, name, machine, WITNESS_PORT, lambda: Witness(config, Host.current())))

    def broker(self, name: str, broker: str, nameserver: str, settings: StageSettings, replica_of: Callable[[], str | None]) -> SimServer:
        machine = self._machine(server=True)

        def make() -> Broker:
            config = BrokerConfig(
                name=broker,
                listen=(f"{machine.name}:{BROKER_PORT}",),
                nameserver=nameserver,
                replica_of=replica_of(),
                ha=settings.ha,
                store=STORE,
                insecure=True,
                segment_mib=SEGMENT_MIB,
                disk_used_percent_max=100,
                flush=settings.flush,
                disconnect_grace_ms=settings.disconnect_grace_ms,
                session_timeout_ms=settings.session_timeout_ms,
                auto_create_topics=settings.auto_create_topics,
            )
            return Broker(config, Host.current())

        return self._added(SimServer(self.loop, name, machine, BROKER_PORT, make))

    def _added(self, member: MemberT) -> MemberT:
        self._members[member.machine.name] = member
        return member

    def worker(self, name: str, main: Main) -> SimMember:
        return self._added(SimMember(self.loop, name, self._machine(server=False), main))

    def running(self) -> str:
        return self.owner(self.loop.current.machine.name)

    def owner(self, client_id: str) -> str:
        address = client_id.partition("@")[0]
        if address == self.here:
            return TEST
        member = self._members.get(address)
        return client_id if member is None else member.name

    def errors(self) -> list[str]:
        new, self._errors_seen = self.loop.errors[self._errors_seen :], len(self.loop.errors)
        found = [f"{self.owner(error.machine)}: {error}" for error in new if error.message != MAIN_FAILED]
        return found + [failure for member in self._members.values() if (failure := member.report_failure())]

    async def close(self) -> None:
        self.network.heal()
        self.network.slow.clear()
        for member in self._members.values():
            self.loop.kill(member.machine)
