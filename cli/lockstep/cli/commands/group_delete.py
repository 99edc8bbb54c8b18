"""lockstep group delete."""

from shlex import quote

from lockstep.cli.options import GroupArgument, JsonOption, NameserverOption, run
from lockstep.cli.render import print_json, print_line
from lockstep.cli.reporter import admin_client
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.operations.admin_client import AdminClient, broker_reasons, by_name, gather_results
from lockstep.operations.errors import OperationError
from lockstep.operations.groups.group_query import read_group, unknown_group
from lockstep.operations.groups.parked import NOTHING_FORGOTTEN, count_forgotten
from lockstep.protocol.errors import TopicNotExistError
from lockstep.protocol.names import DLQ_PREFIX, RETRY_PREFIX, check_group

MEMBERS_SHOWN = 8


def delete_command(group: GroupArgument, nameserver: NameserverOption = DEFAULT_NAMESERVER, as_json: JsonOption = False) -> None:
    """Delete a group's progress, settings and parked keys at every broker. It must have no members. Its %RETRY% and %DLQ% topics stay."""
    run(_delete(group, nameserver, as_json))


async def _delete(group: str, nameserver: str, as_json: bool) -> None:
    check_group(group)
    admin = admin_client(nameserver)
    report, statuses = await read_group(admin, group)
    run_again = f"run `lockstep group delete {quote(group)}` again"
    if report is None:
        raise unknown_group(group, statuses.failed)
    members = sorted({member.client_id for member in report.members})
    if members:
        listed = ", ".join(members[:MEMBERS_SHOWN]) + (" …" if len(members) > MEMBERS_SHOWN else "")
        raise OperationError(f"nothing was deleted: group {group} has {len(members)} members: {listed}. Stop them, and {run_again}")
    forgotten = await count_forgotten(admin, group) if any(line.parked for line in report.queues) else NOTHING_FORGOTTEN
    if not as_json:
        for sentence in forgotten.sentences:
            print_line(sentence)
    brokers = by_name(await admin.brokers())
    results = await gather_results({name: admin.delete_group(broker, group) for name, broker in brokers.items()})
    failed = {**{name: why for name, why in statuses.failed.items() if name not in brokers}, **results.failed}
    kept = await _existing_topics(admin, (RETRY_PREFIX + group, DLQ_PREFIX + group))
    if as_json:
        print_json({"group": group, "brokers": sorted(results.values), "failed": failed, "topics_kept": kept, **forgotten.as_json()})
    elif results.values:
        print_line(f"group {group} is deleted at {', '.join(sorted(results.values))}: its progress and its settings")
        for topic in kept:
            print_line(f"topic {topic} and its messages are kept; run `lockstep topic delete {quote(topic)} --force` to delete them")
    if failed:
        raise OperationError(f"group {group} is not deleted at all brokers: {broker_reasons(failed)}. When that is solved, {run_again}")


async def _existing_topics(admin: AdminClient, topics: tuple[str, ...]) -> list[str]:
    found = []
    for topic in topics:
        try:
            await admin.route(topic)
        except TopicNotExistError:
            continue
        found.append(topic)
    return found
