"""Settings are declared once, as the fields of a frozen dataclass: `send_timeout_ms: Annotated[int, Range(1)] = 3_000`.

`check_settings` compares values with that declaration. A setting of a server has its help text in its type as well (config.py).
"""

import functools
import math
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from typing import Annotated, Any, Literal

from lockstep.protocol.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that a setting accepts: from `low` to `high`, both included. For a tuple: the number of its items."""

    low: int
    high: int | None = None
    reason: str = ""
    """Why `high` is the limit."""
    above: bool = False
    """Whether `low` itself is refused."""

    def __repr__(self) -> str:  # help() shows it in signatures
        limits = [str(self.low), *([] if self.high is None else [str(self.high)]), *(["above=True"] if self.above else [])]
        return f"Range({', '.join(limits)})"

    def __contains__(self, number: float) -> bool:
        low = self.low < number if self.above else self.low <= number
        return low and (number < math.inf if self.high is None else number <= self.high)

    def __str__(self) -> str:
        low = f"{'above' if self.above else 'of at least'} {self.low:,}"
        if self.high is None:
            return low
        limits = f"{low} and of at most {self.high:,}" if self.above else f"in {self.low:,} … {self.high:,}"
        return limits + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True, slots=True)
class Setting:
    """The declaration of a setting."""

    kinds: tuple[Any, ...]
    """The types that a value may have: int, float, bool, str, None's, a Literal, a list or a tuple of one type, any class."""
    limits: Range | None
    help: str
    default: Any
    """dataclasses.MISSING if there is none, or if it is made by a function."""
    is_secret: bool = False
    """Whether no error shows the value: the field is not part of the `repr` either."""

    def accepts(self, value: object) -> bool:
        return any(_accepts(kind, self.limits, value) for kind in self.kinds)


def declared_settings(config: type) -> dict[str, Setting]:
    """Return the settings of a dataclass by name, also of a subclass in a module with `from __future__ import annotations`."""
    return _declared(config)


@functools.lru_cache(maxsize=64)
def _declared(config: type) -> dict[str, Setting]:
    hints = typing.get_type_hints(config, include_extras=True)
    return {field.name: _setting(hints[field.name], field.default, is_secret=not field.repr) for field in fields(config)}


def check_settings(config: Any) -> None:
    """Check each field of a dataclass against its declared type and range.

    Raises:
        ConfigError: It names the setting, its value and the expected values.
    """
    for name, setting in declared_settings(config.__class__).items():
        value = getattr(config, name)
        if not setting.accepts(value):
            expected = [words for kind in setting.kinds for words in _words(kind, setting.limits)]
            shown = f"of type {type(value).__name__}" if setting.is_secret else repr(value)
            raise ConfigError(f"{name} is {shown}: expected {_one_of(expected)}")


def _setting(annotation: Any, default: Any, *, is_secret: bool) -> Setting:
    metadata = getattr(annotation, "__metadata__", ())
    limits = next((each for each in metadata if isinstance(each, Range)), None)
    help_text = next((each for each in metadata if isinstance(each, str)), "")
    return Setting(_alternatives(annotation), limits, help_text, default, is_secret)


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, without Annotated."""
    if typing.get_origin(annotation) is Annotated:
        annotation = annotation.__origin__
    is_union = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
    return typing.get_args(annotation) if is_union else (annotation,)


def _accepts(kind: Any, limits: Range | None, value: object) -> bool:
    if kind in (int, float):  # bool is an int, but True is not a number of milliseconds
        return isinstance(value, int | kind) and not isinstance(value, bool) and (limits is None or value in limits)
    origin = typing.get_origin(kind)
    if origin is Literal:
        return value in typing.get_args(kind)
    if origin is Callable:
        return callable(value)
    if origin in (list, tuple):
        item = typing.get_args(kind)[0]
        return isinstance(value, origin) and all(isinstance(each, item) for each in value) and (limits is None or len(value) in limits)
    return kind is Any or isinstance(value, kind)


def _words(kind: Any, limits: Range | None) -> list[str]:
    if kind in (int, float):
        number = "an integer" if kind is int else "a number"
        return [number if limits is None else f"{number} {limits}"]
    origin = typing.get_origin(kind)
    if origin is Literal:
        return [f'"{each}"' for each in typing.get_args(kind)]
    if origin in (list, tuple):
        return [f"a {origin.__name__} of {typing.get_args(kind)[0].__name__}" + ("" if limits is None else f" with a length {limits}")]
    if origin is Callable:
        return ["a function"]
    if kind is types.NoneType:
        return ["None"]
    if issubclass(kind, bool):
        return ["True", "False"]
    if issubclass(kind, Enum):
        return [str(each) for each in kind]
    return [f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"]


def _one_of(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
