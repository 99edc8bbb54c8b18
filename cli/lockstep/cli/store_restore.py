"""Prepare a backup of a store for its first start (`lockstep store restore`). The broker is stopped."""

import os
import shutil
from collections.abc import Callable

from lockstep.broker.store.errors import StoreCorruptError
from lockstep.broker.store.health.stopped import stopped
from lockstep.broker.store.start.directory import StoreDirectory, StoreIdentity, parse_identity
from lockstep.cli.store_copy import copy_store, sync_directory
from lockstep.runtime.files import ReadOnlyFiles, RealFiles

UNFINISHED = ".unfinished"
ADVICE = "stop it first, or restore a snapshot of its file system"


def restore(root: str, source: str | None, progress: Callable[[int, int], None]) -> StoreIdentity:
    """Copy the backup `source` to `root`, if it is given, and mark `root` as restored. Return the identity of the store.

    Nothing is written to `source`. `progress` is called with the copied bytes and their total, after each GiB. A copy that was interrupted
    is begun again.

    Raises:
        StoreInUseError: A broker has one of the directories open.
        StoreCorruptError: There is no store, `root` is not empty, or `source` contains a symbolic link.
        OSError: A file can't be read or written.
    """
    if source is not None:
        return _restore_from(source, root, progress)
    identity = _identity(root)
    directory = StoreDirectory(RealFiles(), root)
    directory.lock()
    try:
        directory.mark_restored()
    finally:
        directory.unlock()
    return identity


def _restore_from(source: str, root: str, progress: Callable[[int, int], None]) -> StoreIdentity:
    """Copy the backup durably. The copy gets its name when all of it is on the disk and marked, so no start finds it without the mark."""
    identity = _identity(source)  # before anything is copied
    if os.path.isdir(root) and os.listdir(root):
        raise StoreCorruptError(f"{root} is not empty: choose another directory, or restore it in place without --from")
    unfinished = root.rstrip("/") + UNFINISHED
    shutil.rmtree(unfinished, ignore_errors=True)
    with stopped(ReadOnlyFiles(), source, ADVICE):
        copy_store(source, unfinished, progress)
    StoreDirectory(RealFiles(), unfinished).mark_restored()
    if os.path.isdir(root):
        os.rmdir(root)
    os.rename(unfinished, root)
    sync_directory(os.path.dirname(os.path.abspath(root)))
    return identity


def _identity(root: str) -> StoreIdentity:
    path = f"{root}/lockstep/identity"
    try:
        with open(path, "rb") as file:
            text = file.read()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a name with a zero byte
        raise StoreCorruptError(f"{root} is not the store of a broker: it has no lockstep/identity") from None
    return parse_identity(text, path)
