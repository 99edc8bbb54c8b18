"""Writes files of an administrator: certificates, keys, users. Servers read them again while they run."""

import os
from pathlib import Path

from lockstep.operations.errors import OperationError


def replace_file(path: Path, content: bytes, mode: int) -> None:
    """Write a file with its mode under another name, and rename it: a server that looks at it sees the old one or the new one.

    The directory is made if there is none. Raise OperationError, which names the path that can't be written.
    """
    next_path = path.with_name(path.name + ".new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        next_path.unlink(missing_ok=True)
        with os.fdopen(os.open(next_path, flags, mode), "wb") as file:  # world: a command on the administrator's machine
            file.write(content)
        next_path.replace(path)
    except OSError as error:
        raise OperationError(f"{error.filename}: {str(error.strerror).lower()}") from error
