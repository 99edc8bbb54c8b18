"""Faults of a consumer machine's disk, on which a broadcasting member keeps its progress."""

from lockstep.testing.simulation import Fault as DiskFault
from sweep.faults.brokers import cut_at_operation
from sweep.storm import Storm

ALWAYS = 1 << 30


def spoil_offsets(storm: Storm) -> None:
    """Make the file unwritable for some time: the disk is full or fails. A crash may repeat any number of messages meanwhile."""
    universe, random = storm.universe, storm.random
    address, how = random.choice(universe.consumers), random.choice(["full", "write", "sync", "rename"])
    disk = universe.machine(address).disk
    if how == "full":
        disk.capacity_bytes = disk.used_bytes()
    else:
        disk.faults.append(DiskFault(how, path="offsets.json", count=ALWAYS))
    storm.record_fault("disk full" if how == "full" else "disk eio", address, how, machine=address)
    storm.call_later(random.choice([0.5, 2, 6, 15]), _repair, storm, address)


def _repair(storm: Storm, address: str) -> None:
    disk = storm.universe.machine(address).disk
    disk.faults.clear()
    disk.capacity_bytes = 1 << 40
    storm.record_fault("heal", address, "disk", machine=address)


def cut_at_offsets(storm: Storm) -> None:
    """Kill −9 or power cut of a consumer machine at one of the next operations on its file."""
    address = storm.random.choice(storm.universe.consumers)
    cut_at_operation(storm, address, storm.random.randrange(0, 14), power=storm.random.random() < 0.5)


KINDS = (spoil_offsets, cut_at_offsets)
