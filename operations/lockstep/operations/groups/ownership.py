"""Who had which queue when: lanes of a group's queues over a period, from the events of brokers (GROUP_EVENTS). Pure.

Each moment of a lane is one of: held by a member, free, or unknown. The part of a broker that is not reached is unknown, not
the same as before.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lockstep.operations.groups.group_history import GRANTED, LET_GO, PlacedEvent
from lockstep.operations.groups.group_report import QueueLine
from lockstep.protocol.bodies import GroupEvent, GroupEventKind

Period = tuple[int, int]
"""From and until, in ms since 1970 by a broker's clock."""
Queue = tuple[str, str, int]
"""(topic, broker, queue id), in the order in which lanes are sorted."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a lane."""

    from_ms: int
    until_ms: int
    client_id: str | None = None
    """The owner; None if the queue was free."""
    epoch: int | None = None
    """None if it is not among the events, because the grant is older."""
    alive_until_ms: int | None = None
    """When the owner was last heard, if it was lost or is without a connection."""
    ended: str | None = None
    """Why the owner lost the queue; None if it has not, within the lane."""
    known: bool = True


@dataclass(frozen=True, slots=True)
class OwnershipLane:
    """One queue. The spans follow each other and cover the period."""

    topic: str
    broker: str
    queue_id: int
    spans: tuple[Span, ...]


def lanes(
    events: Iterable[PlacedEvent],
    period: Period,
    *,
    queues: Iterable[Queue] = (),
    unknown: Mapping[str, Sequence[Period]] | None = None,
    owners: Mapping[Queue, str | None] | None = None,
    owners_ms: int | None = None,
) -> list[OwnershipLane]:
    """Return the lanes of one group's queues, sorted.

    Args:
        events: The events of the group, of each broker in its order.
        period: What the lanes cover. Later events are left out.
        queues: Queues that have a lane even if they have no event.
        unknown: Broker → periods of which its events are not known, in order.
        owners: The owners at a time after which all events are known, as far as these owners are known.
        owners_ms: That time; by default the end of the period.
    """
    queue_events: dict[Queue, list[GroupEvent]] = {queue: [] for queue in queues}
    member_events: dict[str, list[GroupEvent]] = {}
    for placed in events:
        at = _queue_of(placed)
        if at is None:
            member_events.setdefault(placed.broker, []).append(placed.event)
        else:
            queue_events.setdefault(at, []).append(placed.event)
    made = []
    for queue, own in sorted(queue_events.items()):
        topic, broker, queue_id = queue
        happened = sorted([*own, *member_events.get(broker, ())], key=lambda each: (each.wall_ms, each.number))
        spans: list[Span] = []
        parts = list(known_parts(period, (unknown or {}).get(broker, ())))
        for part in parts:
            if part[0] > (spans[-1].until_ms if spans else period[0]):
                spans.append(Span(spans[-1].until_ms if spans else period[0], part[0], known=False))
            now = Span(part[0], part[0], known=False)
            has_owner = owners is not None and queue in owners and part[0] <= (period[1] if owners_ms is None else owners_ms) <= part[1]
            if owners is not None and has_owner and not any(part[0] <= each.wall_ms for each in own):
                now = Span(part[0], part[0], owners[queue])  # it has not changed in this part
            spans += _spans(happened, part, now)
        if (end := spans[-1].until_ms if spans else period[0]) < period[1]:
            spans.append(Span(end, period[1], known=False))
        made.append(OwnershipLane(topic, broker, queue_id, tuple(_joined(spans))))
    return made


def group_lanes(
    lines: Iterable[QueueLine],
    events: Iterable[PlacedEvent],
    period: Period,
    unknown: Mapping[str, Sequence[Period]],
    *,
    reported_ms: int | None = None,
    read_since: Collection[str],
) -> list[OwnershipLane]:
    """Return the lanes of a group whose queues were reported at the time `reported_ms`, by default at the end of the period.

    `read_since`: the brokers whose events were read after that. The owner that another broker has reported may be newer than its events,
    and says nothing of the time before.
    """
    known = list(lines)
    queues = [(line.topic, line.broker, line.queue_id) for line in known]
    owners = {queue: line.owner for queue, line in zip(queues, known, strict=True) if line.reached and line.broker in read_since}
    return lanes(events, period, queues=queues, unknown=unknown, owners=owners, owners_ms=reported_ms)


def most_moved(
    lines: Iterable[QueueLine], events: Iterable[PlacedEvent], period: Period, count: int
) -> tuple[list[QueueLine], list[PlacedEvent]]:
    """Return the `count` queues that were granted most often in the period, in their order, and the events without those of other queues.

    A lane takes some 15 µs to make, and a group may have ten thousand queues of which a picture shows a few.
    """
    known = {(line.topic, line.broker, line.queue_id): line for line in lines}
    placed = list(events)
    grants = Counter(
        queue
        for each in placed
        if (queue := _queue_of(each)) in known and each.event.kind in GRANTED and period[0] <= each.event.wall_ms <= period[1]
    )
    chosen = set(sorted(known, key=lambda queue: -grants[queue])[:count])
    theirs = [each for each in placed if (queue := _queue_of(each)) is None or queue in chosen]
    return [line for queue, line in known.items() if queue in chosen], theirs


def _queue_of(placed: PlacedEvent) -> Queue | None:
    """Return the queue that the event is about, or None if it is about a member."""
    event = placed.event
    return None if event.topic is None or event.queue_id is None else (event.topic, placed.broker, event.queue_id)


def known_parts(period: Period, unknown: Sequence[Period]) -> Iterable[Period]:
    """Yield the parts of a period that are not unknown. `unknown` is in order."""
    begin = period[0]
    for first, last in unknown:
        if first > begin:
            yield begin, min(first, period[1])
        begin = max(begin, last)
        if begin >= period[1]:
            return
    if begin < period[1]:
        yield begin, period[1]


class _Course:
    """One lane while its spans are made."""

    def __init__(self, now: Span) -> None:
        self.spans: list[Span] = []
        self.now = now

    def change(self, at_ms: int, then: Span, *, ended: str | None = None) -> None:
        """End the present span, and begin another one. A clock that was set back makes no negative span."""
        at_ms = max(at_ms, self.now.from_ms)
        self.spans.append(replace(self.now, until_ms=at_ms, ended=ended))
        self.now = replace(then, from_ms=at_ms, until_ms=at_ms)


def _spans(events: Sequence[GroupEvent], part: Period, now: Span) -> list[Span]:
    """Return the spans of one queue in a part of the period of which all events are known. `now`: the first one."""
    course = _Course(now)
    for event in events:
        if part[0] <= event.wall_ms <= part[1]:
            _apply(course, event, part[0])
    course.change(part[1], course.now)
    return course.spans


def _apply(course: _Course, event: GroupEvent, begin_ms: int) -> None:
    now = course.now
    if event.topic is None:
        if event.client_id == now.client_id is not None:
            if event.kind is GroupEventKind.DISCONNECTED:
                course.now = replace(now, alive_until_ms=event.since_ms)
            elif event.kind is GroupEventKind.RECONNECTED:
                course.now = replace(now, alive_until_ms=None)
        return
    if not now.known and event.kind not in GRANTED:  # it has held the queue since before
        now = course.now = replace(now, known=True, client_id=event.client_id)
    held = Span(0, 0, event.client_id, event.epoch)
    if event.kind in LET_GO:
        if event.kind is GroupEventKind.LOST:
            course.now = replace(now, alive_until_ms=event.since_ms)
        course.change(event.wall_ms, Span(0, 0), ended=event.why or event.kind.value)
    elif event.kind in GRANTED:
        if not now.known and event.since_ms is not None:
            course.change(max(begin_ms, min(event.since_ms, event.wall_ms)), Span(0, 0))
        course.change(event.wall_ms, held, ended=None if course.now.client_id is None else "granted to another member")
    else:
        course.change(event.wall_ms, held, ended=event.why or event.kind.value)


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Leave out spans without a length, unless a member held the queue in them."""
    return [span for span in spans if span.until_ms > span.from_ms or span.client_id is not None]
