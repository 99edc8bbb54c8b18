"""lockstep group clone | export | import: give a group the progress of another one, or of a file."""

import sys
from collections.abc import Sequence
from shlex import quote
from typing import Annotated

import typer

from lockstep.cli.commands.group_reset import apply_plan
from lockstep.cli.options import GroupArgument, JsonOption, NameserverOption, print_error, run
from lockstep.cli.render import print_json
from lockstep.cli.reporter import admin_client
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.operations.admin_client import AdminClient, broker_reasons
from lockstep.operations.changes.group_reset import read_lines, read_queues, read_ranges
from lockstep.operations.changes.reset_plan import Move, plan_offsets
from lockstep.operations.errors import OperationError
from lockstep.operations.groups.group_progress import GroupProgress, from_json, progress_of, to_json
from lockstep.operations.groups.group_query import read_group, unknown_group
from lockstep.operations.groups.parked import list_parked
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.names import check_group, check_topic

KEYS_SHOWN = 8
"""Parked keys that a warning names."""
QUEUES_SHOWN = 3
"""Clipped queues that a warning names."""

DropParkedOption = Annotated[
    bool,
    typer.Option(
        "--drop-parked", help="Forget the parked keys of the group that is changed. Without it the change is refused if it has some."
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print what would change and change nothing.")]


def clone_command(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The group whose progress is copied.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The group that gets it. It need not exist.")],
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Copy only the progress in this topic. By default in all but the retry topic.")
    ] = None,
    drop_parked: DropParkedOption = False,
    dry_run: DryRunOption = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Set the offsets of one group to those of another one, as `group reset-offset` sets them.

    The target begins at the committed offsets of the source. Messages above them that the source has finished already come again.
    Messages of its parked keys that wait below them do not come to the target.
    """
    run(_clone(source, target, topic, drop_parked, dry_run, nameserver, as_json))


def export_command(group: GroupArgument, nameserver: NameserverOption = DEFAULT_NAMESERVER) -> None:
    """Print the committed offsets of a group as JSON, for `group import`: `lockstep group export billing > billing.json`.

    The retry topic of the group is left out. Fails without printing anything if a broker does not respond.
    """
    run(_export(group, nameserver))


def import_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The output of `group export`; - for standard input.")],
    drop_parked: DropParkedOption = False,
    dry_run: DryRunOption = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Set the offsets of a group to those of a file, as `group reset-offset` sets them. Queues that are not in the file stay unchanged."""
    run(_import(file, drop_parked, dry_run, nameserver, as_json))


async def _clone(source: str, target: str, topic: str | None, drop_parked: bool, dry_run: bool, nameserver: str, as_json: bool) -> None:
    check_group(source)
    check_group(target)
    if source == target:
        raise ConfigError(f"group {source} can't be cloned to itself: name another target")
    if topic is not None:
        check_topic(topic)
    admin = admin_client(nameserver)
    async with admin.keep_connections():
        progress = await _progress(admin, source, topic)
        await _set(admin, target, progress, drop_parked=drop_parked, dry_run=dry_run, as_json=as_json)
        await _warn_of_source(admin, progress, topic)


async def _export(group: str, nameserver: str) -> None:
    check_group(group)
    admin = admin_client(nameserver)
    async with admin.keep_connections():
        progress = await _progress(admin, group, None)
        print_json(to_json(progress, admin.host.clock.wall_ms()))
        await _warn_of_source(admin, progress, None)


async def _import(file: str, drop_parked: bool, dry_run: bool, nameserver: str, as_json: bool) -> None:
    progress = from_json(_read(file))
    admin = admin_client(nameserver)
    async with admin.keep_connections():
        await _set(admin, progress.group, progress, drop_parked=drop_parked, dry_run=dry_run, as_json=as_json)


def _read(file: str) -> str:
    try:
        if file == "-":
            return sys.stdin.read()
        with open(file, encoding="utf-8") as opened:
            return opened.read()
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not a file of `lockstep group export`: it is not UTF-8") from None
    except ValueError as error:
        raise ConfigError(f"{file!r} is no name of a file: {error}") from None


async def _progress(admin: AdminClient, group: str, topic: str | None) -> GroupProgress:
    """Return the progress of a group. Raise OperationError if any broker does not respond, or if there is none."""
    report, statuses = await read_group(admin, group)
    if statuses.failed:
        raise OperationError(f"the progress of group {group} is not known: {broker_reasons(statuses.failed)}. Try again later")
    if report is None:
        raise unknown_group(group, {})
    if report.broadcasting:
        raise OperationError(f"group {group} is broadcasting: each member keeps its progress in a file of its own, which no broker knows")
    progress = progress_of(group, report.queues, topic)
    if not progress.offsets:
        where = "" if topic is None else f" in {topic}"
        raise OperationError(f"group {group} has no progress{where}: it has committed nothing yet")
    return progress


async def _set(admin: AdminClient, group: str, progress: GroupProgress, *, drop_parked: bool, dry_run: bool, as_json: bool) -> None:
    """Set the offsets of a group to those of `progress`, and print the plan."""
    lines = await read_lines(admin, group)
    topics = list(dict.fromkeys(queue.topic for queue in progress.offsets))
    queues, brokers = await read_queues(admin, topics)
    if missing := progress.offsets.keys() - set(queues):
        raise OperationError(
            f"nothing was changed: {len(missing)} of the {len(progress.offsets)} queues do not exist here ({min(map(str, missing))}). "
            "`lockstep topic show TOPIC` lists the queues; an offset counts in its own queue only, so leave these out"
        )
    ranges = await read_ranges(admin, brokers, list(progress.offsets))
    plan = plan_offsets(progress.offsets, lines, ranges)
    await apply_plan(admin, group, topics[0] if len(topics) == 1 else None, plan, drop_parked=drop_parked, dry_run=dry_run, as_json=as_json)
    _warn_of_clipped([move for move in plan if move.asked is not None])


def _warn_of_clipped(clipped: Sequence[Move]) -> None:
    if clipped:
        named = ", ".join(f"{move.queue}: {move.asked} became {move.after}" for move in clipped[:QUEUES_SHOWN])
        more = f" and {len(clipped) - QUEUES_SHOWN} more" if len(clipped) > QUEUES_SHOWN else ""
        print_error(
            f"offsets that the queues do not hold became the nearest ones that they hold ({named}{more}): retention has removed the "
            "messages at lower offsets, and those below a higher offset are not stored here"
        )


async def _warn_of_source(admin: AdminClient, progress: GroupProgress, topic: str | None) -> None:
    """Say what the committed offsets of a group leave out."""
    if progress.finished_above:
        print_error(
            f"group {progress.group} has finished {progress.finished_above} messages above its committed offsets: a group that begins "
            "there gets them again"
        )
    if progress.parked:
        listed = await list_parked(admin, progress.group, topic)
        keys = [f"{each.row.key} ({each.row.topic} {each.broker.name}:{each.row.queue_id})" for each in listed.keys[:KEYS_SHOWN]]
        more = " …" if len(listed.keys) > KEYS_SHOWN or listed.cut else ""
        print_error(
            f"keys of group {progress.group} are parked: {', '.join(keys)}{more}. Their messages below the committed offsets do not come "
            f"to a group that begins there; `lockstep park ls {quote(progress.group)}` counts them"
        )
