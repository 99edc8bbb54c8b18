"""Elements of SVG as text, and what all pictures share: escaping, an axis of time, a style sheet for files."""

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from xml.sax.saxutils import escape, quoteattr

from lockstep.runtime.logs.safe_text import printable

STEPS_MS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000),
    *(60_000 * minutes for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1_440)),
)
"""Distances of the marks of an axis."""
STYLE = """
svg { font: 12px system-ui, sans-serif; background: #fff; color: #222 }
text { fill: currentColor } .faint { fill: #666 } .axis { stroke: #ccc } .mark { stroke: #888; stroke-dasharray: 2 3 }
.gap { fill: url(#hatch) } .hatch { stroke: #c00 } .line { stroke: #fff } .unknown { fill: #ddd } .letter { fill: #fff; font-weight: 600 }
.c0 { fill: #0072b2 } .c1 { fill: #b35900 } .c2 { fill: #00734f } .c3 { fill: #a3428a }
.c4 { fill: #5b4b9e } .c5 { fill: #7a5c00 } .c6 { fill: #1f6f8b } .c7 { fill: #9c3322 }
.grace { opacity: 0.35 } .alarm, .failing { fill: #c00 } .others { fill: #59636e } .moved { fill: #6b7580 } .parked { fill: #b35900 }
@media (prefers-color-scheme: dark) {
svg { background: #16181c; color: #ddd } .faint { fill: #9aa } .axis { stroke: #3a3f47 } .unknown { fill: #33373e }
.line { stroke: #16181c } .hatch { stroke: #f66 } .alarm, .failing { fill: #f66 } }
"""
"""For a picture in a file: light or dark, as the viewer prefers. Colour-blind people can distinguish the colours of owners (Okabe and Ito),
and darkened until white letters on them are read."""


def element(name: str, content: str | Iterable[str] = "", /, **attributes: object) -> str:
    """Return an element. `content` is SVG already. In names of attributes "_" stands for "-", and a "_" at the end is dropped."""
    shown = "".join(
        f" {key.rstrip('_').replace('_', '-')}={quoteattr(_value(value))}" for key, value in attributes.items() if value is not None
    )
    inner = content if isinstance(content, str) else "".join(content)
    return f"<{name}{shown}>{inner}</{name}>" if inner else f"<{name}{shown}/>"


def text(content: object, x: float, y: float, **attributes: object) -> str:
    """Return a text, escaped; characters that are not printable are shown as escapes."""
    return element("text", escaped(content), x=x, y=y, **attributes)


def escaped(content: object) -> str:
    """Return a text for the inside of an element."""
    return escape(printable(str(content)))


def titled(content: object) -> str:
    """Return the title of an element, which a browser shows for the pointer and reads to the blind."""
    return element("title", escaped(content))


def document(
    width: int, height: int, title: str, description: str, content: Iterable[str], *, style: str | None, **attributes: object
) -> str:
    """Return the whole picture. `style` None: the page around it paints it."""
    head = [titled(title), element("desc", escaped(description))]
    head += [] if style is None else [element("style", escape(style))]
    return element(
        "svg",
        [*head, *content],
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_label=printable(title),
        class_="picture",
        **attributes,
    )


def time_marks(from_ms: int, until_ms: int, count_max: int) -> Iterator[int]:
    """Yield the times of the marks of an axis: whole steps, at most `count_max`."""
    length = max(1, until_ms - from_ms)
    step = next((step for step in STEPS_MS if length <= step * count_max), None) or -(-length // count_max)
    yield from range(-(-from_ms // step) * step, until_ms + 1, step)


def time_axis(period: tuple[int, int], x: Callable[[int], float], top: float, bottom: float) -> Iterator[str]:
    """Draw marks of the time, in UTC, and say so: a browser shows them in its own time zone by `data-ms`."""
    first, last = period
    with_ms = last - first < 10_000
    yield text("UTC", 4, bottom + 14, class_="faint zone", data_ms=first)
    for at_ms in time_marks(first, last, 8):
        yield element("line", x1=x(at_ms), x2=x(at_ms), y1=top, y2=bottom, class_="axis")
        yield text(clock_time(at_ms, with_ms=with_ms), x(at_ms), bottom + 14, class_="faint", text_anchor="middle", data_ms=at_ms)


def clock_time(at_ms: int, *, with_ms: bool) -> str:
    """Return the time of day in UTC."""
    found = datetime.fromtimestamp(at_ms / 1000, UTC)
    return found.strftime("%H:%M:%S.") + f"{found.microsecond // 1000:03}" if with_ms else found.strftime("%H:%M:%S")


def _value(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else printable(str(value))
