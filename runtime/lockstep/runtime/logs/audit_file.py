"""A file to which lines are appended while other programs read, move and remove it (logrotate)."""

import os

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited

log = get_logger("runtime.audit")

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
"""Without O_NONBLOCK a pipe that nobody reads would stop the server."""


class AuditFile:
    """Appends whole lines. A line that can't be written is dropped: its request is served all the same."""

    def __init__(self, path: str) -> None:
        """Open the file, which its owner alone may read if it is new. Raise ConfigError if it can't be opened."""
        self.path = path
        self._torn = False
        """Whether the last line was written in part."""
        self._failing = False
        self._fd: int | None = None
        try:
            self._open()
        except OSError as error:
            raise ConfigError(f"audit {path}: {str(error.strerror).lower()}") from error

    def append(self, line: bytes) -> bool:
        """Append a line, without its line break, by one write. Return False if it was dropped: the first time that is logged."""
        try:
            if not self._is_open():
                self._open()
            assert self._fd is not None
            data = b"%s%s\n" % (b"\n" if self._torn else b"", line)
            written = os.write(self._fd, data)
            self._torn = written < len(data)
            if self._torn:
                raise OSError(0, f"{written} of {len(data)} bytes were written")
        except OSError as error:
            if not self._failing:
                log_limited(log, "error", "audit.failed", path=self.path, error=error.strerror, then="its events are dropped and counted")
            self._failing = True
            return False
        self._failing = False
        return True

    def reopen(self) -> None:
        """Close the file. The next line opens the one that has its name then."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            self._torn = False

    def _is_open(self) -> bool:
        """Return whether the open file still has its name."""
        if self._fd is None:
            return False
        try:
            named = os.stat(self.path)  # world: a file of the administrator
        except FileNotFoundError:
            named = None
        if named is not None and os.path.samestat(named, os.fstat(self._fd)):
            return True
        self.reopen()
        return False

    def _open(self) -> None:
        self._fd = os.open(self.path, _FLAGS, 0o600)  # world: as stat
