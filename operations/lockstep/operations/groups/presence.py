"""Who was a member of a group when: a lane for each member over a period, from the events of all brokers (GROUP_EVENTS). Pure.

A member registers at every broker. It is present while any broker has it with a connection, gone while those that have it wait for it to
come back, and absent if no broker has it. A part for which one broker has no events is decided by the others; if none has any, it is
unknown.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise

from lockstep.operations.groups.group_history import PlacedEvent
from lockstep.operations.groups.group_report import MemberLine
from lockstep.operations.groups.ownership import Period, Span, known_parts
from lockstep.protocol.bodies import GroupEvent, GroupEventKind


@dataclass(frozen=True, slots=True)
class MemberLane:
    """One member. The spans follow each other and cover the period; in those without a client id it is absent."""

    client_id: str
    spans: tuple[Span, ...]


class _State(IntEnum):
    """The state of a member as one broker reports it. The higher one of two brokers' reports prevails."""

    UNKNOWN = 0
    ABSENT = 1
    GONE = 2
    PRESENT = 3


AFTER = {
    GroupEventKind.JOINED: _State.PRESENT,
    GroupEventKind.LEFT: _State.ABSENT,
    GroupEventKind.DISCONNECTED: _State.GONE,
    GroupEventKind.RECONNECTED: _State.PRESENT,
}
BEFORE = {
    GroupEventKind.JOINED: _State.ABSENT,
    GroupEventKind.LEFT: _State.PRESENT,
    GroupEventKind.DISCONNECTED: _State.PRESENT,
    GroupEventKind.RECONNECTED: _State.GONE,
}


@dataclass(frozen=True, slots=True)
class _Change:
    at_ms: int
    broker: str
    state: _State
    why: str | None = None


def member_lanes(
    members: Iterable[MemberLine],
    events: Iterable[PlacedEvent],
    period: Period,
    unknown: Mapping[str, Sequence[Period]],
    read_since: Collection[str],
    count_max: int,
) -> tuple[list[MemberLane], int]:
    """Return lanes of the group's members, the one that has been there for longest first, and how many more members there are.

    Args:
        members: The members that brokers have reported. One without events has been there all the time.
        events: The events of the group, of each broker in its order. Those before the period show who was a member when it began.
        period: What the lanes cover.
        unknown: Broker → periods of which its events are not known, in order.
        read_since: The brokers whose events were read after they reported the members. A member of another broker may be newer than its
            events, and nothing is known of the time before.
        count_max: The number of lanes at most: those of the members that came and went most often.
    """
    now = {each.client_id: each for each in members}
    happened: dict[str, dict[str, list[GroupEvent]]] = {client_id: {} for client_id in now}
    counts = Counter[str]()
    for placed in events:
        event = placed.event
        if event.kind in AFTER and event.client_id is not None and event.wall_ms <= period[1]:
            happened.setdefault(event.client_id, {}).setdefault(placed.broker, []).append(event)
            counts[event.client_id] += event.wall_ms >= period[0]
    there = [client_id for client_id in happened if client_id in now or counts[client_id]]
    chosen = sorted(there, key=lambda each: (-counts[each], each))[:count_max]
    lanes = []
    for client_id in chosen:
        member = now.get(client_id)
        listed = set() if member is None else {*read_since} - {*member.missing_at}
        lanes.append(MemberLane(client_id, tuple(_spans(client_id, happened[client_id], period, unknown, listed))))
    return sorted(lanes, key=lambda lane: (_begin_ms(lane), lane.client_id)), len(there) - len(chosen)


def summary(lanes: Iterable[MemberLane]) -> str:
    """Return one sentence about who came and went."""
    joined = left = lost = 0
    for lane in lanes:
        joined += sum(before.known and before.client_id is None and now.client_id is not None for before, now in pairwise(lane.spans))
        ended = [span for span in lane.spans if span.ended is not None]
        left += len(ended)
        lost += sum(span.alive_until_ms is not None for span in ended)
    if not joined and not left:
        return "no member joined or left"
    gone = f", {lost} of them after the connection was lost" if lost else ""
    return f"{joined} {'member' if joined == 1 else 'members'} joined, {left} left{gone}"


def _begin_ms(lane: MemberLane) -> int:
    return next((span.from_ms for span in lane.spans if span.client_id is not None), lane.spans[0].from_ms)


def _spans(
    client_id: str,
    events: Mapping[str, Sequence[GroupEvent]],
    period: Period,
    unknown: Mapping[str, Sequence[Period]],
    listed: Collection[str],
) -> Iterator[Span]:
    """Yield the spans of one member. `listed`: the brokers that list it at the end of their events."""
    begin_ms = min([period[0], *(each.wall_ms for own in events.values() for each in own)])
    changes: list[_Change] = []
    for broker in {**unknown, **events}:
        own = sorted(events.get(broker, ()), key=lambda each: (each.wall_ms, each.number))
        for part in known_parts((begin_ms, period[1]), unknown.get(broker, ())):
            at_end = part[1] == period[1] and broker in listed
            changes += _changes(broker, [each for each in own if part[0] <= each.wall_ms <= part[1]], part, at_end)
            if part[1] < period[1]:
                changes.append(_Change(part[1], broker, _State.UNKNOWN))
    course = _Course(client_id)
    states: dict[str, _State] = {}
    for change in sorted(changes, key=lambda each: each.at_ms):
        states[change.broker] = change.state
        course.change(change.at_ms, max(states.values()), change.why)
    course.change(period[1], _State.UNKNOWN, None)
    at_ms = period[0]
    for span in course.spans:
        if span.until_ms > at_ms:
            if span.from_ms > at_ms:
                yield Span(at_ms, span.from_ms, known=False)
            yield replace(span, from_ms=max(span.from_ms, period[0]))
            at_ms = span.until_ms
    if at_ms < period[1]:
        yield Span(at_ms, period[1], known=False)


def _changes(broker: str, events: Sequence[GroupEvent], part: Period, at_end: bool) -> Iterator[_Change]:
    """Yield the states that a broker reports in a part of the period of which all its events are known. The first event shows what was
    before it."""
    before = BEFORE[events[0].kind] if events else _State.PRESENT if at_end else _State.UNKNOWN
    yield _Change(part[0], broker, before)
    at_ms = part[0]
    for event in events:
        heard_ms = event.since_ms if event.kind is GroupEventKind.DISCONNECTED and event.since_ms is not None else event.wall_ms
        at_ms = min(max(at_ms, heard_ms), event.wall_ms)
        yield _Change(at_ms, broker, AFTER[event.kind], event.why)


class _Course:
    """One lane while its spans are made. A member that is gone is still present, but was last heard when that began."""

    def __init__(self, client_id: str) -> None:
        self.spans: list[Span] = []
        self._client_id = client_id
        self._state = _State.UNKNOWN
        self._now: Span | None = None

    def change(self, at_ms: int, state: _State, why: str | None) -> None:
        if state is self._state:
            if self._now is not None:
                self._now = replace(self._now, until_ms=at_ms)
            return
        if state is _State.GONE and self._now is not None and self._state is _State.PRESENT:
            self._now = replace(self._now, alive_until_ms=at_ms)
        else:
            if self._now is not None and at_ms > self._now.from_ms:
                left = state is _State.ABSENT and self._now.client_id is not None
                self.spans.append(replace(self._now, until_ms=at_ms, ended=(why or "left") if left else None))
            self._now = Span(at_ms, at_ms, known=state is not _State.UNKNOWN)
            if state is _State.PRESENT or state is _State.GONE:
                self._now = Span(at_ms, at_ms, self._client_id, alive_until_ms=at_ms if state is _State.GONE else None)
        self._state = state
