"""Faults of the network, and of clocks."""

from sweep.events.locks import LockGranted
from sweep.events.parks import ParkEndResponded, ParkResponded
from sweep.events.progress import CommitResponded, ProgressResponded
from sweep.events.sends import (
    DeadLetterResponded,
    FrameResponded,
    RecallResponded,
    SendBackResponded,
    TimersResponded,
)
from sweep.events.universe import WallClockJumped
from sweep.history import Event
from sweep.storm import Storm


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
        storm.record_fault("reset", one, open_[0])
        network.reset(open_[0])


def cut_at_response(storm: Storm) -> None:
    """Lose the next response of one kind: its connection is reset, or becomes silent, when the broker has written it."""
    kind = storm.random.choice([LockGranted, LockGranted, CommitResponded, FrameResponded])
    _cut_at(storm, kind, reset_connection=storm.random.random() < 0.7, skip=storm.random.randrange(4))


def _cut_at(storm: Storm, kind: type[Event], *, reset_connection: bool, skip: int) -> None:
    history = storm.universe.history

    def look(event: Event) -> None:
        nonlocal skip
        if type(event) is not kind or (isinstance(event, LockGranted) and event.renewal):
            return
        skip -= 1
        if skip < 0:
            history.watch = None
            _lose_response(storm, event, reset_connection=reset_connection)

    history.watch = look


def _lose_response(storm: Storm, event: Event, *, reset_connection: bool) -> None:
    """Lose the pending bytes from this broker to the client; to a random client for a send."""
    network = storm.universe.loop.network
    open_ = [one for one in network.connections.values() if one.server.process.number == event.process]
    client = None if isinstance(event, FrameResponded) else getattr(event, "client", None)
    mine = [one for one in open_ if client is None or one.client.process.number == client]
    if mine:
        one = mine[-1] if client is not None else storm.random.choice(mine)
        storm.record_fault("cut at a response", one.client.here, f"{type(event).__name__} {one}")
        if reset_connection:
            network.reset(one)
        else:
            network.silence(one)


def silence(storm: Storm) -> None:
    """Simulate a middle box that drops a connection: all bytes sent on it are lost."""
    one, network = storm.client(), storm.universe.loop.network
    open_ = network.between(one, storm.broker()[1])
    if open_:
        storm.record_fault("silence", one, open_[0])
        network.silence(open_[0])


def slow_link(storm: Storm) -> None:
    one, other, slow = storm.client(), storm.broker()[1], storm.universe.loop.network.slow
    more_s = storm.random.choice([0.2, 1.5, 4])
    storm.record_fault("slow link", f"{one} {other}", f"{more_s} s")
    for pair in ((one, other), (other, one)):
        slow[pair] = more_s
        storm.call_later(storm.random.choice([3, 10]), slow.pop, pair, None)


def wall_jump(storm: Storm) -> None:
    universe = storm.universe
    address = storm.random.choice([*universe.brokers.values(), *universe.consumers, *universe.producers])
    jump_s = storm.random.choice([-3600, -5, 5, 3600])
    storm.record_fault("wall jump", address, f"{jump_s} s")
    universe.machine(address).wall_offset_s += jump_s
    universe.history.append(WallClockJumped(universe.loop.now, address, 0, jump_s))


def wall_glitch(storm: Storm) -> None:
    """Set a broker's wall clock far ahead for some seconds: no message may be late, early or removed."""
    universe = storm.universe
    name, address = storm.broker()
    jump_s = storm.random.choice([60, 3600, 365 * 86_400])
    storm.record_reached("wall glitch", f"{name} {jump_s} s")

    def jump(by_s: int) -> None:
        universe.machine(address).wall_offset_s += by_s
        universe.history.append(WallClockJumped(universe.loop.now, address, 0, by_s))

    jump(jump_s)
    universe.loop.at(universe.loop.now + storm.random.uniform(0.2, 5.0), jump, -jump_s)


def wall_set(storm: Storm) -> None:
    """Set a broker's wall clock permanently: no message may be late or early, also if the broker is killed and starts again."""
    universe = storm.universe
    name, address = storm.broker()
    jump_s = storm.random.choice([-3600, 60, 600, 3600])
    storm.record_reached("wall set", f"{name} {jump_s} s")
    universe.machine(address).wall_offset_s += jump_s
    universe.history.append(WallClockJumped(universe.loop.now, address, 0, jump_s))


def drift(storm: Storm) -> None:
    universe, most = storm.universe, storm.universe.setting.drift
    address = storm.random.choice([*universe.brokers.values(), *universe.consumers])
    storm.record_fault("drift", address)
    universe.set_rate(universe.machine(address), storm.random.uniform(1 - most, 1 + most))


def cut_at_copy(storm: Storm) -> None:
    """Lose a response to a request that makes the broker store a copy, or record a start position."""
    kinds: list[type[Event]] = [SendBackResponded, SendBackResponded, DeadLetterResponded, ProgressResponded]
    _cut_at(storm, storm.random.choice(kinds), reset_connection=storm.random.random() < 0.7, skip=storm.random.randrange(3))


def cut_at_park(storm: Storm) -> None:
    """Lose a response about a parked key."""
    kind = storm.random.choice([ParkResponded, ParkEndResponded])
    _cut_at(storm, kind, reset_connection=storm.random.random() < 0.7, skip=storm.random.randrange(3))


def wall_step(storm: Storm) -> None:
    """Set a broker's wall clock, permanently or for some seconds. A small step is followed at once, a large one by a boot."""
    universe, random = storm.universe, storm.random
    name, address = storm.broker()
    jump_s = random.choice([-3_600.0, -15.0, -5.0, -1.625, -0.375, 0.375, 1.625, 5.0, 60.0, 3_600.0])
    storm.record_reached("wall step", f"{name} {jump_s} s")

    def jump(by_s: float) -> None:
        universe.machine(address).wall_offset_s += by_s
        universe.history.append(WallClockJumped(universe.loop.now, address, 0, by_s))

    jump(jump_s)
    if random.random() < 0.5:
        universe.loop.at(universe.loop.now + random.uniform(0.2, 20.0), jump, -jump_s)


def cut_at_timer(storm: Storm) -> None:
    """Lose a response to a send of messages that wait, or to a recall."""
    kind = storm.random.choice([TimersResponded, TimersResponded, RecallResponded])
    _cut_at(storm, kind, reset_connection=storm.random.random() < 0.7, skip=storm.random.randrange(3))


KINDS = (
    partition,
    one_way,
    isolate,
    reset,
    cut_at_response,
    silence,
    slow_link,
    wall_jump,
    drift,
    cut_at_copy,
    wall_glitch,
    wall_set,
    cut_at_park,
    cut_at_timer,
    wall_step,
)
