"""File descriptors: how many connections may take, and a reserve so that a file can be opened when they have taken the rest.

A server raises its soft limit to the hard one, and refuses connections beyond what `Budget` leaves for them. But an accepted connection has
its descriptor before it can be refused: a burst takes all that are free, for some loop turns. So descriptors are reserved: a file is opened
with a reserved one where there is no other. While one of them is missing connections are refused, until the reserve is complete again.
Where the reserve is used up too, what writes in a worker thread waits until a descriptor is free.
"""

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

try:
    import resource
except ImportError:  # pragma: no cover
    resource = None  # type: ignore[assignment]

T = TypeVar("T")

RESERVED = 128
"""Files that can be opened while connections hold every other descriptor."""
SPARE = 256
"""Not for connections: the reserve, the admin port (72), links to nameservers, what the interpreter and the loop open."""
WAIT_S = 0.1
"""Between two tries of `wait`."""
WAIT_COUNT = 600
"""How often it tries again, for a minute in all: an ordered stop must end."""
SHORTAGE = (errno.EMFILE, errno.ENFILE)
"""No descriptor is free, in this process or on this machine. No fault of any file or disk."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a limit of descriptors is divided into."""

    limit: int
    connections_max: int
    open_files_max: int
    """Files that are kept open because they may be used again."""

    @classmethod
    def of(cls, limit: int, connections_max: int, open_files_max: int) -> "Budget":
        """`limit` − 2 × open files − 256 for connections, and at most the setting.

        Below 4,096 a sixteenth of the limit is for open files, below 512 half of it is spare.
        """
        files = min(open_files_max, limit // 16)
        spare = min(SPARE, limit // 2)
        return cls(limit, max(1, min(connections_max, limit - 2 * files - spare)), files)


class Descriptors:
    """Those of one process. `prepare` once, before it serves. Safe from any thread."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.limit = limit
        """Descriptors that this process may have."""
        self._reserved: list[int] = []
        self._wanted = 0
        self._lock = threading.Lock()
        self._closed = threading.Event()

    @classmethod
    def of_process(cls) -> "Descriptors":
        """With the process's present limit and no reserve."""
        return cls() if resource is None else cls(_count(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))

    def prepare(self) -> None:
        """Raises the soft limit to the hard one and opens the reserve: 128, or a quarter of a limit below 512."""
        if resource is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            except (OSError, ValueError):
                pass  # some systems allow less than they say: the soft limit stands
            self.limit = _count(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._wanted = min(RESERVED, self.limit // 4)
        self._closed.clear()
        with self._lock:
            self._fill()

    def close(self) -> None:
        """Gives the reserve back. Who waits for a descriptor tries once more."""
        self._closed.set()
        with self._lock:
            self._wanted = 0
            self._release()

    @property
    def reserved(self) -> int:
        return len(self._reserved)

    def is_short(self) -> bool:
        """Whether a reserved descriptor is in use and no other is free to replace it."""
        if len(self._reserved) >= self._wanted:
            return False
        with self._lock:
            self._fill()
        return len(self._reserved) < self._wanted

    def call(self, function: Callable[..., T], *args: object) -> T:
        """`function(*args)`, which opens one file or directory; with a reserved descriptor where there is no other. OSError."""
        try:
            return function(*args)
        except OSError as error:
            if error.errno not in SHORTAGE or not self._reserved:
                raise
        with self._lock:
            # All at once: a connection that is accepted in between takes one of them, not the only one.
            self._release()
            try:
                return function(*args)
            finally:
                self._fill()

    def wait(self, function: Callable[..., T], *args: object) -> T:
        """As `call`. In a worker thread it waits up to a minute for a descriptor; the event loop must not be blocked. OSError."""
        for _ in range(WAIT_COUNT):
            try:
                return self.call(function, *args)
            except OSError as error:
                if error.errno not in SHORTAGE or not self._wanted or _in_event_loop():
                    raise
            if self._closed.wait(WAIT_S):
                break
        return self.call(function, *args)

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


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _count(limit: int) -> int:
    """A limit as a number: there may be none."""
    return 1 << 20 if limit < 0 else limit


DESCRIPTORS = Descriptors.of_process()
"""This process's."""
