"""How long appends took over time: a column for each half minute, a row for each bucket of the histogram, darker where more ended."""

from collections.abc import Sequence

from lockstep.operations.brokers.append_latency import bound_name
from lockstep.operations.pictures.svg import document, element, text

CELL = 7
ROW = 14
LABEL = 62
"""Width of the names of the rows."""
SHARES = (0.0, 0.01, 0.05, 0.2, 0.5)
"""A cell with a larger share of its column has the next step of colour, from the second one on."""


def latency_picture(columns: Sequence[Sequence[int] | None], columns_max: int, title: str) -> str:
    """Return the picture as SVG without a style sheet. The last column is at the right; rows without any count outside are left out."""
    used = [bucket for counts in columns for bucket, count in enumerate(counts or ()) if count]
    rows = range(min(used), max(used) + 1) if used else range(0)
    paths: dict[str, list[str]] = {}
    for number, counts in enumerate(columns, columns_max - len(columns)):
        whole = sum(counts or ())
        for bucket, count in enumerate(counts or ()):
            if count:
                x, y = LABEL + number * CELL, (rows[-1] - bucket) * ROW
                step = sum(count / whole > share for share in SHARES)
                paths.setdefault(f"heat-{step} latency", []).append(f"M{x} {y}h{CELL - 1}v{ROW - 1}h-{CELL - 1}z")
    names = {bucket: (rows[-1] - bucket) * ROW + ROW - 3 for bucket in rows}
    content = [text(bound_name(bucket), LABEL - 6, y, text_anchor="end", class_="faint") for bucket, y in names.items()]
    content += [element("path", d="".join(cells), class_=name) for name, cells in sorted(paths.items())]
    said = "no appends" if not used else f"the fastest {bound_name(rows[0])}, the slowest {bound_name(rows[-1])}"
    return document(LABEL + columns_max * CELL, max(1, len(rows)) * ROW, title, said, content, style=None)
