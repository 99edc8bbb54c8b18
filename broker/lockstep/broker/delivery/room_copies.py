"""The copies of messages of waiting rooms: their records are made from the bytes of those that waited, without decoding them. Pure.

One ends the wait, in the message's own topic; another is stored in the room again because the log's old end is removed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from lockstep.broker.store.log.stored_record import ROOM_LETTERS, Ended
from lockstep.broker.store.log.waiting_records import NO_SEAL
from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.messages.properties import CARRIED_DUE, CARRIED_FIRST, NAME_END, PGROUP, TRAN_MSG, VALUE_END, WAITED
from lockstep.protocol.messages.record import (
    BODY_LENGTH_AT,
    BORN_HOST_AT,
    INT32,
    PREPARED_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECONSUME_TIMES_AT,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
    UINT16,
    UINT32,
    record_bounds,
)
from lockstep.protocol.messages.rooms import ABSOLUTE, DUE_SHIFT, READERS, RoomProperties, read_half
from lockstep.protocol.names import HALF_TOPIC

_ENDING = {room: f"{WAITED}{NAME_END}{letter}%d:%d".encode() for room, letter in ROOM_LETTERS.items()}
"""The first property of a copy from each room: what it ends."""
_DUE = f"{CARRIED_DUE}{NAME_END}%d{VALUE_END}{CARRIED_FIRST}{NAME_END}%d".encode()
_ZERO_16, _ZERO_24 = bytes(16), bytes(24)


class Waiting(Protocol):
    """A message of a waiting room: a pending timer or an open half message."""

    @property
    def offset(self) -> int:
        """Its offset in the room."""
        ...

    @property
    def code(self) -> int:
        """Its due code, without CARRIED."""
        ...


W = TypeVar("W", bound=Waiting)


class Home(NamedTuple):
    """What the copies of one frame have in common."""

    topic: str
    queue_id: int
    began: int
    """`TopicLayout.began` of the topic when the message was sent."""
    born_host: bytes


@dataclass(slots=True)
class HomeBound(Generic[W]):
    """Messages of a room with one home whose wait ends."""

    waiting: list[W] = field(default_factory=list)
    records: list[tuple[bytes, int, bytes]] = field(default_factory=list)
    """The stored record of each, where its topic begins, and the properties of its copy."""

    def frame(self, topic: str, queue_id: int) -> bytes:
        """Return the records of the copies in this queue, the broker's fields zero."""
        name, parts = topic.encode(), list[bytes]()
        for record in self.records:
            parts += _parts(*record, name, queue_id)
        return b"".join(parts)


def _parts(data: bytes, topic_at: int, properties: bytes, topic: bytes, queue_id: int) -> tuple[bytes, ...]:
    """Return the parts of a record of another topic and queue, with other properties. The broker's fields are zero."""
    return (
        UINT32.pack(topic_at + len(topic) + UINT16.size + len(properties)),
        data[UINT32.size : QUEUE_ID_AT],
        INT32.pack(queue_id),
        data[QUEUE_ID_AT + INT32.size : QUEUE_OFFSET_AT],
        _ZERO_16,
        data[SYS_FLAG_AT:BORN_HOST_AT],
        _ZERO_24,
        data[RECONSUME_TIMES_AT:PREPARED_OFFSET_AT],
        NO_SEAL,
        data[BODY_LENGTH_AT : topic_at - 1],
        bytes([len(topic)]),
        topic,
        UINT16.pack(len(properties)),
        properties,
    )


def carried_record(room: str, data: bytes, waiting: Waiting, due_ms: int) -> tuple[bytes, int]:
    """Return the record of a message that is stored in its room again, which is due at `due_ms`, and the offset at which it was stored at
    first.

    Raises RemoteProtocolError if `data` is no record of the room.
    """
    topic_at, properties, found = _read(room, data, waiting)
    first = waiting.offset if found.first is None else found.first
    code = due_ms << DUE_SHIFT | waiting.code & ABSOLUTE
    begin = _joined(_ENDING[room] % (waiting.code, waiting.offset), found.home) + _DUE % (code, first)
    properties = _joined(begin, properties[found.end :])
    return b"".join(_parts(data, topic_at, properties, room.encode(), 0)), first


def _read(room: str, data: bytes, waiting: Waiting) -> tuple[int, bytes, RoomProperties]:
    """Return where the topic begins in the stored record of a message, its properties, and what they say of its wait."""
    topic_at, properties_at, end = record_bounds(data)
    properties = data[properties_at:end]
    found = READERS[room](properties)
    if found is None:
        raise RemoteProtocolError(f"offset {waiting.offset} of {room} is no message that waits")
    return topic_at, properties, found


def _joined(first: bytes, others: bytes) -> bytes:
    return b"%b%b%b" % (first, VALUE_END.encode(), others) if others else first


def by_home(room: str, due: Iterable[tuple[W, bytes]]) -> dict[Home, HomeBound[W]]:
    """Return messages of a room with their stored records by home, in order.

    Raises RemoteProtocolError if one is no record of the room, which means damage.
    """
    bounds: dict[Home, HomeBound[W]] = {}
    for waiting, data in due:
        topic_at, properties, found = _read(room, data, waiting)
        home = Home(found.topic.decode(), found.queue_id, found.began, data[BORN_HOST_AT:STORE_TIMESTAMP_AT])
        bound = bounds.get(home)
        if bound is None:
            bound = bounds[home] = HomeBound()
        bound.waiting.append(waiting)
        ending = _ENDING[room] % (waiting.code, waiting.offset)
        bound.records.append((data, topic_at, _joined(ending, properties[found.end :])))
    return bounds


def asked_record(data: bytes) -> bytes:
    """Return the stored record of a half message as its sender is asked about it: with its own topic and queue, and who has sent it.

    Raises RemoteProtocolError if it is no half message.
    """
    topic_at, properties_at, end = record_bounds(data)
    found = read_half(data[properties_at:end])
    if found is None:
        raise RemoteProtocolError(f"a record of {HALF_TOPIC} is no half message")
    sender = f"{TRAN_MSG}{NAME_END}true{VALUE_END}{PGROUP}{NAME_END}".encode() + found.group
    properties = _joined(sender, data[properties_at + found.end : end])
    parts = (
        UINT32.pack(topic_at + len(found.topic) + UINT16.size + len(properties)),
        data[UINT32.size : QUEUE_ID_AT],
        INT32.pack(found.queue_id),
        data[QUEUE_ID_AT + INT32.size : PREPARED_OFFSET_AT],
        NO_SEAL,
        data[BODY_LENGTH_AT : topic_at - 1],
        bytes([len(found.topic)]),
        found.topic,
        UINT16.pack(len(properties)),
        properties,
    )
    return b"".join(parts)


def ended_by(room: str, waiting: Waiting) -> Ended:
    """Return what the copy of a message of a room ends."""
    return Ended(room, 0, waiting.offset, waiting.code)
