"""Errors of a directory that is taken over from RocketMQ's broker, or given back to it."""

from typing import ClassVar

from lockstep.protocol.errors import StoreError


class AdoptionError(StoreError):
    """Another program has written to the directory, and the start may not take over what it has written."""

    exit_code: ClassVar[int] = 4


class ExportError(StoreError):
    """RocketMQ's broker would lose a part of the store."""
