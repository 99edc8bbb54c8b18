"""What the two header codecs of RocketMQ's clients have in common: the languages, fields as text, JSON bodies.

JSON comes from anyone, so it is read within limits: text that is no JSON, is nested too deeply, has numbers that are not finite or too
long, or has half a surrogate pair, which could not be stored as UTF-8, is refused.
"""

import json
from typing import Any, NoReturn, TypeVar

from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError
from lockstep.protocol.fields import from_text, to_java, to_text

T = TypeVar("T")

LANGUAGES = (*("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS"),)
"""RocketMQ: LanguageCode. The index is the code."""
OWN_LANGUAGE = "PYTHON"
FIELDS_MAX = 128
"""The maximum number of header fields of a frame. RocketMQ's longest header has 24."""
SHOWN = 60
"""Characters of bad input that an error shows."""


class JavaCodec:
    """Fields as text and bodies as JSON."""

    __slots__ = ()

    def read_fields(self, cls: type[T], fields: dict[str, Any]) -> T:
        return from_text(cls, fields)

    def write_fields(self, header: object) -> dict[str, Any]:
        return to_text(header)

    def read_body(self, cls: type[T], data: bytes | bytearray | memoryview) -> T:
        return from_text(cls, read_json(data, what=cls.__name__))

    def write_body(self, body: object) -> bytes:
        return write_json(to_java(body))


def read_json(data: bytes | bytearray | memoryview, *, what: str) -> Any:
    """Return the value of a JSON text. Raise RemoteProtocolError, which names `what`, if it is none within the limits."""
    try:
        text = str(data, "utf-8")
        value = json.loads(text, parse_constant=_refuse_constant)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RemoteProtocolError(f"{what} is not JSON that can be read: {reason[:SHOWN]}") from None
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def write_json(plain: Any) -> bytes:
    """Return a plain value as JSON without blanks. Raise LocalProtocolError if it has half a surrogate pair."""
    try:
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"a body can't be encoded: {error}") from None


def language_code(language: str | int | None) -> int:
    """Return the code of a language, which clients send by name or by number."""
    if isinstance(language, int):
        return language
    return LANGUAGES.index(language) if language in LANGUAGES else LANGUAGES.index("OTHER")
