"""Rules of ours, switched off by name. A mutant patches classes of the product while it is on; nothing else ever applies one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class Patches:
    """Replaced attributes, and their original values."""

    def __init__(self) -> None:
        self._before: list[tuple[object, str, object]] = []

    def set(self, owner: object, name: str, value: object) -> None:
        """`owner` is a class or a module that has `name` itself."""
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
    """What holds without the mutant."""
    worlds: tuple[str, ...]
    """Where its absence shows soonest; seeds go through them in turn."""
    apply: Apply
    aimed: str = ""
    """The test that notices it, where a swarm needs luck, or other rules mend what its absence breaks."""


MUTANTS: dict[str, Mutant] = {}


def mutant(*worlds: str, aimed: str = "") -> Callable[[Apply], Apply]:
    """Decorator: registers a function that switches the rule of its docstring off, under its own name."""

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
    """While it lasts, that rule does not hold in this process. None: all rules hold. KeyError: no such mutant."""
    patches = Patches()
    try:
        if name is not None:
            MUTANTS[name].apply(patches)
        yield
    finally:
        patches.undo()
