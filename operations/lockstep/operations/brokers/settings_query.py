"""Read the settings of all servers of a cluster, and compare those of the brokers."""

from collections.abc import Mapping
from dataclasses import dataclass

from lockstep.operations.admin_client import AdminClient, gather_results
from lockstep.protocol.bodies import BrokerSetting, BrokerSettings

OWN = frozenset(
    {"name", "listen", "advertise", "admin_listen", "admin_host", "store", "replica_of", "alone", "adopt", "adopt_without", "cut_corrupt"}
)
"""Settings of one broker's place and start. That they differ says nothing."""


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting at all servers."""

    name: str
    brokers: Mapping[str, BrokerSetting]
    """Broker → its setting. One that does not know the setting is left out."""
    nameservers: Mapping[str, BrokerSetting]
    """Address → its setting."""

    @property
    def differs(self) -> bool:
        """Return whether brokers that should have the same value have several. One that does not know the setting counts as none."""
        return self.name not in OWN and len({each.value for each in self.brokers.values()}) > 1


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The settings of the servers that have responded."""

    rows: tuple[SettingRow, ...]
    """Those of brokers first, in the order in which they are declared."""
    brokers: tuple[str, ...]
    nameservers: tuple[str, ...]
    failed: Mapping[str, str]
    """Broker or nameserver → why its settings are not known."""


async def read_settings(admin: AdminClient) -> ClusterSettings:
    """Return the settings of every broker that the nameservers know, and of the nameservers.

    Raise TransportError if no nameserver responds.
    """
    async with admin.keep_connections():
        addresses = await admin.brokers()
        brokers = await gather_results({broker.name: admin.settings(broker) for broker in addresses})
        nameservers = await gather_results({address: admin.nameserver_settings(address) for address in admin.nameservers})
    names = dict.fromkeys(each.name for report in (*brokers.values.values(), *nameservers.values.values()) for each in report.settings)
    here, there = _by_name(brokers.values), _by_name(nameservers.values)
    rows = tuple(SettingRow(name, here.get(name, {}), there.get(name, {})) for name in names)
    return ClusterSettings(rows, tuple(brokers.values), tuple(nameservers.values), {**brokers.failed, **nameservers.failed})


def _by_name(reports: Mapping[str, BrokerSettings]) -> dict[str, dict[str, BrokerSetting]]:
    """Return setting → server → its setting."""
    found: dict[str, dict[str, BrokerSetting]] = {}
    for server, report in reports.items():
        for each in report.settings:
            found.setdefault(each.name, {})[server] = each
    return found
