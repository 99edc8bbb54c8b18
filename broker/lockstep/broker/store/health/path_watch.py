"""Checks that the open files of a running store are still those that their paths name.

A descriptor remains valid after its file was removed or moved: writes and syncs still succeed, but the data is lost when the process ends.
So the store compares the identity (device, inode) of each watched path at the time of opening with the current one, before a sync is
confirmed and every CHECK_MS. A file of the log has its full length from the start: one that is shorter has been truncated, and a write
after that would leave a hole in the log.
"""

from lockstep.broker.store.errors import StoreDiskError
from lockstep.runtime.files import File, FileIdentity, Files

CHECK_MS = 500
"""Longest time between two checks of an idle store."""


def truncated(path: str, found_bytes: int, expected_bytes: int) -> StoreDiskError:
    """Return the error for a file of the log that is shorter than it has been since the broker opened it."""
    return StoreDiskError(
        f"{path} has {found_bytes} of its {expected_bytes} bytes: another program truncated it while the broker had it open. "
        "Restore it from a backup, or start the broker with --cut-corrupt to continue without the messages that it held"
    )


class PathWatch:
    """Stores the identity of each watched path."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._watched: dict[str, tuple[FileIdentity | None, File | None, int]] = {}

    def watch(self, path: str, file: File | None = None, bytes_min: int = 0) -> None:
        """Watch the path of a file that was just opened, created or renamed; with the open file also that it keeps `bytes_min`."""
        self._watched[path] = self._files.identity(path), file, bytes_min

    def unwatch(self, path: str) -> None:
        """Stop watching a path."""
        self._watched.pop(path, None)

    def check(self) -> None:
        """Raise StoreDiskError if a watched path names another file or none, or a shorter one. May run in a worker thread."""
        for path, (known, file, bytes_min) in list(self._watched.items()):
            found = self._files.identity(path)
            if found != known:
                what = "is gone" if found is None else "was replaced by another file"
                raise StoreDiskError(
                    f"{path} {what} while the broker had it open: the store was deleted or moved. "
                    "Put it back, or give the broker another directory, then start it again"
                )
            if file is not None and (size := file.size()) < bytes_min:
                raise truncated(path, size, bytes_min)
