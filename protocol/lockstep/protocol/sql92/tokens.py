"""The words of an SQL92 expression, and the error that shows a place in it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lockstep.protocol.errors import LocalProtocolError

TEXT_LENGTH_MAX: Final = 32_768
"""Characters of an expression. A subscription has at most 8,192 (tags.py), and its canonical text up to three times as many."""
KEYWORDS = frozenset(
    ("AND", "OR", "NOT", "IS", "NULL", "BETWEEN", "IN", "CONTAINS", "STARTSWITH", "ENDSWITH", "TRUE", "FALSE"),
)
NAME = r"[A-Za-z_$][A-Za-z0-9_$]*"
"""The names of properties that a condition can name, as in RocketMQ; the keywords, in upper or lower case, are none."""
BEFORE, AFTER = 40, 20
"""Characters before and after a place that an error shows."""
_TOKEN = re.compile(
    rf"""(?P<skip>\s+|--[^\r\n]*|/\*.*?\*/)
    |(?P<text>'(?:[^']|'')*')
    |(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[lL]?)
    |(?P<name>{NAME})
    |(?P<sign><>|<=|>=|[=<>(),+-])""",
    re.VERBOSE | re.DOTALL,
)
_NAME = re.compile(NAME)
_GOES_ON = re.compile(r"[.:@#]|-(?!-)|/(?!\*)|[^\W\d_]")
"""What does not end a word that may be meant as the name of a property, after one that is such a name."""
_WORD = re.compile(r"[\w$.:@#/-]+")


def can_be_named(name: str) -> bool:
    """Return whether a condition can name a property of this name."""
    return _NAME.fullmatch(name) is not None and name.upper() not in KEYWORDS


class SqlError(LocalProtocolError):
    """The expression can't be used. `str` shows the place in it: the expression's line, and a caret under the place."""

    def __init__(self, expression: str, at: int, reason: str) -> None:
        begin, end = max(0, at - BEFORE), at + AFTER
        shown = re.sub(r"\s", " ", expression[begin:end])
        head, tail = "… " if begin else "", " …" if end < len(expression) else ""
        super().__init__(f"{head}{shown}{tail}\n{' ' * (len(head) + at - begin)}^ {reason}")
        self.reason = reason
        self.at = at

    @property
    def remark(self) -> str:
        """Return the error as one line."""
        return f"{self.reason}, at character {self.at + 1} of the SQL92 expression"


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    """A keyword or sign, or "name", "text", "number", "end"."""
    text: str
    at: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text[:40])


def tokens(expression: str) -> Iterator[Token]:
    """Yield the words of an expression, and at last its end. Raise SqlError for a character that begins none."""
    if len(expression) > TEXT_LENGTH_MAX:
        reason = f"the expression has {len(expression)} characters: at most {TEXT_LENGTH_MAX}"
        raise SqlError(expression, TEXT_LENGTH_MAX, reason)
    at = 0
    while at < len(expression):
        found = _TOKEN.match(expression, at)
        if found is None:
            if expression[at] == "'":
                raise SqlError(expression, at, "this text has no closing quote")
            if expression.startswith("/*", at):
                raise SqlError(expression, at, "this comment has no end")
            if expression[at].isalpha():
                raise _not_named(expression, at)
            raise SqlError(expression, at, f"unexpected character {expression[at]!r}")
        kind, text = found.lastgroup or "", found.group()
        if kind == "name" and text.upper() in KEYWORDS:
            kind = text.upper()
        elif kind == "name" and _GOES_ON.match(expression, found.end()):
            raise _not_named(expression, at)
        elif kind == "sign":
            kind = text
        if kind != "skip":
            yield Token(kind, text, at)
        at = found.end()
    yield Token("end", "", at)


def _not_named(expression: str, at: int) -> SqlError:
    found = _WORD.match(expression, at)
    word = expression[at] if found is None else found.group()
    allowed = "a name in a condition has letters of ASCII, digits, _ and $, and begins with no digit"
    return SqlError(expression, at, f"a property {word[:40]!r} can't be named: {allowed}. Send the property under such a name")
