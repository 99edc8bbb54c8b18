"""The storm: faults at random times, and the end of all of them.

A fault disturbs the cluster now and ends some time later, or with the storm, whose end ends all faults.
"""

from collections.abc import Callable, Iterable, Mapping
from random import Random

from lockstep.testing.simulation import Process
from sweep.events.universe import Fault
from sweep.history import PlaceReached
from sweep.universe import Universe

RESTART_S = (0.5, 1.0, 3.0)
"""How long a service manager waits before it starts a failed program."""
STOPPED_CHECK_S = 1.0


class Storm:
    """Injects the faults of one universe, one after the other, and ends them all."""

    def __init__(self, universe: Universe, kinds: "Mapping[str, Callable[[Storm], None]]") -> None:
        self.universe = universe
        self._kinds = kinds
        self.random: Random = universe.random
        self.over = False
        self.rotten: dict[str, Callable[[], None]] = {}
        """Broker's address → repairs its log."""
        self._impostors: list[Process] = []

    def run(self) -> None:
        universe, setting = self.universe, self.universe.setting
        kinds, weights = list(setting.faults), list(setting.faults.values())
        end_s = universe.loop.now + setting.storm_s
        left = setting.faults_max
        while left is None or left > 0:
            universe.loop.run_until(min(end_s, universe.loop.now + self.random.expovariate(1 / setting.fault_every_s)))
            if universe.loop.now >= end_s or universe.violations:
                return
            self._kinds[self.random.choices(kinds, weights)[0]](self)
            left = None if left is None else left - 1
        universe.loop.run_until(end_s)

    def end(self) -> None:
        """End all faults. Consumers with another subscription than the present one are asked to stop."""
        universe, network = self.universe, self.universe.loop.network
        self.over = True
        universe.history.watch = None
        network.slow.clear()
        network.late_chance = 0.0
        network.heal()
        for address in (*universe.broker_machines, *universe.consumers):
            disk = universe.machine(address).disk
            disk.delays_s.clear()
            disk.faults.clear()
            disk.countdown = disk.watch = None
            disk.capacity_bytes = 1 << 40
        if universe.etcd is not None:
            universe.etcd.fault = None
        if universe.access is not None:
            universe.access.restore()
        for repair in list(self.rotten.values()):
            repair()
        for process in self._impostors:
            self.universe.loop.terminate(process)
        for address in universe.consumers:
            main = universe.running(address)
            if main is not None and universe.expressions.get(main.number, universe.expression) != universe.expression:
                self.universe.loop.terminate(main)

    # ------------------------------------------------------------------------------------------------------ for the kinds

    def record_fault(self, kind: str, target: str, facts: object = "", machine: str = "") -> None:
        self.universe.history.append(Fault(self.universe.loop.now, machine, 0, kind, target, str(facts)))

    def record_reached(self, name: str, facts: str) -> None:
        """Record an action that disturbs only its own target."""
        self.universe.history.append(PlaceReached(self.universe.loop.now, "", 0, name, facts))

    def call_later(self, seconds: float, action: Callable[..., object], *args: object) -> None:
        """Call `action` after `seconds`, unless the storm is over by then."""

        def act() -> None:
            if not self.over:
                action(*args)

        self.universe.loop.at(self.universe.loop.now + seconds, act)

    def take_down(self, address: str, back_s: float, *, power: bool = False) -> None:
        """Kill a machine's processes, or cut its power, and start its program again after `back_s`."""
        self.record_fault("power" if power else "kill", address)
        self.universe.kill(address, power=power)
        self.call_later(back_s, self.universe.start, address)

    def exited(self, address: str, code: int) -> None:
        """Start a program again that ended with this exit code, as a service manager does."""
        self.record_fault("exited", address, f"code {code}")
        self.call_later(self.random.choice(RESTART_S), self.universe.start, address)

    def start_when_ended(self, address: str) -> None:
        if self.universe.alive(address):
            self.call_later(STOPPED_CHECK_S, self.start_when_ended, address)
        else:
            self.universe.start(address)

    def consumer(self) -> str:
        return self.random.choice([*self.universe.consumers, *self.universe.classics])

    def broker(self) -> tuple[str, str]:
        """Return (name, address) of a random broker."""
        return self.random.choice(list(self.universe.brokers.items()))

    def client(self) -> str:
        return self.random.choice([*self.universe.consumers, *self.universe.classics, *self.universe.producers])

    def cut_off(self, one: str, other: str) -> None:
        """Partition two machines until the calm."""
        self.record_fault("exile", one, other)
        self.universe.loop.network.partition([one], [other])

    def block(self, kind: str, pairs: Iterable[tuple[str, str]], seconds: float) -> None:
        pairs = list(pairs)
        self.record_fault(kind, " ".join(f"{source}→{target}" for source, target in pairs), f"{seconds} s")
        for source, target in pairs:
            self.universe.loop.network.block(source, target)
        self.call_later(seconds, self.heal, pairs)

    def heal(self, pairs: list[tuple[str, str]]) -> None:
        self.record_fault("heal", " ".join(f"{source}→{target}" for source, target in pairs))
        self.universe.loop.network.heal(pairs)

    def pause(self, address: str, seconds: float) -> None:
        self.record_fault("pause", address, f"{seconds} s")
        self.universe.pause(address)
        self.call_later(seconds, self.universe.resume, address)

    def impostor(self, process: Process) -> None:
        self._impostors.append(process)
