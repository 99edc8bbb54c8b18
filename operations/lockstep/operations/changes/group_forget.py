"""End a group's progress in one topic (ordering.md 11.6)."""

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Annotated

from lockstep.operations.admin_client import AdminClient, broker_reasons, by_name, gather_results
from lockstep.operations.changes.operation import Argument, ChangeOutcome, Operation, Option, Plan, Table
from lockstep.operations.errors import OperationError
from lockstep.operations.groups.group_query import read_group, unknown_group
from lockstep.operations.groups.group_report import QueueLine, forget_command
from lockstep.protocol.names import check_group, check_topic

CLIENTS_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupForget(Operation):
    """End a group's progress in one topic, which its members do not consume (any more). If it comes back, it begins by its start policy.

    The topic and its messages, and the group's other topics, stay as they are. It can't be undone: note the offsets that are printed.
    """

    words = ("group", "forget")
    path = "group-forget"
    title = "End the progress of a group in a topic"
    confirmed = "group"

    group: Annotated[str, Argument(help="The group's name.", label="Group")]
    topic: Annotated[
        str,
        Option(
            flags=("--topic", "-t"),
            help="The topic in which the group's progress ends.",
            label="Topic",
            hint="which its members do not consume any more",
        ),
    ]

    async def plan(self, admin: AdminClient) -> Plan:
        async with admin.keep_connections():
            lines = await plan_forget(admin, self.group, self.topic)
        queues = [{"queue": str(line.queue), "offset": line.committed_offset, "end": line.max_offset} for line in lines]
        found = {"group": self.group, "topic": self.topic, "done": False, "queues": queues}

        async def carry_out_forget() -> ChangeOutcome:
            async with admin.keep_connections():
                await carry_out(admin, self.group, self.topic, lines)
            return ChangeOutcome([f"the progress of group {self.group} in {self.topic} has ended"], {**found, "done": True}, table=table)

        effect = (
            f"The progress of group {self.group} in {self.topic} ends, in {len(lines)} queues: it does not lag there any more.",
            "If it comes back to the topic, it begins by its start policy. This can't be undone: note the offsets.",
        )
        rows = [(line.topic, line.broker, line.queue_id, line.committed_offset, line.max_offset) for line in lines]
        table = Table(("topic", "broker", ">queue", ">offset", ">end offset"), rows)
        agreed = tuple((str(line.queue), line.committed_offset) for line in lines)
        return Plan(effect, carry_out_forget, agreed, table, json=found)


async def plan_forget(admin: AdminClient, group: str, topic: str) -> tuple[QueueLine, ...]:
    """Return the queues of the topic in which the group has progress.

    Raise OperationError if a member may consume the topic, a queue of it is held or has parked keys, or a broker does not respond: the
    progress is ended at all brokers or not at all.
    """
    check_group(group)
    check_topic(topic)
    report, statuses = await read_group(admin, group)
    if statuses.failed:
        raise OperationError(f"nothing was changed: some brokers did not respond: {broker_reasons(statuses.failed)}. Try again later")
    if report is None:
        raise unknown_group(group, {})
    lines = tuple(line for line in report.queues if line.topic == topic)
    begun = tuple(line for line in lines if line.committed_offset is not None)
    again = f"run `{forget_command(group, topic)}` again"
    if report.members and lines and topic not in report.left:
        names = {member.client_id: member.topics for member in report.members}
        clients = _listed([name for name, topics in names.items() if topic in topics] or list(names))
        raise OperationError(
            f"nothing was changed: members of group {group} may consume {topic}: {clients}. Let them stop, or subscribe to other "
            f"topics, and {again}"
        )
    if owners := sorted({line.owner for line in lines if line.owner is not None}):
        raise OperationError(
            f"nothing was changed: clients hold queues of {topic}, and finish their last calls: {_listed(owners)}. Wait, and {again}"
        )
    if parked := sum(line.parked or 0 for line in lines):
        raise OperationError(
            f"nothing was changed: {parked} keys of group {group} are parked in {topic}. Drop them "
            f"(`lockstep park drop {quote(group)} --topic {quote(topic)} --to dlq --all`), and {again}"
        )
    if not begun:
        raise OperationError(
            f"nothing was changed: group {group} has no progress in {topic}; `lockstep group show {quote(group)}` lists where it has some"
        )
    return begun


async def carry_out(admin: AdminClient, group: str, topic: str, plan: Sequence[QueueLine]) -> None:
    """End the progress at the brokers of the plan. Raise OperationError, which names them, if some have refused or not responded."""
    brokers = by_name(await admin.brokers())
    names = dict.fromkeys(line.broker for line in plan)
    results = await gather_results({name: admin.forget_progress(brokers[name], group, topic) for name in names if name in brokers})
    failed = {**{name: "its address is not known" for name in names if name not in brokers}, **results.failed}
    if failed:
        done = f"ended at {', '.join(sorted(results.values))}, but not" if results.values else "not ended"
        raise OperationError(
            f"the progress of group {group} in {topic} is {done} at all brokers: {broker_reasons(failed)}. When that is solved, run "
            f"`{forget_command(group, topic)}` again"
        )


def _listed(clients: Sequence[str]) -> str:
    return ", ".join(clients[:CLIENTS_SHOWN]) + (" …" if len(clients) > CLIENTS_SHOWN else "")
