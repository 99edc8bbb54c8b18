"""Faults of brokers' replicas, of the links between them and their masters, and losses of masters that an operator deals with."""

from sweep.faults.brokers import cut_at_operation
from sweep.faults.rot import rotting_place
from sweep.storm import Storm
from sweep.universe import Loss


def _pair(storm: Storm) -> tuple[str, str] | None:
    """Return (master, replica) of a random broker; None without replicas."""
    name, master = storm.broker()
    replicas = storm.universe.replicas(name)
    return (master, storm.random.choice(replicas)) if replicas else None


def kill_replica(storm: Storm) -> None:
    if (pair := _pair(storm)) is not None:
        storm.take_down(pair[1], storm.random.choice([0.05, 0.25, 1, 3, 8]))


def replica_at_operation(storm: Storm) -> None:
    """Kill a replica, or cut its power, at one operation on its files."""
    if (pair := _pair(storm)) is not None:
        cut_at_operation(storm, pair[1], storm.random.randrange(0, 60), power=storm.random.random() < 0.4)


def stop_replica(storm: Storm) -> None:
    pair = _pair(storm)
    if pair is not None and storm.universe.alive(pair[1]):
        storm.record_fault("stop", pair[1])
        storm.universe.stop(pair[1])
        storm.call_later(storm.random.choice([0.5, 3]), storm.start_when_ended, pair[1])


def power_replica(storm: Storm) -> None:
    if (pair := _pair(storm)) is not None:
        storm.take_down(pair[1], storm.random.choice([0.5, 2, 6]), power=True)


def pause_replica(storm: Storm) -> None:
    if (pair := _pair(storm)) is not None:
        storm.pause(pair[1], storm.random.choice([0.2, 0.8, 1.1, 2, 8]))


def cut_replica(storm: Storm) -> None:
    """Cut the link between a replica and its master, in both directions or in one."""
    if (pair := _pair(storm)) is not None:
        master, replica = pair
        both = [(master, replica), (replica, master)]
        pairs = storm.random.choice([both, both, both[:1], both[1:]])
        storm.block("partition", pairs, storm.random.choice([0.2, 0.9, 1.2, 3, 12]))


def slow_replica(storm: Storm) -> None:
    if (pair := _pair(storm)) is not None:
        slow, more_s = storm.universe.loop.network.slow, storm.random.choice([0.05, 0.2, 0.6, 1.5])
        storm.record_fault("slow link", f"{pair[0]} {pair[1]}", f"{more_s} s")
        for one in (pair, pair[::-1]):
            slow[one] = more_s
            storm.call_later(storm.random.choice([3, 10]), slow.pop, one, None)


def reset_replica(storm: Storm) -> None:
    if (pair := _pair(storm)) is not None:
        network = storm.universe.loop.network
        for one in [*network.between(*pair), *network.between(*pair[::-1])][:1]:
            storm.record_fault("reset", pair[1], one)
            network.reset(one)


def full_replica(storm: Storm) -> None:
    if (pair := _pair(storm)) is not None:
        disk = storm.universe.machine(pair[1]).disk
        disk.capacity_bytes = disk.used_bytes() + storm.random.choice([0, 1_000, 10_000, 40_000])
        storm.record_fault("disk full", pair[1], disk.capacity_bytes, machine=pair[1])

        def room() -> None:
            disk.capacity_bytes = 1 << 40

        storm.call_later(storm.random.choice([1, 5, 12]), room)


def slow_replica_disk(storm: Storm) -> None:
    if (pair := _pair(storm)) is not None:
        disk, longest_s = storm.universe.machine(pair[1]).disk, storm.random.choice([0.3, 2])
        storm.record_fault("disk slow", pair[1], f"{longest_s} s", machine=pair[1])
        disk.delays_s["sync"] = (0.001, longest_s)
        disk.slow_until_s = storm.universe.loop.now + 5
        storm.call_later(5, disk.delays_s.clear)


def new_replica(storm: Storm) -> None:
    """Replace a replica by one that begins empty. Sometimes its installation is cut short."""
    if (pair := _pair(storm)) is not None:
        universe, random, replica = storm.universe, storm.random, pair[1]
        universe.kill(replica)
        storm.call_later(random.choice([0.5, 3]), _start_empty, storm, replica)


def _start_empty(storm: Storm, replica: str) -> None:
    """Start it with an empty directory when its master has let the old one go: else the master would wait for that at its next start."""
    universe, random, watch = storm.universe, storm.random, storm.universe.copies_watch
    name = next(name for name, addresses in universe.copies.items() if replica in addresses)
    if watch is None or universe.alive(replica) or replica in universe.held or replica in universe.brokers.values():
        return
    if universe.master_of(name, replica) is None or watch.disk(replica).identity.get("role") == "master":
        universe.start(replica)  # it is being promoted
        return
    if watch.is_safe(name, replica):
        storm.call_later(1.0, _start_empty, storm, replica)
        return
    storm.record_fault("new replica", replica)
    universe.machine(replica).disk.remove_tree("/store")
    universe.start(replica)
    if random.random() < 0.5:
        cut_at_operation(storm, replica, random.randrange(0, 40), power=random.random() < 0.4)


def rot_replica(storm: Storm) -> None:
    """Kill a replica, flip a bit of its log that a CRC covers, and start it: it asks its master for what is damaged."""
    universe, (name, _) = storm.universe, storm.broker()
    watch, replicas = universe.copies_watch, [address for address in universe.replicas(name) if universe.alive(address)]
    if watch is None or not replicas or not watch.may_rot(name, replica := storm.random.choice(replicas)):
        return
    disk = universe.machine(replica).disk
    universe.kill(replica)
    if (place := rotting_place(storm, disk)) is not None:
        storm.record_fault("replica rot", replica, place)
        watch.rotted(replica, place[0])
        disk.flip(*place, storm.random.randrange(8))
    storm.call_later(0.5, universe.start, replica)


def lose_master(storm: Storm) -> None:
    """Kill a master, cut its power, pause it or stop it in order: its operator deals with it."""
    universe, random, (name, master) = storm.universe, storm.random, storm.broker()
    watch = universe.copies_watch
    if watch is None or universe.losses[name] or master in universe.held or not universe.alive(master):
        return
    if random.random() < 0.8 and not any(watch.is_safe(name, address) for address in universe.replicas(name)):
        return
    how = random.choice(["kill", "kill", "power", "pause", "stop", "operation"])
    loss = Loss(
        wait_s=random.choice([0.1, 0.5, 2.0, 5.0]),
        tries_old=random.random() < 0.2,
        careful=random.random() < 0.85,
        force=random.random() < 0.1,
        again=random.random() < 0.15,
        stale_settings=random.random() < 0.3,
        old_as_master=random.random() < 0.3,
        back_s=random.choice([0.1, 1.0, 4.0, 10.0]),
    )
    storm.record_fault("lose master", master, f"{how} {loss}")
    lost_s = 0.0
    if how == "pause":
        universe.pause(master)
    elif how == "stop":
        universe.stop(master)
        lost_s = 2.0
    elif how == "operation":
        universe.held.add(master)
        cut_at_operation(storm, master, random.randrange(0, 30), power=random.random() < 0.4)
        lost_s = 1.0
    else:
        universe.held.add(master)
        universe.kill(master, power=how == "power")
    universe.loop.at(universe.loop.now + lost_s, universe.losses[name].append, loss)


KINDS = (
    kill_replica,
    replica_at_operation,
    stop_replica,
    power_replica,
    pause_replica,
    cut_replica,
    slow_replica,
    reset_replica,
    full_replica,
    slow_replica_disk,
    new_replica,
    rot_replica,
    lose_master,
)
