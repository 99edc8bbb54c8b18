"""lockstep group forget: end a group's progress in a topic that it has left."""

from typing import Annotated

import typer

from lockstep.cli.options import GroupArgument, JsonOption, NameserverOption, run
from lockstep.cli.render import print_json, print_line, print_table
from lockstep.cli.reporter import admin_client
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.operations.changes.group_forget import carry_out, plan_forget


def forget_command(
    group: GroupArgument,
    topic: Annotated[str, typer.Option("--topic", "-t", help="The topic in which the group's progress ends.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would change and change nothing.")] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """End a group's progress in one topic, which its members do not consume (any more). If it comes back, it begins by its start policy.

    The topic and its messages, and the group's other topics, stay as they are. It can't be undone: note the offsets that are printed."""
    run(_forget(group, topic, dry_run, nameserver, as_json))


async def _forget(group: str, topic: str, dry_run: bool, nameserver: str, as_json: bool) -> None:
    admin = admin_client(nameserver)
    async with admin.keep_connections():
        plan = await plan_forget(admin, group, topic)
        if not dry_run:
            await carry_out(admin, group, topic, plan)
    if as_json:
        rows = [{"queue": str(line.queue), "offset": line.committed_offset, "end": line.max_offset} for line in plan]
        print_json({"group": group, "topic": topic, "done": not dry_run, "queues": rows})
        return
    columns = ["topic", "broker", ">queue", ">offset", ">end offset"]
    print_table(columns, [(line.topic, line.broker, line.queue_id, line.committed_offset, line.max_offset) for line in plan])
    ended = f"the progress of group {group} in {topic}"
    print_line(f"{ended} would end; nothing was changed (--dry-run)" if dry_run else f"{ended} has ended")
