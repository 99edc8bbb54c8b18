"""Faults of brokers whose copies elect their master, and of the register by which they do."""

import asyncio
from functools import partial

from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.replication import ReplicaHandOverHeader
from lockstep.protocol.responses import checked
from lockstep.runtime.connections.dial import call
from lockstep.runtime.host import Host
from lockstep.testing.simulated import BROKER_PORT
from sweep.events.elections import Elected
from sweep.faults.brokers import cut_at_operation
from sweep.history import Event
from sweep.sim_etcd import EtcdFault
from sweep.storm import Storm

ADMIN = "10.0.3.51"


def stall_master(storm: Storm) -> None:
    """Stop the process of a master for a while."""
    storm.pause(storm.broker()[1], storm.random.choice([0.5, 1.5, 2.9, 3.5, 5, 10]))


def master_at_operation(storm: Storm) -> None:
    """Kill a master, or cut its power, at one operation on its files; or a copy at one of those with which it begins to rule."""
    name, address = storm.broker()
    if storm.random.random() < 0.5:
        address = storm.random.choice(storm.universe.copies[name])
    cut_at_operation(storm, address, storm.random.randrange(0, 60), power=storm.random.random() < 0.3)


def _copy(storm: Storm) -> str:
    """Return a machine with a copy: mostly the master's."""
    name, master = storm.broker()
    return master if storm.random.random() < 0.5 else storm.random.choice(storm.universe.copies[name])


def _cut(storm: Storm, kind: str, address: str, others: list[str], seconds: float) -> None:
    there, back = [(address, other) for other in others], [(other, address) for other in others]
    storm.block(kind, storm.random.choice([[*there, *back], [*there, *back], there, back]), seconds)


def cut_register(storm: Storm) -> None:
    """Cut a copy off from the register, in both directions or in one; sometimes from the other copies too."""
    universe, random, address = storm.universe, storm.random, _copy(storm)
    others = [random.choice(universe.registers)] if random.random() < 0.2 else list(universe.registers)
    if random.random() < 0.35:
        others += [each for copies in universe.copies.values() if address in copies for each in copies if each != address]
    _cut(storm, "no register", address, others, random.choice([0.5, 2, 4, 8, 15]))


def cut_nameserver(storm: Storm) -> None:
    _cut(storm, "no nameserver", _copy(storm), storm.universe.nameservers, storm.random.choice([1, 5, 15]))


def hand_over(storm: Storm) -> None:
    """Ask a master to hand over, to any member of its set or to a certain one."""
    universe, random, (name, master) = storm.universe, storm.random, storm.broker()
    watch = universe.copies_watch
    assert watch is not None
    to = "" if random.random() < 0.5 else watch.disk(random.choice(universe.copies[name])).member
    storm.record_fault("hand over", master, to or "any")

    async def main(stop: asyncio.Event) -> int:
        header = to_plain(ReplicaHandOverHeader(to))
        try:
            checked(await call(Host.current(), f"{master}:{BROKER_PORT}", RequestCode.REPLICA_HAND_OVER, header, timeout_ms=3_000))
            universe.record_reached("handed over", master)
        except LockstepError as error:
            universe.record_reached("hand-over refused", f"{master}: {error!r:.120}")
        return 0

    universe.launch(ADMIN, "admin", main)


def register_down(storm: Storm) -> None:
    """Kill the processes of the register, or stop them for a while."""
    universe, random = storm.universe, storm.random
    some = [random.choice(universe.registers)] if random.random() < 0.3 else universe.registers
    seconds = random.choice([0.5, 2, 6, 15])
    pauses = random.random() < 0.3
    for address in some:
        if pauses:
            storm.pause(address, seconds)
        else:
            storm.take_down(address, seconds, power=random.random() < 0.3)


def register_unclear(storm: Storm) -> None:
    """Let etcd answer some requests by an error that does not say what was done; or cut its connections when it answers."""
    universe, random = storm.universe, storm.random
    if universe.etcd is None:
        _cut_answers(storm)
        return
    etcd, share, seconds = universe.etcd, random.choice([0.3, 1.0, 1.0]), random.choice([1, 4, 12])
    storm.record_fault("register unclear", "", f"{share} of all requests, for {seconds} s")
    faults = random.choice([list(EtcdFault), [EtcdFault.LATE], [EtcdFault.LATE], [EtcdFault.DONE], [EtcdFault.NOT_DONE]])

    def fault(path: str) -> EtcdFault | None:
        # without reads nobody writes
        return random.choice(faults) if random.random() < (share if path.endswith("txn") else share / 4) else None

    def end() -> None:
        if etcd.fault is fault:
            etcd.fault = None

    etcd.fault = fault
    storm.call_later(seconds, end)


def _cut_answers(storm: Storm) -> None:
    """Block what the register answers, and end that: the requests are carried out."""
    universe, random = storm.universe, storm.random
    pairs = [(address, copy) for address in universe.registers for copies in universe.copies.values() for copy in copies]
    storm.block("register unclear", pairs, random.choice([0.2, 1.5, 4]))


def slow_register(storm: Storm) -> None:
    """Slow the links between a copy and the register, in both directions or in one: some answers come after their caller has given up."""
    universe, random, address = storm.universe, storm.random, _copy(storm)
    slow, more_s, seconds = universe.loop.network.slow, random.choice([0.2, 0.6, 0.6, 1.5]), random.choice([3, 8])
    storm.record_fault("slow link", f"{address} register", f"{more_s} s")
    there, back = [(address, each) for each in universe.registers], [(each, address) for each in universe.registers]
    for pair in random.choice([[*there, *back], there, back]):
        slow[pair] = more_s
        storm.call_later(seconds, slow.pop, pair, None)


def at_election(storm: Storm) -> None:
    """Lose a master, and disturb the next one between its election and its first messages."""
    universe, random, (_, master) = storm.universe, storm.random, storm.broker()
    how = random.choice(["operation", "operation", "pause", "kill", "cut", "power"])
    storm.record_fault("at the next election", master, how)

    def look(event: Event) -> None:
        if type(event) is Elected and not storm.over:
            universe.history.watch = None
            universe.loop.at(event.t, disturb, event.machine)

    def disturb(address: str) -> None:
        if how == "operation":
            cut_at_operation(storm, address, random.randrange(0, 30), power=random.random() < 0.3)
        elif how == "pause":
            storm.call_later(random.choice([0.0, 0.02, 0.1, 0.4]), storm.pause, address, random.choice([0.4, 2, 3.5, 8]))
        elif how == "cut":
            _cut(storm, "no register", address, universe.registers, random.choice([0.5, 2, 6]))
        else:
            back_s = random.choice([0.1, 1, 5])
            storm.call_later(random.choice([0.0, 0.02, 0.1, 0.4]), partial(storm.take_down, address, back_s, power=how == "power"))

    universe.history.watch = look
    if random.random() < 0.5:
        storm.take_down(master, random.choice([0.5, 2, 6]))
    else:
        storm.pause(master, random.choice([3.5, 6]))


def power_copies(storm: Storm) -> None:
    """Cut the power of all machines of a broker, at once or one after the other, and start them again."""
    universe, random, (name, _) = storm.universe, storm.random, storm.broker()
    copies = list(universe.copies[name])
    random.shuffle(copies)
    apart_s = random.choice([0.0, 0.0, 0.3, 2.0])
    away_s = apart_s * len(copies) + random.choice([0.2, 1.0, 3.0])
    storm.record_fault("power of all copies", name, f"{apart_s} s apart")
    for number, address in enumerate(copies):
        at_s = apart_s * number
        storm.call_later(at_s, partial(storm.take_down, address, away_s - at_s, power=True))


KINDS = (
    stall_master,
    master_at_operation,
    cut_register,
    cut_nameserver,
    hand_over,
    register_down,
    register_unclear,
    power_copies,
    slow_register,
    at_election,
)
