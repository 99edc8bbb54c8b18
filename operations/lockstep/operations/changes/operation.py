"""A change of a cluster, declared once: its fields, what it would do, and how it is done.

The fields are those of a dataclass, each annotated with an Argument or an Option. From a declaration come the command with its options, its
help, `--dry-run` and `--json` (`cli/change_command.py`), the form of the dashboard (`dashboard/changes/forms.py`), and the command line
that the form shows (`command_line`). A new change is one file that defines its class, a row of `catalogue.py`, and its name
in the group of commands that has it (`cli/commands`).

    fields ─▶ Operation.plan ─▶ Plan: sentences, a table, what was agreed ─▶ Plan.carry_out ─▶ ChangeOutcome: lines, JSON, how to undo it
"""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from hashlib import blake2b
from shlex import join
from typing import Annotated, Any, ClassVar, Self, get_args, get_origin, get_type_hints

from lockstep.operations.admin_client import AdminClient
from lockstep.operations.errors import OperationError

SHOWN_MAX = 1_000
"""A longer value is not a part of a command line: the command reads it from its standard input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """How the command and the form ask for a field. A field without a label is not in the form."""

    help: str
    label: str | None = None
    hint: str = ""
    """A text that the form shows beside the field."""
    start: str | None = None
    """The value of the field before the form is filled in; None for the default."""
    lines: int = 1
    """Height of the field in the form."""
    verbatim: bool = False
    """Whether spaces at the ends belong to the value."""
    choices: tuple[str, str] = ("no", "yes")
    """The words of the form for False and True."""
    least: int | None = None
    most: int | None = None
    metavar: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument(Parameter):
    """A field that the command takes as an argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option(Parameter):
    """A field that the command takes as an option."""

    flags: tuple[str, ...]
    """Names, the long one first; `--on/--off` for a bool that may be left open."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A field of an operation, as its class declares it."""

    name: str
    type: Any
    """str, int, bytes, an Enum, or one of them or None; bool, or bool or None; tuple of str."""
    parameter: Parameter
    required: bool
    default: Any
    """None if it is required."""

    @property
    def kind(self) -> Any:
        """Return the type without None."""
        return next((each for each in get_args(self.type) if each is not type(None)), self.type) if self.optional else self.type

    @property
    def optional(self) -> bool:
        """Return whether it may be None."""
        return type(None) in get_args(self.type)

    @property
    def several(self) -> bool:
        """Return whether it is a tuple."""
        return get_origin(self.type) is tuple


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a plan. Columns that begin with ">" are right-aligned."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True, slots=True)
class ChangeOutcome:
    """The result of a change."""

    lines: Sequence[str]
    json: Mapping[str, Any]
    undo: Sequence[str] = ()
    """Commands that undo it."""
    table: Table | None = None
    failed: str | None = None
    """The part that was not done, and what to do about it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The effect that a change would have, and the function that carries it out."""

    effect: Sequence[str]
    """Sentences."""
    carry_out: Callable[[], Awaitable[ChangeOutcome]]
    """Do it. Raises LockstepError."""
    agreed: tuple[object, ...] = ()
    """The values that, besides the fields, must be the same when it is carried out. Values that change in any running cluster are left
    out."""
    table: Table | None = None
    fixed: Mapping[str, Any] | None = None
    """Fields whose meaning depends on the time at which they were planned, with a value that does not."""
    nothing: str | None = None
    """Why there is nothing to do. The form then stops; the command carries the plan out all the same, for its output and exit code."""
    incomplete: str | None = None
    """Which part of the cluster could not be asked: `carry_out` leaves it out and fails in the end. The form does not carry it out."""
    json: Mapping[str, Any] | None = None
    """The plan as JSON; None for its effect alone."""

    def check_complete(self) -> None:
        """Raise OperationError if there is nothing to do, or not everything is known."""
        if self.incomplete is not None:
            raise OperationError(f"nothing was changed: {self.incomplete}")
        if self.nothing is not None:
            raise OperationError(self.nothing)

    def digest(self, command: Sequence[str]) -> str:
        """Return an identifier of this plan of a command: it differs if another thing would be done."""
        return blake2b(repr((tuple(command), self.agreed)).encode(), digest_size=12).hexdigest()


class Operation:
    """A change. Subclasses are frozen dataclasses with keyword-only fields; their docstring is the help of the command."""

    words: ClassVar[tuple[str, ...]]
    """The words of the command after `lockstep`."""
    path: ClassVar[str]
    """The name of the form in addresses."""
    title: ClassVar[str | None] = None
    """The title of the form; None if the dashboard does not offer the change."""
    confirmed: ClassVar[str | None] = None
    """The field whose value has to be typed in the form once more before the change is carried out."""

    @classmethod
    def of_form(cls, **values: Any) -> Self:
        """Return the operation with the values of a form, which has the fields with a label."""
        return cls(**values)

    @abstractmethod
    async def plan(self, admin: AdminClient) -> Plan:
        """Return the effect that it would have, and change nothing. Raises LockstepError."""

    @classmethod
    def declared(cls) -> Iterator[Declared]:
        """Yield the fields in their order."""
        hints = get_type_hints(cls, include_extras=True)
        for field in fields(cls):  # type: ignore[arg-type]
            hint = hints[field.name]
            assert get_origin(hint) is Annotated, f"{cls.__name__}.{field.name} has no Argument or Option"
            kind, parameter = get_args(hint)
            required = field.default is field.default_factory  # both are MISSING
            yield Declared(field.name, kind, parameter, required, None if required else field.default)

    @property
    def command(self) -> tuple[str, ...]:
        """Return the arguments of the command of lockstep that does the same. A value with a dash is not taken for an option."""
        arguments, options = list[str](), list[str]()
        for each in self.declared():
            value = getattr(self, each.name)
            if isinstance(each.parameter, Option):
                options += _options(each.parameter, value)
            elif value is not None:
                arguments += map(text_of, value if each.several else (value,))
        if any(each.startswith("-") and each != "-" for each in arguments):
            return (*self.words, *options, "--", *arguments)
        return (*self.words, *arguments, *options)

    @property
    def command_line(self) -> str:
        """Return the command as a shell takes it."""
        return join(("lockstep", *self.command))


def _options(option: Option, value: Any) -> list[str]:
    """Return an option with its value. None, False and an empty tuple are no option."""
    on, _, off = option.flags[0].partition("/")
    if value is None or value == () or (value is False and not off):
        return []
    if isinstance(value, bool):
        return [on if value else off]
    texts = map(text_of, value if isinstance(value, tuple) else (value,))
    return [part for text in texts for part in ((f"{on}={text}",) if text.startswith("-") else (on, text))]


def text_of(value: Any) -> str:
    """Return a value as the command takes it: a body that can't be a part of a command line as a dash."""
    if not isinstance(value, bytes):
        return str(value.value if isinstance(value, Enum) else value)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "-"
    return text if len(value) <= SHOWN_MAX and text.isprintable() else "-"
