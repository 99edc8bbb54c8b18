"""JSON as RocketMQ's JSON library writes it: the keys of a map may be objects or bare numbers. RocketMQ: fastjson 1.2.

    {{"brokerName":"a","queueId":0,"topic":"t"}:5}
    {0:"127.0.0.1:10911"}

In Python such a key is a tuple of pairs, or an int. Members are written in the order of the dict.
"""

import json
import math
import re
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from lockstep.protocol.codec.java import SHOWN, write_json
from lockstep.protocol.errors import RemoteProtocolError

DEPTH_MAX = 32
"""Objects and lists within each other. RocketMQ's deepest body has five."""
TEXT_BYTES_MAX = 128 << 10
"""The longest text that is read, which takes about 50 ms. The offsets of 2,000 queues fit."""

_BLANKS = re.compile(r"[ \t\r\n]*")
_TOKEN = re.compile(r"[A-Za-z0-9_$+.\-]{1,64}")
_NUMBER = re.compile(r"-?\d{1,19}(\.\d{1,20})?([eE][+-]?\d{1,3})?")
_WORDS = {"true": True, "false": False, "null": None}


def queue_key(broker_name: str, queue_id: int, topic: str) -> tuple[tuple[str, Any], ...]:
    """Return a queue as a key. RocketMQ: MessageQueue."""
    return ("brokerName", broker_name), ("queueId", queue_id), ("topic", topic)


def write_fastjson(value: Any) -> bytes:
    """Return a plain value as JSON without blanks. Raise LocalProtocolError if it has half a surrogate pair."""
    return b"".join(_written(value))


def _written(value: Any) -> list[bytes]:
    if isinstance(value, dict):
        parts = [b"{"]
        for key, item in value.items():
            parts += [b"," if len(parts) > 1 else b"", write_key(key), b":", *_written(item)]
        return [*parts, b"}"]
    if isinstance(value, list | tuple):
        parts = [b"["]
        for item in value:
            parts += [b"," if len(parts) > 1 else b"", *_written(item)]
        return [*parts, b"]"]
    return [write_json(value)]


def write_key(key: Any) -> bytes:
    """Return the key of a map: a tuple of pairs is an object."""
    return write_json(dict(key) if isinstance(key, tuple) else key)


def read_fastjson(data: bytes | bytearray | memoryview, *, what: str) -> Any:
    """Return the value of a text. Raise RemoteProtocolError, which names `what`, if it can't be read within the limits."""
    try:
        if len(data) > TEXT_BYTES_MAX:
            raise ValueError(f"{len(data)} bytes, {TEXT_BYTES_MAX} allowed")
        reader = _Reader(str(data, "utf-8"))
        value = reader.value(0)
        if reader.next():
            raise ValueError(f"character {reader.at} is behind the end of the value")
        return value
    except (ValueError, IndexError) as error:
        raise RemoteProtocolError(f"{what} is not JSON that can be read: {str(error)[:SHOWN]}") from None


class _Reader:
    """Reads one text from its beginning to its end. Each method raises ValueError if the text is malformed."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0

    def next(self) -> str:
        """Return the next character that is no blank, without passing it. Empty at the end."""
        blanks = _BLANKS.match(self._text, self.at)
        self.at = self.at if blanks is None else blanks.end()
        return self._text[self.at : self.at + 1]

    def value(self, depth: int) -> Any:
        """Return the value that begins here."""
        first = self.next()
        if first == "{":
            return self._object(depth)
        if first == "[":
            return self._list(depth)
        if first == '"':
            return self._string()
        token = self._token()
        if token in _WORDS:
            return _WORDS[token]
        if _NUMBER.fullmatch(token) is None:
            raise ValueError(f"{token[:20]!r} at character {self.at} is no value")
        number = json.loads(token)
        if not math.isfinite(number):
            raise ValueError(f"{token} is too large")
        return number

    def _object(self, depth: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        while self._goes_on("{" if not found else ",", "}", depth):
            key = self._key(depth)
            self._pass(":")
            found[key] = self.value(depth + 1)
        return found

    def _list(self, depth: int) -> list[Any]:
        found: list[Any] = []
        while self._goes_on("[" if not found else ",", "]", depth):
            found.append(self.value(depth + 1))
        return found

    def _goes_on(self, opening: str, closing: str, depth: int) -> bool:
        """Pass the opening or the separator, or the closing character. Return whether an item follows."""
        if depth >= DEPTH_MAX:
            raise ValueError(f"nested more deeply than {DEPTH_MAX} levels")
        if opening == "," and self.next() == closing:
            self.at += 1
            return False
        self._pass(opening)
        if self.next() == closing and opening != ",":
            self.at += 1
            return False
        return True

    def _key(self, depth: int) -> Any:
        first = self.next()
        if first == '"':
            return self._string()
        if first != "{":
            token = self._token()
            return int(token) if _NUMBER.fullmatch(token) and token.removeprefix("-").isdecimal() else token
        pairs = tuple(sorted(self._object(depth + 1).items(), key=lambda pair: str(pair[0])))
        if not all(isinstance(item, str | int | float | None) for _, item in pairs):
            raise ValueError(f"the key before character {self.at} has an object or a list in it")
        return pairs

    def _string(self) -> str:
        text, self.at = scanstring(self._text, self.at + 1, True)
        text.encode()  # half a surrogate pair raises UnicodeEncodeError, a ValueError
        return str(text)

    def _token(self) -> str:
        self.next()
        token = _TOKEN.match(self._text, self.at)
        if token is None:
            raise ValueError(f"character {self.at} begins no value")
        self.at = token.end()
        return token.group()

    def _pass(self, character: str) -> None:
        if self.next() != character:
            raise ValueError(f"expected {character!r} at character {self.at}")
        self.at += 1
