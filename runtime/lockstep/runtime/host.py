"""The machine as product code uses it: clock, randomness, files, threads, boot id. The simulator provides its own Host.

The network is that of the running loop (create_server, create_connection): another loop has another network.
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

THREADS_MAX = 24
"""The maximum number of worker threads of one host: those that may wait for the disk at once in a broker (4 cold reads, 2 queries, 2
starts by time, 2 messages sent back, 2 ends of transactions, the questions about them, 2 for replicas, 2 repairs, the scrub, a scrape,
delayed messages, the sync of the log, a snapshot, retention) and a spare one, so that no sync for which sends wait is queued after a read.
Each starts when it is first needed."""
IDLE_DAEMONS_MAX = 64
"""The maximum number of daemon threads kept for the next call of a plain listener: starting one costs several times as much as waking
one."""
BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"


class Random(Protocol):
    """Randomness. Seeded in the simulator."""

    def token(self, count: int) -> bytes:
        """Return `count` unpredictable bytes."""
        ...

    def uniform(self, low: float, high: float) -> float:
        """Return a uniformly distributed number from low … high, for jitter."""
        ...

    def below(self, limit: int) -> int:
        """Return a uniformly distributed integer from 0 … limit−1."""
        ...


class Threads(Protocol):
    """Threads for calls that block. Coroutines use only `run` to reach a thread."""

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Return `function(*args)` from a small pool. Cancelling the wait does not stop the function."""
        ...

    def start_daemon(self, function: Callable[[], None], name: str) -> None:
        """Run the function in a thread that nothing else uses and that ends with the process."""
        ...

    def ident(self) -> int:
        """Return the identifier of the calling thread, as in `sys._current_frames()`."""
        ...

    def close(self) -> None:
        """Wait for the calls that run in the pool."""
        ...


class SystemRandom:
    """Tokens of the operating system, and jitter from a generator that it seeds."""

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
    """A thread pool that is created at its first use."""

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

    def ident(self) -> int:
        return threading.get_ident()

    def _serve(self, jobs: "SimpleQueue[tuple[Callable[[], None], str]]") -> None:
        """Run one job after the other in a daemon thread. It stays idle in between unless enough others are."""
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


class RunningCalls:
    """Running calls of users' code in this process, by key, including those for which no task waits any more. Thread-safe."""

    __slots__ = ("_lock", "_running", "_waiting")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: Counter[Hashable] = Counter()
        self._waiting: dict[Hashable, list[Callable[[], None]]] = {}

    def begin(self, key: Hashable) -> None:
        with self._lock:
            self._running[key] += 1

    def end(self, key: Hashable) -> None:
        """Record the end of a call. After the last one of the key, call the registered callbacks in this thread."""
        with self._lock:
            self._running[key] -= 1
            ended = self._running[key] <= 0
            if ended:
                del self._running[key]
            waiting = self._waiting.pop(key, []) if ended else []
        for callback in waiting:
            callback()

    def notify_when_ended(self, key: Hashable, callback: Callable[[], None]) -> bool:
        """Return False if no call of the key runs. Otherwise call `callback` once, when the last one has ended, in whichever thread that
        is."""
        with self._lock:
            if key not in self._running:
                return False
            self._waiting.setdefault(key, []).append(callback)
            return True


PROCESS_CALLS = RunningCalls()


def read_boot_id(path: str = BOOT_ID_PATH) -> str:
    """Return the kernel's id of this boot. If there is none, return a new id each time, so that every start counts as one after a power
    cut."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return f"unknown-{os.urandom(16).hex()}"


@dataclass(frozen=True, slots=True)
class Host:
    """The environment of a process apart from the network."""

    clock: Clock
    random: Random
    files: "Files"
    threads: Threads
    boot_id: Callable[[], str]
    pid: int = field(default_factory=os.getpid)
    """The id of this process."""
    home: str = field(default_factory=lambda: os.path.expanduser("~"))
    """The home directory of this user."""
    calls: RunningCalls = field(default_factory=lambda: PROCESS_CALLS)
    """The running calls of users' code in this process."""
    name: str = field(default_factory=socket.gethostname)
    """The name of this machine."""
    descriptors: Descriptors = field(default_factory=Descriptors)
    """The descriptors of this process."""

    @classmethod
    def current(cls) -> "Host":
        """Return the host of the running loop (`lockstep_host`, the simulator's), or else this machine."""
        return running_host() or cls.real()

    @classmethod
    def real(cls) -> "Host":
        """Return this machine."""
        from lockstep.runtime.files import RealFiles

        return cls(Clock(), SystemRandom(), RealFiles(), PoolThreads(), read_boot_id, descriptors=DESCRIPTORS)


def running_host() -> Host | None:
    """Return the host of the running loop, or None if no loop runs or it has none."""
    try:
        return getattr(asyncio.get_running_loop(), "lockstep_host", None)
    except RuntimeError:
        return None
