"""The error of an operation."""

from collections.abc import Collection, Mapping

from lockstep.operations.admin_client import failure_summary
from lockstep.protocol.errors import LockstepError

NAMES_SHOWN_MAX = 20
"""Names that an error lists."""


class OperationError(LockstepError):
    """The operation failed, or part of it did; the message names the part."""


class UnknownUserError(OperationError):
    """A name that no user of a file has."""

    def __init__(self, name: str, users: Collection[str]) -> None:
        """`users`: the names that there are, of which the message has some."""
        more = f" and {len(users) - NAMES_SHOWN_MAX} more" if len(users) > NAMES_SHOWN_MAX else ""
        shown = ", ".join(sorted(users)[:NAMES_SHOWN_MAX]) or "none"
        super().__init__(f"user {name[:80]} does not exist; the users are {shown}{more}")


def raise_if_incomplete(failed: Mapping[str, str]) -> None:
    """Raise OperationError if any broker failed. `failed`: broker name → why."""
    summary = failure_summary(failed)
    if summary is not None:
        raise OperationError(summary)
