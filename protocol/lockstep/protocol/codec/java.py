"""What the two header codecs of RocketMQ's clients have in common: the languages, fields as text, JSON bodies.

JSON comes from anyone, so it is read within limits: text that is no JSON, is nested too deeply, has numbers that are not finite or too
long, or has half a surrogate pair, which could not be stored as UTF-8, is refused.
"""

import json
from math import isfinite
from typing import Any, NoReturn, TypeVar

from lockstep.protocol.codec.plain import ELEMENT_BYTES_MIN, ELEMENTS_ALWAYS, ELEMENTS_MAX
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
    raw = bytes(data)
    if len(raw) > ELEMENTS_ALWAYS:
        _check_elements(raw, what)
    try:
        text = str(raw, "utf-8")
        value = _DECODER.decode(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        reason = "nested too deeply"
    except UnicodeEncodeError:
        reason = "half of a surrogate pair"
    except ValueError as error:
        reason = str(error)[:SHOWN]
    else:
        return value
    raise RemoteProtocolError(f"{what} is not JSON that can be read: {reason}")


def _check_elements(raw: bytes, what: str) -> None:
    """Raise RemoteProtocolError if the text may have more elements than a msgpack body: each follows a comma or begins a list or map."""
    elements_max = min(ELEMENTS_MAX, max(ELEMENTS_ALWAYS, len(raw) // ELEMENT_BYTES_MIN))
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") > elements_max:
        raise RemoteProtocolError(f"{what} is not JSON within its limits: more than {elements_max} elements in its lists and maps")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise ValueError(f"{digits[:20]} is too large for a number")
    return number


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse_constant)


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
