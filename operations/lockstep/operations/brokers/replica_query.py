"""Ask the copies of brokers' logs for their status."""

from collections.abc import Container, Iterable, Mapping

from lockstep.operations.admin_client import AdminClient, gather_results
from lockstep.operations.brokers.diagnosis import Finding
from lockstep.operations.brokers.ha_report import why_unserved
from lockstep.operations.brokers.replicas import LogCopy, addresses_of, copies, of_broker
from lockstep.operations.errors import OperationError
from lockstep.protocol.bodies import BrokerAddress, ReplicaStatus
from lockstep.protocol.errors import TransportError
from lockstep.runtime.configuration.config import did_you_mean
from lockstep.runtime.connections.address import parse_address


async def read_copies(admin: AdminClient, *, addresses: Mapping[str, str] | None = None) -> list[LogCopy]:
    """Return every copy of every broker's log: those that nameservers know, and what they name, and so on.

    `addresses`: address → broker, or "", of copies that are asked too. Raise TransportError if no nameserver responds and there are none.
    """
    async with admin.keep_connections():
        names = dict(addresses or {})
        try:
            names |= _addresses(await admin.brokers())
        except TransportError as error:
            if not addresses:
                raise
            admin.reporter.note(str(error))
        return await _ask(admin, names)


async def read_named(admin: AdminClient, broker: str | None, addresses: Iterable[str]) -> list[LogCopy]:
    """Return the copies of one broker's log, or of all, and those at `addresses` that do not say whose they are.

    Raise OperationError if no copy of the broker is known, and what `read_copies` and `parse_address` raise.
    """
    for each in addresses:
        parse_address(each)
    found = await read_copies(admin, addresses={each.strip(): "" for each in addresses})
    names = {each.broker for each in found}
    if broker is None:
        return found
    if broker not in names:
        raise OperationError(f"no copy of a broker {broker[:80]!r} is known{did_you_mean(broker[:80], names)}: name one by --address")
    return [each for each in found if each.broker in (broker, "")]


async def find_unserved(admin: AdminClient, brokers: Iterable[BrokerAddress], failed: Container[str]) -> dict[str, Finding]:
    """Return broker → why none of its copies serves, of those that `failed` to respond, and of which a copy says it."""
    absent = [each for each in brokers if each.name in failed and each.replicas]
    found = await _ask(admin, _addresses(absent))
    findings = {each.name: why_unserved(each.name, of_broker(found, each.name)) for each in absent}
    return {name: finding for name, finding in findings.items() if finding is not None}


def _addresses(brokers: Iterable[BrokerAddress]) -> dict[str, str]:
    """Return address → broker of all copies."""
    return {address: broker.name for broker in brokers for address in broker.addresses}


async def _ask(admin: AdminClient, names: dict[str, str]) -> list[LogCopy]:
    """Return the copies at these addresses, and those that they name. `names`: address → broker."""
    answers: dict[str, ReplicaStatus] = {}
    failed: dict[str, str] = {}
    async with admin.keep_connections():
        while rest := [address for address in names if address not in answers and address not in failed]:
            found = await gather_results({address: admin.copy_status(address) for address in rest})
            answers |= found.values
            failed |= found.failed
            for status in found.values.values():
                for address in addresses_of(status):
                    if not names.get(address):
                        names[address] = status.broker_name
    return copies(answers, failed, names)
