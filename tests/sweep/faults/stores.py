"""Faults at one operation on the files of a store, or that lose files which can be rebuilt."""

from sweep.events.sends import FrameResponded
from sweep.faults.brokers import cut_at_operation
from sweep.history import Event
from sweep.services import STORE
from sweep.storm import Storm

CONSUME_QUEUES = f"{STORE}/consumequeue/"
PLACES = (
    ("unlink", f"{STORE}/commitlog/"),
    ("unlink", f"{STORE}/commitlog/"),
    ("create", f"{STORE}/commitlog/"),
    ("truncate", f"{STORE}/commitlog/"),
    ("rename", f"{STORE}/lockstep/snapshot-"),
)
"""(operation, beginning of the path)"""
OPERATIONS_MAX = 6


def power_at_file(storm: Storm) -> None:
    """Cut the power a few operations after the next one of a certain kind: a removal, a new file of the log, a cut, or a snapshot."""
    _, address = storm.broker()
    disk = storm.universe.machine(address).disk
    kind, beginning = storm.random.choice(PLACES)
    countdown = storm.random.randrange(OPERATIONS_MAX)

    def look(operation: str, path: str) -> None:
        if operation == kind and path.startswith(beginning):
            disk.watch = None
            cut_at_operation(storm, address, countdown, power=True)

    disk.watch = look


def lose_consume_queues(storm: Storm) -> None:
    """Kill a broker and remove the directories of some consume queues: its start rebuilds them from the log."""
    universe, (_, address) = storm.universe, storm.broker()
    if not universe.alive(address):
        return
    disk = universe.machine(address).disk
    universe.kill(address)
    directories = sorted({path.rpartition("/")[0] for path in disk.names if path.startswith(CONSUME_QUEUES)})
    lost = [directory for directory in directories if storm.random.random() < 0.7]
    for directory in lost:
        disk.remove_tree(directory)
    storm.record_fault("kill", address, f"{len(lost)} of {len(directories)} consume queues are removed")
    storm.call_later(storm.random.choice([0.1, 1.0]), universe.start, address)


def repeat_after_snapshot(storm: Storm) -> None:
    """Lose the response to a send, and kill the broker after a snapshot: the producer repeats the frame at the next start."""
    universe = storm.universe
    history, network, skip = universe.history, universe.loop.network, storm.random.randrange(8)

    def look(event: Event) -> None:
        nonlocal skip
        if isinstance(event, FrameResponded):
            skip -= 1
            if skip < 0:
                history.watch = None
                lose(event)

    def lose(event: FrameResponded) -> None:
        open_ = [one for one in network.connections.values() if one.server.process.number == event.process]
        for one in open_:
            if one.client.process.machine.name in universe.producers:
                storm.record_fault("silence", one.client.here, one)
                network.silence(one)
        storm.call_later(storm.random.uniform(1.1, 2.5), kill, event.machine)

    def kill(address: str) -> None:
        storm.take_down(address, 0.1)

    history.watch = look


KINDS = (power_at_file, lose_consume_queues, repeat_after_snapshot)
