"""A send: messages that are acknowledged together, that of a `send`, or those of a `send_batch` for one queue. Pure."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from lockstep.client.producer.machines.routing import Route
from lockstep.protocol.messages.message import Message
from lockstep.protocol.topics.queue import LayoutVersion, MessageQueue

RECORD_OVERHEAD_BYTES = 384
"""The size of a record without body and user properties, at most, roughly: fixed fields, topic, UNIQ_KEY, key. For the in-flight limit."""

Name = TypeVar("Name", bound=Hashable)


class Waiter(Protocol):
    """The future of a `send`, or the `Batch` of a `send_batch`. The machines carry it and only check whether it is done."""

    def done(self) -> bool:
        """Return whether the caller no longer waits: it was cancelled, or has its result."""
        ...


def held_bytes_of(message: Message) -> int:
    """Return the bytes that the in-flight limit counts for a message."""
    return len(message.body) + len(message.stored_properties) + RECORD_OVERHEAD_BYTES


class EncodedRecords(NamedTuple):
    """The records of a `send_records`, which the caller has encoded."""

    data: bytes
    sizes: list[int]
    """The size of each record in bytes."""


class PendingSend:
    """One or more messages that are sent in one frame and acknowledged together. They are encoded when the frame is sealed.

    It is created when the send is called, and is what every step of the send takes: the arguments first, then the state.

    It has no list or dict of its own: that would be one more object for the garbage collector to visit, ten thousand times a second.
    """

    __slots__ = (
        "alone",
        "begun_ms",
        "count",
        "deadline_ms",
        "durable",
        "failed",
        "held_bytes",
        "keys",
        "may_be_stored",
        "message_ids",
        "messages",
        "parts",
        "places",
        "queue",
        "records",
        "route",
        "ticket",
        "version",
        "waiter",
        "waits",
    )

    def __init__(
        self,
        messages: Sequence[Message],
        route: Route,
        held_bytes: int,
        waiter: Waiter,
        begun_ms: int,
        deadline_ms: int,
        durable: bool | None = None,
        places: Sequence[int] = (),
        records: EncodedRecords | None = None,
    ) -> None:
        self.messages = messages
        """Empty if `records` is given."""
        self.records = records
        self.count = len(messages) if records is None else len(records.sizes)
        self.message_ids: Sequence[str] | None = None
        """The ids of the messages, if a frame with them was sealed and ended without an acknowledgement: the next one repeats them."""
        self.held_bytes = held_bytes
        """The bytes that the in-flight limit counts for it."""
        self.waiter = waiter
        self.places = places
        """In a batch: the positions of its messages."""
        self.begun_ms = begun_ms
        """When it was called (monotonic ms)."""
        self.deadline_ms = deadline_ms
        self.route = route
        self.keys = route.keys
        """Empty: unkeyed. One: the key of all records. Otherwise one for each record."""
        self.version: LayoutVersion | None = None
        """The layout from which the queue was picked. None before that, and if it is unkeyed or the user named the queue."""
        self.alone = records is not None
        """It goes into a frame of its own: it is encoded already, or a record of its last frame was refused."""
        self.durable = durable
        """The response to its frame is sent when the records are on disk (True), when the operating system has them (False), or
        according to the broker's flush setting (None)."""
        self.may_be_stored = False
        """A queue that it has left may have stored it."""
        self.failed = False
        """It was reported as failed. Its frame may still be in flight for other sends."""
        self.queue: MessageQueue | None = None
        """The queue in which it waits, or in whose frame it is."""
        self.parts: tuple[PendingSend, ...] = ()
        """The parts into which it was split. It is then in no queue itself."""
        self.waits = b""
        """What a message that is to wait has after its home, as it is stored: how long, until when, or of which transaction. A delay level
        is DELAY until the first frame with it is sealed: then it is the time of the level at the broker of that frame."""
        self.ticket = 0
        """Its position in the FIFO in which it waits (SendFifo)."""

    @property
    def half_ms(self) -> int:
        """Return when half of its time has passed (monotonic ms). Until then it is written even if little time is left for the
        response."""
        return (self.begun_ms + self.deadline_ms) // 2

    def done(self) -> bool:
        """Return whether no caller waits for it any more."""
        return self.failed or self.waiter.done()

    def leaves(self) -> "Iterator[PendingSend]":
        """Yield the parts that it consists of now: itself, or the parts of its parts."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves()

    def split(self, name: Callable[[str], Name]) -> "dict[Name, PendingSend]":
        """Split a keyed send by the names of its keys. Return the parts by name, in the order of their first keys; itself if there is one
        name.

        This is rare: a key of several failed, is refused, or belongs to another queue than the others after a change of the layout.
        """
        keys, ids = self.keys, self.message_ids
        if len(keys) == 1:
            return {name(keys[0]): self}
        positions: dict[Name, list[int]] = {}
        for position, key in enumerate(keys):
            positions.setdefault(name(key), []).append(position)
        if len(positions) == 1:
            return dict.fromkeys(positions, self)
        parts: dict[Name, PendingSend] = {}
        for found, own in positions.items():
            messages = [self.messages[position] for position in own]
            part = PendingSend(
                messages,
                Route([keys[position] for position in own], self.route.pick),
                sum(map(held_bytes_of, messages)),
                self.waiter,
                self.begun_ms,
                self.deadline_ms,
                self.durable,
                [self.places[position] for position in own],
            )
            part.message_ids = None if ids is None else [ids[position] for position in own]
            part.alone, part.version, part.queue, part.waits = self.alone, self.version, self.queue, self.waits
            part.failed, part.may_be_stored = self.failed, self.may_be_stored
            parts[found] = part
        self.parts = tuple(parts.values())
        return parts
