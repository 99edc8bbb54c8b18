"""The state of each recorded connection: both its directions, and the requests that are pending."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec

from lockstep.protocol.codec.plain import unpack_plain
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.frame import FrameBuffer
from lockstep.testing.simulation import Process
from sweep.history import E, Event, QueueKey

P = ParamSpec("P")
Origin = tuple[float, str, int]
"""The first three facts of an event: when, and in which process."""
Kind = Callable[Concatenate[float, str, int, QueueKey, str | None, int, int, float, P], E]
"""A class of events about a queue (events/wire.py): its constructor takes the facts of the request, and P."""


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

    __slots__ = ("broker", "client", "connection", "down", "groups", "login", "pending", "server", "session", "up", "user")

    def __init__(self, connection: int, client: Process, server: Process, broker: str, groups: dict[tuple[str, str], list[str]]) -> None:
        self.connection = connection
        self.client = client
        self.server = server
        self.broker = broker
        self.groups = groups
        """(session, broker) → the groups that its last HEART_BEAT named, over all connections."""
        self.session: str | None = None
        self.user = ""
        """Who has logged in."""
        self.login: tuple[str, str | None] = ("", None)
        """The user of the login that has begun, and the password that this user's clients had then."""
        self.up = Direction()
        self.down = Direction()
        self.pending: dict[int, Frame] = {}
        """The requests without a response yet, by opaque."""


@dataclass(slots=True)
class Frame:
    """One frame that was written on a connection: a request, or the response to it."""

    link: Link
    command: Command
    t: float
    request: int = 0
    """Unique in the run."""
    boot_ms: int = 0
    """The client's boot clock."""
    read_response: "ReadResponse | None" = None
    lost: str = ""
    """The name by which the loss of the response is counted; empty if it is not counted. The response's reader sets it in its request."""
    kept: list[Any] = field(default_factory=list)
    """What the reader of the request keeps for the reader of its response."""

    @property
    def client(self) -> Origin:
        return self.t, self.link.client.machine.name, self.link.client.number

    @property
    def server(self) -> Origin:
        return self.t, self.link.server.machine.name, self.link.server.number

    @property
    def fields(self) -> dict[str, Any]:
        return self.command.fields

    @property
    def ok(self) -> bool:
        return self.command.code == ResponseCode.SUCCESS

    def body(self) -> Any:
        return unpack_plain(self.command.body)

    def key(self, group: str, topic: str, queue: int) -> QueueKey:
        return QueueKey(group, self.link.broker, topic, queue)

    def field_key(self, group: str = "consumerGroup") -> QueueKey:
        """Return the queue that the header names; `group` names the header's field of the group."""
        fields = self.fields
        return self.key(fields[group] if group else "", fields["topic"], fields["queueId"])

    def item_key(self, item: dict[str, Any]) -> QueueKey:
        return self.key(item["group"], item["topic"], item["queueId"])

    def sent(self, kind: Kind[P, E], queue: QueueKey, *facts: P.args, **named: P.kwargs) -> E:
        """Return an event of this request, which its client has written."""
        return kind(*self._about(self.client, queue), *facts, **named)

    def responded(self, kind: Kind[P, E], request: "Frame", queue: QueueKey, *facts: P.args, **named: P.kwargs) -> E:
        """Return an event of this response to `request`, which the broker has written."""
        return kind(*request._about(self.server, queue), *facts, **named)

    def received(self, kind: Kind[P, E], request: "Frame", queue: QueueKey, *facts: P.args, **named: P.kwargs) -> E:
        """Return an event of this response to `request` when it reaches the client."""
        return kind(*request._about(self.client, queue), *facts, **named)

    def _about(self, origin: Origin, queue: QueueKey) -> tuple[float, str, int, QueueKey, str | None, int, int, float]:
        return *origin, queue, self.link.session, self.link.client.number, self.request, self.t


ReadResponse = Callable[[Frame, Frame], Iterator[Event]]
"""Reads a response, and the request to which it belongs."""
