"""Let parked keys be consumed again, or give them up (ordering.md 15)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from shlex import quote
from typing import Annotated, Any, Self

from lockstep.operations.admin_client import AdminClient, broker_reasons, failure_summary
from lockstep.operations.changes.operation import Argument, ChangeOutcome, Operation, Option, Plan, Table
from lockstep.operations.groups.group_query import read_group
from lockstep.operations.groups.parked import (
    ParkedReport,
    change_parked,
    check_group_known,
    check_names,
    list_parked,
    not_parked,
    replay_waits_for,
)
from lockstep.protocol.bodies import ParkAction, ParkControlBody, ParkState
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.names import dlq_topic
from lockstep.protocol.topics.queue import MessageQueue

GroupField = Annotated[str, Argument(help="The group that has parked the key.", label="Group")]
KeyField = Annotated[
    str | None,
    Argument(
        metavar="KEY",
        help="The sharding key, as `park ls` prints it.",
        label="Sharding key",
        hint="only this one; empty for all",
        verbatim=True,
    ),
]
Every = Annotated[bool, Option(flags=("--all",), help="All parked keys of the group instead of one.")]
Topic = Annotated[
    str | None,
    Option(
        flags=("--topic", "-t"),
        help="Only what is parked in this topic. By default in all topics.",
        label="Topic",
        hint="only this one; empty for all",
    ),
]
_DONE = {ParkAction.REPLAY: "replayed", ParkAction.DROP: "dropped"}
_STATES = {ParkAction.REPLAY: ParkState.REPLAYING, ParkAction.DROP: ParkState.DROPPING}


class DropTarget(Enum):
    """Where the messages of a dropped key go."""

    DLQ = "dlq"
    """The group's dead-letter topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkReplay(Operation):
    """Let parked keys be consumed again, from the message that failed, in order. Remove the cause of the failure first.

    The member that owns the queue does it, now or when there is one. A key whose message fails again is parked again.
    """

    words = ("park", "replay")
    path = "park-replay"
    title = "Replay parked keys"
    confirmed = "group"

    group: GroupField
    key: KeyField = None
    every: Every = False
    topic: Topic = None

    @classmethod
    def of_form(cls, **values: Any) -> Self:
        return cls(**values, every=values["key"] is None)

    async def plan(self, admin: AdminClient) -> Plan:
        return await _plan(admin, self, ParkAction.REPLAY, self.group, self.key, self.topic, every=self.every)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkDrop(Operation):
    """Give up the waiting messages of parked keys: they are copied to the group's dead-letter topic. The group goes on with later ones."""

    words = ("park", "drop")
    path = "park-drop"
    title = "Drop parked keys"
    confirmed = "group"

    group: GroupField
    key: KeyField = None
    every: Every = False
    to: Annotated[DropTarget, Option(flags=("--to",), help="Where the messages go: dlq, the group's dead-letter topic.")]
    topic: Topic = None

    @classmethod
    def of_form(cls, **values: Any) -> Self:
        return cls(**values, every=values["key"] is None, to=DropTarget.DLQ)

    async def plan(self, admin: AdminClient) -> Plan:
        return await _plan(admin, self, ParkAction.DROP, self.group, self.key, self.topic, every=self.every)


async def _plan(
    admin: AdminClient, operation: Operation, action: ParkAction, group: str, key: str | None, topic: str | None, *, every: bool
) -> Plan:
    if every == (key is not None):
        raise ConfigError("name a KEY, or use --all for every parked key of the group")
    check_names(group, topic, key)
    async with admin.keep_connections():
        listed = await list_parked(admin, group, topic, key)
        if not listed.keys and key is not None:
            raise await not_parked(admin, group, topic, key, failure_summary(listed.failed))
        if not listed.keys and not listed.failed:
            await check_group_known(admin, group, topic)
        report, _ = await read_group(admin, group)

    async def carry_out() -> ChangeOutcome:
        async with admin.keep_connections():
            changed = await change_parked(admin, listed, ParkControlBody(action, group, topic, key))
            report, _ = await read_group(admin, group)
        queues = [each.queue for each in changed.keys]
        waits_for = replay_waits_for(report, queues) if action is ParkAction.REPLAY and queues else []
        failed = {**listed.failed, **changed.failed}
        text = None
        if failed:
            text = f"some keys of group {group} may not be {_DONE[action]}: {broker_reasons(failed)}. When that is solved, run "
            text += f"`{operation.command_line}` again"
        lines = _lines(action, group, listed, changed, waits_for) if queues or not failed else []
        found = _json(action, group, listed, changed, waits_for, failed)
        return ChangeOutcome(lines, found, table=_table(Counter(queues)), failed=text)

    counts = Counter(each.queue for each in listed.keys)
    count = f"{len(listed.keys)}{' or more' if listed.cut else ''} keys"
    if action is ParkAction.REPLAY:
        effect = [f"{count} of group {group} are consumed again, from the message that failed, in order."]
        effect.append("A key that fails again is parked again.")
        effect += [f"It waits: {each}." for each in replay_waits_for(report, counts)] if counts else []
    else:
        effect = [f"The waiting messages of {count} of group {group} are given up: they are copied to {dlq_topic(group)}."]
    return Plan(
        effect,
        carry_out,
        tuple((each.place, each.row.state is ParkState.DROPPING) for each in listed.keys),
        _table(counts),
        nothing=None if listed.keys else f"no keys of group {group} are parked",
        incomplete=f"some brokers did not say what is parked: {broker_reasons(listed.failed)}" if listed.failed else None,
    )


def _table(keys: Mapping[MessageQueue, int]) -> Table | None:
    """Return the number of keys in each queue as a table; None without any."""
    rows = [(queue.topic, f"{queue.broker_name}:{queue.queue_id}", count) for queue, count in keys.items()]
    return Table(("topic", "queue", ">keys"), rows) if rows else None


def _json(
    action: ParkAction, group: str, listed: ParkedReport, changed: ParkedReport, waits_for: Sequence[str], failed: Mapping[str, str]
) -> dict[str, Any]:
    before = {each.place: each.row.state for each in listed.keys}
    keys = [
        {
            "key": each.row.key,
            "topic": each.row.topic,
            "broker": each.broker.name,
            "queue_id": each.row.queue_id,
            "state_before": before[each.place].value if each.place in before else None,
            "state": each.row.state.value,
        }
        for each in changed.keys
    ]
    return {"group": group, "action": action.value, "keys": keys, "cut": list(changed.cut), "waits_for": waits_for, "failed": failed}


def _lines(action: ParkAction, group: str, listed: ParkedReport, changed: ParkedReport, waits_for: Sequence[str]) -> list[str]:
    if not listed.keys:
        return [f"no keys of group {group} are parked"]
    already = sum(each.row.state is _STATES[action] for each in listed.keys)
    count = f"{len(changed.keys)}{'+' if changed.cut else ''}"
    where = "the owners of their queues do it" if action is ParkAction.REPLAY else f"their messages go to {dlq_topic(group)}"
    lines = [
        f"group {group}: keys to {action.value}: {count}, being {_DONE[action]} already: {already}; {where}, and "
        f"`lockstep park ls {quote(group)}` shows what is left"
    ]
    if left := _left_out(listed, changed):
        lines.append(f"keys that are being dropped, and are not replayed: {left}")
    return [*lines, *waits_for]


def _left_out(listed: ParkedReport, changed: ParkedReport) -> int:
    """Return the number of keys that the brokers which have responded did not change: a key that is being dropped is not replayed."""
    named = {each.place for each in changed.keys}
    complete = {each.broker.name for each in listed.keys} - set(changed.failed) - set(changed.cut)
    return sum(each.broker.name in complete and each.place not in named for each in listed.keys)
