"""One fault at a time, on which the bounds of O7 are checked. A process that ends stays away for a minute."""

from sweep.faults.brokers import everything
from sweep.storm import Storm

AWAY_S = 60.0


def only_leave(storm: Storm) -> None:
    address = storm.consumer()
    storm.record_reached("stopped in order", address)
    storm.universe.stop(address)
    storm.call_later(AWAY_S, storm.start_when_ended, address)


def only_crash(storm: Storm) -> None:
    _lose(storm, power=False)


def only_power(storm: Storm) -> None:
    """Cut the power, without notice to the peers: the owner is silent."""
    _lose(storm, power=True)


def _lose(storm: Storm, *, power: bool) -> None:
    address = storm.consumer()
    storm.take_down(address, AWAY_S, power=power)


def only_silence(storm: Storm) -> None:
    storm.pause(storm.consumer(), AWAY_S)


def only_broker(storm: Storm) -> None:
    _, address = storm.broker()
    power = storm.random.random() < 0.5
    storm.take_down(address, storm.random.choice([0.0, 0.5, 3, 8]), power=power)


def only_everything(storm: Storm) -> None:
    everything(storm)


KINDS = (only_leave, only_crash, only_power, only_silence, only_broker, only_everything)
