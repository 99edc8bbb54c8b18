"""When waiting messages are due: a bar for each period, the next one at the top."""

from collections.abc import Sequence

from lockstep.operations.pictures.svg import document, element, text, titled

ROW = 26
BAR = 16
LABEL = 110
"""Width of the names of the periods."""
LENGTH = 320
"""Length of the longest bar."""
COUNT = 110
"""Width of the numbers after the bars."""
WIDTH = LABEL + LENGTH + COUNT


def due_picture(periods: Sequence[tuple[str, int]], title: str) -> str:
    """Return the bars as SVG without a style sheet. `periods`: the name of each and its number of messages; the first one is overdue."""
    highest = max((count for _, count in periods), default=0)
    content: list[str] = []
    for number, (name, count) in enumerate(periods):
        top, line = number * ROW + (ROW - BAR) / 2, number * ROW + ROW / 2 + 4
        length = max(2.0, count * LENGTH / highest) if count > 0 else 0.0
        content.append(text(name, LABEL - 10, line, text_anchor="end"))
        if length:
            said = titled(f"{name}: {count:,} messages")
            content.append(element("rect", said, x=LABEL, y=top, width=length, height=BAR, class_="c0" if number else "c7"))
        content.append(text(f"{count:,}", LABEL + length + 6, line, class_="faint"))
    content.append(element("line", x1=LABEL, y1=0, x2=LABEL, y2=len(periods) * ROW, class_="axis"))
    return document(WIDTH, len(periods) * ROW, title, ", ".join(f"{name} {count:,}" for name, count in periods), content, style=None)
