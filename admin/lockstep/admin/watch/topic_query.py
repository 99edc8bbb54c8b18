"""Read one topic: its layout, and how much each of its queues holds."""

from collections.abc import Mapping
from dataclasses import dataclass

from lockstep.admin.client import AdminClient, by_name, gather_results, without_address
from lockstep.protocol.bodies import OffsetRange
from lockstep.protocol.queue import TopicLayout


@dataclass(frozen=True, slots=True)
class TopicReport:
    """A topic at all its brokers."""

    layout: TopicLayout
    offsets: Mapping[str, tuple[OffsetRange, ...]]
    """Broker → the bounds of its queues."""
    failed: Mapping[str, str]
    """Broker → why it is not in `offsets`."""


async def read_topic(admin: AdminClient, topic: str) -> TopicReport:
    """Return the topic's report. Raise TopicNotExistError, or TransportError if no nameserver responds."""
    async with admin.keep_connections():
        route = await admin.route(topic)
        brokers = by_name(route.brokers)
        missing = without_address(route.layout.brokers, brokers)
        results = await gather_results({name: admin.offsets(broker, topic) for name, broker in brokers.items()})
    return TopicReport(route.layout, results.values, {**results.failed, **missing})
