"""Forms from declared changes: the fields with a label, and the operation of what was filled in (operations/changes/operation.py). Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Self

from lockstep.operations.changes.operation import Declared, Operation, Plan, text_of
from lockstep.protocol.errors import ConfigError

Values = Mapping[str, str]
"""The values of a form, one for each of its fields."""
NUMBER_MAX = 2**63 - 1
"""The largest number of a field without a limit: offsets are int64."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form."""

    declared: Declared

    @property
    def name(self) -> str:
        return self.declared.name

    @property
    def label(self) -> str:
        return self.declared.parameter.label or ""

    @property
    def hint(self) -> str:
        return self.declared.parameter.hint

    @property
    def lines(self) -> int:
        return self.declared.parameter.lines

    @property
    def value(self) -> str:
        """What it has before it is filled in."""
        default, parameter = self.declared.default, self.declared.parameter
        if parameter.start is not None:
            return parameter.start
        return parameter.choices[default] if isinstance(default, bool) else "" if default is None or default == () else str(default)

    @property
    def choices(self) -> tuple[str, ...]:
        """If there are some, it has one of these values."""
        kind, found = self.declared.kind, tuple[str, ...]()
        if kind is bool:
            found = self.declared.parameter.choices
        elif isinstance(kind, type) and issubclass(kind, Enum):
            found = tuple(each.value for each in kind)
        return ("", *found) if found and self.declared.optional else found

    def parse(self, text: str) -> Any:
        """Return the value of a text. Raise ConfigError, which names the field, for any other text."""
        declared, kind = self.declared, self.declared.kind
        if declared.several:
            return tuple(text.split())
        if kind is bytes:
            return text.encode()
        if self.choices:
            if text not in self.choices:
                raise ConfigError(f"{self.name} is {text[:40]!r}: expected one of {', '.join(self.choices)}")
            return None if not text else text == declared.parameter.choices[True] if kind is bool else kind(text)
        text = text if declared.parameter.verbatim else text.strip()
        if not text:
            if not declared.optional:
                raise ConfigError(f"{self.name} is missing")
            return None
        return self._number(text) if kind is int else text

    def _number(self, text: str) -> int:
        least, most = self.declared.parameter.least or 0, self.declared.parameter.most
        most = NUMBER_MAX if most is None else most
        if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
            raise ConfigError(f"{self.name} is {text[:40]!r}: expected a whole number from {least} to {most}")
        return int(text)


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a change."""

    change: type[Operation]
    fields: tuple[Field, ...]

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.change.path

    @property
    def title(self) -> str:
        return self.change.title or ""

    @property
    def confirmed(self) -> str | None:
        return self.change.confirmed

    def filled(self, given: Values) -> dict[str, str]:
        """Return a value for each field: the given one, else its own."""
        return {each.name: given.get(each.name, each.value).replace("\r\n", "\n") for each in self.fields}

    def operation(self, values: Values) -> Operation:
        """Return the operation that the values specify. Raise ConfigError for values that are none of its fields'."""
        return self.change.of_form(**{each.name: each.parse(values[each.name]) for each in self.fields})


def form_of(change: type[Operation]) -> Form:
    return Form(change, tuple(Field(each) for each in change.declared() if each.parameter.label is not None))


@dataclass(frozen=True, slots=True)
class Planned:
    """The contents of the page of a plan, and the values that its form sends."""

    operation: Operation
    plan: Plan
    fixed: Mapping[str, str]
    """Fields whose meaning depends on the time, as texts that do not."""

    @classmethod
    def of(cls, operation: Operation, plan: Plan) -> Self:
        fixed = plan.fixed or {}
        return cls(replace(operation, **fixed), plan, {name: text_of(value) for name, value in fixed.items()})  # type: ignore[type-var]

    @property
    def digest(self) -> str:
        return self.plan.digest(self.operation.command)
