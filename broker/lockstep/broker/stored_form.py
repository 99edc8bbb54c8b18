"""The form of stored state: what a later version has added is refused, since a copy or a snapshot of this version would lose it."""

from collections.abc import Container, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from lockstep.protocol.errors import StoreError
from lockstep.protocol.fields import from_plain, unknown_names

T = TypeVar("T")

NEXT_STEP = "start the version that wrote it, or a later one"


class UnknownFormError(StoreError):
    """The store holds state in a form that this version does not know."""

    exit_code: ClassVar[int] = 4


def unknown_change(change: Sequence[Any], why: object = "") -> UnknownFormError:
    """Return the error for a state change of a kind or form that this version does not know."""
    shown = f" ({why})" if why else ""
    return UnknownFormError(f"this version does not know the state change {change[0]!r} of {len(change)} values{shown}: {NEXT_STEP}")


def check_parts(of: str, plain: Mapping[str, Any], known: Container[str]) -> None:
    """Raise UnknownFormError if a part of a snapshot is not among the known ones."""
    if unknown := [name for name in plain if name not in known]:
        raise UnknownFormError(f"this version does not know {', '.join(map(repr, unknown))} in {of} of the snapshot: {NEXT_STEP}")


def read_stored(cls: type[T], plain: object) -> T:
    """Return the dataclass from a map that the log or a snapshot holds.

    Raises:
        UnknownFormError: The map has a name that the dataclass does not have.
        RemoteProtocolError: The map does not match the dataclass.
    """
    made = from_plain(cls, plain)
    if unknown := unknown_names(cls, plain):
        raise UnknownFormError(f"this version does not know {', '.join(unknown)} of the stored state: {NEXT_STEP}")
    return made
