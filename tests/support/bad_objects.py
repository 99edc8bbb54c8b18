"""Objects of a user that fail when they are looked at: exceptions, and results of a listener."""

import asyncio
from collections.abc import Callable
from typing import Any

HUGE = "x" * 1_000_000


class Text(str):
    """A str whose own methods fail."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        raise RuntimeError("no format")

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __getitem__(self, index: object) -> str:
        raise RuntimeError("no item")

    def encode(self, *how: str) -> bytes:
        raise RuntimeError("no encoding")


class OwnKind(BaseException):
    """An error that is no Exception, as some libraries have them."""


def _raising(error: BaseException | type[BaseException]) -> Any:
    def method(*_: object) -> Any:
        raise error

    return method


def _returning(value: object) -> Any:
    return lambda *_: value


def _kind(name: str, base: type = Exception, **members: Any) -> Any:
    return type(name, (base,), members)


class _Nameless(type):
    __name__ = property(_raising(RuntimeError("no name")))


ERRORS: dict[str, Callable[[], BaseException]] = {
    "half a surrogate pair": lambda: ValueError("bad \udcff"),
    "str raises": _kind("Unread", __str__=_raising(RuntimeError("no text"))),
    "str is cancelled": _kind("Unread", __str__=_raising(asyncio.CancelledError)),
    "str raises no Exception": _kind("Unread", __str__=_raising(OwnKind("no text"))),
    "str recurses": _kind("Unread", __str__=lambda self: f"{self}"),
    "str is no str": _kind("Unread", __str__=_returning(5)),
    "str is a subclass": _kind("Unread", __str__=_returning(Text("some text"))),
    "str is huge": lambda: ValueError(HUGE),
    "str is empty": ValueError,
    "control characters": lambda: ValueError("\x01\x02\x00\n\x1b[2J"),
    "no name": lambda: _Nameless("Unread", (Exception,), {})(),
    "no traceback": _kind("Unread", __traceback__=property(_raising(RuntimeError("no traceback")))),
    "no cause": _kind("Unread", __cause__=property(_raising(RuntimeError("no cause")))),
    "no notes": _kind("Unread", __notes__=property(_raising(RuntimeError("no notes")))),
    "never equal": _kind("Unread", __eq__=_raising(RuntimeError("no equality")), __hash__=_raising(RuntimeError("no hash"))),
    "stop iteration": StopAsyncIteration,
    "cancelled": lambda: asyncio.CancelledError("\udcff"),
}
"""What a listener, hook or callback raises."""

RESULTS: dict[str, Callable[[], object]] = {
    "repr raises": _kind("Odd", object, __repr__=_raising(RuntimeError("no text"))),
    "repr is cancelled": _kind("Odd", object, __repr__=_raising(asyncio.CancelledError)),
    "repr is no str": _kind("Odd", object, __repr__=_returning(None)),
    "repr is a subclass": _kind("Odd", object, __repr__=_returning(Text("some text"))),
    "repr is huge": lambda: HUGE,
    "half a surrogate pair in repr": _kind("Odd", object, __repr__=_returning("\udcff")),
    "class raises": _kind("Odd", object, __class__=property(_raising(RuntimeError("no class")))),
    "equals everything": _kind("Odd", object, __eq__=_returning(True), __hash__=_returning(0)),
    "equals raises": _kind("Odd", object, __eq__=_raising(RuntimeError("no equality")), __hash__=_raising(RuntimeError("no hash"))),
    "bool raises": _kind("Odd", object, __bool__=_raising(RuntimeError("no truth"))),
    "no name of its type": lambda: _Nameless("Odd", (), {})(),
}
"""What a listener returns."""


def pretending(kind: type) -> object:
    """Return an object that says it is of this type, as a mock with a specification does."""
    return _kind("Odd", object, __class__=property(_returning(kind)))()
