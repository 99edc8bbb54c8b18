"""One fault, and nothing else for a long time: what the bounds of O7 are asserted on. Who is gone stays away for a minute."""

from sweep.storm import Storm

AWAY_S = 60.0


def only_leave(storm: Storm) -> None:
    address = storm.consumer()
    storm.reached("stopped in order", address)
    storm.universe.stop(address)
    storm.later(AWAY_S, storm.start_when_ended, address)


def only_crash(storm: Storm) -> None:
    _lose(storm, power=False)


def only_power(storm: Storm) -> None:
    """Nobody is told: a silent owner."""
    _lose(storm, power=True)


def _lose(storm: Storm, *, power: bool) -> None:
    address = storm.consumer()
    storm.note("power" if power else "kill", address)
    storm.universe.kill(address, power=power)
    storm.later(AWAY_S, storm.universe.start, address)


def only_silence(storm: Storm) -> None:
    storm.pause(storm.consumer(), AWAY_S)


def only_broker(storm: Storm) -> None:
    _, address = storm.broker()
    power = storm.random.random() < 0.5
    storm.note("power" if power else "kill", address)
    storm.universe.kill(address, power=power)
    storm.later(storm.random.choice([0.0, 0.5, 3, 8]), storm.universe.start, address)


def only_everything(storm: Storm) -> None:
    universe, power = storm.universe, storm.random.random() < 0.5
    storm.note("everything", "", "power" if power else "kill")
    addresses = [*universe.nameservers, *universe.brokers.values(), *universe.consumers, *universe.producers]
    for address in addresses:
        universe.kill(address, power=power)
    for address in addresses:
        storm.later(storm.random.choice([0.1, 0.5, 1]), universe.start, address)


KINDS = (only_leave, only_crash, only_power, only_silence, only_broker, only_everything)
