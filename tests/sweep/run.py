"""The run of one universe: a storm of faults, a calm, and the checks of its history.

boot      nameservers, brokers, topic, producers, consumers
storm     faults at random times, while everything works
calm      all faults end, dead programs are started; live ones are left alone, so that a client that hangs is found
liveness  sends are acknowledged again, then sending ends and every queue is consumed within a bound
reading   every queue of every broker by a plain client, through the wire
check     all checkers over the one history
"""

from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO

from lockstep.broker.tables.check_schedule import PAUSE_MS_MAX
from lockstep.testing.simulation import SimFiles
from sweep import promoting
from sweep.checkers import CHECKERS
from sweep.checkers.violation import Violation
from sweep.classic_consumer import classic_main
from sweep.consumer_process import consumer_main
from sweep.events.elections import CopiesInStep
from sweep.events.replicas import CopiesAsked
from sweep.events.universe import CalmBegan, QueuesConsumed
from sweep.faults import FAULTS
from sweep.history import History
from sweep.journal import LogRecorder
from sweep.late_groups import start_next_group
from sweep.operators import OPERATOR, recreate_main
from sweep.parking import OPERATOR as PARK_OPERATOR
from sweep.parking import bring_back_main, operator_main
from sweep.producers import producer_main
from sweep.reading import read_everything
from sweep.services import creator_main, make_broker, make_nameserver, make_witness
from sweep.settings import Setting
from sweep.storm import Storm
from sweep.universe import Universe
from sweep.waiting import check_sends_recover, unconsumed

CREATED_WITHIN_S = 30.0
EARLY_S = 4.0
"""How long consumers wait for their topic that start before it (`early`)."""
CALM_SENDING_S = 20.0
"""How long producers continue in the calm."""
CONSUMED_WITHIN_S = 150.0
"""The longest time from the calm until every queue is consumed: session timeout, back-offs and drains, with a margin."""
DECIDED_WITHIN_S = PAUSE_MS_MAX / 1_000
"""The longest time until a broker asks again how a transaction has ended."""
BROUGHT_BACK_WITHIN_S = 150.0
"""The longest time from then until no key is parked, and every queue is consumed again."""
RECREATED_AGAIN_S = 4.0
"""The time after which a deletion that was pending in a paused broker's socket has been executed."""
UNCOMMITTED_S = 10.0
"""The time after the last send by which all commits have happened that will happen."""
LOOK_S = 1.0
DEATH_CHECK_S = 1.0
"""How often the run looks for processes that died of a fault, and starts them again as a service manager would."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of one universe."""

    setting: Setting
    history: History
    violations: list[Violation]
    simulated_s: float
    steps: int
    digest: str
    log: LogRecorder


class Run:
    """Runs one universe; `run()` once."""

    def __init__(self, setting: Setting, *, debug_log: bool = False, trace: bool = True) -> None:
        self.setting = setting
        self.universe = Universe(setting, debug_log=debug_log, trace=trace)
        self.loop = self.universe.loop
        self._add_programs()
        self.storm = Storm(self.universe, FAULTS)
        self.universe.on_server_exit = self.storm.exited
        if setting.late_chance:
            self.storm.record_fault("late", "", f"{setting.late_chance} of all segments")

    def _add_programs(self) -> None:
        setting, universe = self.setting, self.universe
        for address in universe.nameservers:
            universe.add_program(make_nameserver(universe, address), "nameserver")
        if universe.etcd is not None:
            for member in universe.etcd.members.values():
                universe.add_program(member, "register")
        elif universe.registers:
            for address in universe.registers:
                universe.add_program(make_witness(universe, address), "register")
        for name, address in universe.brokers.items():
            disk = SimFiles(f"{setting.seed}/{name}", short_writes=setting.short_writes, cached_reads=setting.cached_reads)
            self.loop.machine(address, disk=disk)
            universe.add_program(make_broker(universe, name, address), "broker")
        for name in universe.brokers:
            for address in universe.replicas(name):
                disk = SimFiles(f"{setting.seed}/{address}", short_writes=setting.short_writes, cached_reads=setting.cached_reads)
                self.loop.machine(address, disk=disk)
                universe.add_program(make_broker(universe, name, address), "broker")
        for address in universe.consumers:
            universe.add_program(universe.program(address, consumer_main(universe)), "consumer")
        for address in universe.classics:
            universe.add_program(universe.program(address, classic_main(universe, setting.groups[-1])), "consumer")
        for address in universe.producers:
            universe.add_program(universe.program(address, producer_main(universe)), "producer")

    def run(self) -> RunResult:
        """Run the whole universe. Errors of the simulator itself are raised; errors of the cluster are violations."""
        universe = self.universe
        with universe.log.attached(), redirect_stderr(StringIO()):  # servers write there why they exit
            try:
                self._boot()
                self.storm.run()
                self._calm()
                self._check_liveness()
                if not universe.violations:
                    self.loop.run_until_complete(read_everything(universe))
                violations = self._check()
            finally:
                universe.is_over = True
                now, steps, digest = self.loop.now, self.loop.steps, self.loop.digest()
                self.loop.kill_all()
                self.loop.close()
        return RunResult(self.setting, universe.history, violations, now, steps, digest, universe.log)

    def wait(self, seconds: float) -> None:
        self.loop.run_until(self.loop.now + seconds)

    def _boot(self) -> None:
        universe = self.universe
        for address in universe.servers:
            universe.start(address)
        self.wait(1.0)
        if self.setting.early:
            for address in universe.consuming:
                universe.start(address)
            self.wait(EARLY_S)
        for number in range(self.setting.creators):
            universe.launch(f"10.0.3.{1 + number}", "admin", creator_main(universe, self.setting.queues + number))
        began = self.loop.now
        while not self._created() and self.loop.now < began + CREATED_WITHIN_S:
            self.wait(0.5)
        if self.setting.exile:
            self.storm.cut_off(universe.consumers[0], next(iter(universe.brokers.values())))
        for address in (*universe.producers, *universe.consuming):
            universe.start(address)
        if self.setting.exhausted == "park":
            universe.launch(PARK_OPERATOR, "admin", operator_main(universe))
        for number, name in enumerate(universe.brokers if self.setting.operated else ()):
            universe.launch(f"10.0.3.{41 + number}", "admin", promoting.operator_main(universe, name))
        self.wait(self.setting.settle_s)

    def _created(self) -> bool:
        for topic in self.setting.topics:
            layouts = [broker.state.layouts.get(topic) for broker in self.universe.open_brokers()]
            if len(layouts) < len(self.universe.brokers) or None in layouts or len({layout.version for layout in layouts if layout}) > 1:
                return False
        return True

    def _calm(self) -> None:
        universe = self.universe
        self.storm.end()
        universe.calm = True
        universe.call_faults.clear()
        while start_next_group(universe) is not None:
            pass
        for address in (*universe.servers, *universe.clients):
            universe.resume(address)
            universe.start(address)
        if len(self.setting.topics) > 1:
            universe.kill(OPERATOR, power=True)
            self._recreate()
            self.loop.at(self.loop.now + RECREATED_AGAIN_S, self._recreate)
        universe.history.append(CalmBegan(self.loop.now, "", 0))

    def _recreate(self) -> None:
        for topic in self.setting.topics[1:]:
            self.universe.launch(OPERATOR, "admin", recreate_main(self.universe, topic, self.setting.queues))

    def _check_liveness(self) -> None:
        universe, calm_s = self.universe, self.loop.now
        if self.setting.register:
            self._wait_in_step(calm_s)
        self._wait_alive(calm_s + CALM_SENDING_S - self.loop.now)
        universe.sending = False
        self._wait_alive(UNCOMMITTED_S)
        if (watch := universe.copies_watch) is not None:
            for name, confirmed in self.loop.run_until_complete(promoting.ask_copies(universe, universe.history.append)).items():
                watch.compare(name, confirmed, self.loop.now)
        if self.setting.manual:
            self._restart_consumers()
        within_s = CONSUMED_WITHIN_S + (DECIDED_WITHIN_S if self.setting.transaction_share else 0.0)
        while self.loop.now < calm_s + within_s:
            self._wait_alive(LOOK_S)
            if self._all_ended() and not unconsumed(universe):
                universe.record_reached("all consumed", f"{self.loop.now - calm_s:.0f} s after the calm")
                universe.history.append(QueuesConsumed(self.loop.now, "", 0))
                if self.setting.exhausted == "park":
                    self._bring_keys_back()
                break
        else:
            if not self._all_ended():
                still = [address for address in universe.producers if universe.alive(address)]
                universe.record_violation("sends end", f"producers {still} still run")
            left = "; ".join(unconsumed(universe)) or "everything is consumed"
            universe.record_violation("every queue is consumed", f"{within_s:.0f} s after the calm: {left}")
        check_sends_recover(universe, calm_s)

    def _wait_in_step(self, calm_s: float) -> None:
        """Wait until each broker has one master, and all its other copies are in the set."""
        while self.loop.now < calm_s + CALM_SENDING_S:
            asked: list[CopiesAsked] = []
            self.loop.run_until_complete(promoting.ask_copies(self.universe, asked.append))
            if all(len(each.masters) == 1 and not each.outside for each in asked):
                self.universe.history.append(CopiesInStep(self.loop.now, "", 0, self.loop.now - calm_s))
                return
            self._wait_alive(LOOK_S)

    def _bring_keys_back(self) -> None:
        """Let the operator replay or drop every parked key."""
        universe, began_s = self.universe, self.loop.now
        operator = universe.launch(PARK_OPERATOR, "admin", bring_back_main(universe))
        while self.loop.now < began_s + BROUGHT_BACK_WITHIN_S:
            self._wait_alive(LOOK_S)
            if not operator.alive and not unconsumed(universe):
                universe.record_reached("all parked keys brought back", f"within {self.loop.now - began_s:.0f} s")
                return
        rows = [str(row) for broker in universe.open_brokers() for row in broker.state.coordination.state.parks]
        left = "; ".join([*unconsumed(universe), *rows[:5]])
        universe.record_violation("every parked key comes back", f"{BROUGHT_BACK_WITHIN_S:.0f} s after the replays began: {left}")

    def _restart_consumers(self) -> None:
        """Restart each group's consumer: a listener with manual commit commits with its next call, and no call would follow."""
        for address in self.universe.consumers:
            process = self.universe.running(address)
            for toggle in self.universe.controls[process.number].toggles.values() if process is not None else ():
                self.loop.at(self.loop.now, toggle.set, process=process)

    def _wait_alive(self, seconds: float) -> None:
        """Let time pass in the calm: a server or consumer that exits is started again."""
        end_s = self.loop.now + seconds
        while self.loop.now < end_s:
            self.wait(min(DEATH_CHECK_S, end_s - self.loop.now))
            for address in (*self.universe.servers, *self.universe.consuming):
                self.universe.start(address)

    def _all_ended(self) -> bool:
        return not any(self.universe.alive(address) for address in self.universe.producers)

    def _check(self) -> list[Violation]:
        found = list(self.universe.violations)
        found += [Violation("no error is left unhandled", error.t, str(error)) for error in self.loop.errors]
        checked = CHECKERS if self.setting.checked is None else self.setting.checked
        for family in checked:
            found += CHECKERS[family](self.universe.history)
        return found
