"""Find messages by a key, without an index: the log itself is searched, the newest part first.

A worker thread reads a piece of the log and finds the places where the key's bytes are. The record that has such a place is the one before
it that its consume queue names: bytes within a body can look like a record, but no queue names them, since the broker alone builds queues,
from the log. So no forged records are found. Neither is the broker's own state, which is in no queue, nor are messages that are not
confirmed yet, are lost, or were deleted or purged with their topic: readers of the queue don't see them either.

Times narrow the search to a part of the log, by the messages of some queues (Query.narrow).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import NamedTuple

from lockstep.broker.store.log.clock_steps import StampRange
from lockstep.broker.store.log.commit_log import CommitLog, Segment
from lockstep.broker.store.log.stored_record import BadRecordError, read_record
from lockstep.broker.store.queues.consume_queue import ConsumeQueue
from lockstep.broker.store.queues.predicates import stored_properties
from lockstep.broker.store.queues.query import LogPart, Query
from lockstep.broker.store.queues.queue_table import QueueTable
from lockstep.protocol.messages.properties import KEYS, REAL_TOPIC, TRANSACTION_ID, UNIQ_KEY
from lockstep.protocol.messages.record import (
    HEAD_BYTES_MAX,
    INT32,
    MAGIC,
    OFFSETS,
    PROPERTIES_BYTES_MAX,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    TOPIC_BYTES_MAX,
    UINT32,
    head_of,
)
from lockstep.protocol.names import WAITING_TOPICS, is_sendable_topic
from lockstep.runtime.host import Host
from lockstep.runtime.metrics import Slices

PIECE_BYTES = 4 << 20
"""Bytes that are read and searched at a time: a millisecond in which the worker thread lets no other run."""
CHUNK_BYTES = 64 << 10
"""Bytes that are read at a time to find where a record begins."""
BEFORE_BYTES = PROPERTIES_BYTES_MAX
"""Bytes that are read before a piece too: the name of the keys may be so far from a word."""
FOUND_BYTES_MAX = 4 << 20
"""Bytes of records above which a search ends early. The first one is always found."""
SAMPLE_TOPICS = 4
"""Topics whose longest queues narrow a search by time."""
PLACES_PER_SLICE = 100
"""Places of the log that are examined in one turn of the loop: about a millisecond."""
NO_END_MS = 2**63 - 1
MAGIC_BYTES = MAGIC.to_bytes(4, "big")
_PROPERTIES_AT_MIN = RECORD_BYTES_MIN
"""The properties of a record begin at least so many bytes after the record."""
_UNIQ_KEY, _KEYS, _REAL_TOPIC, _TRANSACTION = UNIQ_KEY.encode(), KEYS.encode(), REAL_TOPIC.encode(), TRANSACTION_ID.encode()
_SINGLE = _UNIQ_KEY, _TRANSACTION
"""The properties whose whole value is a key."""
_BEFORE_WORD = b"\x01 "
"""A key in the properties follows the end of a name, or the blank after another key."""
_AFTER_WORD_MAX = 0x20
"""After it comes a blank, the end of a value, or the size of what follows the record, which begins with a 0 or a 1."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a search is for."""

    key: bytes
    unique: bool = False
    """Whether the key is a UNIQ_KEY and nothing else."""
    topic: str | None = None
    """None for all topics to which clients can send."""
    begin_ms: int = 0
    end_ms: int = NO_END_MS
    """The store times, both included."""
    waits: Callable[[bytes], bool] | None = None
    """Returns whether the message of a record of a delay queue still waits. Those that do are found too, by the topic to which they go.
    None: they are not found."""


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """After what a search ends early. It examines at least one piece of the log."""

    count: int
    """Messages."""
    bytes: int
    """Bytes of the log."""
    until_ms: int
    """A time of the monotonic clock."""


@dataclass(slots=True)
class Searched:
    """The result of a search."""

    records: list[bytes] = field(default_factory=list)
    """The newest first."""
    cursor: int | None = None
    """Where to continue if the search ended early: pass it to the next one. None if everything was searched."""
    scanned_bytes: int = 0
    remaining_bytes: int = 0
    """What is left to be searched from the cursor on."""
    unread_bytes: int = 0
    """What the disk could not read, and was passed over. Part of the scanned bytes."""


class RecordPlace(NamedTuple):
    """The record of a visible message."""

    position: int
    size: int


class Search:
    """Searches the log of one store."""

    def __init__(self, log: CommitLog, queues: QueueTable, query: Query, host: Host, record_bytes_max: int) -> None:
        self._log = log
        self._queues = queues
        self._query = query
        self._host = host
        self._record_bytes_max = record_bytes_max

    async def run(
        self, wanted: Wanted, limits: SearchLimits, ranges: Sequence[StampRange], confirmed: int, cursor: int | None = None
    ) -> Searched:
        """Return messages that were stored before `cursor`, or None for all, the newest first.

        `ranges`: where stamps rise. Log files that retention removes meanwhile are not searched any more.
        """
        searched = Searched()
        parts = await self._parts(wanted, ranges, confirmed)
        at = confirmed if cursor is None else cursor
        total = self._bytes_below(parts, at)
        for part in reversed(parts):
            at = min(at, part.high)
            while at > part.low and (segment := self._log.segment_of(at - 1)) is not None:
                remaining = self._bytes_below(parts, at)
                searched.scanned_bytes = total - remaining
                left = limits.bytes - searched.scanned_bytes
                if searched.scanned_bytes and (left <= 0 or self._is_over(limits, searched)):
                    searched.cursor, searched.remaining_bytes = at, remaining
                    return searched
                begin = max(part.low, segment.start, at - min(PIECE_BYTES, left))
                at = await self._search_piece(segment, begin, at, wanted, limits, searched)
        searched.scanned_bytes = total
        return searched

    def _bytes_below(self, parts: Sequence[LogPart], at: int) -> int:
        start = self._log.start
        return sum(max(0, min(part.high, at) - max(part.low, start)) for part in parts)

    def _is_over(self, limits: SearchLimits, searched: Searched) -> bool:
        return (
            len(searched.records) >= limits.count
            or sum(map(len, searched.records)) >= FOUND_BYTES_MAX
            or self._host.clock.monotonic_ms() >= limits.until_ms
        )

    # -- the part of the log that belongs to a time ------------------------------------------------

    async def _parts(self, wanted: Wanted, ranges: Sequence[StampRange], confirmed: int) -> list[LogPart]:
        """Return the parts of the log, in order, that have all confirmed records with the wanted store times, and some others."""
        parts: list[LogPart] = []
        sample = await self._sample(wanted.topic) if wanted.begin_ms > 0 or wanted.end_ms < NO_END_MS else []
        low = self._log.start
        for stamp_range in ranges:
            part = LogPart(low, min(stamp_range.end, confirmed))
            for queue in sample:
                if part.low < part.high:
                    try:
                        part = await self._query.narrow(queue, part, wanted.begin_ms, wanted.end_ms, stamp_range.fall_ms)
                    except OSError:
                        continue  # the other queues narrow it
            if part.low < part.high:
                parts.append(part)
            low = max(low, stamp_range.end)
        return parts

    async def _sample(self, topic: str | None) -> list[ConsumeQueue]:
        """Return the longest queue of the topic, and those of the topics with the longest ones."""
        slices = Slices()
        longest: dict[str, ConsumeQueue] = {}
        for queue in list(self._queues):
            await slices.step()
            known = longest.get(queue.topic)
            if known is None or _length(queue) > _length(known):
                longest[queue.topic] = queue
        own = longest.pop(topic, None) if topic is not None else None
        return ([] if own is None else [own]) + nlargest(SAMPLE_TOPICS, longest.values(), key=_length)

    # -- pieces and places -------------------------------------------------------------------------

    async def _search_piece(self, segment: Segment, begin: int, end: int, wanted: Wanted, limits: SearchLimits, searched: Searched) -> int:
        """Examine the places in [begin, end). Return where the search continues: at `begin` or below it, or above if it is over."""
        first = max(segment.start, begin - BEFORE_BYTES)
        behind = min(segment.end, end + bytes_after(wanted.key))
        try:
            data = await self._log.read(self._host, segment, behind - first, first - segment.start)
        except OSError:
            searched.unread_bytes += end - begin
            return begin
        found = await self._host.threads.run(find_places, data, begin - first, end - first, wanted.key)
        slices = Slices(PLACES_PER_SLICE)
        at = end
        for place in map(first.__add__, reversed(found)):
            if place >= at:
                continue  # in the record that was examined last
            await slices.step()
            at = place
            try:
                holder = await self._holder(place, slices)
                if holder is not None:
                    at = holder.position
                    record = await self._query.read_log(holder.position, holder.size)
                    if record is not None and is_wanted(record, holder.position, wanted):
                        searched.records.append(record)
            except OSError:
                searched.unread_bytes += CHUNK_BYTES
            if self._is_over(limits, searched):
                return at
        return min(begin, at)

    async def _holder(self, place: int, slices: Slices) -> RecordPlace | None:
        """Return the message whose record has the byte at `place`, or None if no visible message has it.

        It is the next one before `place`. Whatever looks like a record in between is a part of its body, or state of the broker.
        """
        segment = self._log.segment_of(place)
        if segment is None:
            return None
        end, lowest = place, max(segment.start, place - self._record_bytes_max)
        while end > lowest:
            begin = max(lowest, end - CHUNK_BYTES)
            data = await self._query.read_log(begin, end - begin)
            if data is None:
                return None
            magic_at = data.rfind(MAGIC_BYTES)
            while magic_at >= 0:
                await slices.step()
                found = await self._message_at(begin + magic_at - INT32.size)
                if found is not None:
                    return found if found.position + found.size > place else None
                magic_at = data.rfind(MAGIC_BYTES, 0, magic_at + len(MAGIC_BYTES) - 1)
            end = begin + len(MAGIC_BYTES) - 1 if begin > lowest else lowest
        return None

    async def _message_at(self, position: int) -> RecordPlace | None:
        """Return the visible message whose record begins at `position`, or None if none does, whatever its bytes look like."""
        segment = self._log.segment_of(position)
        if segment is None:
            return None
        head = await self._query.read_log(position, min(HEAD_BYTES_MAX, segment.end - position))
        if head is None or len(head) < RECORD_BYTES_MIN:
            return None
        size, magic = SIZE_AND_MAGIC.unpack_from(head)
        queue_offset, own_position = OFFSETS.unpack_from(head, QUEUE_OFFSET_AT)
        body_at = head_of(head).size
        if magic != MAGIC or own_position != position or len(head) < body_at:
            return None
        topic_at = body_at + UINT32.unpack_from(head, body_at - UINT32.size)[0]
        if not RECORD_BYTES_MIN <= size <= segment.end - position or topic_at >= size:
            return None
        name = await self._query.read_log(position + topic_at, min(1 + TOPIC_BYTES_MAX, size - topic_at))
        if not name:
            return None
        topic = name[1 : 1 + name[0]].decode("ascii", "replace")
        queue_id = INT32.unpack_from(head, QUEUE_ID_AT)[0]
        return RecordPlace(position, size) if await self._is_named(topic, queue_id, queue_offset, position, size) else None

    async def _is_named(self, topic: str, queue_id: int, queue_offset: int, position: int, size: int) -> bool:
        """Return whether the queue has this record as the visible message with this offset."""
        entry = await self._query.entry_at(self._queues.get((topic, queue_id)), queue_offset)
        return entry is not None and entry[:2] == (position, size)


def find_places(data: bytes, begin: int, end: int, key: bytes) -> list[int]:
    """Return where in [begin, end) `key` begins and is what a word of the keys in properties looks like. For a worker thread.

    Not all places of one record are returned. The properties of the next record are _PROPERTIES_AT_MIN bytes away at least.
    """
    places: list[int] = []
    end += len(key) - 1
    place = data.find(key, begin, end)
    while place >= 0:
        if is_word(data, place, place + len(key)):
            places.append(place)
            place += _PROPERTIES_AT_MIN - 1
        place = data.find(key, place + 1, end)
    return places


def is_word(data: bytes, begin: int, end: int) -> bool:
    """Return whether [begin, end) may be a UNIQ_KEY, a transaction or a word of KEYS, by the bytes around it. Most words of a text in a
    body are not."""
    if not begin or data[begin - 1] not in _BEFORE_WORD or (end < len(data) and data[end] > _AFTER_WORD_MAX):
        return False
    name_end = data.rfind(b"\x01", max(0, begin - PROPERTIES_BYTES_MAX), begin)
    if name_end < 0:
        return False
    if data[max(0, name_end - len(_KEYS)) : name_end] != _KEYS:
        return name_end + 1 == begin and any(data[max(0, name_end - len(name)) : name_end] == name for name in _SINGLE)
    words = data[name_end + 1 : begin]
    return b"\x02" not in words and b"\0" not in words  # the head of a record has bytes 0


def bytes_after(key: bytes) -> int:
    """Return how many bytes after a piece can belong to a key that begins in it, and to the end of its word."""
    return len(key)


def is_wanted(record: bytes, position: int, wanted: Wanted) -> bool:
    """Return whether the record is good, of the wanted topic and time, and has the whole key."""
    try:
        stored = read_record(record, position, {})
    except BadRecordError:
        return False
    properties, topic = stored_properties(record, 0, len(record)), stored.topic
    if not wanted.begin_ms <= stored.store_ms <= wanted.end_ms or not has_key(properties, wanted):
        return False
    if topic in WAITING_TOPICS and wanted.waits is not None and wanted.waits(record):
        topic = _pairs(properties).get(_REAL_TOPIC, b"").decode() or topic
    return is_sendable_topic(topic) and wanted.topic in (None, topic)


def has_key(properties: bytes, wanted: Wanted) -> bool:
    """Return whether the key is the UNIQ_KEY of stored properties or, unless only that is wanted, their transaction or a whole word of
    their KEYS."""
    pairs = _pairs(properties)
    if pairs.get(_UNIQ_KEY) == wanted.key:
        return True
    return not wanted.unique and (pairs.get(_TRANSACTION) == wanted.key or wanted.key in pairs.get(_KEYS, b"").split(b" "))


def _pairs(properties: bytes) -> dict[bytes, bytes]:
    split = (pair.partition(b"\x01") for pair in properties.split(b"\x02"))
    return {name: value for name, end, value in split if end}


def _length(queue: ConsumeQueue) -> int:
    return queue.visible - queue.min
