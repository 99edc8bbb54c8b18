"""Find single records by time or by log offset, and the part of the log that belongs to a time."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from lockstep.broker.store.health.damage import DamageTable
from lockstep.broker.store.log.append import ENTRY, ENTRY_BYTES
from lockstep.broker.store.log.clock_steps import RISING, StampRange
from lockstep.broker.store.log.commit_log import CommitLog
from lockstep.broker.store.log.stored_record import BadRecordError, read_record
from lockstep.broker.store.queues.consume_queue import ConsumeQueue
from lockstep.broker.store.queues.queue_table import QueueTable
from lockstep.broker.store.queues.reader import LogBytes, QueueBytes
from lockstep.protocol.messages.record import (
    INT64,
    MAGIC,
    OFFSETS,
    PHYSICAL_OFFSET_AT,
    QUEUE_OFFSET_AT,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    store_time_of,
)
from lockstep.protocol.names import STATE_TOPIC
from lockstep.runtime.host import Host
from lockstep.runtime.metrics import Slices

TrueTime = Callable[[int, int], int]
"""(Log position, stamp) → when the record was stored, by the present setting of the clock: StoreClock.true_ms."""

READS_PER_SLICE = 100
"""Reads of a search in one turn of the loop: about a millisecond."""


class LogPart(NamedTuple):
    """The log from `low` to `high`, both of which are ends or beginnings of records."""

    low: int
    high: int


class Stamped(NamedTuple):
    """A record that was found at its place."""

    position: int
    end: int
    store_ms: int


class Query:
    """Reads that may wait for the disk, in a worker thread."""

    def __init__(self, log: CommitLog, queues: QueueTable, damage: DamageTable, host: Host, record_bytes_max: int) -> None:
        self._log = log
        self._queues = queues
        self._damage = damage
        self._host = host
        self._record_bytes_max = record_bytes_max

    async def offset_by_time(self, queue: ConsumeQueue | None, timestamp_ms: int, ranges: Sequence[StampRange] = RISING) -> int:
        """Return the offset of the first message that is not older than the time.

        RocketMQ (getOffsetInQueueByTime) returns the nearest message instead. The result is in the first range of stamps that ends with the
        time or later. Within a range stamps may fall by a little; then all messages from the result on have a stamp that is at most that
        much earlier than the time, and the result is the first of those or one before it. A lost message counts as stored at the time of
        the next existing one, or as late enough if its range has none after it.
        """
        if queue is None:
            return 0
        low, high = queue.min, queue.visible
        slices = Slices(READS_PER_SLICE)
        for stamp_range in ranges:
            behind = partial(self._is_behind, slices, queue, stamp_range.end)
            end = high if stamp_range is ranges[-1] else await _first(low, high, behind)
            late_enough = partial(self._is_at_or_after, slices, queue, timestamp_ms - stamp_range.fall_ms, end)
            if end > low and await late_enough(end - 1):
                return max(await _first(low, end, late_enough), queue.min)
            low = end
        return max(high, queue.min)

    async def offset_stored_since(self, queue: ConsumeQueue | None, low: int, high: int, since_ms: int, true_ms: TrueTime) -> int:
        """Return the offset of the first message in [low, high) that was stored at `since_ms` or later, or `high`.

        Unlike in `offset_by_time` stamps are read by the present setting of the clock (`true_ms`). They rise then, except that those of
        earlier boots may fall where the clock was set back: the result is one of the places where they pass the time. A lost message
        counts as stored with the next existing one.
        """
        slices = Slices(READS_PER_SLICE)

        async def late_enough(index: int) -> bool:
            await slices.step()
            stored_ms = await self.stored_ms_from(queue, index, high, true_ms)
            return stored_ms is None or stored_ms >= since_ms

        return await _first(low, high, late_enough)

    async def stored_ms_from(self, queue: ConsumeQueue | None, index: int, high: int, true_ms: TrueTime) -> int | None:
        """Return when the message at `index`, or the next one that is not lost, was stored, by the present setting of the clock. None if
        there is none before `high`."""
        if queue is None:
            return None
        index = self._damage.first_not_lost(queue.topic, queue.queue_id, max(index, queue.min))
        placed = None if index >= high else await self._placed(queue, index)
        return None if placed is None else true_ms(*placed)

    async def narrow(self, queue: ConsumeQueue, part: LogPart, begin_ms: int, end_ms: int, fall_ms: int) -> LogPart:
        """Return the smallest part of `part` that one queue's messages show to have all records with store times `begin_ms` to `end_ms`.

        In `part`, stamps of all queues rise, or fall by at most `fall_ms`. So records before a message that is too old are too old
        themselves, and those after a message that is too new are too new. A bound is moved only to a message that is at its place: what a
        damaged entry names moves none.
        """
        slices = Slices(READS_PER_SLICE)
        first = await _first(queue.min, queue.visible, partial(self._is_behind, slices, queue, part.low))
        end = await _first(first, queue.visible, partial(self._is_behind, slices, queue, part.high))
        low, high = part
        wanted = await _first(first, end, partial(self._is_at_or_after, slices, queue, begin_ms - fall_ms, end))
        if wanted > first:
            before = await self._stamped(queue, wanted - 1)
            if before is not None and before.store_ms < begin_ms - fall_ms:
                low = max(low, before.end)
        later = await _first(wanted, end, partial(self._is_at_or_after, slices, queue, end_ms + 1 + fall_ms, end))
        later = self._damage.first_not_lost(queue.topic, queue.queue_id, later)
        if later < end:
            after = await self._stamped(queue, later)
            if after is not None and after.store_ms > end_ms + fall_ms:
                high = min(high, after.position)
        return LogPart(low, high)

    async def _is_at_or_after(self, slices: Slices, queue: ConsumeQueue, timestamp_ms: int, end: int, index: int) -> bool:
        """Return whether the message at `index`, or the next one that is not lost, has this store time or a later one, or there is none
        before `end`."""
        await slices.step()
        index = self._damage.first_not_lost(queue.topic, queue.queue_id, index)
        if index >= end:
            return True
        stored_ms = await self._store_ms(queue, index)
        return stored_ms is not None and stored_ms >= timestamp_ms

    async def _is_behind(self, slices: Slices, queue: ConsumeQueue, position: int, index: int) -> bool:
        """Return whether the message at `index` is at the log position or after it."""
        await slices.step()
        entry = await self._entry(queue, index)
        return entry is not None and entry[0] >= position

    async def _stamped(self, queue: ConsumeQueue, index: int) -> "Stamped | None":
        """Return place and store time of one message, or None if no head of a record of this queue offset is at its place."""
        entry = await self._entry(queue, index)
        if entry is None or entry[1] < RECORD_BYTES_MIN:
            return None
        position, size, _ = entry
        head = await self.read_log(position, RECORD_BYTES_MIN)
        if head is None or len(head) != RECORD_BYTES_MIN or SIZE_AND_MAGIC.unpack_from(head) != (size, MAGIC):
            return None
        if OFFSETS.unpack_from(head, QUEUE_OFFSET_AT) != (index, position):
            return None
        return Stamped(position, position + size, store_time_of(head))

    async def first_stored_ms(self, queue: ConsumeQueue | None) -> int | None:
        """Return the store time of the first visible message that is not lost, or None if there is none."""
        if queue is None:
            return None
        index = self._damage.first_not_lost(queue.topic, queue.queue_id, queue.min)
        return await self._store_ms(queue, index) if index < queue.visible else None

    async def record_at(self, position: int, confirmed: int, *, hidden: bool) -> bytes | None:
        """Return the whole record at a log offset, or None if no good record of a queue begins there, or unless `hidden`, its
        message is hidden: the topic was deleted or purged.

        The offset comes from the client. It may be inside a body, whose bytes are then what their sender wanted them to be.
        """
        if not 0 <= position <= confirmed - RECORD_BYTES_MIN:
            return None
        head = await self.read_log(position, PHYSICAL_OFFSET_AT + 8)
        if head is None or len(head) != PHYSICAL_OFFSET_AT + 8:
            return None
        size, magic = SIZE_AND_MAGIC.unpack_from(head)
        if magic != MAGIC or INT64.unpack_from(head, PHYSICAL_OFFSET_AT)[0] != position:
            return None
        if not RECORD_BYTES_MIN <= size <= min(confirmed - position, self._record_bytes_max):
            return None
        data = await self.read_log(position, size)
        try:
            record = read_record(data or b"", position, {})
        except BadRecordError:
            return None
        if record.topic == STATE_TOPIC:
            return None
        queue = self._queues.get((record.topic, record.queue_id))
        is_hidden = queue is None or not queue.min <= record.queue_offset < queue.visible
        return None if record.queued and is_hidden and not hidden else data

    async def store_time_at(self, queue: ConsumeQueue | None, offset: int) -> int | None:
        """Return the store time of the visible message at a queue offset, or None if there is none."""
        if queue is None or not queue.min <= offset < queue.visible:
            return None
        return await self._store_ms(queue, offset)

    async def entry_at(self, queue: ConsumeQueue | None, offset: int) -> tuple[int, int, int] | None:
        """Return (log offset, size, tag hash) of the visible message at a queue offset, or None if there is none."""
        if queue is None or not queue.min <= offset < queue.visible:
            return None
        return await self._entry(queue, offset)

    async def entries_at(self, queue: ConsumeQueue | None, offset: int, count: int) -> bytes:
        """Return entries of the queue from an offset on: at most `count`, and those that are in memory, or in one file, together."""
        if queue is None or not queue.min <= offset < queue.next:
            return b""
        if queue.in_memory(offset):
            return queue.recent(offset, count)
        wanted = QueueBytes(self._queues.files, *queue.file_range(self._queues.files, offset, count))
        data = wanted.cached()
        if data is None:
            data = await wanted.wait(self._host)
        return data[: len(data) - len(data) % ENTRY_BYTES]

    async def _store_ms(self, queue: ConsumeQueue, index: int) -> int | None:
        """Return the store time of one message, or None if it does not exist any more."""
        placed = await self._placed(queue, index)
        return None if placed is None else placed[1]

    async def _placed(self, queue: ConsumeQueue, index: int) -> tuple[int, int] | None:
        """Return (log position, store time) of one message, or None if it does not exist any more."""
        entry = await self._entry(queue, index)
        if entry is None or entry[1] < RECORD_BYTES_MIN:
            return None
        head = await self.read_log(entry[0], RECORD_BYTES_MIN)
        return None if head is None or len(head) != RECORD_BYTES_MIN else (entry[0], store_time_of(head))

    async def _entry(self, queue: ConsumeQueue, index: int) -> tuple[int, int, int] | None:
        """Return (physical offset, size, tag hash) of one message, or None if it does not exist any more."""
        entry = queue.memory_entry(index)
        if entry is not None:
            return entry
        wanted = QueueBytes(self._queues.files, *queue.file_range(self._queues.files, index, 1))
        data = wanted.cached()
        if data is None:
            data = await wanted.wait(self._host)
        return ENTRY.unpack(data) if len(data) == ENTRY_BYTES else None

    async def read_log(self, position: int, count: int) -> bytes | None:
        """Return bytes of the log, or None if no file has them."""
        data = self._log.from_tail(position, count)
        if data is not None:
            return data
        segment = self._log.segment_of(position)
        if segment is None or position + count > segment.end:
            return None
        wanted = LogBytes(self._log, segment, position, count)
        data = wanted.cached()
        return await wanted.wait(self._host) if data is None else data


async def _first(low: int, high: int, holds: Callable[[int], Awaitable[bool]]) -> int:
    """Return the first index in [low, high) for which `holds`, or `high`. If it holds for an index, it holds for all later ones."""
    while low < high:
        middle = (low + high) // 2
        if await holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
