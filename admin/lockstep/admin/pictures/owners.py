"""The picture of a group: a lane for each queue, in which a bar shows who held it when."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lockstep.admin.group_history import PlacedEvent
from lockstep.admin.ownership import Lane, Period, Span
from lockstep.admin.pictures.svg import STYLE, clock_time, document, element, text, time_marks, titled
from lockstep.admin.render import format_time
from lockstep.protocol.bodies import GroupEventKind

WIDTH = 960
LABEL, RIGHT, TOP = 190, 14, 44
LANE, BAR = 22, 18
GAP_MS = 200
"""A queue without an owner for less time is a thin line."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
COLOURS = 8
CHARACTER = 7
"""The width of a character, about."""
MARKED = {GroupEventKind.JOINED: "joined", GroupEventKind.LEFT: "left"}


@dataclass(frozen=True, slots=True)
class _Scale:
    period: Period

    def x(self, at_ms: int) -> float:
        first, last = self.period
        share = (min(max(at_ms, first), last) - first) / max(1, last - first)
        return LABEL + share * (WIDTH - LABEL - RIGHT)


def owners_picture(
    group: str, lanes: Sequence[Lane], events: Iterable[PlacedEvent], period: Period, summary: str, *, style: str | None = STYLE
) -> str:
    """Return the picture as SVG.

    Args:
        group: The group's name.
        lanes: The lanes, from top to bottom.
        events: The group's events, of which members that join and leave are marked.
        period: What the picture shows, from left to right.
        summary: One sentence that says the same.
        style: A style sheet for a picture in a file, or None.
    """
    scale = _Scale(period)
    letters = member_letters(lanes)
    bottom = TOP + LANE * len(lanes)
    content = [_hatch(), *_axis(scale, bottom), *_marks(scale, events, letters, bottom)]
    for index, lane in enumerate(lanes):
        content += _lane(scale, lane, TOP + index * LANE, letters)
    y = bottom + 38
    content.append(text(summary, 4, y))
    for client_id, letter in letters.items():
        y += 16
        colour = _colour(letters, client_id)
        content.append(element("rect", x=4, y=y - 10, width=12, height=12, class_=colour) + text(f"{letter}  {client_id}", 22, y))
    return document(WIDTH, y + 12, f"Who held the queues of group {group}", summary, content, style=style)


def member_letters(lanes: Iterable[Lane]) -> dict[str, str]:
    """Return a letter for each owner, in the order in which they appear: A to Z, then A2 and so on."""
    firsts: dict[str, int] = {}
    for lane in lanes:
        for span in lane.spans:
            if span.client_id is not None:
                firsts[span.client_id] = min(span.from_ms, firsts.get(span.client_id, span.from_ms))
    names = sorted(firsts, key=lambda each: (firsts[each], each))
    rounds = ((index // len(LETTERS), LETTERS[index % len(LETTERS)]) for index in range(len(names)))
    return {name: letter + (str(turn + 1) if turn else "") for name, (turn, letter) in zip(names, rounds, strict=True)}


def _colour(letters: Mapping[str, str], client_id: str) -> str:
    return f"c{list(letters).index(client_id) % COLOURS}"


def _hatch() -> str:
    line = element("path", d="M0 6L6 0", class_="hatch", stroke_width=2)
    return element("defs", element("pattern", line, id="hatch", width=6, height=6, patternUnits="userSpaceOnUse"))


def _axis(scale: _Scale, bottom: int) -> Iterator[str]:
    first, last = scale.period
    with_ms = last - first < 10_000
    yield text("UTC", 4, bottom + 18, class_="faint zone", data_ms=first)
    for at_ms in time_marks(first, last, 8):
        x = scale.x(at_ms)
        yield element("line", x1=x, x2=x, y1=TOP - 4, y2=bottom + 4, class_="axis")
        yield text(clock_time(at_ms, with_ms=with_ms), x, bottom + 18, class_="faint", text_anchor="middle", data_ms=at_ms)


def _marks(scale: _Scale, events: Iterable[PlacedEvent], letters: Mapping[str, str], bottom: int) -> Iterator[str]:
    """Mark members that join and leave, once for all brokers. Labels take turns on two levels; one that would overlap is left out."""
    ends = [float(LABEL), float(LABEL)]
    seen: dict[tuple[str, str], int] = {}
    for placed in events:
        event = placed.event
        word, client_id = MARKED.get(event.kind), event.client_id
        if word is None or client_id is None or not scale.period[0] <= event.wall_ms <= scale.period[1]:
            continue
        if event.wall_ms - seen.get((word, client_id), event.wall_ms - 60_000) < 60_000 and (word, client_id) in seen:
            continue
        seen[word, client_id] = event.wall_ms
        x = scale.x(event.wall_ms)
        yield element(
            "line", titled(f"{client_id} {word} at {format_time(event.wall_ms)}"), x1=x, x2=x, y1=TOP - 8, y2=bottom, class_="mark"
        )
        label = f"{letters.get(client_id, '?')} {word}"
        level = next((index for index, end in enumerate(ends) if x >= end), None)
        if level is not None and x + len(label) * CHARACTER <= WIDTH:
            ends[level] = x + (len(label) + 1) * CHARACTER
            yield text(label, x + 2, TOP - 12 - 15 * level, class_="faint")


def _lane(scale: _Scale, lane: Lane, y: int, letters: Mapping[str, str]) -> Iterator[str]:
    name = f"{lane.topic}@{lane.broker}:{lane.queue_id}"
    room = (LABEL - 8) // CHARACTER
    shown = name if len(name) <= room else name[: room // 2 - 1] + "…" + name[-(room // 2) :]
    yield element("g", titled(name) + text(shown, 4, y + 14))
    for span in lane.spans:
        x, end = scale.x(span.from_ms), scale.x(span.until_ms)
        width = max(end - x, 0.5)
        if not span.known:
            yield element("rect", titled(f"{name}: not known"), x=x, y=y, width=width, height=BAR, class_="unknown")
        elif span.client_id is None:
            yield _gap(span, name, x, y, width)
        else:
            yield from _bar(scale, span, name, letters, y)


def _gap(span: Span, name: str, x: float, y: int, width: float) -> str:
    length = _length(span.until_ms - span.from_ms)
    if span.until_ms - span.from_ms < GAP_MS:
        return element("line", titled(f"{name}: free for {length}"), x1=x, x2=x, y1=y, y2=y + BAR, class_="line")
    content = titled(f"{name}: nobody held it for {length}") + element("rect", x=x, y=y, width=width, height=BAR, class_="gap")
    if width > (len(length) + 1) * CHARACTER:
        content += text(length, x + 3, y + 13, class_="alarm")
    return element("g", content)


def _bar(scale: _Scale, span: Span, name: str, letters: Mapping[str, str], y: int) -> Iterator[str]:
    client_id = span.client_id or ""
    x, end = scale.x(span.from_ms), scale.x(span.until_ms)
    alive_ms = span.until_ms if span.alive_until_ms is None else min(max(span.alive_until_ms, span.from_ms), span.until_ms)
    alive, colour = scale.x(alive_ms), _colour(letters, client_id)
    words = [f"{name}: {client_id}", f"{format_time(span.from_ms)} to {format_time(span.until_ms)}"]
    words += [f"({_length(span.until_ms - span.from_ms)})"]
    words += [] if span.epoch is None else [f"epoch {span.epoch}"]
    words += [] if span.alive_until_ms is None else [f"last heard {_length(span.until_ms - alive_ms)} before"]
    words += [] if span.ended is None else [f"ended: {span.ended}"]
    content = titled(", ".join(words)) + element("rect", x=x, y=y, width=max(alive - x, 0.5), height=BAR, class_=colour)
    if end - alive > 0.5:
        content += element("rect", x=alive, y=y, width=end - alive, height=BAR, class_=f"{colour} grace")
        label = f"gone {_length(span.until_ms - alive_ms)}"
        if end - alive > (len(label) + 1) * CHARACTER:
            content += text(label, alive + 3, y + 13, class_="alarm")
    letter = letters[client_id]
    if alive - x > (len(letter) + 1) * CHARACTER:
        content += text(letter, x + 4, y + 13, class_="letter")
    yield element("g", content)


def _length(duration_ms: int) -> str:
    return (
        f"{duration_ms} ms"
        if duration_ms < 1_000
        else f"{duration_ms / 1000:.1f} s"
        if duration_ms < 100_000
        else f"{duration_ms // 60_000} min"
    )
