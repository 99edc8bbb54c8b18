"""lockstep group create | update."""

from typing import Annotated

import typer

from lockstep.cli.options import GroupArgument, JsonOption, NameserverOption, run
from lockstep.cli.render import print_json, print_line
from lockstep.cli.reporter import admin_client
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.operations.admin_client import broker_reasons
from lockstep.operations.changes.group_settings import describe_settings, plan_settings
from lockstep.operations.errors import OperationError
from lockstep.operations.groups.group_report import update_command as command_of
from lockstep.protocol.bodies import CONTRACT_VERSION_MAX, SubscriptionPolicy
from lockstep.protocol.errors import ConfigError

PolicyOption = Annotated[
    SubscriptionPolicy | None,
    typer.Option(
        "--subscription-policy",
        help="strict: reject a member whose subscriptions differ from the others'; classic, as in RocketMQ: apply the subscriptions of the "
        "member that registered last to all. Default for a new group: strict.",
    ),
]
ConsumeOption = Annotated[
    bool | None,
    typer.Option("--consume/--no-consume", help="Deliver messages to the group's members, or don't. Default for a new group: --consume."),
]

VersionOption = Annotated[
    int | None,
    typer.Option(
        "--next-contract-version",
        min=0,
        max=CONTRACT_VERSION_MAX,
        help="Let members with this contract_version join although a higher one is in force: to go back while members run. Each broker "
        "forgets it when the first such member has joined, or at the next update without this option.",
    ),
]


def create_command(
    group: GroupArgument,
    subscription_policy: PolicyOption = None,
    consume: ConsumeOption = None,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Configure a group before it starts. A group that was never configured has the default settings."""
    run(_set(group, subscription_policy, consume, None, nameserver, as_json, new=True))


def update_command(
    group: GroupArgument,
    subscription_policy: PolicyOption = None,
    consume: ConsumeOption = None,
    next_contract_version: VersionOption = None,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Change the given settings of a group, and keep the others. The change also applies to running members."""
    run(_set(group, subscription_policy, consume, next_contract_version, nameserver, as_json, new=False))


async def _set(
    group: str,
    policy: SubscriptionPolicy | None,
    consume: bool | None,
    version: int | None,
    nameserver: str,
    as_json: bool,
    *,
    new: bool,
) -> None:
    if not new and policy is None and consume is None and version is None:
        raise ConfigError("nothing to change: use --subscription-policy, --consume, --no-consume or --next-contract-version")
    admin = admin_client(nameserver)
    planned = await plan_settings(admin, group, policy=policy, consume=consume, contract_version=version, new=new)
    after = planned.after
    results = await planned.carry_out(admin)
    if as_json:
        settings = {"subscription_policy": after.subscription_policy.value, "consume": after.consume_enable}
        version_allowed = {} if version is None else {"next_contract_version": version}
        print_json(
            {"group": group, "created": new, **settings, **version_allowed, "brokers": sorted(results.values), "failed": results.failed}
        )
    elif results.values:
        print_line(f"group {group}: {describe_settings(after)}, at {', '.join(sorted(results.values))}")
    if failed := results.failed:
        raise OperationError(f"some brokers don't have the change: {broker_reasons(failed)}. When they are back, run `{command_of(after)}`")
