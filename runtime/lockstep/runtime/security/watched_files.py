"""Files that are read again when their content changes.

The content decides, read through the path, not a time or an inode: Kubernetes replaces a symbolic link of a directory, and tools that renew
certificates write the key and the certificate one after the other. So a content that can't be used is tried again at each look, and is an
error only when it has been unusable for SETTLE_MS. Until it can be used, the last usable one remains in force.
"""

import codecs
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from lockstep.protocol.errors import ConfigError

T = TypeVar("T")

LOOK_MS = 5_000
"""Time between two looks at the files."""
SETTLE_MS = 30_000
"""How long files may not fit together while they are being replaced."""
FILE_BYTES_MAX = 1 << 20
"""The maximum size of a file: a bundle of all public authorities has a quarter of it."""
SECRETS_DIRECTORY = "/run/secrets/"
"""Docker and Kubernetes mount secrets there, with modes that can't be chosen."""


def read_file(path: str) -> bytes:
    """Return the content of a file. Raise ConfigError if it can't be read or has more than FILE_BYTES_MAX bytes."""
    try:
        with open(path, "rb") as file:  # world: the files of an administrator, who writes them while the server runs
            content = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {(getattr(error, 'strerror', None) or str(error)).lower()}") from error
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: more than {FILE_BYTES_MAX} bytes, the limit")
    return content


def read_line(path: str) -> str:
    """Return the first line of a file, without its end and without a byte order mark. Raise ConfigError as `read_file`, or if it is not
    UTF-8."""
    try:
        return read_file(path).removeprefix(codecs.BOM_UTF8).partition(b"\n")[0].rstrip(b"\r").decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: its first line is not UTF-8") from None


def check_mode(path: str, *, private: bool = False) -> None:
    """Raise ConfigError for a file with secrets that others can write, or read where its mode can be chosen. `private`: the group too may
    not read it."""
    try:
        mode = os.stat(path).st_mode  # world: as read_file
        read_only = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError as error:
        raise ConfigError(f"{path}: {str(error.strerror).lower()}") from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"{path}: others than its owner may write it: chmod 600 {path}")
    if mode & (stat.S_IROTH | (stat.S_IRGRP if private else 0)) and not read_only and not path.startswith(SECRETS_DIRECTORY):
        raise ConfigError(f"{path}: others than its owner may read it: chmod 600 {path}")


def write_file(path: str | Path, content: bytes, mode: int) -> None:
    """Write a file with its mode under another name, and rename it: who looks at it sees the old one or the new one, after a crash too.

    Raises OSError.
    """
    next_path = Path(f"{path}.new")
    next_path.unlink(missing_ok=True)
    with os.fdopen(os.open(next_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:  # world: as read_file
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # world: as read_file
    next_path.replace(path)


class WatchedFiles(Generic[T]):
    """A value that is made of files, and made anew when one of them has another content."""

    def __init__(
        self,
        paths: Sequence[str],
        make: Callable[[], T],
        more: Callable[[T], Sequence[str]] = lambda _: (),
        read: Callable[[str], bytes] = read_file,
    ) -> None:
        """`make` reads the files and returns the value, or raises ConfigError. `more` returns further files that a value is made of, which
        the first ones name. `read` returns the content of a file, or raises ConfigError. Raise ConfigError if `make` fails the first time.
        """
        self.paths = tuple(paths)
        self._make = make
        self._more = more
        self._read_file = read
        self._digests, self.value = self._load(self._read(self.paths))
        """`value` is the newest one that could be made."""
        self._failed_ms: int | None = None
        """When the files became unusable, or None."""
        self.problem: str | None = None
        """Why the last look could not use the files."""
        self.failure: str | None = None
        """The same, once they have been unusable for SETTLE_MS."""

    def look(self, now_ms: int) -> tuple[str, ...]:
        """Read the files. If `value` is a new one, return those that have changed since the last one. Never raises: see `failure`."""
        try:
            digests = self._read(self._digests)
            if digests == self._digests and self._failed_ms is None:
                return ()
            digests, self.value = self._load(digests)
        except ConfigError as error:
            self.problem = str(error)
            if self._failed_ms is None:
                self._failed_ms = now_ms
            if now_ms - self._failed_ms >= SETTLE_MS:
                self.failure = self.problem
            return ()
        changed = tuple(path for path, digest in digests.items() if digest != self._digests.get(path))
        self._digests = digests
        self._failed_ms = self.problem = self.failure = None
        return changed

    def _load(self, digests: dict[str, bytes]) -> tuple[dict[str, bytes], T]:
        """Make the value. Return it, and digests of its files as they were before that: if it names others, it is made again."""
        while True:
            value = self._make()
            paths = (*self.paths, *self._more(value))
            if digests.keys() == set(paths):
                return digests, value
            digests = self._read(paths)

    def _read(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Return a digest of each file: a key is not kept in memory once more. It is empty for a further file that can't be read, which
        may not be one any more: `make` raises the error if it is."""
        digests = {}
        for path in paths:
            try:
                digests[path] = hashlib.sha256(self._read_file(path)).digest()
            except ConfigError:
                if path in self.paths:
                    raise
                digests[path] = b""
        return digests
