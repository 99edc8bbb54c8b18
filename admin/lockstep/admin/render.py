"""Print tables, lines of text and JSON."""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.message import MessageExt
from lockstep.runtime.safe_text import printable

FOLDED_ROWS_MAX = 500
"""A longer table is not folded to the width of the terminal: rich takes half a millisecond for a row."""
GAP = "  "
DURATION = re.compile(r"\d+(\.\d)? (s|min|h|d)\b")


def print_json(value: object) -> None:
    """Print one JSON document: indented on a terminal, else on one line."""
    print(json_text(value, indent=2 if sys.stdout.isatty() else None), flush=True)


def json_text(value: object, indent: int | None = None) -> str:
    """Return a JSON document in which every character that isn't printable is escaped, as JSON escapes it."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)


def print_line(text: str) -> None:
    """Print one line to stdout. Characters that aren't printable, which peers may have sent, are escaped."""
    print(printable(text), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None, empty: str = "nothing") -> None:
    """Print a table, or the line `empty` if it has no rows. Columns that begin with ">" are right-aligned. None is printed as a dash.

    On a terminal, cells are folded to its width. A row that is written to a file or a pipe is one line.
    """
    filled = [[_cell(value) for value in row] for row in rows]
    if not filled:
        print(empty)
        return
    if not sys.stdout.isatty() or len(filled) > FOLDED_ROWS_MAX:
        print("\n".join(([] if title is None else [title]) + list(_lines(columns, filled))))
        return
    console = Console(highlight=False)
    table = Table(title=None if title is None else Text(title), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    for row in filled:
        table.add_row(*map(Text, row))  # Text, not str: a name or body in square brackets must not be taken for markup
    console.print(table)


def _cell(value: object) -> str:
    return "-" if value is None else "yes" if value is True else "no" if value is False else printable(str(value))


def _lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, aligned and not folded."""
    lines = [[column.removeprefix(">") for column in columns], *rows]
    widths = [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)]
    right = [column.startswith(">") for column in columns]
    for line in lines:
        cells = []
        for cell, width, is_right in zip(line, widths, right, strict=True):
            blanks = " " * (width - cell_len(cell))
            cells.append(blanks + cell if is_right else cell + blanks)
        yield GAP.join(cells).rstrip()


def body_text(message: MessageExt) -> str:
    """Return a message's body as text, with escapes if it is not UTF-8, or the error in parentheses if it can't be decompressed."""
    try:
        body = message.body
    except RemoteProtocolError as error:
        return f"({error})"
    return printable(body.decode("utf-8", errors="backslashreplace"))


def format_bytes(count: int) -> str:
    """Return a number of bytes in its largest suitable unit: 999 B, 12.3 kB, 4.0 MB, 80.1 GB."""
    if count < 1_000:
        return f"{count} B"
    size, unit = count / 1_000, "kB"
    for larger in ("MB", "GB", "TB"):
        if size < 999.95:
            break
        size, unit = size / 1_000, larger
    return f"{size:.1f} {unit}"


def format_duration(milliseconds: int | None) -> str | None:
    """Return a duration in its largest suitable unit: 0.4 s, 12 s, 3 min, 5 h, 2 d."""
    if milliseconds is None:
        return None
    seconds = milliseconds / 1000
    for limit, unit, name in ((10, 1, "s"), (120, 1, "s"), (7_200, 60, "min"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.1f} {name}" if limit == 10 else f"{int(seconds // unit)} {name}"
    return f"{int(seconds // 86_400)} d"


def without_durations(text: str) -> str:
    """Return a text in which every duration that `format_duration` returns is a dash, so that texts of different times can be compared."""
    return DURATION.sub("-", text)


def format_short_duration(milliseconds: int) -> str:
    """Return a duration as `format_duration` does, and in milliseconds below a second: 7 ms, 3.0 s, 12 s."""
    return f"{milliseconds} ms" if milliseconds < 1_000 else format_duration(milliseconds) or ""


def format_time(milliseconds: int) -> str:
    """Return a time (ms since 1970) in UTC, as ISO 8601 with milliseconds.

    A client may send any int64 as the time of a message: one that is not in the years 1 to 9999 is returned as the number of ms.
    """
    try:
        found = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")
