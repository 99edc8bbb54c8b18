"""Combine the brokers' reports about all groups into one line for each group. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lockstep.protocol.bodies import GroupStatusReply, GroupSummary


@dataclass(frozen=True, slots=True)
class GroupLine:
    group: str
    kind: str | None
    """"ordered", "concurrent", or one of them after "broadcasting, "; None if no broker has a contract, because there are no members."""
    members: int
    """The highest number of any broker: each broker of its topics knows a member."""
    lag: int | None
    """None for a broadcasting group."""
    brokers: tuple[str, ...]


def groups_json(lines: Sequence[GroupLine], failed: Mapping[str, str]) -> dict[str, Any]:
    """Return what `lockstep group list --json` prints. `failed`: broker name → why it did not respond."""
    return {"groups": [asdict(line) for line in lines], "failed": dict(failed)}


def group_lines(replies: Mapping[str, GroupStatusReply]) -> list[GroupLine]:
    """Return a line for each group, sorted by name. `replies`: broker name → its reply to a request for the summaries of all groups."""
    found: dict[str, dict[str, GroupSummary]] = {}
    for broker, reply in replies.items():
        for each in reply.summaries or ():
            found.setdefault(each.group, {})[broker] = each
    return [_line(group, found[group]) for group in sorted(found)]


def _line(group: str, at: Mapping[str, GroupSummary]) -> GroupLine:
    contract = next((each for each in at.values() if each.ordered is not None), None)
    broadcasting = contract is not None and bool(contract.broadcasting)
    kind = None if contract is None else ("broadcasting, " if broadcasting else "") + ("ordered" if contract.ordered else "concurrent")
    lag = None if broadcasting else sum(each.lag for each in at.values())
    return GroupLine(group, kind, max(each.members for each in at.values()), lag, tuple(at))
