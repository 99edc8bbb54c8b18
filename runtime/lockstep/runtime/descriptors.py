"""File descriptors: a budget for connections, and a reserve so that files can be opened while connections use all others.

A server raises its soft limit to the hard one, and rejects connections beyond the number that `DescriptorBudget` leaves for them. But an
accepted connection has its descriptor before it can be rejected: a burst of connections takes all free descriptors for some turns of the
loop. So some descriptors are reserved, and a file is opened with a reserved one if no other is free. While one of them is missing,
connections are rejected, until the reserve is complete again. If the reserve is used up too, a writer in a worker thread waits until a
descriptor is free.
"""

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from lockstep.runtime.event_loop import runs_event_loop

try:
    import resource
except ImportError:  # pragma: no cover
    resource = None  # type: ignore[assignment]

T = TypeVar("T")

RESERVED = 128
"""The number of files that can be opened while connections hold all other descriptors."""
SPARE = 256
"""Descriptors not for connections: the reserve, the admin port (72), links to nameservers, those of the interpreter and the loop."""
WAIT_S = 0.1
"""Time between two attempts of `open_or_wait`."""
WAIT_COUNT = 600
"""The maximum number of attempts, one minute in total, since an ordered stop must end."""
SHORTAGE = (errno.EMFILE, errno.ENFILE)
"""No descriptor is free in this process or on this machine. The file and the disk are not at fault."""


@dataclass(frozen=True, slots=True)
class DescriptorBudget:
    """How the limit of descriptors is divided."""

    limit: int
    connections_max: int
    open_files_max: int
    """Files that are kept open because they may be used again."""

    @classmethod
    def of(cls, limit: int, connections_max: int, open_files_max: int) -> "DescriptorBudget":
        """Leave `limit` − 2 × open files − 256 descriptors for connections, at most the setting.

        Below 4,096 a sixteenth of the limit is for open files; below 512 half of it is spare.
        """
        files = min(open_files_max, limit // 16)
        spare = min(SPARE, limit // 2)
        return cls(limit, max(1, min(connections_max, limit - 2 * files - spare)), files)


class Descriptors:
    """The descriptors of one process. Call `prepare` once, before serving. Thread-safe."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.limit = limit
        """The limit of descriptors of this process."""
        self._reserved: list[int] = []
        self._wanted = 0
        self._lock = threading.Lock()
        self._closed = threading.Event()

    @classmethod
    def of_process(cls) -> "Descriptors":
        """Return an object with the process's current limit and no reserve."""
        return cls() if resource is None else cls(_count(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))

    def prepare(self) -> None:
        """Raise the soft limit to the hard one and open the reserve: 128 descriptors, or a quarter of a limit below 512."""
        if resource is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            except (OSError, ValueError):
                pass  # some systems allow less than they report: the soft limit remains
            self.limit = _count(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._wanted = min(RESERVED, self.limit // 4)
        self._closed.clear()
        with self._lock:
            self._fill()

    def close(self) -> None:
        """Release the reserve. Threads that wait for a descriptor try once more."""
        self._closed.set()
        with self._lock:
            self._wanted = 0
            self._release()

    @property
    def reserved(self) -> int:
        return len(self._reserved)

    def is_short(self) -> bool:
        """Return whether a reserved descriptor is in use and no other is free to replace it."""
        if len(self._reserved) >= self._wanted:
            return False
        with self._lock:
            self._fill()
        return len(self._reserved) < self._wanted

    def open(self, function: Callable[..., T], *args: object) -> T:
        """Return `function(*args)`, which opens one file or directory; with a reserved descriptor if no other is free. Raises OSError."""
        try:
            return function(*args)
        except OSError as error:
            if error.errno not in SHORTAGE or not self._reserved:
                raise
        with self._lock:
            # Release all at once: a connection that is accepted in between takes one of them, not the only one.
            self._release()
            try:
                return function(*args)
            finally:
                self._fill()

    def open_or_wait(self, function: Callable[..., T], *args: object) -> T:
        """Do the same as `open`. A worker thread waits up to a minute for a descriptor; the event loop must not be blocked. Raises
        OSError."""
        for _ in range(WAIT_COUNT):
            try:
                return self.open(function, *args)
            except OSError as error:
                if error.errno not in SHORTAGE or not self._wanted or runs_event_loop():
                    raise
            if self._closed.wait(WAIT_S):
                break
        return self.open(function, *args)

    def _release(self) -> None:
        reserved, self._reserved = self._reserved, []
        for fd in reserved:
            os.close(fd)

    def _fill(self) -> None:
        try:
            while len(self._reserved) < self._wanted:
                self._reserved.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            if error.errno not in SHORTAGE:
                raise


def _count(limit: int) -> int:
    """Return a limit as a number, also if it is unlimited."""
    return 1 << 20 if limit < 0 else limit


DESCRIPTORS = Descriptors.of_process()
"""The descriptors of this process."""
