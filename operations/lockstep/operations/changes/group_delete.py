"""Delete a group."""

from dataclasses import dataclass
from shlex import quote
from typing import Annotated

from lockstep.operations.admin_client import AdminClient, broker_reasons, by_name, gather_results
from lockstep.operations.changes.operation import Argument, ChangeOutcome, Operation, Plan
from lockstep.operations.errors import OperationError
from lockstep.operations.groups.group_query import read_group, unknown_group
from lockstep.operations.groups.parked import NOTHING_FORGOTTEN, count_forgotten
from lockstep.protocol.names import DLQ_PREFIX, RETRY_PREFIX, check_group

MEMBERS_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDelete(Operation):
    """Delete a group's progress, settings and parked keys at every broker. It must have no members. Its %RETRY% and %DLQ% topics stay."""

    words = ("group", "delete")
    path = "group-delete"

    group: Annotated[str, Argument(help="The group's name.", label="Group")]

    async def plan(self, admin: AdminClient) -> Plan:
        group, run_again = self.group, f"run `{self.command_line}` again"
        check_group(group)
        report, statuses = await read_group(admin, group)
        if report is None:
            raise unknown_group(group, statuses.failed)
        if members := sorted({member.client_id for member in report.members}):
            listed = ", ".join(members[:MEMBERS_SHOWN]) + (" …" if len(members) > MEMBERS_SHOWN else "")
            raise OperationError(f"nothing was deleted: group {group} has {len(members)} members: {listed}. Stop them, and {run_again}")
        forgotten = await count_forgotten(admin, group) if any(line.parked for line in report.queues) else NOTHING_FORGOTTEN
        brokers = by_name(await admin.brokers())

        async def carry_out() -> ChangeOutcome:
            results = await gather_results({name: admin.delete_group(broker, group) for name, broker in brokers.items()})
            failed = {**{name: why for name, why in statuses.failed.items() if name not in brokers}, **results.failed}
            kept = [topic for topic in (RETRY_PREFIX + group, DLQ_PREFIX + group) if await admin.find_layout(topic) is not None]
            lines = list(forgotten.sentences)
            if results.values:
                lines.append(f"group {group} is deleted at {', '.join(sorted(results.values))}: its progress and its settings")
                lines += [
                    f"topic {topic} and its messages are kept; run `lockstep topic delete {quote(topic)} --force` to delete them"
                    for topic in kept
                ]
            found = {"group": group, "brokers": sorted(results.values), "failed": failed, "topics_kept": kept, **forgotten.as_json()}
            text = f"group {group} is not deleted at all brokers: {broker_reasons(failed)}. When that is solved, {run_again}"
            return ChangeOutcome(lines, found, failed=text if failed else None)

        effect = [f"Group {group} is deleted at {', '.join(brokers)}: its progress and its settings."]
        effect += [f"{sentence}." for sentence in forgotten.sentences]
        return Plan(effect, carry_out, (tuple(brokers),))
