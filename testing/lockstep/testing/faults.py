"""Everything that can go wrong: the kinds of faults."""

from collections.abc import Callable

from lockstep.testing.consumers import consumer_main
from lockstep.testing.history import CommitAnswered, Event, FrameAnswered, GrantAnswered, SessionBound
from lockstep.testing.services import alter_main
from lockstep.testing.simulation import Fault as DiskFault
from lockstep.testing.simulation import Process
from lockstep.testing.storm import Storm
from lockstep.testing.worlds import AUDIT, GROUP

ADMIN = "10.0.3.1"


Kind = Callable[[Storm], None]

# ----------------------------------------------------------------------------------------------------------------- processes


def kill_consumer(storm: Storm) -> None:
    address = storm.consumer()
    storm.note("kill", address)
    storm.universe.kill(address)
    storm.later(storm.random.choice([0.05, 1, 5, 15]), storm.universe.start, address)


def kill_producer(storm: Storm) -> None:
    address = storm.random.choice(storm.universe.producers)
    storm.note("kill", address)
    storm.universe.kill(address)
    storm.later(storm.random.choice([0.05, 1, 5]), storm.universe.start, address)


def kill_in_call(storm: Storm) -> None:
    address, universe = storm.consumer(), storm.universe
    after_s, back_s = storm.random.uniform(0, 1), storm.random.choice([0.05, 1, 5])

    def kill() -> None:
        storm.note("kill in a call", address)
        universe.kill(address)
        storm.later(back_s, universe.start, address)

    def aim(_: Process) -> float:
        storm.later(after_s, kill)
        return 1.5

    universe.aims[address] = aim


def stop_consumer(storm: Storm) -> None:
    address = storm.consumer()
    if storm.universe.alive(address):
        storm.reached("stopped in order", address)
        storm.universe.stop(address)
        storm.later(storm.random.choice([1, 3, 8]), storm.start_when_ended, address)


def toggle(storm: Storm) -> None:
    """One group of a process stops and starts anew, the other goes on."""
    address, group = storm.consumer(), storm.random.choice([GROUP, AUDIT])
    process = storm.universe.running(address)
    controls = None if process is None else storm.universe.controls.get(process.number)
    if controls is not None and group in controls.toggles:
        storm.reached("toggled", f"{address} {group}")
        storm.universe.loop.at(storm.universe.loop.now, controls.toggles[group].set, process=process)


def duplicate(storm: Storm) -> None:
    """A second process of the same client id on the same machine."""
    universe, address = storm.universe, storm.consumer()
    process = universe.running(address)
    known = [event.client_id for event in universe.history.of(SessionBound) if process is not None and event.process == process.number]
    if not known:
        return
    storm.note("duplicate", address, known[-1])
    twin = universe.launch(address, "consumer", consumer_main(universe, impersonates=known[-1]))
    storm.impostor(twin)
    storm.later(storm.random.choice([2, 8]), storm.ask_to_stop, twin)


def recontract(storm: Storm) -> None:
    """Some or all members come back with another subscription."""
    universe, random = storm.universe, storm.random
    universe.expression = "A" if universe.expression == "*" else "*"
    count = random.choice([1, len(universe.consumers), len(universe.consumers)])
    some = random.sample(universe.consumers, count)
    storm.note("recontract", " ".join(some), universe.expression)
    for address in some:
        if random.random() < 0.6:
            universe.stop(address)
        else:
            universe.kill(address)
        storm.later(random.choice([0.2, 1, 4]), storm.start_when_ended, address)


def pause_consumer(storm: Storm) -> None:
    storm.pause(storm.consumer(), storm.random.choice([0.3, 2, 2.6, 3.2, 8, 19.5, 21, 40]))


def long_pause(storm: Storm) -> None:
    """Longer than any session timeout: who wakes up has lost everything."""
    storm.pause(storm.consumer(), storm.random.choice([22, 31, 36, 45]))


def pause_in_call(storm: Storm) -> None:
    address, seconds = storm.consumer(), storm.random.choice([1, 2.6, 3.2, 8, 21])

    def aim(_: Process) -> float:
        storm.later(storm.random.uniform(0, 0.3), storm.pause, address, seconds)
        return storm.random.choice([0.0, 0.5])

    storm.universe.aims[address] = aim


def power_consumer(storm: Storm) -> None:
    """The machine is gone, its connections stay half open at the other end."""
    address = storm.consumer()
    storm.note("power", address)
    storm.universe.kill(address, power=True)
    storm.later(storm.random.choice([1, 5, 25]), storm.universe.start, address)


# ------------------------------------------------------------------------------------------------------------------- brokers


def kill_broker(storm: Storm) -> None:
    _, address = storm.broker()
    storm.note("kill", address)
    storm.universe.kill(address)
    storm.later(storm.random.choice([0.0, 0.05, 0.5, 3, 8]), storm.universe.start, address)


def stop_broker(storm: Storm) -> None:
    _, address = storm.broker()
    if storm.universe.alive(address):
        storm.note("stop", address)
        storm.universe.stop(address)
        storm.later(storm.random.choice([1, 3]), storm.start_when_ended, address)


def regrace(storm: Storm) -> None:
    """A broker comes back with another grace."""
    storm.universe.grace_ms = storm.random.choice([1_000, 3_000, 8_000])
    _, address = storm.broker()
    storm.note("regrace", address, storm.universe.grace_ms)
    storm.universe.kill(address)
    storm.later(storm.random.choice([0.0, 0.05, 0.5]), storm.universe.start, address)


def pause_broker(storm: Storm) -> None:
    storm.pause(storm.broker()[1], storm.random.choice([0.3, 2.8, 4, 21, 35]))


def power_broker(storm: Storm) -> None:
    _, address = storm.broker()
    storm.note("power", address)
    storm.universe.kill(address, power=True)
    storm.later(storm.random.choice([0.5, 2, 6]), storm.universe.start, address)


def power_twice(storm: Storm) -> None:
    """The second cut, or kill, comes while the broker recovers from the first."""
    _, address = storm.broker()
    storm.note("power", address, "twice")
    storm.universe.kill(address, power=True)
    storm.later(storm.random.choice([0.5, 2]), _start_and_cut, storm, address)


def _start_and_cut(storm: Storm, address: str) -> None:
    random = storm.random
    power = random.random() < 0.6
    storm.universe.start(address)
    if random.random() < 0.6:
        _cut_at_operation(storm, address, random.randrange(0, 25), power=power)
    else:
        storm.later(random.choice([0.001, 0.005, 0.01, 0.02, 0.05, 0.5, 2.5]), _cut_now, storm, address, power)


def _cut_now(storm: Storm, address: str, power: bool) -> None:
    storm.note("power" if power else "kill", address)
    storm.universe.kill(address, power=power)
    storm.later(storm.random.choice([0.1, 1]), storm.universe.start, address)


def _cut_at_operation(storm: Storm, address: str, countdown: int, *, power: bool) -> None:
    disk = storm.universe.machine(address).disk

    def die() -> None:
        """In the middle of the broker's code: nothing that this still does reaches disk or network."""
        _cut_now(storm, address, power)

    disk.countdown, disk.on_death = countdown, die
    storm.note("cut at operation", address, f"{'power' if power else 'kill'} at {countdown}")


def wipe(storm: Storm) -> None:
    """A broker comes back with an empty disk."""
    name, address = storm.broker()
    storm.universe.kill(address)
    storm.later(storm.random.choice([0.5, 3]), _start_empty, storm, name, address)


def _start_empty(storm: Storm, name: str, address: str) -> None:
    if not storm.universe.alive(address):
        storm.note("wipe", name, machine=address)
        disk = storm.universe.machine(address).disk
        disk.names.clear()
        disk.durable_names.clear()
        disk.directories = {"/"}
        storm.universe.start(address)


def kill_at_write(storm: Storm) -> None:
    _cut_at_operation(storm, storm.broker()[1], storm.random.randrange(0, 60), power=False)


def power_at_write(storm: Storm) -> None:
    _cut_at_operation(storm, storm.broker()[1], storm.random.randrange(0, 60), power=True)


def everything(storm: Storm) -> None:
    """Kill −9 or power cut of every machine, and all of them come back."""
    universe, power = storm.universe, storm.random.random() < 0.5
    storm.note("everything", "", "power" if power else "kill")
    addresses = [*universe.nameservers, *universe.brokers.values(), *universe.consumers, *universe.producers]
    for address in addresses:
        universe.kill(address, power=power)
    for address in addresses:
        storm.later(storm.random.choice([0.1, 0.5, 1]), universe.start, address)


def nameserver(storm: Storm) -> None:
    """It comes back knowing nothing."""
    address = storm.random.choice(storm.universe.nameservers)
    storm.note("kill", address)
    storm.universe.kill(address)
    storm.later(storm.random.choice([0.1, 3, 20]), storm.universe.start, address)


def alter(storm: Storm) -> None:
    storm.note("alter", "")
    storm.universe.launch(ADMIN, "admin", alter_main(storm.universe))


# --------------------------------------------------------------------------------------------------------------------- disks


def eio(storm: Storm) -> None:
    _, address = storm.broker()
    operation = storm.random.choice(["write", "sync", "sync", "read"])
    skip = storm.random.randrange(0, 20)
    storm.note("disk eio", address, f"{operation} {skip}", machine=address)
    storm.universe.machine(address).disk.faults.append(DiskFault(operation, skip=skip))


def enospc(storm: Storm) -> None:
    _, address = storm.broker()
    disk = storm.universe.machine(address).disk
    disk.capacity_bytes = disk.used_bytes() + storm.random.choice([0, 1_000, 10_000, 40_000])
    storm.note("disk full", address, disk.capacity_bytes, machine=address)

    def room() -> None:
        disk.capacity_bytes = 1 << 40

    storm.later(storm.random.choice([1, 5, 12]), room)


def slow_disk(storm: Storm) -> None:
    _, address = storm.broker()
    disk, longest_s = storm.universe.machine(address).disk, storm.random.choice([0.3, 2, 6])
    storm.note("disk slow", address, f"{longest_s} s", machine=address)
    disk.delays_s["sync"] = (0.001, longest_s)
    storm.later(8, disk.delays_s.clear)


def snapshot_rot(storm: Storm) -> None:
    """The newest of two snapshots has a wrong bit when its broker comes back: the older one has to do."""
    _, address = storm.broker()
    disk = storm.universe.machine(address).disk
    snapshots = sorted(path for path in disk.names if "/snapshot-" in path and not path.endswith(".tmp"))
    if len(snapshots) < 2:
        return
    storm.universe.kill(address)
    size = len(disk.names[snapshots[-1]].cache)
    if size:
        storm.note("disk rot", address, snapshots[-1], machine=address)
        disk.flip(snapshots[-1], storm.random.randrange(size), storm.random.randrange(8))
    storm.later(0.5, storm.universe.start, address)


# ------------------------------------------------------------------------------------------------------- network and clocks


def partition(storm: Storm) -> None:
    one, other = storm.client(), storm.broker()[1]
    storm.block("partition", [(one, other), (other, one)], storm.random.choice([0.5, 2, 3.5, 5, 12, 25]))


def one_way(storm: Storm) -> None:
    pair = [storm.client(), storm.broker()[1]]
    storm.random.shuffle(pair)
    storm.block("one way", [(pair[0], pair[1])], storm.random.choice([0.5, 2, 3.5, 5, 12, 25]))


def isolate(storm: Storm) -> None:
    one, universe = storm.client(), storm.universe
    pairs = [pair for other in universe.brokers.values() for pair in ((one, other), (other, one))]
    storm.block("isolate", pairs, storm.random.choice([2, 5, 22]))


def reset(storm: Storm) -> None:
    one, network = storm.client(), storm.universe.loop.network
    open_ = network.between(one, storm.broker()[1])
    if open_:
        storm.note("reset", one, open_[0])
        network.reset(open_[0])


def cut_at_answer(storm: Storm) -> None:
    """The next answer of one kind is lost: its connection is cut, or forgotten, when the broker has written it."""
    history, kind = storm.universe.history, storm.random.choice([GrantAnswered, GrantAnswered, CommitAnswered, FrameAnswered])
    told, skip = storm.random.random() < 0.7, storm.random.randrange(4)

    def look(event: Event) -> None:
        nonlocal skip
        if type(event) is not kind or (isinstance(event, GrantAnswered) and event.renewal):
            return
        skip -= 1
        if skip < 0:
            history.watch = None
            _lose_answers(storm, event, told=told)

    history.watch = look


def _lose_answers(storm: Storm, event: Event, *, told: bool) -> None:
    """What this broker has written to its client is lost. A send's client is not named: then that of any one."""
    network = storm.universe.loop.network
    open_ = [one for one in network.connections.values() if one.server.process.number == event.process]
    client = getattr(event, "client", None)
    mine = [one for one in open_ if client is None or one.client.process.number == client]
    if mine:
        one = mine[-1] if client is not None else storm.random.choice(mine)
        storm.note("cut at an answer", one.client.here, f"{type(event).__name__} {one}")
        if told:
            network.reset(one)
        else:
            network.silence(one)


def silence(storm: Storm) -> None:
    """A middle box forgets a connection: what is sent on it vanishes."""
    one, network = storm.client(), storm.universe.loop.network
    open_ = network.between(one, storm.broker()[1])
    if open_:
        storm.note("silence", one, open_[0])
        network.silence(open_[0])


def slow_link(storm: Storm) -> None:
    one, other, slow = storm.client(), storm.broker()[1], storm.universe.loop.network.slow
    more_s = storm.random.choice([0.2, 1.5, 4])
    storm.note("slow link", f"{one} {other}", f"{more_s} s")
    for pair in ((one, other), (other, one)):
        slow[pair] = more_s
        storm.later(storm.random.choice([3, 10]), slow.pop, pair, None)


def wall_jump(storm: Storm) -> None:
    universe = storm.universe
    address = storm.random.choice([*universe.brokers.values(), *universe.consumers, *universe.producers])
    jump_s = storm.random.choice([-3600, -5, 5, 3600])
    storm.note("wall jump", address, f"{jump_s} s")
    universe.machine(address).wall_offset_s += jump_s


def drift(storm: Storm) -> None:
    universe, most = storm.universe, storm.universe.setting.drift
    address = storm.random.choice([*universe.brokers.values(), *universe.consumers])
    storm.note("drift", address)
    universe.set_rate(universe.machine(address), storm.random.uniform(1 - most, 1 + most))


FAULTS: dict[str, Kind] = {
    kind.__name__: kind
    for kind in (
        *(
            kill_consumer,
            kill_producer,
            kill_in_call,
            stop_consumer,
            toggle,
            duplicate,
            recontract,
            pause_consumer,
            long_pause,
            pause_in_call,
        ),
        *(power_consumer, kill_broker, stop_broker, regrace, pause_broker, power_broker, power_twice, kill_at_write, power_at_write),
        *(everything, wipe, nameserver, alter, eio, enospc, slow_disk, snapshot_rot),
        *(partition, one_way, isolate, reset, cut_at_answer, silence, slow_link, wall_jump, drift),
    )
}
"""By name."""
