"""The messages of a topic that its groups have not consumed yet."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from lockstep.operations.admin_client import AdminClient, by_name, gather_results, without_address
from lockstep.operations.groups.group_query import read_groups
from lockstep.operations.groups.group_report import GroupReport
from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.names import RETRY_PREFIX
from lockstep.protocol.topics.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class TopicLag:
    """The messages that groups have not consumed, in some queues of one topic."""

    lags: Mapping[str, int]
    """Group → messages; only groups that lag."""
    broadcasting: tuple[str, ...] = ()
    """Groups whose members keep their progress themselves."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Brokers of the queues that did not respond, and why: even groups that only they know may lag."""
    standing: Mapping[str, str] = field(default_factory=dict)
    """Groups that lag and can't catch up as they are → why, as a clause."""

    @property
    def total(self) -> int:
        return sum(self.lags.values())

    def __str__(self) -> str:
        whys = {group: f", and it {why}" for group, why in self.standing.items()}
        lagging = [f"{group}: {lag}{whys.get(group, '')}" for group, lag in self.lags.items()]
        return ", ".join([*lagging, *(f"{group}: unknown, because it is broadcasting" for group in self.broadcasting)])


async def read_lag(
    admin: AdminClient, ordered: Collection[MessageQueue], every: Collection[MessageQueue], lost: Collection[str] = ()
) -> TopicLag:
    """Return what ordered groups have not consumed of the queues `ordered`, and what any group has not consumed of the queues `every`.

    All are queues of one topic. A group that consumes the topic counts in each of them, also where it has no progress: while it is
    stopped it has none in queues that were added meanwhile, and will begin at their first message (ordering.md 7.2). A group that has left
    the topic does not count (ordering.md 11.6). The result may be too high, never too low: in a queue that was removed and added again, a
    group without progress skips the messages from before. The brokers `lost` are not asked, and their queues do not count.
    """
    queues = frozenset(queue for queue in (*ordered, *every) if queue.broker_name not in lost)
    brokers = {name: broker for name, broker in by_name(await admin.brokers()).items() if name not in lost}
    owners = {queue.broker_name for queue in queues}
    results = await gather_results({name: admin.group_status(broker, None) for name, broker in brokers.items()})
    unreached = {**results.failed, **without_address(sorted(owners), brokers)}
    groups = sorted({group for status in results.values.values() for group in status.groups})
    reports = await read_groups(admin, groups)
    ends = {queue: end for queue, end in (await _read_ends(admin, brokers, queues, unreached)).items() if queue in queues}
    lags: dict[str, int] = {}
    broadcasting: list[str] = []
    standing: dict[str, str] = {}
    for group, (report, statuses) in reports.items():
        unreached |= {name: why for name, why in statuses.failed.items() if name not in lost}
        consumed = None if report is None else _consumed(report, queues)
        if report is None or consumed is None:
            continue
        counted = frozenset(every) if report.ordered is False else queues
        if report.broadcasting and counted:
            broadcasting.append(group)
        elif lag := sum(max(0, end - max(first, consumed.get(queue, 0))) for queue, (first, end) in ends.items() if queue in counted):
            lags[group] = lag
            if (why := _standstill(report)) is not None:
                standing[group] = why
    return TopicLag(lags, tuple(broadcasting), {name: unreached[name] for name in sorted(owners) if name in unreached}, standing)


def _standstill(report: GroupReport) -> str | None:
    """Return why the group can't consume anything as it is, as a clause, or None if it may."""
    if not report.members:
        return "has no member"
    if report.settings is not None and not report.settings.consume_enable:
        return "may not consume"
    return None


async def _read_ends(
    admin: AdminClient, brokers: Mapping[str, BrokerAddress], queues: Collection[MessageQueue], unreached: dict[str, str]
) -> dict[MessageQueue, tuple[int, int]]:
    """Return the first and the next offset of each queue, and add the brokers that did not respond to `unreached`."""
    names = {queue.broker_name: queue.topic for queue in queues if queue.broker_name in brokers}
    results = await gather_results({name: admin.offsets(brokers[name], topic) for name, topic in names.items()})
    unreached |= results.failed
    return {
        MessageQueue(names[name], name, each.queue_id): (each.min_offset, each.max_offset)
        for name, ranges in results.values.items()
        for each in ranges
    }


def _consumed(report: GroupReport, queues: Collection[MessageQueue]) -> dict[MessageQueue, int] | None:
    """Return the group's committed offsets in queues of the topic, or None if it does not consume the topic."""
    topics = {queue.topic for queue in queues}
    lines = [line for line in report.queues if line.topic in topics and line.reached and not line.left]
    committed = {line.queue: line.committed_offset for line in lines if line.committed_offset is not None}
    consumes = bool(committed) or any(topic in report.consumed or topic == RETRY_PREFIX + report.group for topic in topics)
    return committed if consumes else None
