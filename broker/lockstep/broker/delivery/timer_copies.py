"""The copies of timers that are due: their records are made from the bytes of those that waited, without decoding them. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from lockstep.broker.store.log.stored_record import TIMER_WAITED, Ended
from lockstep.broker.store.log.waiting_records import NO_SEAL
from lockstep.broker.tables.timer_table import PendingTimer
from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.messages.properties import CARRIED_DUE, CARRIED_FIRST, NAME_END, VALUE_END, WAITED
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
from lockstep.protocol.messages.rooms import ABSOLUTE, DUE_SHIFT, TimerProperties, home_properties, read_timer
from lockstep.protocol.names import TIMER_TOPIC

_COPIED = f"{WAITED}{NAME_END}{TIMER_WAITED}{VALUE_END}%b".encode()
_COPIED_ALONE = f"{WAITED}{NAME_END}{TIMER_WAITED}%b".encode()
"""The properties of a copy: what it ends, and those of the message."""
_DUE = f"{CARRIED_DUE}{NAME_END}%d{VALUE_END}{CARRIED_FIRST}{NAME_END}%d".encode()
_ZERO_16, _ZERO_24 = bytes(16), bytes(24)


class Home(NamedTuple):
    """What the copies of one frame have in common."""

    topic: str
    queue_id: int
    began: int
    """`TopicLayout.began` of the topic when the message was sent."""
    born_host: bytes


@dataclass(slots=True)
class HomeBound:
    """Due timers with one home."""

    timers: list[PendingTimer] = field(default_factory=list)
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


def carried_record(data: bytes, timer: PendingTimer, due_ms: int) -> tuple[bytes, int]:
    """Return the record of a timer that is stored again, which is due at `due_ms`, and the offset at which it was stored at first.

    Raises RemoteProtocolError if `data` is no timer's.
    """
    topic_at, properties, waiting = _read(timer, data)
    first = timer.offset if waiting.first is None else waiting.first
    code = due_ms << DUE_SHIFT | timer.code & ABSOLUTE
    home = home_properties(waiting.topic.decode(), waiting.queue_id, waiting.began)
    room = _COPIED % (timer.code, timer.offset, home) + _DUE % (code, first)
    rest = properties[waiting.end :]
    properties = b"%b%b%b" % (room, VALUE_END.encode(), rest) if rest else room
    return b"".join(_parts(data, topic_at, properties, TIMER_TOPIC.encode(), 0)), first


def _read(timer: PendingTimer, data: bytes) -> tuple[int, bytes, TimerProperties]:
    """Return where the topic begins in the stored record of a timer, its properties, and what they say of the timer."""
    topic_at, properties_at, end = record_bounds(data)
    properties = data[properties_at:end]
    waiting = read_timer(properties)
    if waiting is None:
        raise RemoteProtocolError(f"offset {timer.offset} of {TIMER_TOPIC} is no timer")
    return topic_at, properties, waiting


def by_home(due: Iterable[tuple[PendingTimer, bytes]]) -> dict[Home, HomeBound]:
    """Return the due timers with their stored records by home, in order.

    Raises RemoteProtocolError if a record is not one of a timer, which means damage.
    """
    found: dict[Home, HomeBound] = {}
    for timer, data in due:
        topic_at, properties, waiting = _read(timer, data)
        home = Home(waiting.topic.decode(), waiting.queue_id, waiting.began, data[BORN_HOST_AT:STORE_TIMESTAMP_AT])
        bound = found.get(home)
        if bound is None:
            bound = found[home] = HomeBound()
        bound.timers.append(timer)
        rest = properties[waiting.end :]
        copied = _COPIED if rest else _COPIED_ALONE
        bound.records.append((data, topic_at, copied % (timer.code, timer.offset, rest)))
    return found


def ended_by(timer: PendingTimer) -> Ended:
    """Return what the copy of a timer ends."""
    return Ended(TIMER_TOPIC, 0, timer.offset, timer.code)
