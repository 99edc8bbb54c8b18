"""Change the settings of a group at every broker."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lockstep.operations.admin_client import AdminClient, BrokerResults, by_name, gather_results
from lockstep.operations.errors import OperationError
from lockstep.operations.groups.group_query import read_group, unknown_group
from lockstep.protocol.bodies import BrokerAddress, GroupSettings, SubscriptionPolicy
from lockstep.protocol.names import check_group


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

    async def carry_out(self, admin: AdminClient) -> BrokerResults[GroupSettings]:
        """Change the settings at each broker. Return which have them, and why others have not."""
        results = await gather_results({name: admin.configure(broker, self.after) for name, broker in self.brokers.items()})
        return BrokerResults(results.values, {**self.missing, **results.failed})


async def plan_settings(
    admin: AdminClient, group: str, *, policy: SubscriptionPolicy | None, consume: bool | None, contract_version: int | None, new: bool
) -> SettingsChange:
    """Return what it would mean to change the given settings; None keeps what is set, except of `contract_version`.

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
