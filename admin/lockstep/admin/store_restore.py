"""Prepare a backup of a store for its first start (`lockstep store restore`). The broker is stopped."""

import os
import shutil
from collections.abc import Callable

from lockstep.broker.store.directory import StoreDirectory, StoreIdentity, parse_identity
from lockstep.broker.store.errors import StoreCorruptError
from lockstep.runtime.files import RealFiles

COPY_BYTES = 16 << 20
PROGRESS_BYTES = 1 << 30
UNFINISHED = ".unfinished"


def restore(root: str, source: str | None, progress: Callable[[int, int], None]) -> StoreIdentity:
    """Copy the backup `source` to `root`, if it is given, and mark `root` as restored. Return the identity of the store.

    `progress` is called with the copied bytes and their total, after each GiB. A copy that was interrupted is begun anew.

    Raises:
        StoreInUseError: A broker has one of the directories open.
        StoreCorruptError: There is no store, or `root` is not empty.
        OSError: A file can't be read or written.
    """
    files = RealFiles()
    if source is not None:
        _identity(source)  # before anything is copied
        if os.path.isdir(root) and os.listdir(root):
            raise StoreCorruptError(f"{root} is not empty: choose another directory, or restore it in place without --from")
        backup = StoreDirectory(files, source)
        backup.lock()
        try:
            _copy(source, root, progress)
        finally:
            backup.unlock()
    identity = _identity(root)
    directory = StoreDirectory(files, root)
    directory.lock()
    try:
        directory.mark_restored()
    finally:
        directory.unlock()
    return identity


def _identity(root: str) -> StoreIdentity:
    path = f"{root}/lockstep/identity"
    try:
        with open(path, "rb") as file:
            text = file.read()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a name with a zero byte
        raise StoreCorruptError(f"{root} is not the store of a broker: it has no lockstep/identity") from None
    return parse_identity(text, path)


def _copy(source: str, root: str, progress: Callable[[int, int], None]) -> None:
    """Copy a directory durably: it gets its name when all of it is on the disk."""
    unfinished = root.rstrip("/") + UNFINISHED
    shutil.rmtree(unfinished, ignore_errors=True)
    names = [(folder, name) for folder, _, found in os.walk(source) for name in found]
    total = sum(os.path.getsize(os.path.join(*each)) for each in names)
    copied = reported = 0
    for folder, _, _ in os.walk(source):
        os.makedirs(os.path.join(unfinished, os.path.relpath(folder, source)), exist_ok=True)
    for folder, name in names:
        target = os.path.join(unfinished, os.path.relpath(folder, source), name)
        with open(os.path.join(folder, name), "rb") as reading, open(target, "wb") as writing:
            while data := reading.read(COPY_BYTES):
                if data.count(0) < len(data):
                    writing.write(data)
                else:
                    writing.seek(len(data), os.SEEK_CUR)  # the files of the log are sparse behind their end
                copied += len(data)
                if copied - reported >= PROGRESS_BYTES:
                    reported = copied
                    progress(copied, total)
            writing.truncate()
            writing.flush()
            os.fsync(writing.fileno())
    for folder, _, _ in os.walk(unfinished):
        _sync(folder)
    if os.path.isdir(root):
        os.rmdir(root)
    os.rename(unfinished, root)
    _sync(os.path.dirname(os.path.abspath(root)))


def _sync(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
