"""The copies of a log that elect their master: their disks are compared with what the register says and what masters confirm."""

import json
from collections.abc import Callable
from typing import Any

from msgpack import packb  # type: ignore[import-untyped]

from lockstep.protocol.codes import RequestCode
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.replication import ReplicaFetchReply
from sweep.connections import Frame
from sweep.copies_watch import SHOWN, CopiesWatch
from sweep.events.elections import ConfirmedLost, DeposedAnswered, Elected, RegisterSeen, TermLacked, TermServed
from sweep.events.replicas import MasterOpened
from sweep.history import Event, PlaceReached
from sweep.sim_etcd import EtcdWrite


def register_seen(t: float, machine: str, broker: str, version: int, value: bytes) -> RegisterSeen:
    """Return the event of a stored value."""
    entry: dict[str, Any] = json.loads(value)
    replicas = tuple(sorted(entry["replicas"].items()))
    rest = entry["log"], entry["term"], entry["master"], tuple(entry["in_sync"]), replicas
    return RegisterSeen(t, machine, 0, broker, version, *rest, entry["write"], entry["why"], entry["assumed_loss"])


def etcd_seen(write: EtcdWrite) -> RegisterSeen:
    return register_seen(write.t, "", write.key.rpartition("/")[2], write.revision, write.value)


def host_of(seen: RegisterSeen, member: str) -> str:
    """Return the machine of a member, by the register."""
    return dict(seen.replicas)[member].rpartition(":")[0]


class ElectionsWatch(CopiesWatch):
    """Writes the events of copies under a register."""

    def __init__(self, *args: Any, alive: Callable[[str], int | None], **settings: Any) -> None:
        """`alive` returns the number of the process that runs on a machine and is not paused."""
        super().__init__(*args, **settings)
        self._alive = alive
        self._seen: dict[str, RegisterSeen] = {}
        self._open: dict[str, list[tuple[int, int, float]]] = {}
        """Broker → (term, process, when) of each master that has opened."""
        self._served: set[tuple[str, int, int]] = set()
        self._reason: dict[tuple[str, int], str] = {}
        """(broker, term) → why its master may lack what was acknowledged."""
        self._confirmed: dict[str, bytearray] = {}
        """What masters told as confirmed, from position 0 on."""

    # -------------------------------------------------------------------------------------------------------- the register

    def noted(self, event: Event) -> None:
        if not isinstance(event, RegisterSeen):
            super().noted(event)
            return
        before = self._seen.get(event.broker)
        if before is not None and before.version >= event.version:
            return
        if before is not None and before.term != event.term:
            self._elected(event, before)
        self._seen[event.broker] = event

    def _elected(self, seen: RegisterSeen, before: RegisterSeen) -> None:
        machine = host_of(seen, seen.master)
        safe = self._present(seen.broker, before)
        others = tuple(address for address in safe if address != machine)
        is_present = self.disk(machine).member == seen.master and seen.master not in self._void
        place = seen.t, machine, 0
        reason = self._reason.get((seen.broker, before.term))
        if reason is not None and not any(term == before.term for term, _, _ in self._open.get(seen.broker, ())):
            self._reason[seen.broker, seen.term] = reason  # nobody has seen that loss yet
        elif seen.assumed_loss:
            self._reason[seen.broker, seen.term] = "" if safe else "no member of the last set has kept everything"
        self._append(Elected(*place, seen.broker, seen.term, seen.why, is_present, others))
        old = host_of(before, before.master)
        if old != machine and (process := self._alive(old)) is not None and self._is_open(seen.broker, before.term, process):
            self._append(PlaceReached(*place, "elected while the old master runs", old))

    def _is_open(self, broker: str, term: int, process: int) -> bool:
        return any(each[:2] == (term, process) for each in self._open.get(broker, ()))

    def _present(self, broker: str, seen: RegisterSeen) -> list[str]:
        members = set(seen.in_sync) - self._void - self._rotten
        return [address for address in self._copies[broker] if self.disk(address).member in members]

    def _members(self, name: str, master: str) -> list[str]:
        return [] if name not in self._seen else [each for each in self._present(name, self._seen[name]) if each != master]

    # ---------------------------------------------------------------------------------------------------------- connections

    def answered(self, frame: Frame, request: Frame) -> None:
        """Take note of the response of a broker to any request."""
        link, code = frame.link, request.command.code
        t, machine, process = frame.server
        if code in (RequestCode.REPLICA_FETCH, RequestCode.REPLICA_FOLLOW):
            if frame.ok:
                self._told(frame, code)
            return
        opened = self._open.get(link.broker, [])
        term = max((term for term, number, _ in opened if number == process), default=0)
        higher = next((at for after, _, at in opened if after > term and at < request.t), None)
        if higher is not None:
            self._append(DeposedAnswered(t, machine, process, link.broker, term, code, frame.command.code, request.t, higher))

    def _told(self, frame: Frame, code: int) -> None:
        name, machine, process = frame.link.broker, frame.server[1], frame.server[2]
        term = int(frame.fields["term"])
        if (name, term, process) not in self._served:
            self._served.add((name, term, process))
            self._append(TermServed(*frame.server, name, term))
        if code == RequestCode.REPLICA_FETCH and term == max((term for term, _, _ in self._open.get(name, ())), default=term):
            confirmed, log = from_plain(ReplicaFetchReply, frame.fields).confirmed, self._confirmed.setdefault(name, bytearray())
            if confirmed > len(log):
                log += self._bytes(machine, len(log), confirmed)

    def _bytes(self, machine: str, since: int, until: int) -> bytes:
        disk, found = self.disk(machine), bytearray()
        while since + len(found) < until:
            at = since + len(found)
            data = disk.bytes_at(at, min(until - at, self._segment_bytes - at % self._segment_bytes))
            if not data:
                break
            found += data
        return bytes(found)

    def cut_off(self, frame: Frame, requests: int) -> None:
        """Take note that a connection ended on which a broker had not answered some requests."""
        broker, process = frame.link.broker, frame.link.server.number
        seen, opened = self._seen.get(broker), self._open.get(broker, [])
        term = max((term for term, number, _ in opened if number == process), default=0)
        if requests and seen is not None and 0 < term < seen.term:
            self._append(PlaceReached(*frame.server, "deposed master left requests without an answer", f"{requests}"))

    # -------------------------------------------------------------------------------------------------------------- masters

    def opened(self, name: str, term: int, at: tuple[float, str, int]) -> None:
        t, address, process = at
        broker, reason = self._brokers[name], self._reason.get((name, term))
        gone = self._missing(broker, address)
        shown = tuple(f"the record at {place}" for place in gone[:SHOWN])
        self._append(MasterOpened(*at, name, term, reason or "", reason is not None, shown))
        for place in gone:
            del broker.acked[place]
        log = self._confirmed.setdefault(name, bytearray())
        own = self._bytes(address, 0, len(log))
        if own != log:
            differs = next((place for place, (one, other) in enumerate(zip(own, log, strict=False)) if one != other), len(own))
            self._append(ConfirmedLost(*at, name, term, differs, reason or ""))
            del log[differs:]
        for member in self._members(name, address):
            if not self.disk(member).has(packb("log.term") + packb(term)):
                self._append(TermLacked(*at, name, member, term))
        broker.last = address
        self._cut.discard(address)
        self._open.setdefault(name, []).append((term, process, t))

    def _keeps(self, name: str, target: str) -> bool:
        return target in self._members(name, "")

    def is_safe(self, name: str, target: str) -> bool:
        return target == self._brokers[name].last or target in self._members(name, "")
