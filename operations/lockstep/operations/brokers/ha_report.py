"""What a broker's register says, as its copies have read it: what would happen if the master died now, why there is none, and what
`lockstep doctor` finds. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

from lockstep.operations.brokers.diagnosis import Finding
from lockstep.operations.brokers.replicas import MASTER, LogCopy
from lockstep.operations.text import format_duration
from lockstep.protocol.bodies import RegisterStanding

OLD_MS = 5_000
"""A reading that is older is no news of the register."""
SILENT_MS = 1_000
"""A member of the set that has not been heard for longer is left out by a master that reaches its register."""


def latest(found: Sequence[LogCopy]) -> RegisterStanding | None:
    """Return what the register says, by a copy that reaches it if there is one. None if no copy that answers has one."""
    standings = [each.status.register for each in found if each.status is not None and each.status.register is not None]
    return min(standings, key=lambda each: (not _is_fresh(each), -each.term, each.read_ms is None, each.read_ms or 0), default=None)


def _is_fresh(register: RegisterStanding) -> bool:
    return not register.unreachable and register.read_ms is not None and register.read_ms < OLD_MS


def sentences(name: str, found: Sequence[LogCopy]) -> list[str]:
    """Return the state of a broker's register in sentences; `found`: its copies."""
    register = latest(found)
    if register is None:
        return [f"no copy of broker {name} that answers has a register"]
    lines = [f"register {register.address}: {_reached(register)}"]
    if register.term:
        named = ", ".join(register.replicas.get(member, member) for member in register.in_sync)
        master = register.replicas[register.master]
        lines.append(f"term {register.term}, last change: {register.why}; the master is {master}; in the set: {named}")
    absent, entry = why_unserved(name, found), _entry(name, register, found)
    if absent is not None:
        lines.append(f"broker {name} {absent.problem}. Next: {absent.step}")
    if entry is not None and entry.problem is not None:
        lines.append(f"{entry.problem}. Next: {entry.step}")
    return [*lines, if_it_died(register, found)] if register.term and absent is None else lines


def if_it_died(register: RegisterStanding, found: Sequence[LogCopy]) -> str:
    """Return what would happen if the master died now."""
    if not _is_fresh(register):
        return "if the master died now, nobody could be elected before the register is reached"
    able = [each.address for each in _able(register, found) if each.status is not None and each.status.following]
    if able:
        return f"if the master died now, {' or '.join(able)} would be elected, and nothing would be lost"
    return "if the master died now, nobody could be elected before it is back: it is alone in the set"


def _able(register: RegisterStanding, found: Sequence[LogCopy]) -> list[LogCopy]:
    """Return the replicas that answer and are in the set."""
    return [each for each in found if each.status is not None and each.role != MASTER and each.member in register.in_sync]


def _reached(register: RegisterStanding) -> str:
    ago = "never" if register.read_ms is None else f"{format_duration(register.read_ms)} ago"
    if register.unreachable:
        return f"not reached ({register.unreachable}), last read {ago}"
    return "reached" if _is_fresh(register) else f"last read {ago}"


def why_unserved(name: str, found: Sequence[LogCopy]) -> Finding | None:
    """Return why no copy of a broker serves, by what they say. None if one does, or follows one, and if none answers."""
    copies = [each for each in found if each.status is not None]
    if (master := _master(copies)) is not None:
        return _suspended(name, master)
    if not copies or any(each.status is not None and each.status.following for each in copies):
        return None
    furthest = max(copies, key=_progress).address
    register = latest(copies)
    if register is None:
        problem = f"has no master that answers; {' and '.join(each.address for each in copies)} has a copy of its log"
        return Finding("master", name, problem, f"start the master, or, if it is lost for good, `lockstep replica promote {furthest}`")
    unclean = f"`lockstep ha failover {name} --to {furthest} --unclean`"
    if not _is_fresh(register):
        problem = f"register {register.address} is {_reached(register)}; without it nobody can be elected"
        step = "start the register, or mend the connection to it"
    elif (problem := _lost(name, register, copies)) != "":
        step = f"start all copies, then go on with the one that has most: {unclean} says what would be lost"
    elif able := _able(register, copies):
        problem = "; ".join(f"{each.address} is in its set{each.trouble and f', but {each.trouble}'}" for each in able)
        step = "wait: it is elected within seconds. If not, its log says why (the events `office.…` and `replica.…`)"
    elif {*register.in_sync} <= {member for each in copies if each.status is not None for member in each.status.was}:
        problem = "all copies of its set may lack what they had acknowledged, because their machines crashed"
        step = f"start all other copies: then the one that has most is elected. If one is lost for good: {unclean} says what would be lost"
    else:
        members = " and ".join(register.replicas[member] for member in register.in_sync)
        problem = f"only {members} has all that was acknowledged, and does not answer as the copy that it was"
        step = f"start it. If it is lost for good: {unclean} says what would be lost"
    return Finding("master", name, f"has no master: {problem}", step)


def _suspended(name: str, master: LogCopy) -> Finding | None:
    """Return why a master can't prove that it is one, None if it can: it reaches its register, or all of its set."""
    status = master.status
    if status is None or status.register is None or _is_fresh(status.register):
        return None
    silent = [each.address for each in status.replicas if each.in_set and (not each.connected or each.silent_ms >= SILENT_MS)]
    if not silent:
        return None
    problem = (
        f"has a master at {master.address} that reaches neither its register {status.register.address} nor {' and '.join(silent)} of its "
        "set: it answers nothing, and refuses sends, because another copy may have been elected"
    )
    return Finding("master", name, problem, "start the register, or the copy, or mend the connection to one of them: then it goes on")


def _master(found: Sequence[LogCopy]) -> LogCopy | None:
    """Return the master of the highest term, None if none answers."""
    return max((each for each in found if each.role == MASTER), key=_progress, default=None)


def _progress(copy: LogCopy) -> tuple[int, int]:
    return (0, 0) if copy.status is None else (copy.status.term, copy.status.end)


def _lost(name: str, register: RegisterStanding, found: Sequence[LogCopy]) -> str:
    """Return whether the register has lost an entry, and which; empty if not."""
    seen = max(_progress(each)[0] for each in found)
    if not register.term:
        return f"register {register.address} has no entry of broker {name}: it was lost, or --ha names another register than before"
    return f"register {register.address} was set back to term {register.term}, there was a term {seen}" if register.term < seen else ""


def _entry(name: str, register: RegisterStanding, found: Sequence[LogCopy]) -> Finding | None:
    """Check the entry that the register has now. None if nothing is known of it, and if there is no master: `why_unserved` says it then."""
    master = _master(found)
    if master is None or not _is_fresh(register):
        return None
    problem, step = _lost(name, register, found), ""
    if problem:
        problem += ". Nobody can be elected, and no copy can join the set"
        step = f"let the master write it anew, nothing is lost: `lockstep ha failover {name} --to {master.address} --unclean --yes`"
    elif register.assumed_loss:
        problem = f"term {register.term} began with an assumed loss: acknowledged messages may be missing"
        step = f"compare with what producers know. The next term ends this finding: `lockstep ha failover {name} --yes`"
    return Finding("register entry", name, problem or None, step)


def check_register(name: str, found: Sequence[LogCopy]) -> Iterator[Finding]:
    """Check the register of a broker: by each copy, and what it says. A broker without one has no finding."""
    register = latest(found)
    if register is None:
        return
    places = {each.address: each.status.register for each in found if each.status is not None}
    yield _same(name, places)
    for address, standing in places.items():
        if standing is not None:
            fresh = _is_fresh(standing)
            problem = None if fresh else f"register {standing.address}: {_reached(standing)}. Nobody can be elected by it"
            step = "" if fresh else "start the register, or mend the connection to it. A master goes on as long as it reaches its set"
            yield Finding("register reached", f"{name} {address}", problem, step)
    entry = _entry(name, register, found)
    if entry is not None:
        yield entry
        if register.term:
            yield from _set(name, register, found)


def _same(name: str, places: dict[str, RegisterStanding | None]) -> Finding:
    """Check that all copies have the same register."""
    if len({None if each is None else _place(each.address) for each in places.values()}) == 1:
        return Finding("one register", name)
    told = "; ".join(f"{address}: {'none' if each is None else each.address}" for address, each in places.items())
    return Finding("one register", name, f"its copies have different registers: {told}", "start all copies with the same --ha")


def _place(url: str) -> tuple[str, tuple[str, ...], str]:
    parts = urlsplit(url)
    return parts.scheme, tuple(sorted(parts.netloc.rpartition("@")[2].split(","))), parts.path.strip("/")


def _set(name: str, register: RegisterStanding, found: Sequence[LogCopy]) -> Iterator[Finding]:
    """Check that whoever is in the set runs, and that a copy besides the master is in it."""
    check, running = "set of copies", {each.member for each in found if each.status is not None}
    absent = [register.replicas[member] for member in register.in_sync if member not in running]
    others = {*register.replicas.values()} - {register.replicas[register.master]}
    if absent:
        problem = f"{', '.join(absent)} is in the set, and no copy that answers is that member"
        yield Finding(check, name, problem, "start it. A master that reaches the register leaves it out within seconds")
    elif len(register.in_sync) == 1 and others:
        problem = f"the master is alone in the set: if it dies, nobody can be elected. Not in it: {', '.join(sorted(others))}"
        step = f"see why (`lockstep ha show {name}`); `lockstep replica forget` forgets a copy that will not come back"
        yield Finding(check, name, problem, step)
    else:
        yield Finding(check, name)


def ha_json(name: str, found: Sequence[LogCopy]) -> dict[str, Any]:
    """Return the state as `lockstep ha show --json` prints it."""
    register = latest(found)
    return {
        "broker": name,
        "register": None if register is None else asdict(register),
        "masters": [each.address for each in found if each.role == MASTER],
        "copies": [each.json for each in found],
    }
