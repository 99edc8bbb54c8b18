"""One universe: a cluster on simulated machines, a storm of faults, a calm, and what the checkers say of its history.

boot      nameservers, brokers, topic, producers, consumers
storm     faults at random times, while everything works
calm      all faults end, what is dead is started; what lives is left alone, so that a client that hangs is found
liveness  sends are acknowledged again, then sending ends and every queue is consumed within a bound
reading   every queue of every broker by a plain client, through the wire
check     all checkers over the one history
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from lockstep.broker.app import Broker
from lockstep.protocol.errors import LockstepError
from lockstep.runtime.daemon import exit_code_of
from lockstep.testing.simulation import Machine, Process, SimFiles, SimLoop
from sweep.begins import Begin, begin_one
from sweep.checkers import CHECKERS
from sweep.checkers.violation import Violation
from sweep.classic_consumer import classic_main
from sweep.consumer_process import Controls, consumer_main
from sweep.events import (
    Calm,
    ClockSet,
    PauseBegan,
    PauseEnded,
    PowerCut,
    ProcessEnded,
    ProcessStarted,
    ServerFailed,
)
from sweep.faults import FAULTS
from sweep.history import Event, History, Reached
from sweep.journal import LogTap
from sweep.operators import OPERATOR, recreate_main
from sweep.producers import producer_main
from sweep.reading import read_everything
from sweep.services import NAMESERVER_PORT, Main, broker_main, creator_main, nameserver_main, opened_event
from sweep.settings import MAILING, NEWS, READERS, Setting
from sweep.storm import Storm
from sweep.waiting import behind, sends_ended
from sweep.wiretap import Wiretap

CREATED_WITHIN_S = 30.0
CALM_SENDING_S = 20.0
"""How long producers go on in the calm."""
CONSUMED_WITHIN_S = 150.0
"""From the calm until every queue is consumed to its end: session timeout, back-offs and drains, with room."""
RECREATED_AGAIN_S = 4.0
"""A deletion that waited in a paused broker's socket has come true by then."""
UNCOMMITTED_S = 10.0
"""From the last send until what is not committed by then is what nobody will commit."""
LOOK_S = 1.0
DEATH_CHECK_S = 1.0
"""How often the world looks for processes that died of a fault, and starts them again as a service manager would."""


class WatchedHistory(History):
    """Tells what happens as it happens."""

    __slots__ = ("watch",)

    def __init__(self) -> None:
        super().__init__()
        self.watch: Callable[[Event], None] | None = None
        """Called with each event, after it was written."""

    def append(self, event: Event) -> None:
        super().append(event)
        if self.watch is not None:
            self.watch(event)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one universe."""

    setting: Setting
    history: History
    violations: list[Violation]
    simulated_s: float
    steps: int
    digest: str
    log: LogTap


class Universe:
    """`run()` once. The attributes are for the processes in it and for the faults."""

    def __init__(self, setting: Setting, *, story: bool = False, trace: bool = True) -> None:
        self.setting = setting
        self.loop = SimLoop(setting.seed, trace=trace)
        self.random = Random(f"{setting.seed}/{setting.world}/faults")
        self.history = WatchedHistory()
        self.log = LogTap(self, debug=story)
        self.brokers = {f"broker-{'abcdefgh'[number]}": f"10.0.0.{11 + number}" for number in range(setting.brokers)}
        """Name → address."""
        self.nameservers = [f"10.0.0.{1 + number}" for number in range(setting.nameservers)]
        self.nameserver = ";".join(f"{address}:{NAMESERVER_PORT}" for address in self.nameservers)
        self.consumers = [f"10.0.1.{1 + number}" for number in range(setting.consumers)]
        self.classics = [f"10.0.4.{1 + number}" for number in range(setting.classic)]
        self.producers = [f"10.0.2.{1 + number}" for number in range(setting.producers)]
        groups = (*setting.groups, MAILING, NEWS, READERS)
        self.begun: dict[str, Begin] = {name: Begin() for name in groups if name not in setting.late_groups}
        """Group → where it begins; a group that is not here has not begun."""
        self.grace_ms = setting.grace_ms
        """Of brokers that start from now on."""
        self.flush = setting.flush
        """Of brokers that start from now on."""
        self.expression = "*"
        """What consumers that start from now on subscribe to."""
        self.poison: dict[bytes, None] = {}
        """Bodies that every call fails on."""
        self.sending = True
        self.calm = False
        self.over = False
        self.controls: dict[int, Controls] = {}
        """Process → what may be asked of it."""
        self.aims: dict[str, Callable[[Process], float]] = {}
        """Consumer's address → done when its next call begins; how long that call takes at least."""
        self.expressions: dict[int, str] = {}
        """Consumer process → its subscription."""
        self.stops: dict[int, Callable[[], None]] = {}
        """Process → asks it to end in order."""
        self.wrongs: list[Violation] = []
        self._mains: dict[str, Callable[[], Main]] = {}
        self._roles: dict[str, str] = {}
        self._running: dict[str, Process] = {}
        self._open: dict[str, Broker] = {}
        self._calls = 0
        network = self.loop.network
        network.latency_s, network.jitter_s = setting.latency_s, setting.jitter_s
        network.late_chance, network.chop = setting.late_chance, setting.chop
        network.tap = Wiretap(self.history, lambda: self.loop.now, {address: name for name, address in self.brokers.items()})
        self._make_machines()
        self.storm = Storm(self, FAULTS)
        if setting.late_chance:
            self.storm.note("late", "", f"{setting.late_chance} of all segments")

    def _make_machines(self) -> None:
        setting = self.setting
        for address in self.nameservers:
            self._add(address, "nameserver", lambda address=address: nameserver_main(self, address))  # type: ignore[misc]
        for name, address in self.brokers.items():
            disk = SimFiles(f"{setting.seed}/{name}", short_writes=setting.short_writes, cached_reads=setting.cached_reads)
            self.loop.machine(address, disk=disk)
            self._add(address, "broker", lambda name=name, address=address: broker_main(self, name, address))  # type: ignore[misc]
        for address in self.consumers:
            self._add(address, "consumer", lambda: consumer_main(self))
        for address in self.classics:
            self._add(address, "consumer", lambda: classic_main(self, setting.groups[-1]))
        for address in self.producers:
            self._add(address, "producer", lambda: producer_main(self))

    def _add(self, address: str, role: str, make: Callable[[], Main]) -> None:
        self._roles[address], self._mains[address] = role, make
        self.set_rate(self.loop.machine(address), self.random.uniform(1 - self.setting.drift, 1 + self.setting.drift))

    # -------------------------------------------------------------------------------------------- for processes and checkers

    def place(self, process: Process | None = None) -> tuple[float, str, int]:
        """How an event of the running process begins."""
        process = process or self.loop.current
        return (self.loop.now, "", 0) if process is self.loop.world else (self.loop.now, process.machine.name, process.number)

    def next_call(self) -> int:
        self._calls += 1
        return self._calls

    def wrong(self, law: str, text: str) -> None:
        """A law that the universe itself watches is broken."""
        if not self.over:
            self.wrongs.append(Violation(law, self.loop.now, text))

    def task_failed(self, error: BaseException) -> None:
        self.wrong("no error is left unhandled", repr(error))

    def broker_opened(self, broker: Broker) -> None:
        self._open[broker.config.name] = broker
        self.history.append(opened_event(self, broker))
        if broker.state.coordination.state.holding:
            self.history.append(Reached(*self.place(), "nobody is granted a queue after an assumed loss"))

    def broker_ended(self, broker: Broker) -> None:
        if self._open.get(broker.config.name) is broker:
            del self._open[broker.config.name]

    def open_brokers(self) -> list[Broker]:
        """Those that run with an open port, by name."""
        alive = {name: broker for name, broker in self._open.items() if self.alive(self.brokers[name])}
        return [alive[name] for name in sorted(alive)]

    def consumer_died(self, error: LockstepError) -> None:
        """By a refusal that the rules allow where contracts change or client ids are copied."""
        self.history.append(Reached(*self.place(), f"consumer ended by {type(error).__name__}"))
        if not {"recontract", "duplicate"} & set(self.setting.faults):
            self.wrong("a consumer lives", f"{self.loop.current}: {error!r}")

    def server_failed(self, error: BaseException) -> None:
        """Whether it may, the checkers ask. Not of what is dead and has not noticed yet: its disk takes nothing any more."""
        if not self.over and self.loop.current.alive:
            self.history.append(ServerFailed(*self.place(), exit_code_of(error), repr(error)))

    def aimed_at_call(self, process: Process) -> float:
        """A call begins: what was aimed at it happens. How long it takes at least."""
        aim = self.aims.pop(process.machine.name, None)
        return 0.0 if aim is None else aim(process)

    # ------------------------------------------------------------------------------------------- what faults do to machines

    def machine(self, address: str) -> Machine:
        return self.loop.machine(address)

    def running(self, address: str) -> Process | None:
        """The machine's own program, if it runs."""
        process = self._running.get(address)
        return process if process is not None and process.alive else None

    def alive(self, address: str) -> bool:
        return self.running(address) is not None

    def start(self, address: str) -> None:
        """The machine's own program, unless it runs."""
        if not self.alive(address):
            self._running[address] = self.launch(address, self._roles[address], self._mains[address]())

    def launch(self, address: str, role: str, main: Main) -> Process:
        """Any program on any machine, beside what runs there."""
        machine = self.machine(address)
        was_up = machine.up
        process = self.loop.start(machine, lambda: self._program(main))
        if not was_up:
            self._clock_event(machine)
        self.history.append(ProcessStarted(*self.place(process), role, self.flush if role == "broker" else ""))
        return process

    async def _program(self, main: Main) -> None:
        process, stop = self.loop.current, asyncio.Event()

        def ask() -> None:
            self.loop.at(self.loop.now, stop.set, process=process)

        self.stops[process.number] = ask
        code = await main(stop)
        if process.alive and not self.over:
            self.history.append(ProcessEnded(*self.place(), "exit"))
            if code and process.machine.name in self._roles:
                self.storm.exited(process.machine.name, code)

    def kill(self, address: str, *, power: bool = False) -> None:
        machine = self.machine(address)
        for process in machine.processes.values():
            self.history.append(ProcessEnded(*self.place(process), "power" if power else "kill"))
        cut = power and machine.up
        if cut:
            self.history.append(PowerCut(self.loop.now, address, 0))
        self.loop.kill(machine, power=power)
        if cut and any("/commitlog/" in path for path in machine.disk.holed):
            self.log.seen("log.holed")

    def stop(self, address: str) -> None:
        """Every process of the machine is asked to end in order."""
        for process in self.machine(address).processes.values():
            if (ask := self.stops.get(process.number)) is not None:
                ask()

    def pause(self, address: str) -> None:
        for process in self.machine(address).processes.values():
            if not process.paused:
                self.history.append(PauseBegan(*self.place(process)))
        self.loop.pause(self.machine(address))

    def resume(self, address: str) -> None:
        for process in self.machine(address).processes.values():
            if process.paused:
                self.history.append(PauseEnded(*self.place(process)))
        self.loop.resume(self.machine(address))

    def set_rate(self, machine: Machine, rate: float) -> None:
        machine.rate = rate
        self._clock_event(machine)

    def _clock_event(self, machine: Machine) -> None:
        self.history.append(ClockSet(self.loop.now, machine.name, 0, machine.local_s() * 1000, machine.rate))

    # --------------------------------------------------------------------------------------------------------------- phases

    def run(self) -> Outcome:
        """The whole universe. Errors of the simulator itself are raised; what the cluster does wrong is a violation."""
        with self.log.attached():
            try:
                self._boot()
                self.storm.run()
                self._calm()
                self._live()
                if not self.wrongs:
                    self.loop.run_until_complete(read_everything(self))
                violations = self._check()
            finally:
                self.over = True
                now, steps, digest = self.loop.now, self.loop.steps, self.loop.digest()
                self.loop.kill_all()
                self.loop.close()
        return Outcome(self.setting, self.history, violations, now, steps, digest, self.log)

    def wait(self, seconds: float) -> None:
        self.loop.run_until(self.loop.now + seconds)

    def _boot(self) -> None:
        for address in (*self.nameservers, *self.brokers.values()):
            self.start(address)
        self.wait(1.0)
        for number in range(self.setting.creators):
            self.launch(f"10.0.3.{1 + number}", "admin", creator_main(self, self.setting.queues + number))
        began = self.loop.now
        while not self._created() and self.loop.now < began + CREATED_WITHIN_S:
            self.wait(0.5)
        if self.setting.exile:
            self.storm.cut_off(self.consumers[0], next(iter(self.brokers.values())))
        for address in (*self.producers, *self.consumers, *self.classics):
            self.start(address)
        self.wait(3.0)

    def _created(self) -> bool:
        for topic in self.setting.topics:
            layouts = [broker.state.layouts.get(topic) for broker in self.open_brokers()]
            if len(layouts) < len(self.brokers) or None in layouts or len({layout.version for layout in layouts if layout}) > 1:
                return False
        return True

    def _calm(self) -> None:
        self.storm.end()
        self.calm = True
        self.aims.clear()
        while begin_one(self) is not None:
            pass
        for address in (*self.nameservers, *self.brokers.values(), *self.consumers, *self.classics, *self.producers):
            self.resume(address)
            self.start(address)
        if len(self.setting.topics) > 1:
            self.kill(OPERATOR, power=True)
            self._recreate()
            self.loop.at(self.loop.now + RECREATED_AGAIN_S, self._recreate)
        self.history.append(Calm(self.loop.now, "", 0))

    def _recreate(self) -> None:
        for topic in self.setting.topics[1:]:
            self.launch(OPERATOR, "admin", recreate_main(self, topic, self.setting.queues))

    def _live(self) -> None:
        calm_s = self.loop.now
        self._wait_alive(CALM_SENDING_S)
        self.sending = False
        self._wait_alive(UNCOMMITTED_S)
        if self.setting.manual:
            self._begin_consumers_anew()
        while self.loop.now < calm_s + CONSUMED_WITHIN_S:
            self._wait_alive(LOOK_S)
            if self._all_ended() and not behind(self):
                self.history.append(Reached(*self.place(), "all consumed", f"{self.loop.now - calm_s:.0f} s after the calm"))
                break
        else:
            if not self._all_ended():
                self.wrong("sends end", f"producers {[address for address in self.producers if self.alive(address)]} still run")
            self.wrong(
                "every queue is consumed", f"{CONSUMED_WITHIN_S:.0f} s after the calm: {'; '.join(behind(self)) or 'nothing is behind'}"
            )
        sends_ended(self, calm_s)

    def _begin_consumers_anew(self) -> None:
        """A listener that commits by hand commits with its next call, and no call comes any more: it gets what it left once again."""
        for address in self.consumers:
            process = self.running(address)
            for toggle in self.controls[process.number].toggles.values() if process is not None else ():
                self.loop.at(self.loop.now, toggle.set, process=process)

    def _wait_alive(self, seconds: float) -> None:
        """Time in the calm: whoever ends by himself now is started again, producers only while they should send."""
        end_s = self.loop.now + seconds
        while self.loop.now < end_s:
            self.wait(min(DEATH_CHECK_S, end_s - self.loop.now))
            for address in (*self.nameservers, *self.brokers.values(), *self.consumers, *self.classics):
                self.start(address)

    def _all_ended(self) -> bool:
        return not any(self.alive(address) for address in self.producers)

    def _check(self) -> list[Violation]:
        found = list(self.wrongs)
        found += [Violation("no error is left unhandled", error.t, str(error)) for error in self.loop.errors]
        checked = CHECKERS if self.setting.checked is None else self.setting.checked
        for family in checked:
            found += CHECKERS[family](self.history)
        return found


def every_fault() -> tuple[str, ...]:
    """The kinds that a swarm draws from."""
    return tuple(FAULTS)
