"""lockstep group list | show; what changes a group is in group_settings.py, group_delete.py and reset.py."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated

import typer

from lockstep.admin.client import AdminClient, gather
from lockstep.admin.commands.group_delete import delete_command
from lockstep.admin.commands.group_settings import create_command, update_command, words
from lockstep.admin.commands.reset import reset_command
from lockstep.admin.group_query import read_group
from lockstep.admin.group_report import GroupReport
from lockstep.admin.options import CommandError, JsonOption, NameserverOption, run
from lockstep.admin.render import ago, print_json, print_table, say
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.protocol.bodies import SubscriptionPolicy
from lockstep.runtime.host import Host

app = typer.Typer(no_args_is_help=True, help="Consumer groups.")
app.command("reset-offset")(reset_command)
app.command("create")(create_command)
app.command("update")(update_command)
app.command("delete")(delete_command)


@app.command("list")
def list_command(nameserver: NameserverOption = DEFAULT_NAMESERVER, as_json: JsonOption = False) -> None:
    """Every group that some broker knows."""
    run(_list(nameserver, as_json))


@app.command("show")
def show_command(
    group: Annotated[str, typer.Argument(help="The group's name.")],
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Is it working? Per queue the owner and the lag, per member what it subscribes to and where it is missing."""
    run(_show(group, nameserver, as_json))


async def _list(nameserver: str, as_json: bool) -> None:
    admin = AdminClient(Host.current(), nameserver)
    answers = await gather({broker.name: admin.group_status(broker, None) for broker in await admin.brokers()})
    at: dict[str, list[str]] = {}
    for broker, answer in answers.given.items():
        for group in answer.groups:
            at.setdefault(group, []).append(broker)
    if as_json:
        print_json({"groups": [{"group": group, "brokers": at[group]} for group in sorted(at)], "failed": dict(answers.failed)})
    else:
        print_table(["group", "brokers"], [(group, ", ".join(at[group])) for group in sorted(at)], empty="no groups")
    _raise_incomplete(answers.complaint())


async def _show(group: str, nameserver: str, as_json: bool) -> None:
    admin = AdminClient(Host.current(), nameserver)
    made, answers = await read_group(admin, group)
    if made is None:
        raise CommandError(answers.complaint() or f"no broker knows group {group!r}; `lockstep group list` names those that are known")
    if as_json:
        settings = None
        if made.settings is not None:
            settings = {"subscription_policy": made.settings.subscription_policy.value, "consume": made.settings.consume_enable}
        print_json({**asdict(made), "settings": settings, "lag": made.lag, "failed": dict(answers.failed)})
    else:
        _print(made)
    _raise_incomplete(answers.complaint())


def _print(made: GroupReport) -> None:
    kind = ("broadcasting, " if made.broadcasting else "") + ("ordered" if made.ordered else "concurrent")
    who = f"{kind}, members: {len(made.members)}" if made.members else "no members"
    unknown = f" and what {', '.join(made.unreached)} has" if made.unreached else ""
    if made.broadcasting:
        say(f"group {made.group}: {who}; each consumes every queue, and its progress is in a file of its own: no broker knows it")
    else:
        say(f"group {made.group}: {who}, lag: {made.lag}{unknown}")
    if made.settings is not None:
        overruled = f"; subscriptions replaced: {made.overruled_count}" if made.overruled_count else ""
        say(f"settings: {words(made.settings)}{overruled}")
    print_table(
        ["topic", "broker", ">queue", "owner", ">epoch", ">lease left", ">committed", ">max", ">lag", ">last commit", ">attempts"],
        [
            (
                line.topic,
                line.broker,
                line.queue_id,
                line.owner if line.reached else "broker not reached",
                line.epoch,
                ago(line.classic_lease_left_ms),
                line.committed_offset,
                line.max_offset,
                line.lag,
                ago(line.committed_ago_ms),
                line.attempts,
            )
            for line in made.queues
        ],
        empty="no queues",
    )
    for line in (line for line in made.queues if line.failing_ms is not None):
        why = line.error or "its consumer did not say why"
        where = f"{line.topic} {line.broker} queue {line.queue_id}: offset {line.committed_offset}"
        say(f"{where} has been failing for {ago(line.failing_ms)}, {line.attempts} times: {why}")
    if made.members:
        _print_members(made)
    for conflict in made.conflicts:
        say(conflict)
    for unequal in made.unequal_settings:
        say(f"{unequal}: `{made.update_command}` makes them equal")


def _print_members(made: GroupReport) -> None:
    print_table(
        ["member", "session", "address", "connected", ">heard", "subscription", "missing at"],
        [
            (
                line.client_id,
                line.session or "classic",
                line.address,
                line.connected,
                ago(line.heard_ago_ms),
                _expressions(line.subscription),
                ", ".join(line.missing_at) or None,
            )
            for line in made.members
        ],
    )
    classic = made.settings is not None and made.settings.subscription_policy is SubscriptionPolicy.CLASSIC
    if classic and made.subscription and any(line.subscription != made.subscription for line in made.members):
        say(f"who came last decides for all members: {_expressions(made.subscription)}. What they subscribe to beside it, they lose")


def _expressions(subscription: Mapping[str, str]) -> str:
    return ", ".join(f"{topic}: {expression}" for topic, expression in subscription.items())


def _raise_incomplete(complaint: str | None) -> None:
    if complaint is not None:
        raise CommandError(complaint)
