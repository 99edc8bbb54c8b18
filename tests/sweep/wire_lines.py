"""What the wiretap knows of each connection: both its ways, and the requests that wait for their answers."""

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from lockstep.protocol.frame import FrameBuffer
from sweep.history import Event, QueueKey


class _Clock(Protocol):
    def boot_ms(self) -> int: ...


class _Host(Protocol):
    @property
    def clock(self) -> _Clock: ...


class _Machine(Protocol):
    @property
    def name(self) -> str: ...


class Peer(Protocol):
    """What the tap wants to know of a process; a simulated Process has it."""

    @property
    def number(self) -> int: ...
    @property
    def machine(self) -> _Machine: ...
    @property
    def host(self) -> _Host: ...


@dataclass(slots=True)
class Commit:
    """One item that a client committed or released."""

    key: QueueKey
    epoch: int | None
    generation: int | None
    offset: int | None
    attempts: int
    released: bool


@dataclass(slots=True)
class Asked:
    """A request that waits for its answer."""

    code: int
    t: float
    boot_ms: int
    request: int
    keys: list[tuple[QueueKey, int | None]] = field(default_factory=list)
    """LOCK: every item with its epoch. PULL: one."""
    commits: list[Commit | None] = field(default_factory=list)
    """SYNC, UPDATE: one an item. LOCK: None where an item commits nothing."""
    facts: tuple[int, ...] = ()
    """PULL: offset. Send: count."""


class Way:
    """One direction: what was written, cut into frames, and which of them the other end has."""

    __slots__ = ("arrived", "buffer", "dead", "waiting", "written")

    def __init__(self) -> None:
        self.buffer = FrameBuffer()
        self.written = 0
        self.arrived = 0
        self.waiting: deque[tuple[int, str, list[Event]]] = deque()
        """(where the frame ends in the stream, its name where a loss is worth counting, what is known when it has arrived)."""
        self.dead = False


class Line:
    """One connection to a broker."""

    __slots__ = ("asked", "broker", "client", "connection", "down", "pending_bind", "server", "session", "up")

    def __init__(self, connection: int, client: Peer, server: Peer, broker: str) -> None:
        self.connection = connection
        self.client = client
        self.server = server
        self.broker = broker
        self.session: str | None = None
        self.up = Way()
        self.down = Way()
        self.asked: dict[int, Asked] = {}
        self.pending_bind: dict[int, tuple[str, str, int]] = {}
        """HEART_BEAT's opaque → (session, client id, connection number)."""
