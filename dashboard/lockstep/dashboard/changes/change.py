"""The parts of a change: the fields of its form, and the plan that is shown before it is carried out. Pure."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from shlex import join

from lockstep.operations.admin_client import AdminClient
from lockstep.protocol.errors import ConfigError

Values = Mapping[str, str]
"""What a form says: a value for each of its fields."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form."""

    name: str
    label: str
    value: str = ""
    """What it has before anybody has filled it in."""
    hint: str = ""
    choices: tuple[str, ...] = ()
    """If there are some, it has one of these values."""
    lines: int = 1


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a plan. Columns that begin with ">" are right-aligned."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a change would do."""

    effect: tuple[str, ...]
    """Sentences."""
    command: tuple[str, ...]
    """The arguments of the command of lockstep that does the same."""
    carry_out: Callable[[], Awaitable[tuple[str, ...]]]
    """Do it, and return sentences that say what was done. Raises LockstepError."""
    agreed: tuple[object, ...] = ()
    """What must be the same when it is carried out, besides the command; what moves in a running cluster is left out."""
    table: Table | None = None
    values: Values = field(default_factory=dict)
    """Fields whose meaning depends on the time at which they were planned, with a meaning that does not."""

    @property
    def digest(self) -> str:
        """Return what tells this plan from one that does something else."""
        return blake2b(repr((self.command, self.agreed)).encode(), digest_size=12).hexdigest()

    @property
    def command_line(self) -> str:
        """Return the command as a shell takes it."""
        return join(("lockstep", *self.command))


@dataclass(frozen=True, slots=True)
class Change:
    """A kind of change."""

    name: str
    """The last part of its path."""
    title: str
    fields: tuple[Field, ...]
    plan: Callable[[AdminClient, Values], Awaitable[Plan]]
    """Return what it would do, without a change. Raises LockstepError."""
    confirmed: str | None = None
    """The field whose value has to be typed once more before the change is carried out."""

    def filled(self, given: Values) -> dict[str, str]:
        """Return a value for each field: the given one, else its own."""
        return {each.name: given.get(each.name, each.value).replace("\r\n", "\n") for each in self.fields}


def command(words: Sequence[str], arguments: Sequence[str], options: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the arguments of a command of lockstep. A value that begins with a dash is not taken for an option."""
    if any(each.startswith("-") and each != "-" for each in arguments):
        return (*words, *options, "--", *arguments)
    return (*words, *arguments, *options)


def option(name: str, value: str | None) -> tuple[str, ...]:
    """Return an option with its value, nothing if that is None."""
    return () if value is None else (f"{name}={value}",) if value.startswith("-") else (name, value)


def optional(values: Values, name: str) -> str | None:
    """Return the value of a field, None if it is empty."""
    return values[name].strip() or None


def required(values: Values, name: str) -> str:
    """Return the value of a field that must be filled in. Raise ConfigError if it is not."""
    value = optional(values, name)
    if value is None:
        raise ConfigError(f"{name} is missing")
    return value


def whole_number(values: Values, name: str, least: int, most: int) -> int:
    """Return the value of a field as a number from `least` to `most`. Raise ConfigError for another one."""
    text = required(values, name)
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise ConfigError(f"{name} is {text[:40]!r}: expected a whole number from {least} to {most}")
    return int(text)


def chosen(values: Values, name: str, choices: Sequence[str]) -> str:
    """Return the value of a field that has one of these values. Raise ConfigError for another one."""
    text = values[name]
    if text not in choices:
        raise ConfigError(f"{name} is {text[:40]!r}: expected one of {', '.join(choices)}")
    return text
