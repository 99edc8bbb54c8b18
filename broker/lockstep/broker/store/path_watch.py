"""Checks that the open files of a running store are still those that their paths name.

A descriptor remains valid after its file was removed or moved: writes and syncs still succeed, but the data is lost when the process ends.
So the store compares the identity (device, inode) of each watched path at the time of opening with the current one, before a sync is
confirmed and every CHECK_MS.
"""

from lockstep.broker.store.errors import StoreDiskError
from lockstep.runtime.files import FileIdentity, Files

CHECK_MS = 500
"""Longest time between two checks of an idle store."""


class PathWatch:
    """Stores the identity of each watched path."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._watched: dict[str, FileIdentity | None] = {}

    def watch(self, path: str) -> None:
        """Watch the path of a file that was just opened, created or renamed."""
        self._watched[path] = self._files.identity(path)

    def unwatch(self, path: str) -> None:
        """Stop watching a path."""
        self._watched.pop(path, None)

    def check(self) -> None:
        """Raise StoreDiskError if a watched path names another file or none. May run in a worker thread."""
        for path, known in list(self._watched.items()):
            found = self._files.identity(path)
            if found != known:
                what = "is gone" if found is None else "was replaced by another file"
                raise StoreDiskError(
                    f"{path} {what} while the broker had it open: the store was deleted or moved. "
                    "Put it back, or give the broker another directory, then start it again"
                )
