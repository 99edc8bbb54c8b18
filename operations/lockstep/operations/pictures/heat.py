"""A figure of many queues at a glance: a cell for each queue, darker for each further digit of its figure."""

from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest

from lockstep.operations.pictures.svg import document, element, text, titled

CELL = 9
COLUMNS = 100
LINE = 18
"""Height of a line of text."""
STEPS = 7
"""0, from 1, from 10, … from 100,000."""
NAMES = ("0", *(f"{10**step:,}+" for step in range(STEPS - 1)))


def heat_picture(blocks: Mapping[str, Sequence[int | None]], title: str) -> str:
    """Return the picture as SVG without a style sheet: of each block, a broker for example, the figures of its queues in order.

    A figure that is not known has a colour of its own.
    """
    content: list[str] = []
    top = 0
    for name, values in blocks.items():
        known = [value for value in values if value is not None]
        said = f"{name}: {len(values):,} queues, highest {max(known):,}" if known else f"{name}: {len(values):,} queues, not known"
        content.append(text(said, 0, top + LINE - 5))
        top += LINE
        paths: dict[str, list[str]] = {}
        for index, value in enumerate(values):
            x, y = index % COLUMNS * CELL, top + index // COLUMNS * CELL
            paths.setdefault(_class(value), []).append(f"M{x} {y}h{CELL - 1}v{CELL - 1}h-{CELL - 1}z")
        content += [element("path", d="".join(cells), class_=name) for name, cells in sorted(paths.items())]
        top += -(-len(values) // COLUMNS) * CELL
    content += _legend(top + LINE - 5)
    count = sum(map(len, blocks.values()))
    return document(COLUMNS * CELL, top + LINE + 4, title, f"{count:,} queues", content, style=None)


def highest(figures: Iterable[tuple[str, int | None]], count: int) -> list[tuple[str, int]]:
    """Return the queues (name, figure) with the `count` highest figures above 0, the highest first: cells have no names."""
    known = [(name, figure) for name, figure in figures if figure is not None and figure > 0]
    return nlargest(count, known, key=lambda each: each[1])


def _class(value: int | None) -> str:
    """Return the class of a cell: the number of digits, 0 for 0."""
    return "unknown" if value is None else "heat-0" if value <= 0 else f"heat-{min(len(str(value)), STEPS - 1)}"


def _legend(y: int) -> list[str]:
    made = []
    for step, name in enumerate((*NAMES, "not known")):
        x = step * COLUMNS * CELL // (STEPS + 1)
        kind = f"heat-{step}" if step < STEPS else "unknown"
        made.append(element("rect", titled(name), x=x, y=y - CELL + 1, width=CELL - 1, height=CELL - 1, class_=kind))
        made.append(text(name, x + CELL + 3, y, class_="faint"))
    return made
