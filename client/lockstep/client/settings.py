"""Settings are declared once, as the fields of a frozen dataclass: `send_timeout_ms: Annotated[int, Range(1)] = 3_000`.

`check_settings` compares values with that declaration, and `takes_arguments_of` gives a constructor the same keywords, which type checkers
and editors see.
"""

import difflib
import functools
import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from typing import Annotated, Any, Concatenate, Literal, ParamSpec, TypeVar

from lockstep.protocol.errors import ConfigError

P = ParamSpec("P")
SelfT = TypeVar("SelfT")
ArgumentsT = TypeVar("ArgumentsT")


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that a setting accepts: from `low` to `high`, both included."""

    low: int
    high: int | None = None
    reason: str = ""
    """Why `high` is the limit."""

    def __repr__(self) -> str:  # help() shows it in signatures
        return f"Range({self.low})" if self.high is None else f"Range({self.low}, {self.high})"

    def __contains__(self, number: float) -> bool:
        return self.low <= number and (self.high is None or number <= self.high)

    def __str__(self) -> str:
        if self.high is None:
            return f"of at least {self.low:,}"
        return f"in {self.low:,} … {self.high:,}" + (f" ({self.reason})" if self.reason else "")


def check_settings(config: Any) -> None:
    """Check each field of a dataclass against its declared type and range.

    Raises:
        ConfigError: It names the setting, its value and the expected values.
    """
    declared = _declared(config.__class__)
    for field in fields(config):
        annotation, value = declared[field.name], getattr(config, field.name)
        limits = next((each for each in getattr(annotation, "__metadata__", ()) if isinstance(each, Range)), None)
        kinds = _alternatives(annotation)
        if not any(_accepts(kind, limits, value) for kind in kinds):
            expected = [words for kind in kinds for words in _words(kind, limits)]
            raise ConfigError(f"{field.name} is {value!r}: expected {_one_of(expected)}")


def settings_of(config: Any, declared: type) -> dict[str, Any]:
    """Return those settings of `config` that the dataclass `declared` has too, as keywords."""
    return {field.name: getattr(config, field.name) for field in fields(declared)}


@functools.lru_cache(maxsize=64)
def _declared(config: type) -> dict[str, Any]:
    """Return the type of each field, also of a subclass in a module with `from __future__ import annotations`."""
    return typing.get_type_hints(config, include_extras=True)


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, without Annotated."""
    if typing.get_origin(annotation) is Annotated:
        annotation = annotation.__origin__
    is_union = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
    return typing.get_args(annotation) if is_union else (annotation,)


def _accepts(kind: Any, limits: Range | None, value: object) -> bool:
    if kind in (int, float):  # bool is an int, but True is not a number of milliseconds
        return isinstance(value, int | kind) and not isinstance(value, bool) and (limits is None or value in limits)
    if typing.get_origin(kind) is Literal:
        return value in typing.get_args(kind)
    return kind is Any or isinstance(value, typing.get_origin(kind) or kind)


def _words(kind: Any, limits: Range | None) -> list[str]:
    if kind in (int, float):
        number = "an integer" if kind is int else "a number"
        return [number if limits is None else f"{number} {limits}"]
    if typing.get_origin(kind) is Literal:
        return [f'"{each}"' for each in typing.get_args(kind)]
    if kind is types.NoneType:
        return ["None"]
    if issubclass(kind, bool):
        return ["True", "False"]
    if issubclass(kind, Enum):
        return [str(each) for each in kind]
    return [f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"]


def _one_of(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def takes_arguments_of(
    arguments: Callable[P, ArgumentsT],
) -> Callable[[Callable[[SelfT, ArgumentsT], None]], Callable[Concatenate[SelfT, P], None]]:
    """Decorate an `__init__(self, arguments)`: the class is called with the arguments of the dataclass, and gets an instance of it.

    help() and editors show every argument with its default. An argument that does not exist raises a TypeError that names the class which
    was called, and the argument that was probably meant.
    """
    signature = inspect.signature(arguments)
    known = [name for name, parameter in signature.parameters.items() if parameter.kind is inspect.Parameter.KEYWORD_ONLY]

    def decorate(init: Callable[[SelfT, ArgumentsT], None]) -> Callable[Concatenate[SelfT, P], None]:
        @functools.wraps(init)
        def construct(self: SelfT, /, *args: P.args, **kwargs: P.kwargs) -> None:
            called = type(self).__name__
            for name in kwargs:
                if name not in signature.parameters:
                    close = difflib.get_close_matches(name, known, n=1)
                    hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
                    raise TypeError(f"{called}() has no setting {name!r}: {hint}")
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{called}(): {error}") from None
            init(self, arguments(*args, **kwargs))

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        shown = signature.replace(parameters=[own, *signature.parameters.values()])
        setattr(construct, "__signature__", shown)  # noqa: B010
        return construct

    return decorate
