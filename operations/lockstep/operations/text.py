"""Text of what reports contain: times, durations, sizes, bodies, JSON."""

import json
import re
from datetime import UTC, datetime

from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.messages.message import MessageExt
from lockstep.runtime.logs.safe_text import printable

DURATION = re.compile(r"\d+(\.\d)? (s|min|h|d)\b")


def json_text(value: object, indent: int | None = None) -> str:
    """Return a JSON document in which every character that isn't printable is escaped, as JSON escapes it."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)


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
