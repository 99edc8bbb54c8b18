"""lockstep group reset-offset: set the offsets from which a running or stopped group continues."""

from collections.abc import Sequence
from shlex import quote
from typing import Annotated

import typer

from lockstep.cli.options import GroupArgument, JsonOption, NameserverOption, run
from lockstep.cli.render import print_json, print_line, print_table
from lockstep.cli.reporter import admin_client
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.group_reset import carry_out, check_parked, plan_reset
from lockstep.operations.changes.reset_plan import Move, totals, undo_commands
from lockstep.operations.targets import parse_queue, parse_target
from lockstep.protocol.names import check_group
from lockstep.runtime.host import Host

UNDO_SHOWN = 32
"""Commands to undo a reset that are printed; --json has them all."""


def reset_command(
    group: GroupArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="beginning, end, an offset, a time (ISO 8601; UTC if without a zone), a time of day (15:00, UTC), or a duration ago: 90s, "
            "30m, 2h, 7d.",
        ),
    ],
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            "-t",
            help="Reset only this topic. By default all topics that the group subscribes to or has progress in, except its retry topic.",
        ),
    ] = None,
    queue: Annotated[
        list[str] | None, typer.Option("--queue", metavar="BROKER:NUMBER", help="Reset only this queue; may be repeated. By default all.")
    ] = None,
    drop_parked: Annotated[
        bool,
        typer.Option("--drop-parked", help="Forget the parked keys of the queues. Without it a reset is refused while there are some."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would change and change nothing.")] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Set the offsets from which a group continues. Running members are fenced and continue from there without a restart."""
    run(_reset(group, to, topic, tuple(queue or ()), drop_parked, dry_run, nameserver, as_json))


async def _reset(
    group: str, to: str, topic: str | None, only: Sequence[str], drop_parked: bool, dry_run: bool, nameserver: str, as_json: bool
) -> None:
    check_group(group)
    host = Host.current()
    target = parse_target(to, host.clock.wall_ms())
    selected = {parse_queue(text) for text in only}
    admin = admin_client(nameserver)
    async with admin.keep_connections():  # a target time asks for the offset of each queue
        plan = await plan_reset(admin, group, topic, selected, target)
        await apply_plan(admin, group, topic, plan, drop_parked=drop_parked, dry_run=dry_run, as_json=as_json)


async def apply_plan(
    admin: AdminClient, group: str, topic: str | None, plan: Sequence[Move], *, drop_parked: bool, dry_run: bool, as_json: bool
) -> None:
    """Move a group as planned, and print the plan. Raise OperationError if keys are parked, or a broker fails."""
    waiting = await check_parked(admin, group, topic, plan, drop_parked=drop_parked)
    parked = sum(move.parked for move in plan)
    if not dry_run:
        await carry_out(admin, group, plan, drop_parked=drop_parked)
    if as_json:
        rows = [
            {"queue": str(move.queue), "before": move.before, "after": move.after, "change": move.change, "parked": move.parked}
            | ({} if move.asked is None else {"asked": move.asked})
            for move in plan
        ]
        counted = {"parked_keys": parked, "waiting": waiting.count, "waiting_complete": waiting.complete}
        undo = [] if dry_run else undo_commands(group, plan)
        print_json({"group": group, "done": not dry_run, "queues": rows, **counted, "undo": undo})
        return
    columns = ["topic", "broker", ">queue", ">old offset", ">new offset", ">end offset", "messages"]
    print_table(columns, [_row(move) for move in plan])
    again, skipped = totals(plan)
    counts = f"messages to consume again: {again}, messages to skip: {skipped}"
    if drop_parked:
        counts += f", parked keys to forget: {parked}, with {waiting} waiting messages"
    print_line(f"group {group}: {counts}" + ("; nothing was changed (--dry-run)" if dry_run else ""))
    if not dry_run:
        _print_undo(group, plan)


def _print_undo(group: str, plan: Sequence[Move]) -> None:
    """Print the commands that set the queues back."""
    commands = undo_commands(group, plan)
    for command in commands[:UNDO_SHOWN]:
        print_line(f"undo: {command}")
    if len(commands) > UNDO_SHOWN:
        print_line(f"undo: {len(commands) - UNDO_SHOWN} more commands, by the old offsets above")
    if begun := sum(move.before is None for move in plan):
        print_line(f"queues in which the group had no progress: {begun}; only `lockstep group delete {quote(group)}` takes that back")


def _row(move: Move) -> tuple[object, ...]:
    change = f"{-move.change} again" if move.change < 0 else f"{move.change} skipped" if move.change else None
    return move.queue.topic, move.queue.broker_name, move.queue.queue_id, move.before, move.after, move.end, change
