"""Ask the copies of brokers' logs for their status."""

from collections.abc import Mapping

from lockstep.operations.admin_client import AdminClient, gather_results
from lockstep.operations.brokers.replicas import LogCopy, addresses_of, copies
from lockstep.protocol.bodies import ReplicaStatus
from lockstep.protocol.errors import TransportError


async def read_copies(admin: AdminClient, *, addresses: Mapping[str, str] | None = None) -> list[LogCopy]:
    """Return every copy of every broker's log: the brokers that nameservers know, and what they name, and so on.

    `addresses`: address → broker, or "", of copies that are asked too, which finds those of a master that is lost. Raise TransportError if
    no nameserver responds and there are none.
    """
    answers: dict[str, ReplicaStatus] = {}
    failed: dict[str, str] = {}
    async with admin.keep_connections():
        names = dict(addresses or {})
        try:
            names |= {broker.address: broker.name for broker in await admin.brokers()}
        except TransportError as error:
            if not addresses:
                raise
            admin.reporter.note(str(error))
        while rest := [address for address in names if address not in answers and address not in failed]:
            found = await gather_results({address: admin.copy_status(address) for address in rest})
            answers |= found.values
            failed |= found.failed
            for status in found.values.values():
                for address in addresses_of(status):
                    if not names.get(address):
                        names[address] = status.broker_name
    return copies(answers, failed, names)
