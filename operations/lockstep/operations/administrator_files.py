"""Writes files of an administrator: certificates, keys, users. Servers read them again while they run."""

from pathlib import Path

from lockstep.operations.errors import OperationError
from lockstep.runtime.security.watched_files import write_file


def replace_file(path: Path, content: bytes, mode: int) -> None:
    """Replace a file by one with this content and mode. The directory is made if there is none.

    Raise OperationError, which names the path that can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content, mode)
    except FileExistsError as error:
        raise OperationError(f"{error.filename}: not a directory") from error
    except OSError as error:
        raise OperationError(f"{error.filename}: {str(error.strerror).lower()}") from error
