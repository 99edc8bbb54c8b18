"""Switches rules of the product off by name. A mutant patches classes of the product while it is active; only this module applies one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class Patches:
    """Replaces attributes, and restores their original values."""

    def __init__(self) -> None:
        self._before: list[tuple[object, str, object]] = []

    def set(self, owner: object, name: str, value: object) -> None:
        """Replace `name`, which the class or module `owner` must define itself."""
        self._before.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    def undo(self) -> None:
        while self._before:
            setattr(*self._before.pop())


Apply = Callable[[Patches], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One rule, switched off."""

    name: str
    rule: str
    """The rule, which holds without the mutant."""
    worlds: tuple[str, ...]
    """The worlds that detect its absence soonest; seeds use them in turn."""
    apply: Apply
    aimed: str = ""
    """The test that detects it, if universes seldom do, or if other rules compensate for its absence."""


MUTANTS: dict[str, Mutant] = {}


def mutant(*worlds: str, aimed: str = "") -> Callable[[Apply], Apply]:
    """Return a decorator that registers a function, under its own name, which switches off the rule in its docstring."""

    def register(apply: Apply) -> Apply:
        rule = " ".join((apply.__doc__ or "").split())
        name = apply.__name__.strip("_")
        assert rule
        assert name not in MUTANTS, name
        MUTANTS[name] = Mutant(name, rule, worlds, apply, aimed)
        return apply

    return register


@contextmanager
def switched_off(name: str | None) -> Iterator[None]:
    """Switch a rule off in this process; none if `name` is None. Raise KeyError if the mutant is not known."""
    patches = Patches()
    try:
        if name is not None:
            MUTANTS[name].apply(patches)
        yield
    finally:
        patches.undo()
