"""What the groups of a topic have not consumed yet."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from lockstep.admin.client import AdminClient, by_name, gather_results, without_address
from lockstep.admin.group_query import read_groups
from lockstep.admin.group_report import GroupReport, QueueLine
from lockstep.protocol.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class TopicLag:
    """The messages that groups have not consumed, in some queues of one topic."""

    lags: Mapping[str, int]
    """Group → messages; only groups that lag."""
    broadcasting: tuple[str, ...] = ()
    """Groups whose members keep their progress themselves."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Brokers of the queues that did not respond, and why: even groups that only they know may lag."""

    @property
    def total(self) -> int:
        return sum(self.lags.values())

    def __str__(self) -> str:
        lagging = [f"{group}: {lag}" for group, lag in self.lags.items()]
        return ", ".join([*lagging, *(f"{group}: unknown, because it is broadcasting" for group in self.broadcasting)])


async def read_lag(
    admin: AdminClient, ordered: Collection[MessageQueue], every: Collection[MessageQueue], lost: Collection[str] = ()
) -> TopicLag:
    """Return what ordered groups have not consumed of the queues `ordered`, and what any group has not consumed of the queues `every`.

    All are queues of one topic. The brokers `lost` are not asked, and their queues do not count.
    """
    brokers = {name: broker for name, broker in by_name(await admin.brokers()).items() if name not in lost}
    owners = {queue.broker_name for queue in (*ordered, *every)} - set(lost)
    results = await gather_results({name: admin.group_status(broker, None) for name, broker in brokers.items()})
    unreached = {**results.failed, **without_address(sorted(owners), brokers)}
    groups = sorted({group for status in results.values.values() for group in status.groups})
    of_ordered, of_every = frozenset(ordered), frozenset(every)
    lags: dict[str, int] = {}
    broadcasting: list[str] = []
    for group, (report, statuses) in (await read_groups(admin, groups)).items():
        unreached |= {name: why for name, why in statuses.failed.items() if name not in lost}
        if report is None:
            continue
        queues = of_every if report.ordered is False else of_ordered | of_every
        lines = [line for line in report.queues if line.reached and MessageQueue(line.topic, line.broker, line.queue_id) in queues]
        if report.broadcasting and lines:
            broadcasting.append(group)
        elif lag := sum(_lag(line, report) for line in lines):
            lags[group] = lag
    return TopicLag(lags, tuple(broadcasting), {name: unreached[name] for name in sorted(owners) if name in unreached})


def _lag(line: QueueLine, report: GroupReport) -> int:
    """Return the lag of a group in a queue. A group with members that has no progress yet is about to begin there."""
    if line.lag is not None:
        return line.lag
    return 1 if report.members and line.topic in report.subscription and line.max_offset else 0
