"""lockstep group list | show. Most changes are declared in operations/changes."""

from collections.abc import Mapping
from shlex import quote

import typer

from lockstep.cli.change_command import add_changes
from lockstep.cli.commands.group_history import history_command
from lockstep.cli.commands.group_progress import export_command, import_command
from lockstep.cli.options import DEFAULT_CLUSTER, GroupArgument, JsonOption, NameserverOption, run
from lockstep.cli.render import print_json, print_line, print_table
from lockstep.cli.reporter import admin_client
from lockstep.operations.changes.group_clone import GroupClone
from lockstep.operations.changes.group_delete import GroupDelete
from lockstep.operations.changes.group_forget import GroupForget
from lockstep.operations.changes.group_reset import GroupReset
from lockstep.operations.changes.group_settings import GroupCreate, GroupUpdate, describe_settings
from lockstep.operations.errors import raise_if_incomplete
from lockstep.operations.groups.group_list import groups_json
from lockstep.operations.groups.group_query import list_groups, read_group, unknown_group
from lockstep.operations.groups.group_report import GroupReport, forget_command, group_json
from lockstep.operations.text import format_duration
from lockstep.protocol.bodies import SubscriptionPolicy
from lockstep.runtime.connections.cluster_address import ClusterAddress

app = typer.Typer(no_args_is_help=True, help="List, show, configure, reset, clone and delete consumer groups.")
add_changes(app, (GroupReset, GroupClone, GroupCreate, GroupUpdate, GroupDelete, GroupForget))
app.command("history")(history_command)
app.command("export")(export_command)
app.command("import")(import_command)


@app.command("list")
def list_command(nameserver: NameserverOption = DEFAULT_CLUSTER, as_json: JsonOption = False) -> None:
    """List the groups that any broker knows, with their kind, members and lag."""
    run(_list(nameserver, as_json))


@app.command("show")
def show_command(group: GroupArgument, nameserver: NameserverOption = DEFAULT_CLUSTER, as_json: JsonOption = False) -> None:
    """Show each queue's owner and lag, and each member's subscription and the brokers that don't list it."""
    run(_show(group, nameserver, as_json))


async def _list(nameserver: ClusterAddress, as_json: bool) -> None:
    lines, failed = await list_groups(admin_client(nameserver))
    if as_json:
        print_json(groups_json(lines, failed))
    else:
        rows = [(line.group, line.kind, line.members, line.lag, ", ".join(line.brokers)) for line in lines]
        print_table(["group", "kind", ">members", ">lag", "brokers"], rows, empty="no groups")
    raise_if_incomplete(failed)


async def _show(group: str, nameserver: ClusterAddress, as_json: bool) -> None:
    admin = admin_client(nameserver)
    report, results = await read_group(admin, group)
    if report is None:
        raise unknown_group(group, results.failed)
    if as_json:
        print_json(group_json(report, results.failed))
    else:
        print_report(report)
    raise_if_incomplete(results.failed)


def print_report(report: GroupReport) -> None:
    """Print what `lockstep group show` prints."""
    kind = ("broadcasting, " if report.broadcasting else "") + ("ordered" if report.ordered else "concurrent")
    members = f"{kind}, members: {len(report.members)}" if report.members else "no members"
    unknown = f", without {', '.join(report.unreached)}, which could not be reached" if report.unreached else ""
    if report.broadcasting:
        print_line(
            f"group {report.group}: {members}; each consumes all queues and keeps its progress in a file, so no broker knows the lag"
        )
    else:
        print_line(f"group {report.group}: {members}, lag: {report.lag}{unknown}")
    if report.settings is not None:
        overruled = f"; subscriptions replaced: {report.overruled_count}" if report.overruled_count else ""
        print_line(f"settings: {describe_settings(report.settings)}{overruled}")
    columns = ["topic", "broker", ">queue", "owner", ">epoch", ">lease left", ">committed", ">max", ">lag", ">last commit", ">attempts"]
    any_parked = any(line.parked for line in report.queues)
    print_table(
        [*columns, ">parked"] if any_parked else columns,
        [
            (
                line.topic,
                line.broker,
                line.queue_id,
                line.owner if line.reached else "broker not reached",
                line.epoch,
                format_duration(line.classic_lease_left_ms),
                line.committed_offset,
                line.max_offset,
                line.lag,
                format_duration(line.committed_ago_ms),
                line.attempts,
                *([line.parked] if any_parked else []),
            )
            for line in report.queues
        ],
        empty="no queues",
    )
    if len(report.members_by_version) > 1:
        counts = ", ".join(f"{version} ({count} members)" for version, count in report.members_by_version.items())
        print_line(f"contract versions: {counts}; the newest is {report.contract_version}")
    for line in (line for line in report.queues if line.failing_ms is not None):
        why = line.error or "its consumer did not report why"
        where = f"{line.topic} {line.broker} queue {line.queue_id}: offset {line.committed_offset}"
        print_line(f"{where} has been failing for {format_duration(line.failing_ms)}, {line.attempts} times: {why}")
    for topic in report.left:
        print_line(
            f"no contract in force subscribes to {topic}: the group has left it, so what is stored there does not count as its lag; "
            f"`{forget_command(report.group, topic)}` ends its progress there"
        )
    for line in (line for line in report.queues if line.loss is not None):
        print_line(f"{line.topic} {line.broker} queue {line.queue_id}: {line.loss}")
    if any_parked:
        print_line(f"messages of the parked keys wait until they are replayed or dropped: `lockstep park ls {quote(report.group)}`")
    if report.members:
        _print_members(report)
    for conflict in report.conflicts:
        print_line(conflict)
    for difference in report.unequal_settings:
        print_line(f"{difference}: run `{report.update_command}` to make them equal")


def _print_members(report: GroupReport) -> None:
    print_table(
        ["member", "session", "address", "connected", ">last received", "subscription", "missing at"],
        [
            (
                line.client_id,
                line.session or "classic",
                line.address,
                line.connected,
                format_duration(line.heard_ago_ms),
                _expressions(line.subscription),
                ", ".join(line.missing_at) or None,
            )
            for line in report.members
        ],
    )
    classic = report.settings is not None and report.settings.subscription_policy is SubscriptionPolicy.CLASSIC
    if classic and report.subscription and any(line.subscription != report.subscription for line in report.members):
        in_force = _expressions(report.subscription)
        print_line(f"the member that registered last decides for all members: {in_force}. Their other subscriptions are ignored")


def _expressions(subscription: Mapping[str, str]) -> str:
    return ", ".join(f"{topic}: {expression}" for topic, expression in subscription.items())
