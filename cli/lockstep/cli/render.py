"""Print tables, lines of text and JSON."""

import sys
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lockstep.operations.text import json_text
from lockstep.runtime.logs.safe_text import printable

FOLDED_ROWS_MAX = 500
"""A longer table is not folded to the width of the terminal: rich takes half a millisecond for a row."""
GAP = "  "


def print_json(value: object) -> None:
    """Print one JSON document: indented on a terminal, else on one line."""
    print(json_text(value, indent=2 if sys.stdout.isatty() else None), flush=True)


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
