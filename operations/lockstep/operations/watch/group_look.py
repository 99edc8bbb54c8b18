"""A group as a page shows it: what its brokers report now, and their events up to then."""

from collections.abc import Mapping
from dataclasses import dataclass

from lockstep.operations.admin_client import gather_results
from lockstep.operations.groups.group_query import read_group
from lockstep.operations.groups.group_report import GroupReport
from lockstep.operations.watch.watch import Watch


@dataclass(frozen=True, slots=True)
class GroupLook:
    """The report of the brokers about a group."""

    report: GroupReport | None
    """None if no broker knows the group."""
    failed: Mapping[str, str]
    """Broker → why it could not be asked."""
    began_ms: int
    """When they were asked, in ms since 1970."""
    ended_ms: int
    """When the last of them had reported."""


async def look_at_group(watch: Watch, group: str) -> GroupLook:
    """Ask the brokers about a group, then for the events since: an owner that is newer than the events says nothing of the time before.

    Raise TransportError if no nameserver responds.
    """
    clock = watch.admin.host.clock
    began_ms = clock.wall_ms()
    report, results = await read_group(watch.admin, group)
    ended_ms = clock.wall_ms()
    await gather_results({name: watch.follow(broker) for name, broker in watch.brokers.items() if name in results.values})
    return GroupLook(report, results.failed, began_ms, ended_ms)
