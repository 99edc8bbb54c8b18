"""The machine as product code sees it: clock, randomness, files, threads, boot id. The simulator hands out a Host of its own.

The network is the running loop's (create_server, create_connection): another loop brings another network.
"""

import asyncio
import os
import random
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol, TypeVar

from lockstep.runtime.clock import Clock
from lockstep.runtime.descriptors import DESCRIPTORS, Descriptors

if TYPE_CHECKING:
    from lockstep.runtime.files import Files

T = TypeVar("T")

THREADS_MAX = 19
"""Workers of one host: as many as may wait for the disk at once in a broker (4 cold reads, 2 queries, 2 starts by time, 2 messages sent
back, 2 repairs, the scrub, a scrape, delayed messages, the sync of the log, a snapshot, retention) and one to spare, so that no sync that
sends wait for stands behind a read. Each begins when it is first needed.
"""
IDLE_DAEMONS_MAX = 64
"""Daemon threads kept for the next call of a plain listener: starting one costs several times what waking one does."""
BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"


class Random(Protocol):
    """Randomness. Seeded in the simulator."""

    def token(self, count: int) -> bytes:
        """`count` bytes that nobody can guess."""
        ...

    def uniform(self, low: float, high: float) -> float:
        """Evenly from low … high: jitter."""
        ...

    def below(self, limit: int) -> int:
        """Evenly from 0 … limit−1."""
        ...


class Threads(Protocol):
    """Threads for calls that block. `run` is the only way from a coroutine to a thread."""

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """`function(*args)` in a small pool. A cancelled wait does not stop the function."""
        ...

    def start_daemon(self, function: Callable[[], None], name: str) -> None:
        """Runs it in a thread that nothing else uses meanwhile and that ends with the process."""
        ...

    def close(self) -> None:
        """Waits for what runs in the pool."""
        ...


class SystemRandom:
    """The operating system's tokens; jitter from a generator that it seeds."""

    __slots__ = ("_generator",)

    def __init__(self) -> None:
        self._generator = random.Random()

    def token(self, count: int) -> bytes:
        return os.urandom(count)

    def uniform(self, low: float, high: float) -> float:
        return self._generator.uniform(low, high)

    def below(self, limit: int) -> int:
        return self._generator.randrange(limit)


class PoolThreads:
    """A thread pool that is made at its first use."""

    __slots__ = ("_idle", "_pool", "_workers")

    def __init__(self, workers: int = THREADS_MAX) -> None:
        self._workers = workers
        self._pool: ThreadPoolExecutor | None = None
        self._idle: deque[SimpleQueue[tuple[Callable[[], None], str]]] = deque()

    async def run(self, function: Callable[..., T], *args: object) -> T:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="lockstep")
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    def start_daemon(self, function: Callable[[], None], name: str) -> None:
        try:
            jobs = self._idle.pop()
        except IndexError:
            jobs = SimpleQueue()
            threading.Thread(target=self._serve, args=(jobs,), daemon=True).start()
        jobs.put((function, name))

    def _serve(self, jobs: "SimpleQueue[tuple[Callable[[], None], str]]") -> None:
        """A daemon thread: one job after the other, idle in between unless enough others are."""
        while True:
            function, threading.current_thread().name = jobs.get()
            function()
            del function
            if len(self._idle) >= IDLE_DAEMONS_MAX:
                return
            self._idle.append(jobs)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None


class Calls:
    """Calls of users' code in this process, by key: also those that nobody waits for any more. Safe from any thread."""

    __slots__ = ("_lock", "_running", "_waiting")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: Counter[Hashable] = Counter()
        self._waiting: dict[Hashable, list[Callable[[], None]]] = {}

    def begin(self, key: Hashable) -> None:
        with self._lock:
            self._running[key] += 1

    def end(self, key: Hashable) -> None:
        """With the last one of the key whoever waits is called, in this thread."""
        with self._lock:
            self._running[key] -= 1
            ended = self._running[key] <= 0
            if ended:
                del self._running[key]
            waiting = self._waiting.pop(key, []) if ended else []
        for callback in waiting:
            callback()

    def wait(self, key: Hashable, callback: Callable[[], None]) -> bool:
        """False: none runs. Else `callback` is called once, when the last one has ended, in whichever thread that is."""
        with self._lock:
            if key not in self._running:
                return False
            self._waiting.setdefault(key, []).append(callback)
            return True


PROCESS_CALLS = Calls()


def read_boot_id(path: str = BOOT_ID_PATH) -> str:
    """The kernel's id of this boot. Where there is none: a new one each time, so that every start counts as after a power cut."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return f"unknown-{os.urandom(16).hex()}"


@dataclass(frozen=True, slots=True)
class Host:
    """What a process may reach beside the network."""

    clock: Clock
    random: Random
    files: "Files"
    threads: Threads
    boot_id: Callable[[], str]
    pid: int = field(default_factory=os.getpid)
    """Of this process."""
    home: str = field(default_factory=lambda: os.path.expanduser("~"))
    """This user's directory."""
    calls: Calls = field(default_factory=lambda: PROCESS_CALLS)
    """Of users' code that runs in this process."""
    name: str = field(default_factory=socket.gethostname)
    """Of this machine."""
    descriptors: Descriptors = field(default_factory=Descriptors)
    """Of this process."""

    @classmethod
    def current(cls) -> "Host":
        """The host that the running loop brings (`lockstep_host`, the simulator's), else this machine."""
        return running_host() or cls.real()

    @classmethod
    def real(cls) -> "Host":
        """This machine."""
        from lockstep.runtime.files import RealFiles

        return cls(Clock(), SystemRandom(), RealFiles(), PoolThreads(), read_boot_id, descriptors=DESCRIPTORS)


def running_host() -> Host | None:
    """The host that the running loop brings; None where no loop runs, or one without."""
    try:
        return getattr(asyncio.get_running_loop(), "lockstep_host", None)
    except RuntimeError:
        return None
