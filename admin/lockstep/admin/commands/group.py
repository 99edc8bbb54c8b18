"""lockstep group list | show: who consumes, how far, and what keeps it from going on."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated

import typer

from lockstep.admin.client import AdminClient, Answers, absent, by_name, gather
from lockstep.admin.group_report import GroupReport, report, topics_of
from lockstep.admin.options import DEFAULT_NAMESERVER, CommandFailed, JsonOption, NameserverOption, run
from lockstep.admin.render import ago, print_json, print_table
from lockstep.protocol.bodies import BrokerAddress, GroupStatus
from lockstep.protocol.errors import SubscriptionGroupNotExist, TopicNotExist
from lockstep.protocol.queue import MessageQueue
from lockstep.runtime.host import Host

app = typer.Typer(no_args_is_help=True, help="Consumer groups.")


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
    brokers = by_name(await admin.brokers())
    answers = await _statuses(admin, brokers.values(), group)
    if not answers.given:
        raise CommandFailed(answers.complaint() or f"no broker knows group {group!r}; `lockstep group list` names those that are known")
    queues: dict[MessageQueue, None] = {}
    for topic in topics_of(answers.given.values()):
        try:
            queues.update(dict.fromkeys((await admin.route(topic)).layout.read_queues))
        except TopicNotExist:
            continue
    answers = Answers(answers.given, {**answers.failed, **absent([queue.broker_name for queue in queues], brokers)})
    made = report(group, answers.given, queues, answers.failed)
    if as_json:
        print_json({**asdict(made), "lag": made.lag, "failed": dict(answers.failed)})
    else:
        _print(made)
    _raise_incomplete(answers.complaint())


async def _statuses(admin: AdminClient, brokers: Iterable[BrokerAddress], group: str) -> Answers[GroupStatus]:
    answers = await gather({broker.name: _status(admin, broker, group) for broker in brokers})
    return Answers({name: status for name, status in answers.given.items() if status is not None}, answers.failed)


async def _status(admin: AdminClient, broker: BrokerAddress, group: str) -> GroupStatus | None:
    """The group at one broker; None where it is not known there."""
    try:
        return (await admin.group_status(broker, group)).status
    except SubscriptionGroupNotExist:
        return None


def _print(made: GroupReport) -> None:
    who = f"{'ordered' if made.ordered else 'concurrent'}, members: {len(made.members)}" if made.members else "no members"
    unknown = f" and what {', '.join(made.unreached)} has" if made.unreached else ""
    print(f"group {made.group}: {who}, lag: {made.lag}{unknown}")
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
    if made.members:
        _print_members(made)
    for conflict in made.conflicts:
        print(conflict)


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
                ", ".join(f"{topic}: {expression}" for topic, expression in line.subscription.items()),
                ", ".join(line.missing_at) or None,
            )
            for line in made.members
        ],
    )


def _raise_incomplete(complaint: str | None) -> None:
    if complaint is not None:
        raise CommandFailed(complaint)
