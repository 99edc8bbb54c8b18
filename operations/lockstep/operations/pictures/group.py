"""The picture of a group as its kind asks for: its queues if it locks queues, else its members."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from lockstep.operations.groups.group_history import PlacedEvent
from lockstep.operations.groups.group_report import GroupReport, QueueLine
from lockstep.operations.groups.ownership import OwnershipLane, Period, group_lanes, most_moved
from lockstep.operations.groups.presence import MemberLane, member_lanes, summary
from lockstep.operations.pictures.owners import members_picture, owners_picture
from lockstep.operations.pictures.svg import STYLE

MEMBERS_MAX = 64
"""Members that have a lane: those that came and went most often."""


@dataclass(frozen=True, slots=True)
class Reported:
    """When a group was reported."""

    at_ms: int | None
    """In ms since 1970; None: at the end of the period."""
    read_since: Collection[str]
    """The brokers whose events were read after that."""


@dataclass(frozen=True, slots=True)
class GroupPicture:
    svg: str
    sentence: str
    lanes: Sequence[OwnershipLane | MemberLane]
    hidden: int
    """Queues or members that have no lane, because there are too many."""
    of_members: bool


def group_picture(
    group: str,
    report: GroupReport | None,
    lines: Sequence[QueueLine],
    events: Sequence[PlacedEvent],
    period: Period,
    unknown: Mapping[str, Sequence[Period]],
    moved: str,
    reported: Reported,
    *,
    starts: Mapping[str, Sequence[int]],
    queues_max: int | None = None,
    style: str | None = STYLE,
) -> GroupPicture:
    """Return the picture of a group up to now, which is the end of the period.

    Args:
        group: The group's name.
        report: The brokers' present report about it, or None.
        lines: Those of its queues that have a lane.
        events: Its events, of each broker in its order.
        period: The time that the picture shows.
        unknown: Broker → periods of which its events are not known, in order.
        moved: A sentence about its hand-overs.
        reported: When `report` was made, and whose events are newer.
        starts: Broker → when it started, in ms since 1970.
        queues_max: The number of queues at most: those that moved most. None: all.
        style: A style sheet for a picture in a file, or None.
    """
    locks = any(line.owner for line in lines) or any(each.event.topic for each in events)
    if not locks and (report is None or not report.ordered or report.broadcasting):
        members = () if report is None else report.members
        there, left = member_lanes(members, events, period, unknown, reported.read_since, MEMBERS_MAX)
        sentence = summary(there)
        svg = members_picture(group, there, events, period, sentence, starts=starts, style=style)
        return GroupPicture(svg, sentence, there, left, True)
    shown, theirs = (lines, events) if queues_max is None else most_moved(lines, events, period, queues_max)
    lanes = group_lanes(shown, theirs, period, unknown, reported_ms=reported.at_ms, read_since=reported.read_since)
    svg = owners_picture(group, lanes, events, period, moved, lines=shown, starts=starts, style=style)
    return GroupPicture(svg, moved, lanes, max(0, len(lines) - len(lanes)), False)
