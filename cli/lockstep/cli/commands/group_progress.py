"""lockstep group export | import: the progress of a group as a file. `group clone` is declared in operations/changes."""

import sys
from typing import Annotated

import typer

from lockstep.cli.change_command import DryRunOption, finish
from lockstep.cli.options import DEFAULT_CLUSTER, GroupArgument, JsonOption, NameserverOption, run
from lockstep.cli.render import print_json
from lockstep.cli.reporter import admin_client
from lockstep.operations.changes.group_clone import note_left_out, plan_progress, read_progress
from lockstep.operations.groups.group_progress import from_json, to_json
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.names import check_group
from lockstep.runtime.connections.cluster_address import ClusterAddress

DropParkedOption = Annotated[
    bool,
    typer.Option(
        "--drop-parked", help="Forget the parked keys of the group that is changed. Without it the change is refused if it has some."
    ),
]


def export_command(group: GroupArgument, nameserver: NameserverOption = DEFAULT_CLUSTER) -> None:
    """Print the committed offsets of a group as JSON, for `group import`: `lockstep group export billing > billing.json`.

    The retry topic of the group is left out. Fails without printing anything if a broker does not respond.
    """
    run(_export(group, nameserver))


def import_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The output of `group export`; - for standard input.")],
    drop_parked: DropParkedOption = False,
    dry_run: DryRunOption = False,
    nameserver: NameserverOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """Set the offsets of a group to those of a file, as `group reset-offset` sets them. Queues that are not in the file stay unchanged."""
    run(_import(file, drop_parked, dry_run, nameserver, as_json))


async def _export(group: str, nameserver: ClusterAddress) -> None:
    check_group(group)
    admin = admin_client(nameserver)
    async with admin.keep_connections():
        progress = await read_progress(admin, group, None)
        print_json(to_json(progress, admin.host.clock.wall_ms()))
        await note_left_out(admin, progress, None)


async def _import(file: str, drop_parked: bool, dry_run: bool, nameserver: ClusterAddress, as_json: bool) -> None:
    progress = from_json(_read(file))
    admin = admin_client(nameserver)
    async with admin.keep_connections():
        plan = await plan_progress(admin, progress.group, progress, drop_parked=drop_parked)
        await finish(plan, as_json=as_json, dry_run=dry_run)


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
