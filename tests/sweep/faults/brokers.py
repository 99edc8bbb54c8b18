"""Faults of brokers, nameservers and topics."""

from sweep.services import alter_main
from sweep.storm import Storm

ADMIN = "10.0.3.1"


def kill_broker(storm: Storm) -> None:
    _, address = storm.broker()
    storm.take_down(address, storm.random.choice([0.0, 0.05, 0.5, 3, 8]))


def stop_broker(storm: Storm) -> None:
    _, address = storm.broker()
    if storm.universe.alive(address):
        storm.record_fault("stop", address)
        storm.universe.stop(address)
        storm.call_later(storm.random.choice([1, 3]), storm.start_when_ended, address)


def regrace(storm: Storm) -> None:
    """Restart a broker with another grace."""
    storm.universe.grace_ms = storm.random.choice([1_000, 3_000, 8_000])
    _, address = storm.broker()
    storm.record_fault("regrace", address, storm.universe.grace_ms)
    storm.universe.kill(address)
    storm.call_later(storm.random.choice([0.0, 0.05, 0.5]), storm.universe.start, address)


def pause_broker(storm: Storm) -> None:
    storm.pause(storm.broker()[1], storm.random.choice([0.3, 2.8, 4, 21, 35]))


def power_broker(storm: Storm) -> None:
    _, address = storm.broker()
    storm.take_down(address, storm.random.choice([0.5, 2, 6]), power=True)


def power_twice(storm: Storm) -> None:
    """Cut the power, and cut it again or kill the broker during its recovery."""
    _, address = storm.broker()
    storm.record_fault("power", address, "twice")
    storm.universe.kill(address, power=True)
    storm.call_later(storm.random.choice([0.5, 2]), _start_and_cut, storm, address)


def _start_and_cut(storm: Storm, address: str) -> None:
    random = storm.random
    power = random.random() < 0.6
    storm.universe.start(address)
    if random.random() < 0.6:
        cut_at_operation(storm, address, random.randrange(0, 25), power=power)
    else:
        storm.call_later(random.choice([0.001, 0.005, 0.01, 0.02, 0.05, 0.5, 2.5]), _cut_now, storm, address, power)


def _cut_now(storm: Storm, address: str, power: bool) -> None:
    storm.take_down(address, storm.random.choice([0.1, 1]), power=power)


def cut_at_operation(storm: Storm, address: str, countdown: int, *, power: bool) -> None:
    disk = storm.universe.machine(address).disk

    def die() -> None:
        """Stop the broker at this operation: none of its later effects reaches disk or network."""
        _cut_now(storm, address, power)

    disk.countdown, disk.on_death = countdown, die
    storm.record_fault("cut at operation", address, f"{'power' if power else 'kill'} at {countdown}")


def wipe(storm: Storm) -> None:
    """Restart a broker with an empty disk."""
    name, address = storm.broker()
    storm.universe.kill(address)
    storm.call_later(storm.random.choice([0.5, 3]), _start_empty, storm, name, address)


def _start_empty(storm: Storm, name: str, address: str) -> None:
    if not storm.universe.alive(address):
        storm.record_fault("wipe", name, machine=address)
        disk = storm.universe.machine(address).disk
        disk.names.clear()
        disk.durable_names.clear()
        disk.directories = {"/"}
        storm.universe.start(address)


def kill_at_write(storm: Storm) -> None:
    cut_at_operation(storm, storm.broker()[1], storm.random.randrange(0, 60), power=False)


def power_at_write(storm: Storm) -> None:
    cut_at_operation(storm, storm.broker()[1], storm.random.randrange(0, 60), power=True)


def everything(storm: Storm) -> None:
    """Kill all processes, or cut the power of all machines, and start them all again."""
    universe, power = storm.universe, storm.random.random() < 0.5
    storm.record_fault("everything", "", "power" if power else "kill")
    addresses = [*universe.nameservers, *universe.brokers.values(), *universe.consumers, *universe.producers]
    for address in addresses:
        universe.kill(address, power=power)
    for address in addresses:
        storm.call_later(storm.random.choice([0.1, 0.5, 1]), universe.start, address)


def blackout(storm: Storm) -> None:
    """Cut the power of a broker and of every producer: unconfirmed messages are not sent again."""
    _, address = storm.broker()
    storm.record_fault("blackout", address)
    for one in (address, *storm.universe.producers):
        storm.universe.kill(one, power=True)
        storm.call_later(storm.random.choice([0.5, 2]), storm.universe.start, one)


def nameserver(storm: Storm) -> None:
    """Kill a nameserver: it restarts without any state."""
    address = storm.random.choice(storm.universe.nameservers)
    storm.take_down(address, storm.random.choice([0.1, 3, 20]))


def alter(storm: Storm) -> None:
    storm.record_fault("alter", "")
    storm.universe.launch(ADMIN, "admin", alter_main(storm.universe))


KINDS = (
    kill_broker,
    stop_broker,
    regrace,
    pause_broker,
    power_broker,
    power_twice,
    kill_at_write,
    power_at_write,
    everything,
    wipe,
    nameserver,
    alter,
    blackout,
)
