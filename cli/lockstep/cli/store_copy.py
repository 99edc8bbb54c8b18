"""Copy the directory of a store durably, with the modes and the holes of its files."""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lockstep.broker.store.errors import StoreCorruptError

COPY_BYTES = 16 << 20
PROGRESS_BYTES = 1 << 30
NOT_COPIED = ("lock", "lost+found")
"""Names at the top of a store that are not copied. Closing a descriptor of the lock file would release the lock that this process holds on
it. The other one belongs to the file system, and is readable for root only."""
OWNER_FILE = 0o600
OWNER_FOLDER = 0o700
"""What the owner may do in the copy in any case: the broker writes there, and the backup may be write-protected."""


@dataclass(frozen=True, slots=True)
class StoreContents:
    """The directories and files of a store, as paths relative to it."""

    folders: list[str]
    """Each one after the one that contains it; the first is the store itself."""
    files: list[str]


def store_contents(source: str) -> StoreContents:
    """Return the directories and files of a store.

    Raises:
        StoreCorruptError: It contains a symbolic link, or something else that is neither a file nor a directory.
        OSError: A directory can't be read.
    """
    folders = [os.curdir]
    files = []
    for name, mode in _walk(source):
        if stat.S_ISDIR(mode):
            folders.append(name)
        elif stat.S_ISREG(mode):
            files.append(name)
        else:
            raise _not_copied(os.path.join(source, name), mode)
    return StoreContents(folders, files)


def copy_store(source: str, target: str, progress: Callable[[int, int], None]) -> None:
    """Copy a store to `target`, which must not exist. On return all of it is on the disk, except the name `target`.

    `progress` is called with the copied bytes and their total, after each GiB. Raises what `store_contents` raises, before anything is
    written, and OSError.
    """
    contents = store_contents(source)
    total = sum(os.path.getsize(os.path.join(source, name)) for name in contents.files)
    copied = reported = 0
    os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
    for name in contents.folders:
        path = os.path.normpath(os.path.join(target, name))
        os.mkdir(path)
        os.chmod(path, _mode(os.path.join(source, name)) | OWNER_FOLDER)
    for name in contents.files:
        for count in _copy_file(os.path.join(source, name), os.path.join(target, name)):
            copied += count
            if copied - reported >= PROGRESS_BYTES:
                reported = copied
                progress(copied, total)
    for name in contents.folders:
        sync_directory(os.path.join(target, name))


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _walk(source: str) -> Iterator[tuple[str, int]]:
    """Yield (relative path, mode) of everything in a directory; links are not followed."""

    def fail(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(source, onerror=fail):
        for found in (folders, names):
            if folder == source:
                found[:] = [name for name in found if name not in NOT_COPIED]
            for name in found:
                path = os.path.join(folder, name)
                yield os.path.relpath(path, source), os.lstat(path).st_mode


def _not_copied(path: str, mode: int) -> StoreCorruptError:
    if not stat.S_ISLNK(mode):
        return StoreCorruptError(f"{path} is neither a file nor a directory: remove it from the backup. Nothing was copied")
    return StoreCorruptError(
        f"{path} is a symbolic link to {os.readlink(path)}: what is there is not part of the backup, and may be of another moment or the "
        "original's. Replace the link by a copy of what was there when the backup was made, or prepare the directory in place, without "
        "--from. Nothing was copied"
    )


def _mode(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def _copy_file(source: str, target: str) -> Iterator[int]:
    """Copy a file, and yield the size of each part of it."""
    with open(source, "rb") as reading, open(target, "xb") as writing:
        os.chmod(writing.fileno(), _mode(source) | OWNER_FILE)
        while data := reading.read(COPY_BYTES):
            if data.count(0) < len(data):
                writing.write(data)
            else:
                writing.seek(len(data), os.SEEK_CUR)  # the files of the log are sparse behind their end
            yield len(data)
        writing.truncate()
        writing.flush()
        os.fsync(writing.fileno())
