"""Errors of a store that can't be opened or used. Each carries the exit code of the process that it ends."""

from typing import ClassVar

from lockstep.protocol.errors import StoreError


class StoreDiskError(StoreError):
    """The disk failed. A failed write or sync is final, and the process exits before it sends another response."""

    exit_code: ClassVar[int] = 3


class IdentityError(StoreError):
    """The directory belongs to another cluster or broker, or has an unknown format."""

    exit_code: ClassVar[int] = 4


class StoreCorruptError(StoreError):
    """Synced bytes are not those that were written. `position` is the log offset of the first bad record, −1 outside the log."""

    exit_code: ClassVar[int] = 5

    def __init__(self, text: str, *, position: int = -1) -> None:
        super().__init__(text)
        self.position = position


class StoreInUseError(StoreError):
    """Another process, or another store in this process, has the directory open."""

    exit_code: ClassVar[int] = 6


class NoNextFileError(StoreDiskError):
    """The next file of the log can't be created now, for lack of a descriptor, an inode or quota. Nothing has changed."""


def misplaced(error: OSError, root: str) -> StoreCorruptError | None:
    """Return the error of a store in which a directory has the name of a file, or the reverse. None for any other error.

    In that case the disk has not failed: another program, or a person, has put it there.
    """
    path = str(error.filename)
    if not isinstance(error, IsADirectoryError | NotADirectoryError | FileExistsError) or not path.startswith(f"{root}/"):
        return None
    what = "is a directory, expected a file" if isinstance(error, IsADirectoryError) else "is not a directory, or its parent is not"
    return StoreCorruptError(f"{path} {what}: remove it from the store, or restore the right one")
