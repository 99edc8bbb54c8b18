"""Compares the disks of the copies of a log with what their master has acknowledged on the wire. Does not use the product's code.

A machine's *member id* and its role are in the file `lockstep/replica` of its store, a master's set too. An id is *void* from a power cut
under async flush on: the store may lack what it had acknowledged under it. It is void until the broker has started again there, which has
to take another one.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lockstep.broker.store.start.survey import is_log_name
from lockstep.protocol.codes import ResponseCode
from lockstep.testing.simulation import SimFiles
from sweep.events.replicas import LogsCompared, MasterOpened, MemberLacked, Promoting
from sweep.events.sends import FrameResponded, FrameWritten
from sweep.history import Event

LOG = "/store/commitlog/"
IDENTITY = "/store/lockstep/replica"
SHOWN = 3
WINDOW_BYTES = 1 << 16


class CopyDisk:
    """The store on one machine, as another program reads it."""

    def __init__(self, disk: SimFiles, segment_bytes: int) -> None:
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._read: tuple[object, dict[str, Any]] = (None, {})

    @property
    def identity(self) -> dict[str, Any]:
        """Return the content of `lockstep/replica`; empty if there is none."""
        inode = self._disk.names.get(IDENTITY)
        if inode is None:
            return {}
        if self._read[0] is not inode:
            self._read = inode, json.loads(inode.cache)
        return self._read[1]

    @property
    def member(self) -> str:
        return str(self.identity.get("member", ""))

    @property
    def members(self) -> set[str]:
        """Return the stored set without its master."""
        return set(self.identity.get("members", ())) if self.identity.get("role") == "master" else set()

    @property
    def log_start(self) -> int:
        names = [path.removeprefix(LOG) for path in self._disk.names if path.startswith(LOG)]
        return min((int(name) for name in names if is_log_name(name)), default=0)

    def bytes_at(self, position: int, count: int, *, durable: bool = False) -> bytes:
        """Return what the log has there, of one file. `durable`: of that, what a power cut would leave."""
        start = position - position % self._segment_bytes
        names = self._disk.durable_names if durable else self._disk.names
        inode = names.get(f"{LOG}{start:020d}")
        if inode is None:
            return b""
        count = min(count, start + self._segment_bytes - position)
        return (inode.on_disk if durable else inode.in_memory).read(count, position - start)

    def has(self, data: bytes) -> bool:
        """Return whether the log has these bytes somewhere."""
        logs = [inode for path, inode in self._disk.names.items() if path.startswith(LOG)]
        return any(data in inode.in_memory.read(self._segment_bytes, 0) for inode in logs)

    def record_at(self, position: int) -> bytes:
        """Return the record that begins there, which begins with its length."""
        return self.bytes_at(position, int.from_bytes(self.bytes_at(position, 4), "big"))


@dataclass(slots=True)
class _Broker:
    """What is known of one broker's copies."""

    last: str
    """The machine on which it has served last."""
    acked: dict[int, bytes] = field(default_factory=dict)
    """Position → the record that was acknowledged there."""
    promoted: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """Machine → why it may lack something, and whether its log is complete; since the last master has opened."""
    is_unsafe: bool = False
    """The last master was promoted although it may lack something: a master before it, which knows of no member, can come back."""


class CopiesWatch:
    """Writes the events of replicas. `disk` returns the disk of a machine."""

    def __init__(
        self,
        copies: dict[str, list[str]],
        disk: Callable[[str], SimFiles],
        segment_bytes: int,
        append: Callable[[Event], None],
        *,
        sync: bool,
    ) -> None:
        """`copies`: broker → its machines, the first master first. `sync`: the flush mode of all of them is sync."""
        self._copies = copies
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._append = append
        self._sync = sync
        self._disks: dict[str, CopyDisk] = {}
        self._brokers = {name: _Broker(addresses[0]) for name, addresses in copies.items()}
        self._cut: set[str] = set()
        """Machines that lost power under async flush, since a broker has started there."""
        self._void: set[str] = set()
        self._rotten: set[str] = set()
        """Member ids under which a fault has damaged the log."""
        self._damage: dict[str, tuple[str, object]] = {}
        """Machine → the file of its log that a fault has damaged, and its inode."""
        self._only_written: set[int] = set()

    def disk(self, address: str) -> CopyDisk:
        found = self._disks.get(address)
        if found is None:
            found = self._disks[address] = CopyDisk(self._disk(address), self._segment_bytes)
        return found

    # ------------------------------------------------------------------------------------------------------- what happens

    def lost_power(self, address: str) -> None:
        if not self._sync:
            self._cut.add(address)
            self._void.add(self.disk(address).member)
            for broker in self._brokers.values():
                if address in broker.promoted:
                    broker.promoted[address] = ("its machine lost power after it was promoted", False)

    def rotted(self, address: str, path: str) -> None:
        """Take note that a fault damages a file of the log there: the replica notices that when it reads the place."""
        self._rotten.add(self.disk(address).member)
        self._damage[address] = path, self._disk(address).names[path]

    def has_damage(self, address: str) -> bool:
        """Return whether some copy of the broker of a machine has a damaged file that was not replaced."""
        copies = next(copies for copies in self._copies.values() if address in copies)
        return any(self._disk(each).names.get(path) is inode for each, (path, inode) in self._damage.items() if each in copies)

    def may_rot(self, name: str, target: str) -> bool:
        """Return whether another copy has everything that was acknowledged, and none is damaged."""
        others = [address for address in self._copies[name] if address != target and self._keeps(name, address)]
        return bool(others) and not self.has_damage(target)

    def _keeps(self, name: str, target: str) -> bool:
        return target not in self._cut and self.is_safe(name, target)

    def replica_started(self, address: str, at: tuple[float, str, int]) -> None:
        """A replica has started. If it still has the id of a member of the stored set, it has everything that was acknowledged."""
        self._cut.discard(address)
        self._void.discard(self.disk(address).member)
        name = next(name for name, addresses in self._copies.items() if address in addresses)
        broker = self._brokers[name]
        if address in self._members(name, broker.last) and (gone := self._missing(broker, address)):
            self._append(MemberLacked(*at, name, address, gone[0]))

    def _missing(self, broker: _Broker, address: str) -> list[int]:
        """Return the positions of acknowledged records that a copy does not have."""
        disk, start = self.disk(address), self.disk(address).log_start
        return [place for place, record in broker.acked.items() if place >= start and disk.bytes_at(place, len(record)) != record]

    def noted(self, event: Event) -> None:
        """Compare an acknowledgement with the disks of the master and of the members of its stored set, at its moment."""
        if isinstance(event, FrameWritten) and event.durable is False:
            self._only_written.add(event.request)
        if not isinstance(event, FrameResponded) or event.code != ResponseCode.SUCCESS or event.position < 0:
            return
        if event.request in self._only_written:
            return
        name, master = event.queue.broker, self.disk(event.machine)
        record = master.record_at(event.position)
        self._brokers[name].acked[event.position] = record
        for address in self._members(name, event.machine):
            if self.disk(address).bytes_at(event.position, len(record), durable=self._sync) != record:
                self._append(MemberLacked(event.t, event.machine, event.process, name, address, event.position))

    def _members(self, name: str, master: str) -> list[str]:
        """Return the machines of those members of a master's stored set that have not lost anything."""
        members = self.disk(master).members - self._void - self._rotten
        return [address for address in self._copies[name] if address != master and self.disk(address).member in members]

    def promoting(self, name: str, target: str, *, force: bool, at: tuple[float, str, int]) -> None:
        """Take note that an operator asks a replica to become the master. From here on the last master's disk does not change."""
        broker, identity = self._brokers[name], self.disk(target).identity
        lacks = ""
        if target != broker.last and target not in self._members(name, broker.last):
            lacks = f"it was not in the set of {broker.last}"
        elif target in self._cut:
            lacks = "its machine lost power"
        # a request that is repeated may meet a replica that has been promoted meanwhile
        if identity.get("role") != "master" or target not in broker.promoted:
            broker.promoted[target] = lacks, bool(identity.get("complete"))
        self._append(Promoting(*at, name, target, f"{'forced ' if force else ''}{lacks or 'it has everything'}"))

    def refused(self, address: str) -> None:
        """Take note that the nameservers refused a promoted copy: its old master had served again after it was complete."""
        for broker in self._brokers.values():
            if address in broker.promoted:
                broker.promoted[address] = broker.promoted[address][0], False

    def is_safe(self, name: str, target: str) -> bool:
        """Return whether that copy has everything that was acknowledged, by the set of the last master."""
        last = self._brokers[name].last
        return target == last or target in self._members(name, last)

    def opened(self, name: str, term: int, at: tuple[float, str, int]) -> None:
        """A copy has opened as master: its log has to have what was acknowledged, unless a reason for a loss is known."""
        broker, address = self._brokers[name], at[1]
        lacks, complete = "", False
        if address != broker.last:
            back = "the last promotion was of a copy that may lack something, and an earlier master came back" if broker.is_unsafe else ""
            lacks, complete = broker.promoted.get(address, (back, False))
        elif address in self._cut and not self._members(name, address):
            lacks = "its machine lost power, and no member of its set has kept everything"
        gone = self._missing(broker, address)
        shown = tuple(f"the record at {place}" for place in gone[:SHOWN])
        assumes = address in self._cut or (address != broker.last and not complete)
        self._append(MasterOpened(*at, name, term, lacks, assumes or bool(lacks), shown))
        for place in gone:
            del broker.acked[place]
        broker.last, broker.is_unsafe = address, bool(lacks)
        broker.promoted.clear()
        self._cut.discard(address)

    # ------------------------------------------------------------------------------------------------------------ the calm

    def compare(self, name: str, confirmed: int, t: float) -> None:
        """Compare the logs of the set byte by byte, up to where the master has confirmed its own."""
        master = self._brokers[name].last
        for address in self._members(name, master):
            since = max(self.disk(master).log_start, self.disk(address).log_start)
            self._append(LogsCompared(t, "", 0, name, address, since, confirmed, self._difference(master, address, since, confirmed)))

    def _difference(self, master: str, replica: str, since: int, until: int) -> int | None:
        at = since
        while at < until:
            count = min(WINDOW_BYTES, until - at, self._segment_bytes - at % self._segment_bytes)
            one, other = self.disk(master).bytes_at(at, count), self.disk(replica).bytes_at(at, count)
            if one != other or not one:
                return at + next((place for place, (left, right) in enumerate(zip(one, other, strict=False)) if left != right), 0)
            at += count
        return None
