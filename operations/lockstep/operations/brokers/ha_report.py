"""What a broker's register says, as its copies have read it, and what would happen if the master died now. Pure."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lockstep.operations.brokers.replicas import MASTER, LogCopy
from lockstep.operations.text import format_duration
from lockstep.protocol.bodies import RegisterStanding

OLD_MS = 5_000
"""A reading that is older is no news of the register."""


def latest(found: Sequence[LogCopy]) -> RegisterStanding | None:
    """Return what the register says, by the copy that has read it last. None if no copy that answers has one."""
    standings = [each.status.register for each in found if each.status is not None and each.status.register is not None]
    return min(standings, key=lambda each: (-each.term, each.read_ms is None, each.read_ms or 0), default=None)


def sentences(name: str, found: Sequence[LogCopy]) -> list[str]:
    """Return the state of a broker's register in sentences; `found`: its copies."""
    register = latest(found)
    if register is None:
        return [f"no copy of broker {name} that answers has a register"]
    lines = [f"register {register.address}: {_reached(register)}"]
    if not register.term:
        return [*lines, "it has no entry of the broker: nobody can be elected"]
    named = {member: register.replicas.get(member, member) for member in register.in_sync}
    lines.append(f"term {register.term} ({register.why}): the master is {named[register.master]}; in the set: {', '.join(named.values())}")
    if register.assumed_loss:
        lines.append("this term began with an assumed loss: acknowledged messages may be missing")
    return [*lines, if_it_died(register, found)]


def if_it_died(register: RegisterStanding, found: Sequence[LogCopy]) -> str:
    """Return what would happen if the master died now."""
    able = [
        each.address
        for each in found
        if each.member in register.in_sync and each.member != register.master and each.status is not None and each.status.following
    ]
    if able:
        return f"if the master died now, {' or '.join(able)} would be elected, and nothing would be lost"
    return "if the master died now, nobody could be elected before it is back: it is alone in the set"


def _reached(register: RegisterStanding) -> str:
    ago = "never" if register.read_ms is None else f"{format_duration(register.read_ms)} ago"
    if register.unreachable:
        return f"not reached ({register.unreachable}), last read {ago}"
    return "reached" if register.read_ms is not None and register.read_ms < OLD_MS else f"last read {ago}"


def ha_json(name: str, found: Sequence[LogCopy]) -> dict[str, Any]:
    """Return the state as `lockstep ha show --json` prints it."""
    register = latest(found)
    return {
        "broker": name,
        "register": None if register is None else asdict(register),
        "masters": [each.address for each in found if each.role == MASTER],
        "copies": [each.json for each in found],
    }
