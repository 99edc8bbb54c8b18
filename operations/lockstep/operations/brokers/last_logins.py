"""Ask all servers of a cluster when each user has logged in last."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lockstep.operations.admin_client import AdminClient, BrokerResults, gather_results
from lockstep.protocol.bodies import UserLogin


@dataclass(frozen=True, slots=True)
class LastLogin:
    """The last login of a user at any server that has responded."""

    server: str
    login: UserLogin
    connections: int
    """Open connections of the user to all of them."""


async def read_last_logins(admin: AdminClient) -> BrokerResults[LastLogin]:
    """Return user → its last login since the servers have started, and server → why it could not be asked.

    Raise TransportError if no nameserver responds.
    """
    async with admin.keep_connections():
        brokers = await admin.brokers()
        reports = await gather_results(
            {
                **{f"nameserver {address}": admin.nameserver_settings(address, logins=True) for address in admin.nameservers},
                **{f"broker {broker.name}": admin.settings(broker, logins=True) for broker in brokers},
            }
        )
    logins = {server: report.logins for server, report in reports.values.items() if report.logins is not None}
    older = {server: "it is older, and does not report logins" for server in reports.values if server not in logins}
    return BrokerResults(last_logins(logins), {**reports.failed, **older})


def last_logins(reports: Mapping[str, Sequence[UserLogin]]) -> dict[str, LastLogin]:
    """Return user → its last login at the servers that have reported these."""
    last: dict[str, LastLogin] = {}
    connections: dict[str, dict[str, int]] = {}
    for server, logins in reports.items():
        for each in logins:
            connections.setdefault(each.user, {})[server] = each.connections
            if each.user not in last or each.wall_ms > last[each.user].login.wall_ms:
                last[each.user] = LastLogin(server, each, 0)
    return {user: LastLogin(each.server, each.login, sum(connections[user].values())) for user, each in last.items()}
