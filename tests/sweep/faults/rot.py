"""Damage at rest: bits of a log, whole log files, entries of consume queues."""

import re
from collections.abc import Iterator
from struct import error as StructError

from lockstep.broker.store.log.append import ENTRY_BYTES
from lockstep.broker.store.start.directory import SLOT, SLOT_BYTES, SLOT_MAGIC
from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.messages.properties import SEQUENCE_DIGITS
from lockstep.protocol.messages.record import BODY_AT, BODY_LENGTH_AT, INT32, record_bounds
from lockstep.protocol.messages.sequence import STAMP_HEAD, find_sequence
from lockstep.testing.simulation import SimFiles
from sweep.services import STORE
from sweep.storm import Storm


def log_rot(storm: Storm) -> None:
    """Kill a broker, flip a bit of its log, and start it: if the bit is below the synced length and after the
    snapshot from which the log is read, it must refuse the store. Some time later the log is repaired.
    """
    universe, (_, address) = storm.universe, storm.broker()
    if address in storm.rotten or not universe.alive(address):
        return
    universe.kill(address)
    storm.call_later(0.5, universe.start, address)
    disk = universe.machine(address).disk
    place = rotting_place(storm, disk)
    if place is None:
        storm.record_fault("kill", address)
        return
    path, at, bit = *place, storm.random.randrange(8)
    storm.record_fault("log rot", address, f"{path} byte {at} bit {bit}", machine=address)
    disk.flip(path, at, bit)

    def repair() -> None:
        if storm.rotten.pop(address, None) is not None:
            universe.kill(address)
            disk.flip(path, at, bit)
            storm.record_fault("log repaired", address, machine=address)
            storm.call_later(0.2, universe.start, address)

    storm.rotten[address] = repair
    storm.call_later(storm.random.choice([2, 6]), repair)


def file_rot(storm: Storm) -> None:
    """Kill a broker, remove a file of its log, and start it: whichever file it is, the broker must refuse the store and change nothing.
    Some time later the file is restored.
    """
    universe, (_, address) = storm.universe, storm.broker()
    disk = universe.machine(address).disk
    logs = [path for path in disk.names if re.fullmatch(rf"{STORE}/commitlog/\d{{20}}", path)]
    held = [path for path in sorted(logs) if int(path.rpartition("/")[2]) < _synced(disk)]
    if address in storm.rotten or not universe.alive(address) or not held:
        return
    universe.kill(address)
    storm.call_later(0.5, universe.start, address)
    path = storm.random.choice(held)
    storm.record_fault("log rot", address, f"{path} is lost", machine=address)
    inode = disk.names[path]
    disk.remove_tree(path)

    def repair() -> None:
        if storm.rotten.pop(address, None) is not None:
            universe.kill(address)
            disk.names[path] = disk.durable_names[path] = inode
            storm.record_fault("log repaired", address, machine=address)
            storm.call_later(0.2, universe.start, address)

    storm.rotten[address] = repair
    storm.call_later(storm.random.choice([2, 6]), repair)


def entry_rot(storm: Storm) -> None:
    """Kill a broker, overwrite entries of a consume queue, and start it. The log has every message, so none is lost."""
    universe, (_, address) = storm.universe, storm.broker()
    disk = universe.machine(address).disk
    files = sorted(path for path in disk.names if path.startswith(f"{STORE}/consumequeue/") and disk.names[path].used_bytes)
    if address in storm.rotten or not universe.alive(address) or not files:
        return
    universe.kill(address)
    storm.call_later(0.5, universe.start, address)
    path = storm.random.choice(files)
    entries = disk.names[path].used_bytes // ENTRY_BYTES + 1
    first = storm.random.randrange(entries)
    count = min(storm.random.choice([1, 5, 50]), entries - first)
    donor = bytes(disk.names[storm.random.choice(files)].cache[:ENTRY_BYTES])
    wrong = storm.random.choice([bytes(ENTRY_BYTES), donor, storm.random.randbytes(ENTRY_BYTES)])
    storm.record_fault("entry rot", address, f"{path} from {first}, {count} entries", machine=address)
    room = len(disk.names[path].cache) - first * ENTRY_BYTES
    disk.overwrite(path, first * ENTRY_BYTES, (wrong * count)[:room])


def rotting_place(storm: Storm, disk: SimFiles) -> tuple[str, int] | None:
    """Return (path, byte) of the body, or of the properties, of some record between the newest snapshot's position and the synced length.

    A body has a CRC, and an idempotent frame has one over all bytes from its producer. The fields that the broker itself writes into the
    head of a record have none: only their consistency is checked.
    """
    snapshots = [int(found[1]) for path in disk.names if (found := re.fullmatch(rf"{STORE}/lockstep/snapshot-(\d+)", path))]
    begin, end = max(snapshots, default=0), _synced(disk)
    places: list[tuple[str, int]] = []
    for path, inode in disk.names.items():
        named = re.fullmatch(rf"{STORE}/commitlog/(\d{{20}})", path)
        if named is not None:
            first = int(named[1])
            covered = _covered(bytes(inode.cache))
            places += [(path, at) for start, stop in covered if begin <= first + start and first + stop <= end for at in range(start, stop)]
    return storm.random.choice(places) if places else None


def _covered(log: bytes) -> Iterator[tuple[int, int]]:
    """Yield the ranges [first, end) of one file that a CRC covers: the bodies, and the other properties of a record with a frame's CRC.

    The CRC of the first frame of a scope, as its producer knows it, is not compared.
    """
    at = 0
    while at + BODY_AT <= len(log) and (size := INT32.unpack_from(log, at)[0]) > 0:
        count = INT32.unpack_from(log, at + BODY_LENGTH_AT)[0]
        if count > 0 and count + BODY_AT <= size:
            try:
                _, properties_at, end = record_bounds(log, at)
            except RemoteProtocolError:
                break  # a record that has not been written, or received, to its end
            yield at + BODY_AT, at + BODY_AT + count
            sequence = find_sequence(log[properties_at:end])
            others = properties_at + len(STAMP_HEAD) + SEQUENCE_DIGITS + 1
            if sequence is not None and not sequence.first_known and others < end:
                yield others, end
        at += size


def _synced(disk: SimFiles) -> int:
    """Return the synced length that the store's slots record."""
    inode = disk.names.get(f"{STORE}/lockstep/synced")
    newest = (0, 0)
    for at in (0, SLOT_BYTES) if inode is not None else ():
        try:
            magic, number, position, _ = SLOT.unpack(bytes(inode.cache[at : at + SLOT.size]))  # type: ignore[union-attr]
        except StructError:
            continue
        if magic == SLOT_MAGIC:
            newest = max(newest, (number, position))
    return newest[1]


KINDS = (log_rot, file_rot, entry_rot)
