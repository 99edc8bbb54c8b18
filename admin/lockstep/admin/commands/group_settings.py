"""lockstep group create | update; delete is in group_delete.py."""

from dataclasses import replace
from typing import Annotated

import typer

from lockstep.admin.client import AdminClient, by_name, gather
from lockstep.admin.group_query import read_group
from lockstep.admin.group_report import update_command as command_of
from lockstep.admin.options import CommandError, JsonOption, NameserverOption, run
from lockstep.admin.render import print_json, say
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.protocol.bodies import GroupSettings, SubscriptionPolicy
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.names import check_group
from lockstep.runtime.host import Host

GroupArgument = Annotated[str, typer.Argument(help="The group's name.")]
PolicyOption = Annotated[
    SubscriptionPolicy | None,
    typer.Option(
        "--subscription-policy",
        help="strict (the default): a member with other subscriptions is refused; classic, as RocketMQ: who came last decides for all.",
    ),
]
ConsumeOption = Annotated[
    bool | None, typer.Option("--consume/--no-consume", help="Whether its members are given messages (the default: yes).")
]


def create_command(
    group: GroupArgument,
    subscription_policy: PolicyOption = None,
    consume: ConsumeOption = None,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Set a group up before it starts. Groups need no creating: one that nobody has set up has the defaults."""
    run(_set(group, subscription_policy, consume, nameserver, as_json, new=True))


def update_command(
    group: GroupArgument,
    subscription_policy: PolicyOption = None,
    consume: ConsumeOption = None,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Change what is said here of a group, for running members too; the rest stays."""
    run(_set(group, subscription_policy, consume, nameserver, as_json, new=False))


async def _set(group: str, policy: SubscriptionPolicy | None, consume: bool | None, nameserver: str, as_json: bool, *, new: bool) -> None:
    check_group(group)
    if not new and policy is None and consume is None:
        raise ConfigError("nothing to change: say --subscription-policy or --consume")
    admin = AdminClient(Host.current(), nameserver)
    report, told = await read_group(admin, group)
    before = None if report is None else report.settings
    if new and before is not None:
        raise CommandError(f"group {group} is set up already ({words(before)}): use `lockstep group update`")
    if not new and report is None:
        raise CommandError(told.complaint() or f"no broker knows group {group}: use `lockstep group create`")
    after = before or GroupSettings(group)
    after = replace(
        after,
        subscription_policy=after.subscription_policy if policy is None else policy,
        consume_enable=after.consume_enable if consume is None else consume,
    )
    brokers = by_name(await admin.brokers())
    if not any(broker.registered for broker in brokers.values()):
        raise CommandError("no broker is registered at the nameserver: start one first")
    answers = await gather({name: admin.configure(broker, after) for name, broker in brokers.items()})
    failed = {**{name: why for name, why in told.failed.items() if name not in brokers}, **answers.failed}
    if as_json:
        settings = {"subscription_policy": after.subscription_policy.value, "consume": after.consume_enable}
        print_json({"group": group, "created": new, **settings, "brokers": sorted(answers.given), "failed": failed})
    elif answers.given:
        say(f"group {group}: {words(after)}, at {', '.join(sorted(answers.given))}")
    if failed:
        raise CommandError(
            f"the change is not everywhere: {'; '.join(f'broker {name}: {why}' for name, why in failed.items())}. "
            f"When it is back: `{command_of(after)}`"
        )


def words(settings: GroupSettings) -> str:
    """The settings in a few words."""
    return f"subscription policy {settings.subscription_policy.value}, {'may consume' if settings.consume_enable else 'may NOT consume'}"
