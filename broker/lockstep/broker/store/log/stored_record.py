"""Check and parse one stored record."""

import re
from dataclasses import dataclass
from typing import NamedTuple

from lockstep.broker.store.log.append import TAGS, tag_code
from lockstep.broker.store.log.waiting_records import ROOMS, SEALED, due_of, is_sealed, seal_holds
from lockstep.protocol.crc import crc32
from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError
from lockstep.protocol.messages.properties import NAME_END, WAITED
from lockstep.protocol.messages.record import (
    CRC_MASK,
    MAGIC,
    RECORD_BYTES_MIN,
    SYS_TRANSACTION_MASK,
    head_of,
)
from lockstep.protocol.messages.rooms import READERS
from lockstep.protocol.messages.sequence import STAMP_HEAD, FrameSequence, find_sequence
from lockstep.protocol.names import HALF_TOPIC, SCHEDULE_TOPIC, STATE_TOPIC, TIMER_TOPIC, check_topic

RETRIED = b"\x02RETRY_TOPIC\x01"
"""A copy for a retry, which begins no frame. RocketMQ's broker keeps the property `__LS_SEQ` in it; senders can't set this one."""
WAITED_HEAD = f"{WAITED}{NAME_END}".encode()
_WAITED = re.compile(rb"(?:([0-9]{1,19})|([th])([0-9]{1,18})):([0-9]{1,19})(?:\x02|\Z)")
ROOM_LETTERS = {TIMER_TOPIC: "t", HALF_TOPIC: "h"}
"""How the value of `__LS_FROM` begins in a copy from each waiting room."""
_ROOMS = {letter.encode(): topic for topic, letter in ROOM_LETTERS.items()}
PREPARED = 0x4
ROLLED_BACK = 0xC


ScopeKey = tuple[str, int, str, int]
"""(producer id, partition, topic, queue id): an idempotent producer in a queue."""
FrameEnd = tuple[int, int, int, int, bool]
"""(epoch, first sequence, next sequence, running CRC, whether the producer id was given) of a frame."""
FirstPlace = tuple[int, int, int]
"""(queue offset, log position, store time) of the first record of a frame, as in its first response."""
FrameRow = tuple[ScopeKey, FrameEnd, FirstPlace]
"""What a broker has to know of a frame."""


class Ended(NamedTuple):
    """A message that waited."""

    topic: str
    queue_id: int
    """0 in a waiting room."""
    offset: int
    due: int
    """In a waiting room its due code; else 0."""


class CopyPlace(NamedTuple):
    """Where the copy is that ends a wait."""

    topic: str
    queue_id: int
    offset: int
    store_ms: int


@dataclass(slots=True)
class StoredRecord:
    """One good record of the log."""

    topic: str
    queue_id: int
    queue_offset: int
    position: int
    size: int
    tag: int
    store_ms: int
    queued: bool
    """Whether it has a position in its queue. Prepared and rolled-back transaction messages of Apache's brokers have none."""
    sequence: FrameSequence | None
    body: bytes | None
    """The body of a state record, else None."""
    ends: Ended | None = None
    """Whose wait it ends: it is its copy."""
    due: int | None = None
    """When it is due, in a waiting room the due code (rooms.py), if it waits."""
    first: int | None = None
    """The offset at which a message of a waiting room that was stored again was stored at first."""

    @property
    def place(self) -> CopyPlace:
        """Return its place as that of a copy."""
        return CopyPlace(self.topic, self.queue_id, self.queue_offset, self.store_ms)


def frame_row(first: StoredRecord, sequence: FrameSequence) -> FrameRow:
    """Return what a broker has to know of the frame that begins with this record."""
    return (
        (sequence.producer_id, sequence.partition, first.topic, first.queue_id),
        (sequence.epoch, sequence.first, sequence.next, sequence.crc, sequence.given),
        (first.queue_offset, first.position, first.store_ms),
    )


class BadRecordError(Exception):
    """The bytes at a position are not a good record. The text gives the reason."""


def read_record(data: bytes, position: int, topics: dict[bytes, str]) -> StoredRecord:
    """Check and return the whole record `data` at `position`. Raise BadRecordError, which names the rule that it breaks.

    `topics` caches topic names that are valid.
    """
    if len(data) < RECORD_BYTES_MIN:
        raise BadRecordError(f"{len(data)} bytes, a record has at least {RECORD_BYTES_MIN}")
    head = head_of(data)
    body_at = head.size
    if len(data) < body_at:
        raise BadRecordError(f"{len(data)} bytes, its head has {body_at}")
    size, magic, crc, queue_id, _, queue_offset, physical, sys_flag, _, _, store_ms, _, _, prepared, body_bytes = head.unpack_from(data)
    if magic != MAGIC or size != len(data):
        raise BadRecordError(f"size {size} and magic {magic:#010x}, expected {len(data)} and {MAGIC:#010x}")
    if physical != position or queue_id < 0 or queue_offset < 0:
        raise BadRecordError(f"physical offset {physical}, queue id {queue_id}, queue offset {queue_offset}")
    behind = body_at + body_bytes
    if body_bytes < 0 or behind + 3 > size:
        raise BadRecordError(f"body of {body_bytes} bytes in a record of {size}")
    properties_at = behind + 3 + data[behind]
    if properties_at > size or properties_at + (data[properties_at - 2] << 8 | data[properties_at - 1]) != size:
        raise BadRecordError(f"its fields do not make its size {size}")
    if not valid_properties(data, properties_at, size):
        raise BadRecordError("its properties have a byte 0 or are not UTF-8")
    body = data[body_at:behind]
    if crc32(body) & CRC_MASK != crc:
        raise BadRecordError("the CRC of its body is wrong")
    name = data[behind + 1 : properties_at - 2]
    if prepared and not seal_holds(data, 0, size, name):
        raise BadRecordError("the CRC of the waiting message is wrong")
    topic = topic_of(name, topics)
    transaction = sys_flag & SYS_TRANSACTION_MASK
    properties = data[properties_at:]
    tag = properties.find(TAGS)
    return StoredRecord(
        topic,
        queue_id,
        queue_offset,
        position,
        size,
        tag_code(properties, tag) if tag >= 0 else 0,
        store_ms,
        transaction not in (PREPARED, ROLLED_BACK),
        _sequence(properties) if properties.startswith(STAMP_HEAD) and RETRIED not in properties else None,
        body if topic == STATE_TOPIC else None,
        _ends(properties) if properties.startswith(WAITED_HEAD) else None,
        *(_due(data, topic, queue_id, store_ms, properties) if topic in SEALED else ()),
    )


def waited_value(ended: Ended) -> str:
    """Return the value of `__LS_FROM` in the copy that ends this wait: of a waiting room the due code and the offset."""
    if ended.topic == SCHEDULE_TOPIC:
        return f"{ended.queue_id}:{ended.offset}"
    return f"{ROOM_LETTERS[ended.topic]}{ended.due}:{ended.offset}"


def _ends(properties: bytes) -> Ended | None:
    """Return the place that a copy names, or None if it is none: Apache's broker lets senders set any property."""
    found = _WAITED.match(properties, len(WAITED_HEAD))
    if found is None:
        return None
    queue_id, letter, due, offset = found.groups()
    if due is not None:
        return Ended(_ROOMS[letter], 0, int(offset), int(due))
    return Ended(SCHEDULE_TOPIC, int(queue_id), int(offset), 0)


def _due(data: bytes, topic: str, queue_id: int, store_ms: int, properties: bytes) -> tuple[int | None, int | None]:
    """Return when the record of a topic of waiting messages is due, and where it was at first if it was stored again.

    Raises BadRecordError if a client's record lacks the checksum.
    """
    if topic not in ROOMS:
        return due_of(topic, queue_id, store_ms, properties), None
    found = READERS[topic](properties)
    if found is None:
        return None, None
    if not is_sealed(data):
        raise BadRecordError("the CRC of the waiting message is missing")
    return found.code(store_ms), found.first


def valid_properties(data: bytes, begin: int, end: int) -> bool:
    """Return whether [begin, end) can be the properties of a record, whose length is stored before `begin`.

    No CRC covers them. A byte 0 means a sector that never reached the disk; properties that are not UTF-8 are never accepted from a client.
    """
    if begin + (data[begin - 2] << 8 | data[begin - 1]) != end:
        return False
    if begin == end:
        return True
    properties = data[begin:end]
    if properties.isascii():
        return 0 not in properties
    try:
        return "\0" not in properties.decode()
    except UnicodeDecodeError:
        return False


def topic_of(name: bytes, topics: dict[bytes, str]) -> str:
    """Return the topic with this name, from the valid ones in `topics` or after a check. Raise BadRecordError if it is not valid."""
    topic = topics.get(name)
    if topic is None:
        try:
            topic = name.decode("ascii")
            check_topic(topic)
        except (UnicodeDecodeError, LocalProtocolError) as error:
            raise BadRecordError(f"topic {name[:40]!r}") from error
        topics[name] = topic
    return topic


def _sequence(properties: bytes) -> FrameSequence:
    try:
        sequence = find_sequence(properties)
    except RemoteProtocolError as error:
        raise BadRecordError(str(error)) from error
    if sequence is None or sequence.count < 1:
        raise BadRecordError("an idempotent frame without records")
    return sequence
