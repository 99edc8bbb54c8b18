"""Configure a group at every broker, before its start or while it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from lockstep.operations.admin_client import AdminClient, BrokerResults, broker_reasons, by_name, gather_results
from lockstep.operations.changes.operation import Argument, ChangeOutcome, Operation, Option, Plan
from lockstep.operations.errors import OperationError
from lockstep.operations.groups.group_query import read_group, unknown_group
from lockstep.operations.groups.group_report import update_command
from lockstep.protocol.bodies import CONTRACT_VERSION_MAX, BrokerAddress, GroupSettings, SubscriptionPolicy
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.names import check_group

Policy = Annotated[
    SubscriptionPolicy | None,
    Option(
        flags=("--subscription-policy",),
        help="strict: reject a member whose subscriptions differ from the others'; classic, as in RocketMQ: apply the subscriptions of the "
        "member that registered last to all. Default for a new group: strict.",
        label="Subscription policy",
        hint="empty: as it is",
    ),
]
Consume = Annotated[
    bool | None,
    Option(
        flags=("--consume/--no-consume",),
        help="Deliver messages to the group's members, or don't. Default for a new group: --consume.",
        label="May consume",
        hint="empty: as it is",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCreate(Operation):
    """Configure a group before it starts. A group that was never configured has the default settings."""

    words = ("group", "create")
    path = "group-create"

    group: Annotated[str, Argument(help="The group's name.", label="Group")]
    consume: Consume = None
    subscription_policy: Policy = None

    async def plan(self, admin: AdminClient) -> Plan:
        change = await plan_settings(
            admin, self.group, policy=self.subscription_policy, consume=self.consume, contract_version=None, new=True
        )
        return change.plan(admin, new=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUpdate(Operation):
    """Change the given settings of a group, and keep the others. The change also applies to running members."""

    words = ("group", "update")
    path = "group-settings"
    title = "Change the settings of a group"
    confirmed = "group"

    group: Annotated[str, Argument(help="The group's name.", label="Group")]
    consume: Consume = None
    subscription_policy: Policy = None
    next_contract_version: Annotated[
        int | None,
        Option(
            flags=("--next-contract-version",),
            least=0,
            most=CONTRACT_VERSION_MAX,
            help="Let members with this contract_version join although a higher one is in force: to go back while members run. Each broker "
            "forgets it when the first such member has joined, or at the next update without this option.",
        ),
    ] = None

    async def plan(self, admin: AdminClient) -> Plan:
        if self.subscription_policy is None and self.consume is None and self.next_contract_version is None:
            raise ConfigError("nothing to change: use --subscription-policy, --consume, --no-consume or --next-contract-version")
        change = await plan_settings(
            admin,
            self.group,
            policy=self.subscription_policy,
            consume=self.consume,
            contract_version=self.next_contract_version,
            new=False,
        )
        return change.plan(admin, new=False)


def describe_settings(settings: GroupSettings) -> str:
    """Return the settings as words."""
    said = f"subscription policy {settings.subscription_policy.value}, {'may consume' if settings.consume_enable else 'may NOT consume'}"
    version = settings.next_contract_version
    return said if version is None else f"{said}, members with contract version {version} may join"


@dataclass(frozen=True, slots=True)
class SettingsChange:
    """A planned change of a group's settings."""

    before: GroupSettings | None
    """None if the group was never configured."""
    after: GroupSettings
    brokers: Mapping[str, BrokerAddress]
    missing: Mapping[str, str]
    """Broker → why it did not say what it knows of the group, if its address is not known."""

    def plan(self, admin: AdminClient, *, new: bool) -> Plan:
        group, after = self.after.group, self.after

        async def carry_out() -> ChangeOutcome:
            results = await self.carry_out(admin)
            lines = [f"group {group}: {describe_settings(after)}, at {', '.join(sorted(results.values))}"] if results.values else []
            version = after.next_contract_version
            found = {
                "group": group,
                "created": new,
                "subscription_policy": after.subscription_policy.value,
                "consume": after.consume_enable,
                **({} if version is None else {"next_contract_version": version}),
                "brokers": sorted(results.values),
                "failed": results.failed,
            }
            failed = None
            if results.failed:
                reasons = broker_reasons(results.failed)
                failed = f"some brokers don't have the change: {reasons}. When they are back, run `{update_command(after)}`"
            return ChangeOutcome(lines, found, failed=failed)

        before = "was never configured" if self.before is None else f"has {describe_settings(self.before)}"
        effect = f"Group {group} {before}, and then {describe_settings(after)}. The change applies to running members too."
        return Plan([effect], carry_out, (self.before,))

    async def carry_out(self, admin: AdminClient) -> BrokerResults[GroupSettings]:
        """Change the settings at each broker. Return which have them, and why others have not."""
        results = await gather_results({name: admin.configure(broker, self.after) for name, broker in self.brokers.items()})
        return BrokerResults(results.values, {**self.missing, **results.failed})


async def plan_settings(
    admin: AdminClient, group: str, *, policy: SubscriptionPolicy | None, consume: bool | None, contract_version: int | None, new: bool
) -> SettingsChange:
    """Return the effect of a change of the given settings; None keeps the present value, except of `contract_version`.

    Raise OperationError if the group is `new` and configured already, or not and no broker knows it, or if no broker is registered.
    """
    check_group(group)
    report, statuses = await read_group(admin, group)
    before = None if report is None else report.settings
    if new and before is not None:
        raise OperationError(f"group {group} is configured already ({describe_settings(before)}): use `lockstep group update`")
    if not new and report is None:
        raise unknown_group(group, statuses.failed, "use `lockstep group create`")
    after = before or GroupSettings(group)
    after = replace(
        after,
        subscription_policy=after.subscription_policy if policy is None else policy,
        consume_enable=after.consume_enable if consume is None else consume,
        next_contract_version=contract_version,
    )
    brokers = by_name(await admin.brokers())
    if not any(broker.registered for broker in brokers.values()):
        raise OperationError("no broker is registered at the nameserver: start one first")
    missing = {name: why for name, why in statuses.failed.items() if name not in brokers}
    return SettingsChange(before, after, brokers, missing)
