"""Faults of the brokers' disks."""

from lockstep.testing.simulation import Fault as DiskFault
from sweep.storm import Storm

SLOW_S = 8.0
"""The time for which a disk is slow."""


def eio(storm: Storm) -> None:
    _, address = storm.broker()
    operation = storm.random.choice(["write", "sync", "sync", "read"])
    skip = storm.random.randrange(0, 20)
    storm.record_fault("disk eio", address, f"{operation} {skip}", machine=address)
    storm.universe.machine(address).disk.faults.append(DiskFault(operation, skip=skip))


def enospc(storm: Storm) -> None:
    _, address = storm.broker()
    disk = storm.universe.machine(address).disk
    disk.capacity_bytes = disk.used_bytes() + storm.random.choice([0, 1_000, 10_000, 40_000])
    storm.record_fault("disk full", address, disk.capacity_bytes, machine=address)

    def room() -> None:
        disk.capacity_bytes = 1 << 40

    storm.call_later(storm.random.choice([1, 5, 12]), room)


def slow_disk(storm: Storm) -> None:
    _, address = storm.broker()
    disk, longest_s = storm.universe.machine(address).disk, storm.random.choice([0.3, 2, 6])
    storm.record_fault("disk slow", address, f"{longest_s} s", machine=address)
    disk.delays_s["sync"] = (0.001, longest_s)
    disk.slow_until_s = storm.universe.loop.now + SLOW_S
    storm.call_later(SLOW_S, disk.delays_s.clear)


def snapshot_rot(storm: Storm) -> None:
    """Flip a bit of the newest of two snapshots and restart the broker, which must use the older one."""
    _, address = storm.broker()
    disk = storm.universe.machine(address).disk
    snapshots = sorted(path for path in disk.names if "/snapshot-" in path and not path.endswith(".tmp"))
    if len(snapshots) < 2:
        return
    storm.universe.kill(address)
    size = len(disk.names[snapshots[-1]].cache)
    if size:
        storm.record_fault("disk rot", address, snapshots[-1], machine=address)
        disk.flip(snapshots[-1], storm.random.randrange(size), storm.random.randrange(8))
    storm.call_later(0.5, storm.universe.start, address)


KINDS = (eio, enospc, slow_disk, snapshot_rot)
