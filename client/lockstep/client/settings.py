"""The settings of a producer or consumer are the fields of a dataclass (runtime/configuration/settings.py), and the
arguments of its constructor.

`takes_arguments_of` gives the constructor the same keywords, which type checkers and editors see.
"""

import difflib
import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
SelfT = TypeVar("SelfT")
ArgumentsT = TypeVar("ArgumentsT")


def settings_of(config: Any, declared: type) -> dict[str, Any]:
    """Return those settings of `config` that the dataclass `declared` has too, as keywords."""
    return {field.name: getattr(config, field.name) for field in fields(declared)}


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
