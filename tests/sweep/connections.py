"""The state of each recorded connection: both its directions, and the requests that are pending."""

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
    """A process, as the recorder uses it; a simulated Process has all of this."""

    @property
    def number(self) -> int: ...
    @property
    def machine(self) -> _Machine: ...
    @property
    def host(self) -> _Host: ...


@dataclass(slots=True)
class Item:
    """One queue of a request, and the offset that the request commits there."""

    key: QueueKey
    epoch: int | None = None
    generation: int | None = None
    offset: int | None = None
    """None if it commits nothing."""
    attempts: int = 0
    released: bool = False
    done: tuple[int, ...] = ()


@dataclass(slots=True)
class Pending:
    """A request whose response has not been written yet."""

    code: int
    t: float
    boot_ms: int
    request: int
    """Unique in the run."""
    items: list[Item] = field(default_factory=list)
    client_id: str = ""
    number: int = 0
    """The number of messages of a send, or the number that a HEART_BEAT's session gives to the connection."""
    sharding_key: str | None = None
    """That of a replay."""
    listing: bool = False
    """PARK_CONTROL lists keys."""
    lost: str = ""
    """The name by which the loss of the response is counted; empty if it is not counted."""


class Direction:
    """The bytes written in one direction of a connection, cut into frames, and the frames that have reached the other end."""

    __slots__ = ("arrived", "buffer", "unreadable", "waiting", "written")

    def __init__(self) -> None:
        self.buffer = FrameBuffer()
        self.written = 0
        self.arrived = 0
        self.waiting: deque[tuple[int, str, list[Event]]] = deque()
        """(end of the frame in the stream, the name by which its loss is counted, the events of its arrival)."""
        self.unreadable = False


class Link:
    """One connection to a broker."""

    __slots__ = ("broker", "client", "connection", "down", "pending", "server", "session", "up")

    def __init__(self, connection: int, client: Peer, server: Peer, broker: str) -> None:
        self.connection = connection
        self.client = client
        self.server = server
        self.broker = broker
        self.session: str | None = None
        self.up = Direction()
        self.down = Direction()
        self.pending: dict[int, Pending] = {}
        """By opaque."""
