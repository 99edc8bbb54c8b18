"""Whether the files that a running store has open are still those that its paths name.

A descriptor stays good after its file was removed or moved away: writes and syncs go on to succeed, and what they stored is gone with the
process. So the store compares the identity (device, inode) that each watched path had when its file was opened with the one that it has
now, before a sync is confirmed and every CHECK_MS.
"""

from lockstep.broker.store.errors import StoreDiskError
from lockstep.runtime.files import FileIdentity, Files

CHECK_MS = 500
"""Longest time between two checks of a store that is idle."""


class PathWatch:
    """Remembers the identity of each watched path."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._watched: dict[str, FileIdentity | None] = {}

    def watch(self, path: str) -> None:
        """The file at `path` has just been opened, created or renamed."""
        self._watched[path] = self._files.identity(path)

    def forget(self, path: str) -> None:
        """The file is no longer needed."""
        self._watched.pop(path, None)

    def check(self) -> None:
        """Raises StoreDiskError when a watched path names another file, or none. May run in a worker thread."""
        for path, known in list(self._watched.items()):
            found = self._files.identity(path)
            if found != known:
                what = "is gone" if found is None else "was replaced by another file"
                raise StoreDiskError(
                    f"{path} {what} while the broker had it open: the store was deleted or moved. "
                    "Put it back, or give the broker another directory, then start it again"
                )
