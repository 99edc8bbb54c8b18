"""Read the state of groups from every broker, with one request per group and broker and one per topic."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from lockstep.operations.admin_client import AdminClient, BrokerResults, by_name, failure_summary, gather_results, without_address
from lockstep.operations.errors import OperationError
from lockstep.operations.groups.group_list import GroupLine, group_lines
from lockstep.operations.groups.group_report import GroupReport, report, topics_of
from lockstep.protocol.bodies import BrokerAddress, GroupStatus
from lockstep.protocol.errors import SubscriptionGroupNotExistError
from lockstep.protocol.topics.queue import MessageQueue, TopicLayout

K = TypeVar("K")
V = TypeVar("V")

READS_MAX = 16
"""Groups, or topics, that are read concurrently."""


class UnknownGroupError(OperationError):
    """All brokers have responded, and none knows the group."""


def unknown_group(
    group: str, failed: Mapping[str, str], step: str = "run `lockstep group list` to list the known groups"
) -> OperationError:
    """Return the error for a group that no broker has reported. `step` says what to do.

    If brokers `failed` (name → why), the group may be known there: then the error is another one than UnknownGroupError.
    """
    summary = failure_summary(failed)
    return UnknownGroupError(f"no broker knows group {group}; {step}") if summary is None else OperationError(summary)


async def list_groups(admin: AdminClient) -> tuple[list[GroupLine], Mapping[str, str]]:
    """Return a line for each group that any broker knows, and broker → why it did not respond.

    Raise TransportError if no nameserver responds.
    """
    async with admin.keep_connections():
        results = await gather_results({broker.name: admin.group_status(broker, None, summaries=True) for broker in await admin.brokers()})
    return group_lines(results.values), results.failed


async def read_group(admin: AdminClient, group: str) -> tuple[GroupReport | None, BrokerResults[GroupStatus]]:
    """Return the group's report, or None if no broker knows the group, and the brokers' results.

    Raise TransportError if no nameserver responds.
    """
    return (await read_groups(admin, [group]))[group]


async def read_groups(
    admin: AdminClient, groups: Sequence[str], layouts: Mapping[str, TopicLayout] | None = None
) -> Mapping[str, tuple[GroupReport | None, BrokerResults[GroupStatus]]]:
    """Read several groups as `read_group` does. The list of brokers and the layout of each topic that is not in `layouts` are requested
    once."""
    known = {} if layouts is None else layouts
    async with admin.keep_connections():
        brokers = by_name(await admin.brokers())
        results = await _read_each(groups, lambda group: _statuses(admin, brokers.values(), group))
        topics = {group: topics_of(results[group].values.values()) for group in groups}
        all_topics = list(dict.fromkeys(topic for each in topics.values() for topic in each))
        queues = await _read_each(all_topics, lambda topic: _queues(admin, topic, known.get(topic)))
    return {
        group: _report(group, results[group], (queue for topic in topics[group] for queue in queues[topic]), brokers) for group in groups
    }


def _report(
    group: str, results: BrokerResults[GroupStatus], queues: Iterable[MessageQueue], brokers: Mapping[str, BrokerAddress]
) -> tuple[GroupReport | None, BrokerResults[GroupStatus]]:
    if not results.values:
        return None, results
    layout_queues = dict.fromkeys(queues)
    without_group = [name for name in brokers if name not in results.values and name not in results.failed]
    missing = without_address([queue.broker_name for queue in layout_queues], brokers)
    results = BrokerResults(results.values, {**results.failed, **missing})
    return report(group, results.values, layout_queues, results.failed, without_group), results


async def _read_each(keys: Sequence[K], read: Callable[[K], Awaitable[V]]) -> dict[K, V]:
    """Call `read` for each key, at most READS_MAX at the same time. The first error ends all."""
    pending = list(reversed(keys))
    found: dict[K, V] = {}

    async def reader() -> None:
        while pending:
            key = pending.pop()
            found[key] = await read(key)

    try:
        await asyncio.gather(*(reader() for _ in range(min(READS_MAX, len(keys)))))
    finally:
        pending.clear()
    return found


async def _queues(admin: AdminClient, topic: str, layout: TopicLayout | None) -> tuple[MessageQueue, ...]:
    """Return the topic's readable queues, by `layout` if it is given; none if it was deleted."""
    if layout is None:
        layout = await admin.find_layout(topic)
    return () if layout is None else tuple(layout.read_queues)


async def _statuses(admin: AdminClient, brokers: Iterable[BrokerAddress], group: str) -> BrokerResults[GroupStatus]:
    results = await gather_results({broker.name: _status(admin, broker, group) for broker in brokers})
    return BrokerResults({name: status for name, status in results.values.items() if status is not None}, results.failed)


async def _status(admin: AdminClient, broker: BrokerAddress, group: str) -> GroupStatus | None:
    """Return the group's state at one broker, or None if the broker does not know the group."""
    try:
        return (await admin.group_status(broker, group)).status
    except SubscriptionGroupNotExistError:
        return None
