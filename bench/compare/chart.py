"""Draw the results as an SVG picture: one panel of bars for each work. Pure.

The picture has a background of its own, and follows the reader's light or dark scheme.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from compare.plan import Row
from compare.report import LOCKSTEP, Cell, Results, results_of, thousands

WIDTH, MARGIN, GAP = 980, 20, 28
COLUMNS = 2
LABEL_WIDTH, VALUE_WIDTH = 150, 52
BAR, BAR_GAP, LINE_GAP = 10, 1, 7
TITLE_HEIGHT, HEAD_HEIGHT = 40, 100
CUT = 1.3
"""The axis ends at the highest round, or at this multiple of the longest bar if that is less."""
TITLES = {
    "one": ("One awaited send at a time", "µs, p50; lower is better"),
    "tasks": ("2,000 tasks, each awaits one send at a time", "messages/s"),
    "pipeline": ("Single sends, the client's fastest way", "messages/s"),
    "batch": ("Explicit batches", "messages/s"),
    "consume_batch": ("Consume in batches of up to 1,000", "messages/s"),
    "consume_one": ("Consume one message at a time", "messages/s"),
    "ordered_one": ("In order, one message per listener call", "messages/s"),
    "e2e": ("End to end at 1,000 messages/s", "µs, p50; lower is better"),
}
"""Titles by the peers' work: lockstep's variants of a work are bars of one panel."""
VARIANTS = {
    "tasks_keyed": "lockstep, keyed",
    "consume_batch_ordered": "lockstep, ordered",
    "consume_batch_concurrent": "lockstep, concurrent",
    "consume_batch_poll": "lockstep, poll",
    "consume_one_concurrent": "lockstep, concurrent",
    "consume_one_iterate": "lockstep, async for",
}
LOOKS = {"lockstep": "lockstep", "python": "other client in Python", "c": "client in C, called from Python", "java": "client in Java"}
STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
.head { font-size: 18px; font-weight: 600; } .title { font-size: 13px; font-weight: 600; } .quiet { fill: #59636e; font-size: 11px; }
.value { font-size: 10px; } .own { font-weight: 600; }
.back { fill: #ffffff; stroke: #d1d9e0; } .axis { stroke: #d1d9e0; } .range { stroke: #1f2328; stroke-opacity: .6; }
.lockstep { fill: #0969da; } .python { fill: #8c959f; } .c { fill: #57606a; } .java { fill: #bf8700; } .large { opacity: .55; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; } .quiet { fill: #9198a1; } .back { fill: #0d1117; stroke: #3d444d; } .axis { stroke: #3d444d; }
  .range { stroke: #f0f6fc; } .lockstep { fill: #4493f8; } .python { fill: #7d8590; } .c { fill: #b7bdc8; } .java { fill: #d29922; }
}
"""


@dataclass(frozen=True, slots=True)
class Line:
    """The bars of one system in a panel, one for each size."""

    label: str
    look: str
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    unit: str
    lines: tuple[Line, ...]
    sizes: int

    @property
    def height(self) -> int:
        return TITLE_HEIGHT + len(self.lines) * self.line_height

    @property
    def line_height(self) -> int:
        return self.sizes * (BAR + BAR_GAP) + LINE_GAP

    @property
    def end(self) -> float:
        """Return the value at the end of the axis. A range that goes beyond it is cut off."""
        middles = [cell.middle for line in self.lines for cell in line.cells if cell]
        highs = [cell.high for line in self.lines for cell in line.cells if cell]
        return min(max(highs, default=0.0), CUT * max(middles, default=0.0)) or 1.0


def svg(found: Mapping[str, Any]) -> str:
    """Return the picture of a run."""
    results = results_of(found)
    panels = panels_of(results)
    width = (WIDTH - 2 * MARGIN - (COLUMNS - 1) * GAP) // COLUMNS
    drawn: list[str] = []
    top = HEAD_HEIGHT
    for first in range(0, len(panels), COLUMNS):
        row = panels[first : first + COLUMNS]
        for column, panel in enumerate(row):
            drawn += draw(panel, MARGIN + column * (width + GAP), top, width)
        top += max(panel.height for panel in row) + GAP
    height = top
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>lockstep compared with other message systems</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="back" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        f'<text class="head" x="{MARGIN}" y="32">The same work through each system, in turns on one machine</text>',
        *legend(found, results),
    ]
    return "\n".join([*head, *drawn, "</svg>", ""])


def panels_of(results: Results) -> list[Panel]:
    panels = []
    for work, (title, unit) in TITLES.items():
        rows = [row for row in results.rows if row.peers == work]
        if lines := lines_of(results, rows):
            panels.append(Panel(title, unit, tuple(lines), len(results.sizes)))
    return panels


def lines_of(results: Results, rows: Sequence[Row]) -> list[Line]:
    """Return the lines of a panel: lockstep's for each of its rows, then the others' (the same in each row)."""
    lines = [line_of(results, row, LOCKSTEP, VARIANTS.get(row.name, LOCKSTEP)) for row in rows if LOCKSTEP in results.systems]
    lines += [line_of(results, row, name, results.label[name]) for row in rows[:1] for name in results.systems if name != LOCKSTEP]
    return [line for line in lines if any(line.cells)]


def line_of(results: Results, row: Row, system: str, label: str) -> Line:
    return Line(label, look_of(results, system), tuple(results.cells.get((row.name, size, system)) for size in results.sizes))


def look_of(results: Results, system: str) -> str:
    return LOCKSTEP if system == LOCKSTEP else results.language[system].lower()


def legend(found: Mapping[str, Any], results: Results) -> list[str]:
    """Return the two lines under the head: how to read the bars, and their colours."""
    sizes = " · ".join(f"{'lower, pale bar' if index else 'upper bar'}: {size:,}-byte bodies" for index, size in enumerate(results.sizes))
    rounds = "one round" if found["rounds"] == 1 else f"median of {found['rounds']} rounds, line: lowest to highest"
    text = " · ".join([sizes, rounds, f"{found['cpu']}, {found['cores']} cores"])
    drawn = [f'<text class="quiet" x="{MARGIN}" y="52">{escape(text)}</text>']
    left = MARGIN
    for look, name in LOOKS.items():
        if any(look == look_of(results, system) for system in results.systems):
            drawn.append(f'<rect class="{look}" x="{left}" y="63" width="10" height="10" rx="2"/>')
            drawn.append(f'<text class="quiet" x="{left + 15}" y="72">{name}</text>')
            left += 38 + 6 * len(name)
    return drawn


def draw(panel: Panel, left: int, top: int, width: int) -> list[str]:
    zero = left + LABEL_WIDTH
    length = width - LABEL_WIDTH - VALUE_WIDTH
    drawn = [
        f'<text class="title" x="{left}" y="{top + 14}">{escape(panel.title)}</text>',
        f'<text class="quiet" x="{left + width}" y="{top + 14}" text-anchor="end">{panel.unit}</text>',
        f'<line class="axis" x1="{zero}" x2="{zero}" y1="{top + TITLE_HEIGHT - 16}" y2="{top + panel.height - 16}"/>',
    ]
    for number, line in enumerate(panel.lines):
        y = top + TITLE_HEIGHT - 12 + number * panel.line_height
        middle = y + panel.sizes * (BAR + BAR_GAP) / 2 + 4
        weight = ' class="own"' if line.look == LOCKSTEP else ""
        drawn.append(f'<text{weight} x="{zero - 7}" y="{middle:.0f}" text-anchor="end">{escape(line.label)}</text>')
        for index, cell in enumerate(line.cells):
            if cell is not None:
                drawn += bar(panel, line, cell, index, zero, y + index * (BAR + BAR_GAP), length)
    return drawn


def bar(panel: Panel, line: Line, cell: Cell, index: int, zero: int, y: int, length: int) -> list[str]:
    scale = length / panel.end
    look = f"{line.look} large" if index else line.look
    text = thousands(cell.middle) if cell.p99_us is None else f"{cell.middle:,.0f}"
    low, high, middle = zero + cell.low * scale, zero + min(cell.high * scale, length), y + BAR / 2
    return [
        f'<rect class="{look}" x="{zero}" y="{y}" width="{max(cell.middle * scale, 1):.1f}" height="{BAR}" rx="1"/>',
        f'<line class="range" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>',
        f'<text class="value" x="{high + 5:.1f}" y="{y + BAR - 1}">{text}</text>',
    ]
