"""One universe: a cluster on simulated machines, and the state that its workload and its faults share."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from lockstep.broker.app import Broker
from lockstep.broker.nameserver_registration import RegistrationRefusedError
from lockstep.protocol.bodies import ConsumeFromWhere
from lockstep.protocol.errors import LockstepError, SubscriptionConflictError
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.daemon import exit_code_of
from lockstep.runtime.security.client_security import NO_SECURITY, ClientSecurity
from lockstep.testing.simulated import BROKER_PORT, NAMESERVER_PORT, SimMember
from lockstep.testing.simulation import Machine, Process, SimFiles, SimLoop
from sweep.access import INTRUDER, OPERATOR, Access, accounts_of
from sweep.checkers.violation import Violation
from sweep.copies_watch import CopiesWatch
from sweep.elections_watch import ElectionsWatch, etcd_seen
from sweep.events.universe import BrokerOpened, ClockSet, PauseBegan, PauseEnded, PowerCut, ProcessEnded, ProcessStarted, ServerFailed
from sweep.history import Event, History, PlaceReached
from sweep.journal import LogRecorder
from sweep.settings import MAILING, NEWS, READERS, Setting
from sweep.sim_etcd import SimEtcd
from sweep.wire_recorder import WireRecorder

WITNESS_PORT = 9878
Main = Callable[[asyncio.Event], Coroutine[Any, Any, int]]
"""A process: runs until it is done or the event asks it to stop; returns its exit code."""


class WatchedHistory(History):
    """A history that reports each event as it happens."""

    __slots__ = ("noted", "watch")

    def __init__(self) -> None:
        super().__init__()
        self.watch: Callable[[Event], None] | None = None
        """Called with each event, after it was written."""
        self.noted: Callable[[Event], None] | None = None
        """The same, and no fault replaces it."""

    def append(self, event: Event) -> None:
        super().append(event)
        if self.noted is not None:
            self.noted(event)
        if self.watch is not None:
            self.watch(event)


OUTDATED = " is older than "
"""In the refusal of a member whose contract's version is below those in force: it was away while the others changed."""


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """A group's start policy. `t`: its time on the universe's clock."""

    where: ConsumeFromWhere = ConsumeFromWhere.FIRST_OFFSET
    timestamp_ms: int | None = None
    t: float = 0.0


@dataclass(slots=True)
class Controls:
    """The controls of one consumer process, for faults and phases."""

    toggles: dict[str, asyncio.Event] = field(default_factory=dict)
    """Group → stop this group's consumer and start another one."""
    written: Callable[[], dict[tuple[str, int], int]] | None = None
    """For the broadcasting group: (broker, queue id) → the offset in this process' file, as far as it knows."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A master is lost: what its operator does. Seconds."""

    wait_s: float
    tries_old: bool
    """The old master is started first, in its role, and only if it does not open a replica is promoted."""
    careful: bool
    """A replica of the set is promoted, if one runs; else any."""
    force: bool
    again: bool
    """The promoted replica is killed at once, and another one promoted."""
    stale_settings: bool
    """The settings of the promoted replica continue to name the old master."""
    old_as_master: bool
    """The old master is started in its old role, in which it must not open."""
    back_s: float
    """When the old master is started."""


class Universe:
    """The machines of one universe, the programs on them, and the state that its processes and faults share."""

    def __init__(self, setting: Setting, *, debug_log: bool = False, trace: bool = True) -> None:
        self.setting = setting
        self.loop = SimLoop(setting.seed, trace=trace)
        self.random = Random(f"{setting.seed}/{setting.world}/faults")
        self.history = WatchedHistory()
        self.log = LogRecorder(self.origin, debug=debug_log)
        self.brokers = {f"broker-{'abcdefgh'[number]}": f"10.0.0.{11 + number}" for number in range(setting.brokers)}
        """Name → address. Of a broker with replicas: that of its master, as its operator knows it."""
        self.copies = {
            name: [address, *(f"10.0.0.{21 + 10 * replica + number}" for replica in range(setting.replicas))]
            for number, (name, address) in enumerate(self.brokers.items())
        }
        """Name → the addresses of all copies of its log, replicas included."""
        self.replica_of = {address: copies[0] for copies in self.copies.values() for address in copies}
        """Machine → the machine that its broker's settings name as its master; itself for none."""
        self.held: set[str] = set()
        """Machines whose broker is started by its operator alone."""
        self.exit_codes: dict[str, int] = {}
        """Machine → the exit code of its last process that ended by itself with an error."""
        self.registers = {"": [], "etcd": ["10.0.0.61", "10.0.0.62"], "witness": ["10.0.0.61"]}[setting.register]
        """The machines that keep the register."""
        self.etcd: SimEtcd | None = None
        self.nameservers = [f"10.0.0.{1 + number}" for number in range(setting.nameservers)]
        self.nameserver = ";".join(f"{address}:{NAMESERVER_PORT}" for address in self.nameservers)
        self.consumers = [f"10.0.1.{1 + number}" for number in range(setting.consumers)]
        self.classics = [f"10.0.4.{1 + number}" for number in range(setting.classic)]
        self.producers = [f"10.0.2.{1 + number}" for number in range(setting.producers)]
        groups = (*setting.groups, MAILING, NEWS, READERS)
        begin = StartPolicy(ConsumeFromWhere.LAST_OFFSET) if setting.early else StartPolicy()
        self.start_policies: dict[str, StartPolicy] = {name: begin for name in groups if name not in setting.late_groups}
        """Group → its start policy; a group that is not here has not begun."""
        self.grace_ms = setting.grace_ms
        """The grace of brokers that start from now on."""
        self.flush = setting.flush
        """The flush mode of brokers that start from now on."""
        self.expression = "*"
        """The subscription of consumers that start from now on."""
        self.contract_version = 0
        """The version of their contract."""
        self.marks: dict[str, bool] = {}
        """The database of the producers: transaction → whether it was committed."""
        self.poison: dict[bytes, None] = {}
        """Bodies on which every call fails."""
        self.sending = True
        self.calm = False
        self.is_over = False
        self.controls: dict[int, Controls] = {}
        """By process number."""
        self.call_faults: dict[str, Callable[[Process], float]] = {}
        """Consumer's address → called when its next call begins; returns how long that call takes at least."""
        self.expressions: dict[int, str] = {}
        """Consumer process → its subscription."""
        self.violations: list[Violation] = []
        self.on_server_exit: Callable[[str, int], None] = lambda address, code: None
        """Called when the program of a machine has ended with an exit code that is not 0."""
        self._programs: dict[str, tuple[SimMember, str]] = {}
        """Address → the machine's own program, and its role."""
        self._open: dict[str, Broker] = {}
        self._calls = 0
        network = self.loop.network
        network.latency_s, network.jitter_s = setting.latency_s, setting.jitter_s
        network.late_chance, network.chop = setting.late_chance, setting.chop
        self.losses: dict[str, list[Loss]] = {name: [] for name in self.brokers}
        """Broker → the losses of its master that its operator has to deal with."""
        self.copies_watch: CopiesWatch | None = None
        """What is known of the copies of logs, if there are some."""
        if setting.replicas:
            sync = setting.flush == "sync"
            known = self.copies, self._disk, setting.segment_bytes, self.history.append
            if setting.register:
                self.copies_watch = elections = ElectionsWatch(*known, sync=sync, alive=self._at_work)
            else:
                self.copies_watch = CopiesWatch(*known, sync=sync)
            self.history.noted = self.copies_watch.noted
        self.access: Access | None = None
        """The users, if there are some."""
        if setting.users:
            machines = list(self.brokers), self.consumers, self.classics, self.producers
            self.access = Access(accounts_of(setting, *machines), self.history.append, self.origin)
        names = {address: name for name, addresses in self.copies.items() for address in addresses}
        if setting.register == "witness":
            names |= dict.fromkeys(self.registers, "witness")
        elif setting.register == "etcd":
            self.etcd = SimEtcd(self.loop, self.registers)
            self.etcd.on_write = lambda write: self.history.append(etcd_seen(write))
            self.etcd.reached = lambda name: self.history.append(PlaceReached(self.loop.now, "", 0, name))
        recorder = network.observer = WireRecorder(self.history, lambda: self.loop.now, names, INTRUDER)
        if self.access is not None:
            recorder.password_of = self.access.password
        if setting.register:
            recorder.answered, recorder.cut_off = elections.answered, elections.cut_off

    @property
    def servers(self) -> list[str]:
        return [*self.nameservers, *self.registers, *self.broker_machines]

    @property
    def broker_machines(self) -> list[str]:
        """Return the machines of all brokers and their replicas, the first ones being the masters of the beginning."""
        return [address for place in range(1 + self.setting.replicas) for address in (copies[place] for copies in self.copies.values())]

    def master_of(self, name: str, address: str) -> str | None:
        """Return `--replica-of` of the broker on a machine; None for one that starts as a master."""
        master = self.replica_of.get(address, address)
        return None if self.registers or master == address or address not in self.copies[name] else f"{master}:{BROKER_PORT}"

    @property
    def register_url(self) -> str | None:
        """Return `--ha` of all brokers."""
        if self.etcd is not None:
            return self.etcd.url
        return f"witness://{self.registers[0]}:{WITNESS_PORT}" if self.registers else None

    def _at_work(self, address: str) -> int | None:
        process = self.running(address)
        return None if process is None or process.paused else process.number

    def replicas(self, name: str) -> list[str]:
        """Return the machines of a broker's copies but that of its master."""
        return [address for address in self.copies[name] if address != self.brokers[name]]

    @property
    def consuming(self) -> list[str]:
        """Return the machines with a consumer of a group."""
        return [*self.consumers, *self.classics]

    @property
    def clients(self) -> list[str]:
        return [*self.consuming, *self.producers]

    # ------------------------------------------------------------------------------------------------------------------- users

    def security(self, user: str = OPERATOR) -> ClientSecurity:
        """Return how the programs of a user connect."""
        return NO_SECURITY if self.access is None else self.access.client(user)

    def login(self, user: str) -> dict[str, Any]:
        """Return the arguments by which a producer or consumer logs in."""
        return {} if self.access is None else {"user": user, "password": partial(self.access.password, user)}

    @property
    def cluster(self) -> ClusterAddress:
        """Return the address of the nameservers for the programs of operators, with their login."""
        plain = ClusterAddress.parse(self.nameserver)
        return plain if self.access is None else replace(plain, user=OPERATOR, password=self.access.password(OPERATOR))

    # ---------------------------------------------------------------------------------------------------------------- programs

    def add_program(self, member: SimMember, role: str) -> None:
        """Assign a machine its own program, and a clock that drifts."""
        self._programs[member.machine.name] = (member, role)
        self.set_rate(member.machine, self.random.uniform(1 - self.setting.drift, 1 + self.setting.drift))

    def program(self, address: str, main: Main) -> SimMember:
        """Return a program for the machine at `address`: SIGTERM asks it to stop."""

        async def run() -> int:
            stop = asyncio.Event()
            self.loop.add_signal_handler(signal.SIGTERM, stop.set)
            return await main(stop)

        return SimMember(self.loop, address, self.machine(address), run, self.exited)

    def is_open(self, name: str, address: str) -> bool:
        """Return whether the process on a machine has opened the port of a broker as its master."""
        process = self.running(address)
        opened = next((event for event in reversed(self.history.of(BrokerOpened)) if event.broker == name), None)
        return process is not None and opened is not None and opened.process == process.number

    # -------------------------------------------------------------------------------------------- for processes and checkers

    def origin(self, process: Process | None = None) -> tuple[float, str, int]:
        """Return the first three facts of an event of `process`, by default of the one that runs."""
        process = process or self.loop.current
        return (self.loop.now, "", 0) if process is self.loop.world else (self.loop.now, process.machine.name, process.number)

    def record_reached(self, name: str, facts: str = "") -> None:
        """Record that the running process has reached a rare place."""
        self.history.append(PlaceReached(*self.origin(), name, facts))

    def next_call(self) -> int:
        self._calls += 1
        return self._calls

    def record_violation(self, law: str, text: str) -> None:
        """Record a violation of a law that the universe itself checks."""
        if not self.is_over:
            self.violations.append(Violation(law, self.loop.now, text))

    def task_failed(self, error: BaseException) -> None:
        self.record_violation("no error is left unhandled", repr(error))

    def broker_opened(self, broker: Broker, opened: BrokerOpened) -> None:
        self._open[broker.config.name] = broker
        if self.copies_watch is not None:
            self.copies_watch.opened(opened.broker, opened.term, self.origin())
            self.brokers[opened.broker] = opened.machine
        self.history.append(opened)
        if broker.state.coordination.state.grants_suspended:
            self.record_reached("grants suspended after an assumed loss")

    def broker_ended(self, broker: Broker) -> None:
        if self._open.get(broker.config.name) is broker:
            del self._open[broker.config.name]

    def open_brokers(self) -> list[Broker]:
        """Return the brokers that run with an open port, by name."""
        alive = {name: broker for name, broker in self._open.items() if self.alive(self.brokers[name])}
        return [alive[name] for name in sorted(alive)]

    def consumer_died(self, error: LockstepError, *, starting: bool = False) -> None:
        """Record a refusal that the rules allow if contracts change or client ids are copied."""
        self.record_reached(f"consumer ended by {type(error).__name__}")
        outdated = starting and "roll" in self.setting.faults and OUTDATED in str(error)
        # A broker keeps the promise of its earlier grace, and the start waits for that of now.
        waited = starting and "regrace" in self.setting.faults and SubscriptionConflictError.TEMPORARY in str(error)
        if not outdated and not waited and not {"recontract", "duplicate"} & set(self.setting.faults):
            self.record_violation("a consumer does not fail", f"{self.loop.current}: {error!r}")

    def server_failed(self, error: BaseException) -> None:
        """Record the failure of a server; a checker decides whether it is allowed. That of a dead process does not count."""
        if not self.is_over and self.loop.current.alive:
            if self.copies_watch is not None and isinstance(error, RegistrationRefusedError):
                self.copies_watch.refused(self.loop.current.machine.name)
            self.history.append(ServerFailed(*self.origin(), exit_code_of(error), repr(error)))

    def apply_call_fault(self, process: Process) -> float:
        """Apply the fault that was planned for this call. Return how many seconds the call takes at least."""
        aim = self.call_faults.pop(process.machine.name, None)
        return 0.0 if aim is None else aim(process)

    # ------------------------------------------------------------------------------------------- actions of faults on machines

    def machine(self, address: str) -> Machine:
        return self.loop.machine(address)

    def _disk(self, address: str) -> SimFiles:
        return self.machine(address).disk

    def running(self, address: str) -> Process | None:
        """Return the process of the machine's own program, if it runs."""
        program = self._programs.get(address)
        return None if program is None else program[0].process

    def alive(self, address: str) -> bool:
        return self.running(address) is not None

    def start(self, address: str) -> None:
        """Start the machine's own program, unless it runs, or an operator holds it."""
        if not self.alive(address) and address not in self.held:
            self.launch_member(*self._programs[address])

    def launch(self, address: str, role: str, main: Main) -> Process:
        """Start any program on any machine, in addition to what runs there."""
        return self.launch_member(self.program(address, main), role)

    def launch_member(self, member: SimMember, role: str) -> Process:
        was_up = member.machine.up
        process = member.launch()
        if not was_up:
            self._clock_event(member.machine)
        self.history.append(ProcessStarted(*self.origin(process), role, self.flush if role == "broker" else ""))
        return process

    def exited(self, code: int) -> None:
        """Record that the running process exits."""
        process = self.loop.current
        if process.alive and not self.is_over:
            self.history.append(ProcessEnded(*self.origin(), "exit"))
            if code and process.machine.name in self._programs:
                self.exit_codes[process.machine.name] = code
                self.on_server_exit(process.machine.name, code)

    def kill(self, address: str, *, power: bool = False) -> None:
        """End every process of the machine at once; with `power` also the machine itself.

        Where another copy of a log is damaged, the machine keeps its power: what both have lost only an operator can do without.
        """
        machine = self.machine(address)
        watch = self.copies_watch if address in self.broker_machines else None
        power = power and not (watch is not None and watch.has_damage(address))
        for process in machine.processes.values():
            self.history.append(ProcessEnded(*self.origin(process), "power" if power else "kill"))
        cut = power and machine.up
        if cut:
            self.history.append(PowerCut(self.loop.now, address, 0))
        if cut and watch is not None:
            watch.lost_power(address)
        self.loop.kill(machine, power=power)
        if cut and any("/commitlog/" in path for path in machine.disk.holed):
            self.log.seen("log.holed")

    def stop(self, address: str) -> None:
        """Ask every process of the machine to end in order."""
        for process in self.machine(address).processes.values():
            self.loop.terminate(process)

    def pause(self, address: str) -> None:
        for process in self.machine(address).processes.values():
            if not process.paused:
                self.history.append(PauseBegan(*self.origin(process)))
        self.loop.pause(self.machine(address))

    def resume(self, address: str) -> None:
        for process in self.machine(address).processes.values():
            if process.paused:
                self.history.append(PauseEnded(*self.origin(process)))
        self.loop.resume(self.machine(address))

    def set_rate(self, machine: Machine, rate: float) -> None:
        machine.rate = rate
        self._clock_event(machine)

    def _clock_event(self, machine: Machine) -> None:
        self.history.append(ClockSet(self.loop.now, machine.name, 0, machine.local_s() * 1000, machine.rate))
