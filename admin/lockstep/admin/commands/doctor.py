"""lockstep doctor: what is wrong with the cluster, as seen from this machine, and what to do about it."""

from dataclasses import asdict

import typer

from lockstep.admin import diagnosis
from lockstep.admin.client import AdminClient, gather
from lockstep.admin.diagnosis import Finding
from lockstep.admin.group_query import read_groups
from lockstep.admin.options import JsonOption, NameserverOption, run
from lockstep.admin.render import print_json, print_table, say
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.protocol.bodies import BrokerAddress
from lockstep.runtime.host import Host


def doctor_command(nameserver: NameserverOption = DEFAULT_NAMESERVER, as_json: JsonOption = False) -> None:
    """Look for what is wrong, as seen from here: nameservers, addresses, clocks, disks, names, members. Exit 1 if anything is."""
    run(_doctor(nameserver, as_json))


async def _doctor(nameserver: str, as_json: bool) -> None:
    findings = await examine(AdminClient(Host.current(), nameserver))
    problems = [finding for finding in findings if finding.problem is not None]
    if as_json:
        print_json({"healthy": not problems, "findings": [asdict(finding) for finding in findings]})
    else:
        print_table(["check", "where", "result", "what to do"], [_row(finding) for finding in findings])
        say(f"{len(findings)} checks, {len(problems)} problems")
    if problems:
        raise typer.Exit(1)


def _row(finding: Finding) -> tuple[object, ...]:
    return finding.check, finding.where, finding.problem or "ok", finding.step or None


async def examine(admin: AdminClient) -> list[Finding]:
    """Every check, in the order in which they depend on one another."""
    told = await gather({address: admin.brokers_at(address) for address in admin.nameservers})
    findings = [diagnosis.nameserver(address, told.given.get(address), told.failed.get(address, "")) for address in admin.nameservers]
    findings += diagnosis.disagreements(told.given)
    brokers: dict[str, BrokerAddress] = {}
    for answer in told.given.values():
        for broker in answer:
            if broker.name not in brokers or (broker.registered, broker.term) > (
                brokers[broker.name].registered,
                brokers[broker.name].term,
            ):
                brokers[broker.name] = broker
    for name in sorted(brokers):
        findings += await _broker(admin, brokers[name])
    if any(broker.registered for broker in brokers.values()):
        findings += await _groups(admin, [broker for broker in brokers.values() if broker.registered])
    return findings


async def _broker(admin: AdminClient, broker: BrokerAddress) -> list[Finding]:
    clock = admin.host.clock
    began_ms = clock.monotonic_ms()
    answers = await gather({broker.name: admin.broker_status(broker)} if broker.registered else {})
    took_ms = clock.monotonic_ms() - began_ms
    return diagnosis.broker(broker, answers.given.get(broker.name), answers.failed.get(broker.name, ""), clock.wall_ms(), took_ms)


async def _groups(admin: AdminClient, brokers: list[BrokerAddress]) -> list[Finding]:
    answers = await gather({broker.name: admin.group_status(broker, None) for broker in brokers})
    groups = sorted({group for answer in answers.given.values() for group in answer.groups})
    read = await read_groups(admin, groups)
    return [finding for group in groups if (report := read[group][0]) is not None for finding in diagnosis.group(report)]
