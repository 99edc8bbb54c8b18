"""Ask every broker for its figures (OVERVIEW)."""

from lockstep.operations.admin_client import AdminClient, gather_results
from lockstep.operations.brokers.delays import DelayReport, delay_report
from lockstep.operations.brokers.rates import Looks
from lockstep.operations.brokers.replica_query import find_unserved


async def read_overviews(admin: AdminClient) -> Looks:
    """Return the figures of every broker, or why it did not respond. Raise TransportError if no nameserver responds."""
    async with admin.keep_connections():
        brokers = await admin.brokers()
        results = await gather_results({broker.name: admin.overview(broker) for broker in brokers})
        unserved = await find_unserved(admin, brokers, results.failed)
    return {**results.values, **results.failed, **{name: finding.problem or "" for name, finding in unserved.items()}}


async def read_delays(admin: AdminClient) -> DelayReport:
    """Return the delayed messages of every broker. Raise TransportError if no nameserver responds."""
    return delay_report(await read_overviews(admin))
