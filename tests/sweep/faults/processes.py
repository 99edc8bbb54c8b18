"""Faults of producers and consumers, and of the machines that they run on."""

from lockstep.testing.simulation import Process
from sweep.consumer_process import consumer_main
from sweep.events.locks import SessionBound
from sweep.settings import AUDIT, GROUP, MAILING, NEWS
from sweep.storm import Storm


def kill_consumer(storm: Storm) -> None:
    address = storm.consumer()
    storm.take_down(address, storm.random.choice([0.05, 1, 5, 15]))


def kill_producer(storm: Storm) -> None:
    address = storm.random.choice(storm.universe.producers)
    storm.take_down(address, storm.random.choice([0.05, 1, 5]))


def kill_in_call(storm: Storm) -> None:
    address, universe = storm.consumer(), storm.universe
    after_s, back_s = storm.random.uniform(0, 1), storm.random.choice([0.05, 1, 5])

    def kill() -> None:
        storm.record_fault("kill in a call", address)
        universe.kill(address)
        storm.call_later(back_s, universe.start, address)

    def aim(_: Process) -> float:
        storm.call_later(after_s, kill)
        return 1.5

    universe.call_faults[address] = aim


def stop_consumer(storm: Storm) -> None:
    address = storm.consumer()
    if storm.universe.alive(address):
        storm.record_reached("stopped in order", address)
        storm.universe.stop(address)
        storm.call_later(storm.random.choice([1, 3, 8]), storm.start_when_ended, address)


def toggle(storm: Storm) -> None:
    """Stop and start one group of a process again; the other one continues."""
    setting = storm.universe.setting
    groups = [GROUP, AUDIT, *([MAILING] if setting.concurrent else []), *([NEWS] if setting.broadcast else [])]
    address, group = storm.consumer(), storm.random.choice(groups)
    process = storm.universe.running(address)
    controls = None if process is None else storm.universe.controls.get(process.number)
    if controls is not None and group in controls.toggles:
        storm.record_reached("toggled", f"{address} {group}")
        storm.universe.loop.at(storm.universe.loop.now, controls.toggles[group].set, process=process)


def duplicate(storm: Storm) -> None:
    """Start a second process with the same client id on the same machine."""
    universe, address = storm.universe, storm.consumer()
    process = universe.running(address)
    known = [event.client_id for event in universe.history.of(SessionBound) if process is not None and event.process == process.number]
    if not known:
        return
    storm.record_fault("duplicate", address, known[-1])
    twin = universe.launch(address, "consumer", consumer_main(universe, impersonates=known[-1]))
    storm.impostor(twin)
    storm.call_later(storm.random.choice([2, 8]), storm.universe.loop.terminate, twin)


def recontract(storm: Storm) -> None:
    """Some or all members restart with another subscription."""
    universe, random = storm.universe, storm.random
    universe.expression = "A" if universe.expression == "*" else "*"
    count = random.choice([1, len(universe.consumers), len(universe.consumers)])
    some = random.sample(universe.consumers, count)
    storm.record_fault("recontract", " ".join(some), universe.expression)
    for address in some:
        if random.random() < 0.6:
            universe.stop(address)
        else:
            universe.kill(address)
        storm.call_later(random.choice([0.2, 1, 4]), storm.start_when_ended, address)


def roll(storm: Storm) -> None:
    """Members restart one after another with a contract of a higher version, whose subscription is wider or narrower."""
    universe, random = storm.universe, storm.random
    universe.expression = random.choice([each for each in ("A", "A || B", "*") if each != universe.expression])
    universe.contract_version += 1
    storm.record_fault("roll", f"version {universe.contract_version}", universe.expression)
    at_s = 0.0
    for address in random.sample(universe.consumers, len(universe.consumers)):
        storm.call_later(at_s, universe.stop if random.random() < 0.7 else universe.kill, address)
        storm.call_later(at_s + 0.001, storm.start_when_ended, address)
        at_s += random.choice([0.0, 0.5, 2, 5])


def pause_consumer(storm: Storm) -> None:
    storm.pause(storm.consumer(), storm.random.choice([0.3, 2, 2.6, 3.2, 8, 19.5, 21, 40]))


def long_pause(storm: Storm) -> None:
    """Pause a consumer for longer than any session timeout: it has lost all queues when it wakes."""
    storm.pause(storm.consumer(), storm.random.choice([22, 31, 36, 45]))


def oversleep(storm: Storm) -> None:
    """Pause a classic client for longer than its locks or its membership last; it commits when it wakes."""
    if storm.universe.classics:
        storm.pause(storm.random.choice(storm.universe.classics), storm.random.choice([62, 125, 140]))


def pause_in_call(storm: Storm) -> None:
    address, seconds = storm.consumer(), storm.random.choice([1, 2.6, 3.2, 8, 21])

    def aim(_: Process) -> float:
        storm.call_later(storm.random.uniform(0, 0.3), storm.pause, address, seconds)
        return storm.random.choice([0.0, 0.5])

    storm.universe.call_faults[address] = aim


def power_consumer(storm: Storm) -> None:
    """Cut the power of a consumer's machine: its connections stay half open at the other end."""
    address = storm.consumer()
    storm.take_down(address, storm.random.choice([1, 5, 25]), power=True)


KINDS = (
    kill_consumer,
    kill_producer,
    kill_in_call,
    stop_consumer,
    toggle,
    duplicate,
    recontract,
    roll,
    pause_consumer,
    long_pause,
    pause_in_call,
    power_consumer,
    oversleep,
)
