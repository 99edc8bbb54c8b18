"""The error of an operation."""

from collections.abc import Mapping

from lockstep.operations.admin_client import failure_summary
from lockstep.protocol.errors import LockstepError


class OperationError(LockstepError):
    """The operation failed, or part of it did; the message names the part."""


def raise_if_incomplete(failed: Mapping[str, str]) -> None:
    """Raise OperationError if any broker failed. `failed`: broker name → why."""
    summary = failure_summary(failed)
    if summary is not None:
        raise OperationError(summary)
