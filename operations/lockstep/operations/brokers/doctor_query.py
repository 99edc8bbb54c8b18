"""Ask nameservers and brokers what `lockstep doctor` examines."""

from collections import Counter
from collections.abc import Mapping, Sequence

from lockstep.operations.admin_client import AdminClient, gather_results
from lockstep.operations.brokers import diagnosis, security_checks
from lockstep.operations.brokers.diagnosis import Finding
from lockstep.operations.brokers.ha_report import check_register, why_unserved
from lockstep.operations.brokers.replica_query import read_copies
from lockstep.operations.brokers.replicas import LogCopy, check_replicas, of_broker
from lockstep.operations.brokers.security_checks import SecuredServer
from lockstep.operations.groups.group_query import read_groups
from lockstep.operations.messages.halves import list_halves
from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.headers.transactions import ListHalvesHeader
from lockstep.protocol.topics.queue import TopicLayout
from lockstep.runtime.connections.dial import peer_certificate
from lockstep.runtime.security.tls import ClientTls
from lockstep.runtime.security.users import Users


async def examine(admin: AdminClient, users: tuple[str, Users] | None = None) -> list[Finding]:
    """Run every check, in the order in which they depend on each other. `users`: a file and its content, to be checked too."""
    known = await gather_results({address: admin.brokers_at(address) for address in admin.nameservers})
    findings = [
        diagnosis.check_nameserver(address, known.values.get(address), known.failed.get(address, "")) for address in admin.nameservers
    ]
    findings += diagnosis.check_agreement(known.values)
    brokers: dict[str, BrokerAddress] = {}
    for reported in known.values.values():
        for broker in reported:
            if broker.name not in brokers or (broker.registered, broker.term) > (
                brokers[broker.name].registered,
                brokers[broker.name].term,
            ):
                brokers[broker.name] = broker
    layouts = await _layouts(admin)
    named = Counter(name for layout in layouts.values() for name in layout.brokers)
    copies = await read_copies(admin) if brokers else []
    for name in sorted(brokers):
        findings += await _check_broker(admin, brokers[name], named.get(name, 0), of_broker(copies, name))
    findings += [diagnosis.check_unknown_broker(name, count) for name, count in sorted(named.items()) if brokers and name not in brokers]
    if any(broker.registered for broker in brokers.values()):
        findings += await _check_groups(admin, [broker for broker in brokers.values() if broker.registered], layouts)
        expired = await list_halves(admin, ListHalvesHeader(expired=True))
        findings += diagnosis.check_transactions(each.row for each in expired.found)
    return findings + await _check_security(admin, [each for each in brokers.values() if each.registered], users)


async def _check_security(admin: AdminClient, brokers: Sequence[BrokerAddress], users: tuple[str, Users] | None) -> list[Finding]:
    """Check what servers require of those who connect. A server that does not respond, or may not be asked, is left out: other checks say
    why."""
    places = {f"{broker.name} {broker.address}": broker for broker in brokers}
    reports = await gather_results(
        {
            **{f"nameserver {address}": admin.nameserver_settings(address, logins=True) for address in admin.nameservers},
            **{where: admin.settings(broker, logins=True) for where, broker in places.items()},
        }
    )
    servers = [SecuredServer.of(where, report) for where, report in reports.values.items()]
    findings = security_checks.check_servers(servers)
    if admin.tls is not None:
        findings += await _check_certificates(admin, admin.tls, places)
    return findings + ([] if users is None else security_checks.check_users(*users, servers))


async def _check_certificates(admin: AdminClient, tls: ClientTls, brokers: Mapping[str, BrokerAddress]) -> list[Finding]:
    """Check the certificate of each server that shows one, against all addresses that it advertises."""
    addresses = {f"nameserver {address}": address for address in admin.nameservers}
    addresses |= {where: broker.address for where, broker in brokers.items()}
    seen = await gather_results({where: peer_certificate(admin.host, address, tls) for where, address in addresses.items()})
    known = await gather_results({where: admin.broker_status(broker) for where, broker in brokers.items() if where in seen.values})
    found: list[Finding] = []
    for where, certificate in seen.values.items():
        status = known.values.get(where)
        clients_have = [addresses[where]] if status is None else status.listeners.values()
        names = () if tls.settings.server_name is not None else clients_have  # else clients expect another name
        found += security_checks.check_certificate(where, certificate, names, admin.host.clock.wall_ms())
    return found


async def _layouts(admin: AdminClient) -> dict[str, TopicLayout]:
    """Return the layout of each topic; nothing if no nameserver responds, which is a finding of its own."""
    try:
        return await admin.layouts()
    except LockstepError:
        return {}


async def _check_broker(admin: AdminClient, broker: BrokerAddress, topic_count: int, copies: Sequence[LogCopy]) -> list[Finding]:
    register = [*check_register(broker.name, copies)]
    if (absent := why_unserved(broker.name, copies)) is not None:
        return [absent, *register]
    clock = admin.host.clock
    began_ms = clock.monotonic_ms()
    results = await gather_results({broker.name: admin.broker_status(broker)} if broker.registered else {})
    took_ms = clock.monotonic_ms() - began_ms
    status, reason = results.values.get(broker.name), results.failed.get(broker.name, "")
    found = diagnosis.check_broker(broker, status, reason, clock.wall_ms(), took_ms, topic_count)
    masters = [each.master for each in copies if each.master is not None]
    return found + [each for master in masters[:1] for each in check_replicas(f"{broker.name} {broker.address}", master)] + register


async def _check_groups(admin: AdminClient, brokers: list[BrokerAddress], layouts: Mapping[str, TopicLayout]) -> list[Finding]:
    results = await gather_results({broker.name: admin.group_status(broker, None, summaries=True) for broker in brokers})
    groups = diagnosis.groups_to_check(results.values)
    reports = await read_groups(admin, groups, layouts)
    return [finding for group in groups if (report := reports[group][0]) is not None for finding in diagnosis.check_group(report)]
