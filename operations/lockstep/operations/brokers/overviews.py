"""Ask every broker for its figures (OVERVIEW)."""

from lockstep.operations.admin_client import AdminClient, gather_results
from lockstep.operations.brokers.delays import DelayReport, delay_report
from lockstep.operations.brokers.rates import Looks


async def read_overviews(admin: AdminClient) -> Looks:
    """Return the figures of every broker, or why it did not respond. Raise TransportError if no nameserver responds."""
    async with admin.keep_connections():
        results = await gather_results({broker.name: admin.overview(broker) for broker in await admin.brokers()})
    return {**results.values, **results.failed}


async def read_delays(admin: AdminClient) -> DelayReport:
    """Return the delayed messages of every broker. Raise TransportError if no nameserver responds."""
    return delay_report(await read_overviews(admin))
