"""lockstep group delete."""

from shlex import quote

from lockstep.admin.client import AdminClient, by_name, gather
from lockstep.admin.commands.group_settings import GroupArgument
from lockstep.admin.group_query import read_group
from lockstep.admin.options import CommandError, JsonOption, NameserverOption, run
from lockstep.admin.render import print_json, say
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.protocol.errors import TopicNotExistError
from lockstep.protocol.names import DLQ_PREFIX, RETRY_PREFIX, check_group
from lockstep.runtime.host import Host

NAMED_MAX = 8
"""Members that a refusal names."""


def delete_command(group: GroupArgument, nameserver: NameserverOption = DEFAULT_NAMESERVER, as_json: JsonOption = False) -> None:
    """Remove a group's progress and settings at every broker. Refused while it has members. Its retry and dead letter topics stay."""
    run(_delete(group, nameserver, as_json))


async def _delete(group: str, nameserver: str, as_json: bool) -> None:
    check_group(group)
    admin = AdminClient(Host.current(), nameserver)
    report, told = await read_group(admin, group)
    again = f"run `lockstep group delete {quote(group)}` again"
    if report is None:
        raise CommandError(told.complaint() or f"no broker knows group {group}; `lockstep group list` names those that are known")
    members = sorted({member.client_id for member in report.members})
    if members:
        listed = ", ".join(members[:NAMED_MAX]) + (" …" if len(members) > NAMED_MAX else "")
        raise CommandError(f"nothing was deleted: group {group} has {len(members)} members: {listed}. Stop them, and {again}")
    brokers = by_name(await admin.brokers())
    answers = await gather({name: admin.delete_group(broker, group) for name, broker in brokers.items()})
    failed = {**{name: why for name, why in told.failed.items() if name not in brokers}, **answers.failed}
    kept = await _existing(admin, (RETRY_PREFIX + group, DLQ_PREFIX + group))
    if as_json:
        print_json({"group": group, "brokers": sorted(answers.given), "failed": failed, "topics_kept": kept})
    elif answers.given:
        say(f"group {group} is deleted at {', '.join(sorted(answers.given))}: its progress and its settings")
        for topic in kept:
            say(f"topic {topic} stays with its messages; delete them with `lockstep topic delete {quote(topic)} --force`")
    if failed:
        why = "; ".join(f"broker {name}: {why}" for name, why in failed.items())
        raise CommandError(f"group {group} is not deleted everywhere: {why}. When that is solved, {again}")


async def _existing(admin: AdminClient, topics: tuple[str, ...]) -> list[str]:
    found = []
    for topic in topics:
        try:
            await admin.route(topic)
        except TopicNotExistError:
            continue
        found.append(topic)
    return found
