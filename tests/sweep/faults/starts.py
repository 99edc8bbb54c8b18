"""Several faults at once around the start of a broker, which separate faults seldom cause together."""

from lockstep.testing.simulation import SimFiles
from sweep.events.progress import CommitResponded
from sweep.events.universe import WallClockJumped
from sweep.faults.brokers import ADMIN
from sweep.history import Event, ItemVerdict
from sweep.operators import OPERATOR, reset_twice_main
from sweep.services import alter_main
from sweep.settings import GROUP, TOPIC
from sweep.storm import Storm

LOOK_S = 0.01
LOOKS_MAX = 500
AWAY_S = 12.0


def loss_beside_a_holder(storm: Storm) -> None:
    """Cut the power of a broker, which returns with another grace and perhaps another flush mode, while one consumer cannot reach it and
    another one restarts.

    The first consumer may work on its queues there until its own grace is over.
    """
    universe, random = storm.universe, storm.random
    _, address = storm.broker()
    holder, newcomer = random.sample(universe.consumers, 2)
    universe.grace_ms = random.choice([1_000, 3_000, 8_000])
    universe.flush = random.choice(["async", "async", "sync"])
    storm.block("partition", [(holder, address), (address, holder)], AWAY_S)
    storm.record_fault("power", address, f"{universe.flush} flush, grace {universe.grace_ms} ms from now on")
    universe.kill(address, power=True)
    storm.record_fault("kill", newcomer)
    universe.kill(newcomer)
    storm.call_later(random.choice([0.05, 0.5]), universe.start, address)
    storm.call_later(random.choice([0.05, 0.5, 1.0]), universe.start, newcomer)


def power_after_open(storm: Storm) -> None:
    """Cut the power of a broker twice, the second time right after its port has opened. After each cut its wall clock is in the past, as on
    a machine whose clock has no battery.
    """
    _, address = storm.broker()
    _cut_and_set_back(storm, address)
    storm.call_later(storm.random.choice([0.1, 1.0]), _start_and_cut_open, storm, address)


def _cut_and_set_back(storm: Storm, address: str) -> None:
    universe, jump_s = storm.universe, -storm.random.choice([5, 60])
    storm.record_fault("power", address, f"wall clock {jump_s} s")
    universe.kill(address, power=True)
    universe.machine(address).wall_offset_s += jump_s
    universe.history.append(WallClockJumped(universe.loop.now, address, 0, jump_s))


def _start_and_cut_open(storm: Storm, address: str) -> None:
    storm.universe.start(address)
    _cut_when_open(storm, address, LOOKS_MAX)


def _cut_when_open(storm: Storm, address: str, looks: int) -> None:
    universe = storm.universe
    if any(universe.brokers[broker.config.name] == address for broker in universe.open_brokers()):
        storm.call_later(storm.random.uniform(0, 0.4), _cut_open, storm, address)
    elif looks:
        storm.call_later(LOOK_S, _cut_when_open, storm, address, looks - 1)


def _cut_open(storm: Storm, address: str) -> None:
    _cut_and_set_back(storm, address)
    storm.call_later(storm.random.choice([0.1, 1.0]), storm.universe.start, address)


def power_at_commit(storm: Storm) -> None:
    """Cut the power of the broker that responds to the next commit, and of all consumers, as the response is sent while the broker's disk
    is slow: no client remains that could offer the result again.
    """
    universe, random = storm.universe, storm.random
    history, skip = universe.history, random.randrange(6)
    for address in universe.brokers.values():
        disk = universe.machine(address).disk
        disk.delays_s["sync"] = (0.02, 0.5)
        storm.record_fault("disk slow", address, "0.5 s", machine=address)
        storm.call_later(8.0, disk.delays_s.clear)

    def look(event: Event) -> None:
        nonlocal skip
        if isinstance(event, CommitResponded) and event.by == "SYNC" and event.verdict is ItemVerdict.OK and event.offset is not None:
            skip -= 1
            if skip < 0:
                history.watch = None
                universe.loop.at(universe.loop.now, cut, event.machine)

    def cut(broker: str) -> None:
        if storm.over:
            return
        storm.record_fault("power", broker, "at a commit")
        for address in (broker, *universe.consumers):
            universe.kill(address, power=True)
            storm.call_later(random.choice([0.2, 0.5, 1.0]), universe.start, address)

    history.watch = look


def late_port(storm: Storm) -> None:
    """Kill a broker, which reaches no nameserver when it starts: its port opens later than the grace after its recovery. One consumer
    does not reach it until some time after that.
    """
    universe, random = storm.universe, storm.random
    _, address = storm.broker()
    holder, grace_s = random.choice(universe.consumers), universe.grace_ms / 1000
    late_s = grace_s + random.choice([1.0, 3.0])
    storm.block("partition", [pair for other in universe.nameservers for pair in ((address, other), (other, address))], late_s)
    storm.block("partition", [(holder, address), (address, holder)], late_s + grace_s * random.choice([0.3, 0.8, 1.5]))
    storm.take_down(address, 0.1)


def alter_unwatched(storm: Storm) -> None:
    """Add a queue while no consumer runs, after the brokers have restarted."""
    universe, random = storm.universe, storm.random
    for address in (*universe.consumers, *universe.brokers.values()):
        storm.record_fault("kill", address)
        universe.kill(address)
    for address in universe.brokers.values():
        storm.call_later(0.2, universe.start, address)

    def alter() -> None:
        storm.record_fault("alter", "")
        universe.launch(ADMIN, "admin", alter_main(universe))

    storm.call_later(random.choice([1.5, 2.5]), alter)
    for address in universe.consumers:
        storm.call_later(random.choice([5.0, 7.0]), universe.start, address)


def slow_reads(storm: Storm) -> None:
    """Slow down the reads of a broker's disk for some seconds."""
    _, address = storm.broker()
    disk: SimFiles = storm.universe.machine(address).disk
    storm.record_fault("slow reads", address, machine=address)
    disk.delays_s["read"] = (0.05, storm.random.choice([0.5, 2.0]))
    storm.call_later(storm.random.choice([3.0, 8.0]), disk.delays_s.pop, "read", None)


def reset_twice(storm: Storm) -> None:
    """Reset a group twice in one turn of a broker's loop, and kill the broker soon after."""
    universe, random = storm.universe, storm.random
    name, address = storm.broker()
    shares = (random.randrange(1_001), random.randrange(1_001))
    storm.record_fault("reset progress", f"{GROUP} at {name}", shares)
    universe.launch(OPERATOR, "admin", reset_twice_main(universe, name, GROUP, TOPIC, shares))

    def kill() -> None:
        storm.take_down(address, random.choice([0.1, 0.5]))

    storm.call_later(random.choice([0.02, 0.05, 0.3]), kill)


KINDS = (loss_beside_a_holder, power_after_open, power_at_commit, late_port, alter_unwatched, slow_reads, reset_twice)
