"""How many queues each member of a group held, as areas on top of each other: for all queues, where lanes show a few."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from lockstep.operations.groups.holdings import Holdings
from lockstep.operations.groups.ownership import Period
from lockstep.operations.pictures.owners import COLOURS, LABEL, RIGHT, WIDTH, Scale
from lockstep.operations.pictures.svg import document, element, text, time_axis, titled

HEIGHT, TOP, LINE = 160, 10, 16

HeldArea = tuple[str, str, list[int | None]]
"""One area of the picture: its name, its class, and the number of queues at each time."""


def held_picture(group: str, found: Holdings, members: Iterable[str], period: Period) -> str:
    """Return the picture as SVG without a style sheet.

    The areas are in the order of `members` from the bottom; the first ones have the colours that they have in the picture of the lanes.
    Those of all further members are one, and the queues without an owner are on top.
    """
    rows = _rows(found, members)
    scale = Scale(period, RIGHT)
    content = [*_axis(found, scale), *_areas(found, scale.width, rows)]
    y = TOP + HEIGHT + 40
    for name, colour, series in rows:
        now = series[-1]
        said = f"{name}: {'not known' if now is None else f'{now:,}'} now"
        content.append(element("rect", x=4, y=y - 10, width=12, height=12, class_=colour) + text(said, 22, y))
        y += LINE
    return document(WIDTH, y, f"Queues held by the members of group {group}", f"{found.queue_count:,} queues", content, style=None)


def _rows(found: Holdings, members: Iterable[str]) -> list[HeldArea]:
    totals = Counter[str]()
    for counts in found.counts:
        totals.update(counts or {})
    own = dict.fromkeys([*list(members)[:COLOURS], *(each for each, _ in totals.most_common())])
    shown = [each for each in own if totals[each]][:COLOURS]
    rest = totals.keys() - {*shown}

    def row(name: str, colour: str, members: Iterable[str]) -> HeldArea:
        chosen = list(members)
        return name, colour, [None if counts is None else sum(counts.get(each, 0) for each in chosen) for counts in found.counts]

    places = {client_id: index for index, client_id in enumerate(own)}
    rows = [row(client_id, f"c{places[client_id]}" if places[client_id] < COLOURS else "others", [client_id]) for client_id in shown]
    rows += [row(f"{len(rest):,} more members", "others", rest)] if rest else []
    free = [None if counts is None else found.queue_count - sum(counts.values()) for counts in found.counts]
    return [*rows, ("nobody", "free", free)] if any(free) else rows


def _axis(found: Holdings, scale: Scale) -> Iterator[str]:
    yield from time_axis(scale.period, scale.x, TOP, TOP + HEIGHT + 4)
    yield text(f"{found.queue_count:,} queues", 4, TOP + 10, class_="faint") + text("0", 4, TOP + HEIGHT, class_="faint")


def _areas(found: Holdings, whole: int, rows: Sequence[HeldArea]) -> Iterator[str]:
    """Draw the areas, in steps, over the `whole` width, and the times of which nothing is known."""
    width = whole / len(found.counts)
    for known, columns in groupby(range(len(found.counts)), key=lambda index: found.counts[index] is not None):
        run = list(columns)
        left, right = LABEL + run[0] * width, LABEL + (run[-1] + 1) * width
        if not known:
            yield element("rect", titled("not known"), x=left, y=TOP, width=right - left, height=HEIGHT, class_="unknown")
            continue
        bases = [0] * len(run)
        for name, colour, series in rows:
            tops = [base + (series[index] or 0) for base, index in zip(bases, run, strict=True)]
            if tops != bases:
                yield element("path", titled(name), d=_outline(found, left, width, bases, tops), class_=colour)
            bases = tops


def _outline(found: Holdings, left: float, width: float, bases: Sequence[int], tops: Sequence[int]) -> str:
    """Return the outline of an area: its upper edge to the right, and the lower one back."""

    def y(number: int) -> str:
        return f"{TOP + HEIGHT - number / max(1, found.queue_count) * HEIGHT:.1f}"

    columns = range(len(bases))
    there = "".join(
        f"V{y(number)}H{left + width * (list(each)[-1] + 1):.1f}" for number, each in groupby(columns, key=lambda index: tops[index])
    )
    back = "".join(
        f"V{y(number)}H{left + width * list(each)[-1]:.1f}" for number, each in groupby(reversed(columns), key=lambda index: bases[index])
    )
    return f"M{left:.1f} {y(bases[0])}{there}{back}Z"
