"""The copies of brokers' logs: what each says of itself, and what its master says of it. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lockstep.operations.brokers.diagnosis import Finding
from lockstep.operations.text import format_bytes, format_duration
from lockstep.protocol.bodies import ReplicaStanding, ReplicaStatus

MASTER = "master"
COLUMNS = ("broker", "address", "role", "in set", "connected", ">term", ">end", ">behind", ">applied", "complete", "remark", "member")


@dataclass(frozen=True, slots=True)
class LogCopy:
    """A copy of the log of a broker, the master's own included."""

    broker: str
    """Empty if nothing is known of what is at the address."""
    address: str
    member: str
    """Empty for a broker that has never had a replica, and if it is not known."""
    status: ReplicaStatus | None
    """What the copy says of itself; None if it was not reached, for `failure`."""
    failure: str = ""
    standing: ReplicaStanding | None = None
    """A replica as its master knows it; None if no master was reached, or the master does not know it."""
    master: ReplicaStatus | None = None
    """The status of the broker's master with the highest term; None if none was reached."""

    @property
    def role(self) -> str | None:
        """Return master or replica, None if it is not known."""
        return self.status.role if self.status is not None else "replica" if self.standing is not None else None

    @property
    def has_register(self) -> bool:
        """Return whether it answers and takes part in elections."""
        return self.status is not None and self.status.register is not None

    @property
    def in_set(self) -> bool | None:
        """Return whether what is confirmed waits for this replica, None for a master and if no master says it."""
        return None if self.role == MASTER or self.standing is None else self.standing.in_set

    @property
    def connected(self) -> bool | None:
        """Return whether the replica is connected to its master, as the master sees it, or without one as the replica does."""
        if self.role == MASTER:
            return None
        return self.standing.connected if self.standing is not None else None if self.status is None else self.status.following

    @property
    def end(self) -> int | None:
        """Return where the log ends, None if it is not known."""
        if self.status is not None:
            return self.status.end
        return self.standing.stored if self.standing is not None and self.standing.stored else None

    @property
    def behind(self) -> int | None:
        """Return the bytes of the master's log that the replica lacks, None for a master and if one of the two ends is not known."""
        if self.role == MASTER or self.master is None:
            return None
        standing = self.standing
        end = standing.stored if standing is not None and standing.connected else self.end
        return None if end is None else max(0, self.master.end - end)

    @property
    def silent_ms(self) -> int | None:
        """Return for how long the master has heard nothing of the replica, None if that is not known."""
        return None if self.standing is None else self.standing.silent_ms

    @property
    def remarks(self) -> list[str]:
        """Return what is wrong, or special, in short clauses."""
        status, standing, master = self.status, self.standing, self.master
        found = [f"not reached: {self.failure}"] if self.failure else []
        if standing is not None and not standing.connected:
            found.append(f"not connected for {format_duration(standing.silent_ms)}")
        if self.trouble:
            found.append(self.trouble)
        if status is None:
            return found
        if status.role == MASTER:
            if master is not None and master.term > status.term:
                found.append(f"another master has the later term {master.term}: stop this one")
        elif not status.following:
            found.append(f"does not follow {status.master}" if status.master else "knows no master")
        elif master is not None and standing is None:
            found.append("its master does not know it")
        if status.may_have_forgotten:
            found.append("may lack what it had acknowledged")
        return found

    @property
    def trouble(self) -> str:
        """Return why the replica can't copy, as it says or else as its master has heard; empty if it can."""
        own = "" if self.status is None else self.status.trouble
        return own or ("" if self.standing is None else self.standing.trouble)

    @property
    def row(self) -> tuple[object, ...]:
        """Return the cells of COLUMNS."""
        status, behind = self.status, self.behind
        return (
            self.broker or None,
            self.address,
            self.role,
            _word(self.in_set),
            _word(self.connected),
            None if status is None else status.term,
            self.end,
            None if behind is None else format_bytes(behind),
            None if status is None else status.applied,
            None if status is None or status.role == MASTER else _word(status.complete),
            "; ".join(self.remarks) or None,
            self.member or None,
        )

    @property
    def json(self) -> dict[str, Any]:
        """Return the copy as `lockstep replica ls --json` prints it."""
        status = self.status
        known = {} if status is None else asdict(status)
        return {
            "broker": self.broker or None,
            "address": self.address,
            "member": self.member or None,
            "role": self.role,
            "in_set": self.in_set,
            "connected": self.connected,
            "end": self.end,
            "behind_bytes": self.behind,
            "silent_ms": self.silent_ms,
            **{name: known.get(name) for name in ("term", "confirmed", "applied", "may_have_forgotten", "complete", "following", "master")},
            "trouble": self.trouble,
            "failure": self.failure or None,
        }


def _word(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


def addresses_of(status: ReplicaStatus) -> list[str]:
    """Return where the other copies are that one knows."""
    found = [each.address for each in status.replicas] + list(status.known.values())
    return found + [status.master] * bool(status.master)


def copies(answers: Mapping[str, ReplicaStatus], failed: Mapping[str, str], names: Mapping[str, str]) -> list[LogCopy]:
    """Return the copies of each broker, its master first.

    `answers`: address → status. `failed`: address → why it was not reached. `names`: address → the broker that is expected there, or "".
    A copy that was reached at two addresses is listed once.
    """
    masters: dict[str, ReplicaStatus] = {}
    for status in answers.values():
        if status.role == MASTER and (status.broker_name not in masters or status.term > masters[status.broker_name].term):
            masters[status.broker_name] = status
    standings = {name: {each.member: each for each in status.replicas} for name, status in masters.items()}
    found: dict[tuple[str, str], LogCopy] = {}
    for address, status in answers.items():
        name = status.broker_name
        standing = standings.get(name, {}).get(status.member) if status.role != MASTER else None
        key = name, status.member or address
        found.setdefault(key, LogCopy(name, address, status.member, status, "", standing, masters.get(name)))
    for name, of_master in standings.items():
        for member, standing in of_master.items():
            if (name, member) not in found:
                why = failed.get(standing.address) or "another copy answers there"
                found[name, member] = LogCopy(name, standing.address, member, None, why, standing, masters[name])
    listed = {each.address for each in found.values()}
    for address, why in failed.items():
        if address not in listed:
            name = names[address]
            found[name, address] = LogCopy(name, address, "", None, why, None, masters.get(name))
    return sorted(found.values(), key=lambda each: (each.broker, each.role != MASTER, each.address))


def check_replicas(where: str, master: ReplicaStatus) -> list[Finding]:
    """Check that each replica that a master knows is in its set. A broker without replicas has no finding."""
    return [_in_set(where, master, each) for each in master.replicas]


def _in_set(where: str, master: ReplicaStatus, replica: ReplicaStanding) -> Finding:
    check = "replica in the set"
    if replica.in_set:
        return Finding(check, f"{where} replica {replica.address}")
    forget = f"`lockstep replica forget {master.broker_name} {replica.member}`"
    if not replica.connected:
        problem = f"has not been connected for {format_duration(replica.silent_ms)}: messages are acknowledged without it"
        step = f"start it, or read its log (the events `replica.…`). If it does not come back: {forget}"
    elif replica.trouble:
        problem = f"can't store what it copies: {replica.trouble}"
        step = "free some space there: it goes on by itself"
    else:
        behind = format_bytes(max(0, master.end - replica.stored))
        problem = f"is {behind} behind: messages are acknowledged without it until it has caught up"
        step = f"wait while it becomes less (`lockstep replica ls --broker {master.broker_name}`); else its disk or network is too slow"
    return Finding(check, f"{where} replica {replica.address}", problem, step)


def copies_json(found: Sequence[LogCopy]) -> dict[str, Any]:
    """Return what `lockstep replica ls --json` prints."""
    return {"copies": [each.json for each in found]}


def of_broker(found: Iterable[LogCopy], broker: str) -> list[LogCopy]:
    return [each for each in found if each.broker == broker]
