"""Why a store can't be opened or used. Each error carries the exit code of the process that it ends."""

from typing import ClassVar

from lockstep.protocol.errors import StoreError


class StoreDiskError(StoreError):
    """The disk refused: a failed write or sync is final, and the process ends before it gives another answer."""

    exit_code: ClassVar[int] = 3


class IdentityError(StoreError):
    """The directory belongs to another cluster or broker, or has a format that this version does not know."""

    exit_code: ClassVar[int] = 4


class StoreCorruptError(StoreError):
    """Bytes that a sync had covered are not what was written. `position` is the log offset of the first bad record, −1 outside the log."""

    exit_code: ClassVar[int] = 5

    def __init__(self, text: str, *, position: int = -1) -> None:
        super().__init__(text)
        self.position = position


class StoreInUseError(StoreError):
    """Another process, or another store in this one, has the directory open."""

    exit_code: ClassVar[int] = 6


class NoNextFileError(StoreDiskError):
    """The next file of the log can't be created now, for want of a descriptor, an inode or quota. Nothing has changed."""


def misplaced(error: OSError, root: str) -> StoreCorruptError | None:
    """The error of a store in which a directory has the name of a file, or a file that of a directory; None for any other error.

    The disk has not failed then: another program, or a person, has put it there.
    """
    path = str(error.filename)
    if not isinstance(error, IsADirectoryError | NotADirectoryError | FileExistsError) or not path.startswith(f"{root}/"):
        return None
    what = "is a directory, expected a file" if isinstance(error, IsADirectoryError) else "is not a directory, or lies in none"
    return StoreCorruptError(f"{path} {what}: take it out of the store, or restore what belongs there")
