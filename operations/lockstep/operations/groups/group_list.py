"""Combine the brokers' reports about all groups into one line for each group. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lockstep.protocol.bodies import GroupStatusReply


@dataclass(frozen=True, slots=True)
class GroupLine:
    group: str
    kind: str | None
    """"ordered", "concurrent", or one of them after "broadcasting, "; None if no broker has a contract, because there are no members."""
    members: int | None
    """The highest number of any broker: each broker of its topics knows a member. None if no broker reports it (an earlier version)."""
    lag: int | None
    """None for a broadcasting group, or if a broker does not report it."""
    brokers: tuple[str, ...]


def groups_json(lines: Sequence[GroupLine], failed: Mapping[str, str]) -> dict[str, Any]:
    """Return what `lockstep group list --json` prints. `failed`: broker name → why it did not respond."""
    return {"groups": [asdict(line) for line in lines], "failed": dict(failed)}


def group_lines(replies: Mapping[str, GroupStatusReply]) -> list[GroupLine]:
    """Return a line for each group, sorted by name. `replies`: broker name → its reply to a request for the summaries of all groups."""
    brokers: dict[str, list[str]] = {}
    for broker, reply in replies.items():
        for group in reply.groups:
            brokers.setdefault(group, []).append(broker)
    summaries = {broker: {each.group: each for each in reply.summaries or ()} for broker, reply in replies.items()}
    lines = []
    for group in sorted(brokers):
        found = [summaries[broker][group] for broker in brokers[group] if group in summaries[broker]]
        contract = next((each for each in found if each.ordered is not None), None)
        complete = len(found) == len(brokers[group])
        broadcasting = contract is not None and bool(contract.broadcasting)
        lines.append(
            GroupLine(
                group,
                None
                if contract is None
                else ("broadcasting, " if broadcasting else "") + ("ordered" if contract.ordered else "concurrent"),
                max((each.members for each in found), default=None),
                sum(each.lag for each in found) if complete and not broadcasting else None,
                tuple(brokers[group]),
            )
        )
    return lines
