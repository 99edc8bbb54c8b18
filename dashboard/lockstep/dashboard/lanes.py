"""The part of a group's page that shows who held which queue when: the picture, and its bars in a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Any

from markupsafe import Markup

from lockstep.operations.groups.group_history import PlacedEvent
from lockstep.operations.groups.group_report import QueueLine
from lockstep.operations.groups.holdings import holdings
from lockstep.operations.groups.ownership import Period, Span
from lockstep.operations.groups.presence import MemberLane
from lockstep.operations.pictures.group import GroupPicture, Reported, group_picture
from lockstep.operations.pictures.held import held_picture
from lockstep.operations.pictures.owners import length_text, member_letters, queue_name
from lockstep.operations.watch.group_look import GroupLook
from lockstep.operations.watch.watch import Watch

QUEUES_MAX = 64
"""Queues that have a lane: those that moved most."""
SPANS_SHOWN = 500
HELD_TIMES = 120
"""Steps of the picture of all queues by member."""


@dataclass(frozen=True, slots=True)
class SpanRow:
    """A part of a lane, as a row of the table."""

    queue: str
    """Nothing if it is the lane of a member."""
    span: Span
    letter: str
    """The member's in the picture; empty if the queue was free."""
    began_ms: int | None
    """None if it began before the period, or that is not known."""
    ended_ms: int | None
    """None if it has not ended."""

    @property
    def length(self) -> str:
        return ("≥ " if self.began_ms is None else "") + length_text(self.span.until_ms - self.span.from_ms)


def group_lanes(
    watch: Watch, group: str, look: GroupLook | None, events: Sequence[PlacedEvent], period: Period, moved: str
) -> dict[str, Any]:
    """Return the picture of a group and what belongs to it. `events`: those of the group; `moved`: a sentence about its hand-overs."""
    report = None if look is None else look.report
    lines = () if report is None else report.queues
    unknown = watch.events.unknown(period[1], {line.broker for line in lines})
    reported = Reported(None, ()) if look is None else Reported(look.began_ms, watch.events.read_since(look.ended_ms))
    starts = watch.events.starts()
    drawn = group_picture(group, report, lines, events, period, unknown, moved, reported, starts=starts, queues_max=QUEUES_MAX, style=None)
    rows, more = span_rows(drawn, period)
    return {
        "picture": Markup(drawn.svg) if drawn.lanes else Markup(),
        "hidden_lanes": drawn.hidden,
        "sentence": drawn.sentence,
        "of_members": drawn.of_members,
        "held_picture": None
        if drawn.of_members or len(lines) <= QUEUES_MAX
        else lambda: _held(group, drawn, lines, events, period, unknown),
        "spans": rows,
        "more_spans": more,
    }


def _held(
    group: str,
    drawn: GroupPicture,
    lines: Sequence[QueueLine],
    events: Sequence[PlacedEvent],
    period: Period,
    unknown: Mapping[str, Sequence[Period]],
) -> Markup:
    """Return the picture of all queues by member. It is made when a page shows it: it takes as long as all else together."""
    found = holdings(lines, events, period, unknown, HELD_TIMES)
    return Markup(held_picture(group, found, member_letters(drawn.lanes), period))


def span_rows(drawn: GroupPicture, period: Period) -> tuple[list[SpanRow], int]:
    """Return the newest SPANS_SHOWN spans of a picture, the one that began last first, and how many more there are."""
    letters = member_letters(drawn.lanes)
    spans = [
        (span, "" if isinstance(lane, MemberLane) else queue_name(lane))
        for lane in drawn.lanes
        for span in lane.spans
        if span.client_id is not None or not isinstance(lane, MemberLane)
    ]
    rows = [
        SpanRow(
            queue,
            span,
            "" if span.client_id is None else letters[span.client_id],
            span.from_ms if span.from_ms > period[0] else None,
            span.until_ms if span.until_ms < period[1] else None,
        )
        for span, queue in nlargest(SPANS_SHOWN, spans, key=lambda each: each[0].from_ms)
    ]
    return rows, len(spans) - len(rows)
