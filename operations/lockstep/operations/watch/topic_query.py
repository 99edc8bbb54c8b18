"""Read one topic: its layout, and how much each of its queues holds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.operations.admin_client import AdminClient, by_name, gather_results, without_address
from lockstep.protocol.bodies import OffsetRange
from lockstep.protocol.topics.queue import TopicLayout


@dataclass(frozen=True, slots=True)
class TopicReport:
    """A topic at all its brokers."""

    layout: TopicLayout
    offsets: Mapping[str, tuple[OffsetRange, ...]]
    """Broker → the bounds of its queues."""
    failed: Mapping[str, str]
    """Broker → why it is not in `offsets`."""
    registered: frozenset[str]
    """The brokers that are registered at the nameserver."""

    def lines(self) -> list[dict[str, Any]]:
        """Return a line for each readable queue. Offsets that are not known are None."""
        bounds = {(broker, each.queue_id): each for broker, queues in self.offsets.items() for each in queues}
        found = []
        for number, queue in enumerate(self.layout.read_queues):
            offsets = bounds.get((queue.broker_name, queue.queue_id))
            found.append(
                {
                    "number": number,
                    "broker": queue.broker_name,
                    "queue_id": queue.queue_id,
                    "min_offset": None if offsets is None else offsets.min_offset,
                    "max_offset": None if offsets is None else offsets.max_offset,
                    "registered": queue.broker_name in self.registered,
                }
            )
        return found


def topic_json(topic: str, report: TopicReport) -> dict[str, Any]:
    """Return what `lockstep topic show --json` prints."""
    version = {"counter": report.layout.version.counter, "writer": report.layout.version.writer}
    return {"topic": topic, "version": version, "queues": report.lines(), "failed": dict(report.failed)}


async def read_topic(admin: AdminClient, topic: str) -> TopicReport:
    """Return the topic's report. Raise TopicNotExistError, or TransportError if no nameserver responds."""
    async with admin.keep_connections():
        route = await admin.route(topic)
        brokers = by_name(route.brokers)
        missing = without_address(route.layout.brokers, brokers)
        results = await gather_results({name: admin.offsets(broker, topic) for name, broker in brokers.items()})
    registered = frozenset(name for name, broker in brokers.items() if broker.registered)
    return TopicReport(route.layout, results.values, {**results.failed, **missing}, registered)
