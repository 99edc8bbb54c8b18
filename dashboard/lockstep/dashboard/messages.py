"""What pages show of messages: a row of a list, the beginning of a body, a whole body."""

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.messages.record import CRC_MASK

BODY_SHOWN = 64 * 1024
"""Bytes of a body that are shown."""
LINE_SHOWN = 120
LINE_READ = 4 * LINE_SHOWN
"""Bytes of a body from which its line is made."""
HEX_SHOWN = 4 * 1024
"""Bytes of a body that is no text."""
HEX_LINE = 16
NESTED_MAX = 50
LAID_OUT_MAX = 4 * BODY_SHOWN
"""Characters of JSON that is laid out. What would be longer, or nested deeper than NESTED_MAX, is shown as it is."""
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}:,]|[^][{}:,"\s]+')


@dataclass(frozen=True, slots=True)
class Body:
    """A body as it is shown."""

    kind: str
    """json, text, bytes, hidden or unreadable."""
    shown: str
    size: int
    """Bytes of the whole body."""
    stored: int
    """Bytes that are stored of it: fewer if it is compressed."""
    crc: int
    """CRC-32 of the stored bytes, as RocketMQ computes it: without the highest bit."""
    cut: bool = False


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message in a list, without its body."""

    message_id: str
    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    stored_ms: int
    tags: str | None
    sharding_key: str | None
    keys: tuple[str, ...]
    line: str
    """The beginning of the body."""


class Messages:
    """Makes texts of messages. Without `bodies` none is shown."""

    def __init__(self, *, bodies: bool = True) -> None:
        self.bodies = bodies

    def body(self, message: MessageExt) -> Body:
        """Return the body: JSON laid out, text, or bytes in hexadecimal digits."""
        raw = message.stored_body
        stored = len(raw), crc32(raw) & CRC_MASK
        if not self.bodies:
            return Body("hidden", "", len(raw), *stored)
        try:
            body = bytes(message.body)
        except RemoteProtocolError as error:
            return Body("unreadable", str(error), len(raw), *stored)
        cut = len(body) > BODY_SHOWN
        try:
            text = body[:BODY_SHOWN].decode("utf-8", "ignore" if cut else "strict")
        except UnicodeDecodeError:
            return Body("bytes", "\n".join(hex_lines(body[:HEX_SHOWN])), len(body), *stored, len(body) > HEX_SHOWN)
        if not cut and text[:1] in ("{", "["):
            laid_out = lay_out(text)
            if laid_out is not None:
                return Body("json", laid_out, len(body), *stored)
        return Body("text", text, len(body), *stored, cut)

    def row(self, message: MessageExt) -> MessageRow:
        """Return the row of a message in a list."""
        place = message.stored_topic, message.broker_name, message.queue_id, message.queue_offset
        names = message.tags, message.sharding_key, message.keys
        return MessageRow(message.offset_message_id, *place, message.stored_ms, *names, self.line(message))

    def line(self, message: MessageExt) -> str:
        """Return the beginning of the body, on one line."""
        if not self.bodies:
            return f"{len(message.stored_body)} bytes"
        try:
            body = message.body
        except RemoteProtocolError as error:
            return f"({error})"
        cut = len(body) > LINE_READ
        # A character of which the last bytes are cut off is left out.
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        text = " ".join(decoder.decode(bytes(body[:LINE_READ]), final=not cut).split())
        return text[:LINE_SHOWN] + "…" if cut or len(text) > LINE_SHOWN else text


def lay_out(text: str) -> str | None:
    """Return JSON with a line for each member and element, and its names, strings and numbers as they are written.

    Return None if it is no JSON, or too long or too deep when it is laid out.
    """
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    parts: list[str] = []
    depth = length = 0
    before = ""
    for token in _TOKEN.findall(text):
        opened, closes = before in ("[", "{"), token in ("]", "}")
        depth -= closes
        if (closes and not opened) or (not closes and (opened or before == ",")):
            parts.append("\n" + "  " * depth)
        parts.append(": " if token == ":" else token)
        depth += token in ("[", "{")
        length += len(token) + 2 * depth + 1
        if depth > NESTED_MAX or length > LAID_OUT_MAX:
            return None
        before = token
    return "".join(parts)


def hex_lines(data: bytes) -> Iterator[str]:
    """Yield lines with the place of their first byte, 16 bytes in hexadecimal digits, and those of them that are ASCII."""
    for at in range(0, len(data), HEX_LINE):
        part = data[at : at + HEX_LINE]
        shown = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        yield f"{at:08x}  {part.hex(' '):{3 * HEX_LINE - 1}}  {shown}"
