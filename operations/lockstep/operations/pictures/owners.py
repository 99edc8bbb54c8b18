"""The pictures of a group: a lane for each queue that shows who held it when, or for each member that shows when it was there."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from re import search

from lockstep.operations.groups.group_history import PlacedEvent
from lockstep.operations.groups.group_report import QueueLine
from lockstep.operations.groups.ownership import OwnershipLane, Period, Queue, Span
from lockstep.operations.groups.presence import MemberLane
from lockstep.operations.pictures.condensed import Moves, condensed, least_length
from lockstep.operations.pictures.marks import Mark, marks
from lockstep.operations.pictures.svg import STYLE, document, element, text, time_axis, titled
from lockstep.operations.text import format_time

WIDTH = 960
LABEL, RIGHT, TOP = 190, 14, 44
STATE = 140
"""The width of the column on the right that says which queues fail now, if one does."""
LANE, BAR = 22, 18
GAP_MS = 200
"""A queue without an owner for less time is a thin line."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
COLOURS = 8
"""Further members have letters alone."""
MEMBERS_NAMED = 64
CHARACTER = 7
"""The width of a character, about."""
LEAST = 2
"""Pixels. Shorter spans that follow each other are shown as one, and so are longer ones if there are more than PARTS_MAX in all."""
PARTS_MAX = 1_000
COUNT_MAX = 999
"""A higher count is "999+"."""
MARK_TITLES = 3
"""Of the marks in the same place, so many are named."""
MARK_LENGTH = 48
"""The length of their label in characters at most; if it would be longer, it names the first and says how many more there are."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Where a time is, between the labels on the left and the margin or column on the right."""

    period: Period
    right: int

    def x(self, at_ms: int) -> float:
        first, last = self.period
        share = (min(max(at_ms, first), last) - first) / max(1, last - first)
        return LABEL + share * self.width

    @property
    def width(self) -> int:
        return WIDTH - LABEL - self.right


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    spans: tuple[Span, ...]
    line: QueueLine | None = None
    """The state of the queue now."""
    of_member: bool = False

    @property
    def state(self) -> list[str]:
        """Describe the fault that the queue has now."""
        if self.line is None:
            return []
        failing, attempts, parked = self.line.failing_ms, self.line.attempts, self.line.parked
        found = [] if failing is None else [f"fails for {length_text(failing)}" + (f", {attempts} attempts" if attempts else "")]
        return [*found, f"{parked:,} parked {'key' if parked == 1 else 'keys'}"] if parked else found


def owners_picture(
    group: str,
    lanes: Sequence[OwnershipLane],
    events: Iterable[PlacedEvent],
    period: Period,
    summary: str,
    *,
    lines: Iterable[QueueLine] = (),
    starts: Mapping[str, Sequence[int]] | None = None,
    style: str | None = STYLE,
) -> str:
    """Return the picture of the queues as SVG.

    Args:
        group: The group's name.
        lanes: The lanes, from top to bottom.
        events: The group's events, of which members that join and leave are marked, and resets.
        period: The time that the picture shows, from left to right.
        summary: One sentence that says the same.
        lines: The queues now, of which those are marked that fail or have parked keys.
        starts: Broker → when it started, in ms since 1970.
        style: A style sheet for a picture in a file, or None.
    """
    now: dict[Queue, QueueLine] = {(line.topic, line.broker, line.queue_id): line for line in lines}
    rows = [_Row(queue_name(lane), lane.spans, now.get((lane.topic, lane.broker, lane.queue_id))) for lane in lanes]
    return _picture(f"Who held the queues of group {group}", rows, member_letters(lanes), events, period, summary, starts, style)


def members_picture(
    group: str,
    lanes: Sequence[MemberLane],
    events: Iterable[PlacedEvent],
    period: Period,
    summary: str,
    *,
    starts: Mapping[str, Sequence[int]] | None = None,
    style: str | None = STYLE,
) -> str:
    """Return the picture of the members as SVG, for a group that locks no queue. The arguments are those of `owners_picture`."""
    rows = [_Row(lane.client_id, lane.spans, of_member=True) for lane in lanes]
    return _picture(f"Who was a member of group {group}", rows, member_letters(lanes), events, period, summary, starts, style)


def queue_name(lane: OwnershipLane) -> str:
    """Return the name of the lane's queue in pictures and tables."""
    return f"{lane.topic}@{lane.broker}:{lane.queue_id}"


def member_letters(lanes: Iterable[OwnershipLane | MemberLane]) -> dict[str, str]:
    """Return a letter for each owner, in the order in which they appear: A to Z, then A2 and so on."""
    firsts: dict[str, int] = {}
    for lane in lanes:
        for span in lane.spans:
            if span.client_id is not None:
                firsts[span.client_id] = min(span.from_ms, firsts.get(span.client_id, span.from_ms))
    names = sorted(firsts, key=lambda each: (firsts[each], each))
    rounds = ((index // len(LETTERS), LETTERS[index % len(LETTERS)]) for index in range(len(names)))
    return {name: letter + (str(turn + 1) if turn else "") for name, (turn, letter) in zip(names, rounds, strict=True)}


def _picture(
    title: str,
    rows: Sequence[_Row],
    letters: Mapping[str, str],
    events: Iterable[PlacedEvent],
    period: Period,
    summary: str,
    starts: Mapping[str, Sequence[int]] | None,
    style: str | None,
) -> str:
    scale = Scale(period, STATE if any(row.state for row in rows) else RIGHT)
    colours = member_colours(letters)
    bottom = TOP + LANE * len(rows)
    marked = marks(events, starts or {}, letters, period)
    content = [_hatch(), *time_axis(period, scale.x, TOP - 4, bottom + 4), *_marks(scale, marked, bottom)]
    length_ms = max(1, period[1] - period[0])
    least_ms = least_length([row.spans for row in rows], length_ms, LEAST * length_ms / scale.width, PARTS_MAX)
    for index, row in enumerate(rows):
        content += _lane(scale, row, TOP + index * LANE, least_ms, letters, colours)
    y = bottom + 38
    content.append(text(summary, 4, y))
    for client_id, letter in list(letters.items())[:MEMBERS_NAMED]:
        y += 16
        colour = colours[client_id]
        content.append(element("rect", x=4, y=y - 10, width=12, height=12, class_=colour) + text(f"{letter}  {client_id}", 22, y))

    if len(letters) > MEMBERS_NAMED:
        y += 16
        content.append(text(f"{len(letters) - MEMBERS_NAMED:,} more members", 22, y))
    return document(WIDTH, y + 12, title, summary, content, style=style)


def member_colours(letters: Mapping[str, str]) -> dict[str, str]:
    """Return the class of each member's colour. From the ninth on all have the same one: more colours can't be distinguished."""
    return {client_id: f"c{index}" if index < COLOURS else "others" for index, client_id in enumerate(letters)}


def _hatch() -> str:
    line = element("path", d="M0 6L6 0", class_="hatch", stroke_width=2)
    return element("defs", element("pattern", line, id="hatch", width=6, height=6, patternUnits="userSpaceOnUse"))


def _marks(scale: Scale, found: Iterable[Mark], bottom: int) -> Iterator[str]:
    """Draw marks, those in the same place as one. Labels take turns on two levels; one that would overlap is left out."""
    places: dict[int, list[Mark]] = {}
    for mark in found:
        places.setdefault(int(scale.x(mark.at_ms) / LEAST), []).append(mark)
    ends = [float(LABEL), float(LABEL)]
    for together in places.values():
        x, label = scale.x(together[0].at_ms), ", ".join(each.label for each in together[:MARK_TITLES])
        if len(together) > MARK_TITLES or len(label) > MARK_LENGTH:
            label = f"{together[0].label} +{len(together) - 1}"
        said = [each.title for each in together[:MARK_TITLES]]
        said += [f"{len(together) - MARK_TITLES} more"] if len(together) > MARK_TITLES else []
        yield element("line", titled(", ".join(said)), x1=x, x2=x, y1=TOP - 8, y2=bottom, class_="mark")
        width = len(label) * CHARACTER
        start = x if x + width <= WIDTH else x - width  # to the left of the line if there is no room to its right
        level = next((index for index, end in enumerate(ends) if start >= end), None)
        if level is not None:
            ends[level] = start + width + CHARACTER
            yield text(label, start + 2, TOP - 12 - 15 * level, class_="faint")


def _lane(scale: Scale, row: _Row, y: int, least_ms: float, letters: Mapping[str, str], colours: Mapping[str, str]) -> Iterator[str]:
    name = row.name
    room = (LABEL - 8) // CHARACTER
    label = f"{letters.get(name, '')} {name.split('#')[0]}".strip() if row.of_member else name
    shown = label if len(label) <= room else label[: room // 2 - 1] + "…" + label[-(room // 2) :]
    yield element("g", titled(name) + text(shown, 4, y + 14))
    for span in condensed(row.spans, least_ms):
        x, end = scale.x(span.from_ms), scale.x(span.until_ms)
        width = max(end - x, 0.5)
        if isinstance(span, Moves):
            yield _moves(span, row, x, y, max(width, 1.0))
        elif not span.known:
            yield element("rect", titled(f"{name}: not known"), x=x, y=y, width=width, height=BAR, class_="unknown")
        elif span.client_id is not None:
            yield _bar(scale, span, row, y, letters[span.client_id], colours[span.client_id])
        elif not row.of_member:
            yield _gap(span, name, x, y, width)
    if state := row.state:
        yield _state(row, ", ".join(state), WIDTH - scale.right, y)


def _state(row: _Row, said: str, x: int, y: int) -> str:
    """Draw the fault that a queue has now: a red line under the end of its bar if it fails, a dot if keys are parked; both with a count."""
    line = row.line
    assert line is not None
    content = titled(f"{row.name}: {said}")
    at = x + 6
    if line.failing_ms is not None:
        content += element("rect", x=x - 40, y=y + BAR - 1, width=40, height=3, class_="failing")
        words = f"fails {_count(line.attempts)}×" if line.attempts else "fails"
        content += text(words, at, y + 13, class_="alarm")
        at += (len(words) + 1) * CHARACTER
    if line.parked:
        content += element("circle", cx=at + 4, cy=y + 9, r=4, class_="parked") + text(_count(line.parked), at + 11, y + 13)
    return element("g", content)


def _count(count: int) -> str:
    return str(count) if count <= COUNT_MAX else f"{COUNT_MAX}+"


def _moves(moves: Moves, row: _Row, x: float, y: int, width: float) -> str:
    """Draw spans that are shown as one: a lower bar, which no member has."""
    what = "came and went" if row.of_member else "moved"
    words = [f"{row.name}: {what} {moves.count:,} times", f"{format_time(moves.from_ms)} to {format_time(moves.until_ms)}"]
    words += [f"{'absent' if row.of_member else 'free'} for {length_text(moves.free_ms)} in all"] if moves.free_ms else []
    content = titled(", ".join(words)) + element("rect", x=x, y=y + 3, width=width, height=BAR - 6, class_="moved")
    label = f"{moves.count:,}×"
    return element("g", content + (text(label, x + 3, y + 13, class_="letter") if width > (len(label) + 1) * CHARACTER else ""))


def _gap(span: Span, name: str, x: float, y: int, width: float) -> str:
    length = length_text(span.until_ms - span.from_ms)
    if span.until_ms - span.from_ms < GAP_MS:
        return element("line", titled(f"{name}: free for {length}"), x1=x, x2=x, y1=y, y2=y + BAR, class_="line")
    content = titled(f"{name}: nobody held it for {length}") + element("rect", x=x, y=y, width=width, height=BAR, class_="gap")
    if width > (len(length) + 1) * CHARACTER:
        content += text(length, x + 3, y + 13, class_="alarm")
    return element("g", content)


def _bar(scale: Scale, span: Span, row: _Row, y: int, letter: str, colour: str) -> str:
    client_id = span.client_id or ""
    x, end = scale.x(span.from_ms), scale.x(span.until_ms)
    alive_ms = span.until_ms if span.alive_until_ms is None else min(max(span.alive_until_ms, span.from_ms), span.until_ms)
    alive = scale.x(alive_ms)
    words = [row.name if row.of_member else f"{row.name}: {client_id}", f"{format_time(span.from_ms)} to {format_time(span.until_ms)}"]
    words += [f"({length_text(span.until_ms - span.from_ms)})"]
    words += [] if span.epoch is None else [f"epoch {span.epoch}"]
    words += [] if span.alive_until_ms is None else [f"last heard {length_text(span.until_ms - alive_ms)} before"]
    words += [] if span.ended is None else [f"ended: {span.ended}"]
    content = titled(", ".join(words)) + element("rect", x=x, y=y, width=max(alive - x, 0.5), height=BAR, class_=colour)
    if end - alive > 0.5:
        content += element("rect", x=alive, y=y, width=end - alive, height=BAR, class_=f"{colour} grace")
        label = f"gone {length_text(span.until_ms - alive_ms)}"
        if end - alive > (len(label) + 1) * CHARACTER:
            content += text(label, alive + 3, y + 13, class_="alarm")
    names = (f"{letter} {_process(client_id)}".strip(), letter)
    if name := next((each for each in names if alive - x > (len(each) + 1) * CHARACTER), None):
        content += text(name, x + 4, y + 13, class_="letter")
    return element("g", content)


def _process(client_id: str) -> str:
    """Return the process id in a client id (`ip@pid#…`), nothing if there is none."""
    found = search(r"@(\d{1,10})(?:[#@]|$)", client_id)
    return "" if found is None else found[1]


def length_text(duration_ms: int) -> str:
    """Return the length of a bar in words."""
    return (
        f"{duration_ms} ms"
        if duration_ms < 1_000
        else f"{duration_ms / 1000:.1f} s"
        if duration_ms < 100_000
        else f"{duration_ms // 60_000} min"
    )
