"""Delayed messages: they wait in a queue per delay until they are due. RocketMQ: ScheduleMessageService.

The messages of a queue have one delay and are ordered by their store time, so that only the first one is checked: memory holds nothing for
the others, and no task wakes while no message is due. A message is due when its queue's delay has passed since it was stored, never
earlier. That is measured by the boot clock: the clock that stamps records does not follow a wall clock that jumps and returns
(runtime/steady_clock.py), and when it was set, forward or back, the earlier store times are read as moved by the same amount
(store/log/store_clock.py). There are no delays until a time of day: the `TIMER_` properties of RocketMQ 5 are rejected. Senders name
levels, and a start may have another table of them. The delay of a queue never changes (protocol/delays.py), so pending messages keep their
due times, and queues of delays that the table no longer has are emptied like the others.

    append ─▶ SCHEDULE_TOPIC_XXXX, queue of the level's delay ─▶ due ─▶ its own topic, with the queue's progress, in one write

The copy that is delivered names the place where it waited (`__LS_FROM`), and a start reads the queue's progress from the copies too. So a
write that reached the disk only in part delivers nothing again.
"""

import asyncio
from collections.abc import Sequence

from lockstep.broker.delivery.group_topics import GroupTopics
from lockstep.broker.delivery.home_delivery import ATTEMPTS_MAX, LOSSES, RETRY_MS, HomeDelivery, store_copy
from lockstep.broker.delivery.message_copy import MessageCopy
from lockstep.broker.store import Appended, ReadResult, ReadStatus, Store, StoreCorruptError
from lockstep.broker.store.log.stored_record import Ended
from lockstep.broker.tables.delay_table import DelayTable
from lockstep.protocol.delays import delay_queue_id, queue_delay_ms
from lockstep.protocol.errors import SystemBusyError
from lockstep.protocol.messages.record import RecordView, split_records
from lockstep.protocol.names import SCHEDULE_TOPIC
from lockstep.protocol.object_text import text_of
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.waiting import is_set_within

log = get_logger("broker")

CLOCK_CHECK_MS = 1_000
"""The interval at which the clock is checked while messages wait: it may be set."""
TURN_COUNT = 100
TURN_BYTES = 256 << 10
"""The limits of one queue's deliveries in one turn of the loop."""


class DelayedDelivery:
    """Delivers delayed messages: `run` delivers until it is cancelled, `on_arrival` reports new messages. Create it after the recovery
    of the store."""

    def __init__(self, store: Store, table: DelayTable, topics: GroupTopics, home: HomeDelivery, levels_ms: Sequence[int]) -> None:
        self._store = store
        self._table = table
        self._topics = topics
        self._home = home
        self._levels_ms = levels_ms
        self._due_ms = dict.fromkeys(store.queue_ids(SCHEDULE_TOPIC), 0)
        """Queue id → when its first message is due, in Store.now_ms; empty queues are left out."""
        self._clock_sets = 0
        """`Store.clock_sets` at the time of `_due_ms`."""
        self._unreadable: dict[int, int] = {}
        """Queue id → offset that could not be read from the disk."""
        self._failed: dict[int, tuple[int, int]] = {}
        """Queue id → (offset, the number of unexpected errors in a row there)."""
        self._wake = asyncio.Event()

    def append(self, copy: MessageCopy, level: int) -> Appended:
        """Store a delayed message. A level above the last one counts as the last (RocketMQ)."""
        level = min(level, len(self._levels_ms))
        queue_id = delay_queue_id(self._levels_ms[level - 1])
        return store_copy(self._store, copy.as_delayed(level, queue_id, self._topics.topic_began(copy.origin_topic)))

    def on_arrival(self, queue_id: int) -> None:
        """Report new messages in this queue."""
        if queue_id not in self._due_ms:
            self._due_ms[queue_id] = 0
            self._wake.set()

    def pending_count(self) -> int:
        """Return the number of messages that wait for their delay or for a retry."""
        return sum(self._store.bounds(SCHEDULE_TOPIC, queue_id)[1] - self._table.next_offset(queue_id) for queue_id in self._due_ms)

    def waits(self, data: bytes) -> bool:
        """Return whether the message of a stored record of a delay queue will still be delivered: not if its topic was deleted."""
        record = RecordView(data)
        return record.queue_offset >= self._table.next_offset(record.queue_id) and self._home.still_waits(record)

    async def run(self) -> None:
        while True:
            self._wake.clear()
            now_ms = self._store.now_ms()
            if self._store.clock_sets != self._clock_sets:  # the clock was set: pending messages are due at other times
                self._clock_sets = self._store.clock_sets
                self._due_ms = dict.fromkeys(self._due_ms, 0)
            for queue_id in [queue_id for queue_id, due_ms in self._due_ms.items() if due_ms <= now_ms]:
                await self._deliver(queue_id)
            await self._wait_until_due()

    async def _wait_until_due(self) -> None:
        """Wait until the first message is due, or one arrives in an empty queue."""
        due_ms = min(self._due_ms.values(), default=None)
        if due_ms is None:
            await self._wake.wait()
            return
        rest_ms = due_ms - self._store.now_ms()
        if rest_ms <= 0:
            await asyncio.sleep(0)
            return
        await is_set_within(self._wake, min(rest_ms, CLOCK_CHECK_MS) / 1000)

    async def _deliver(self, queue_id: int) -> None:
        """Deliver the due messages of a queue, up to the limit of one turn.

        An unexpected error ends neither this task nor the process: the store and the journal end the process themselves if they can't be
        sure of their tables. It is logged with its traceback, and `_record_failure` decides whether its message is skipped.
        """
        offset = self._table.next_offset(queue_id)
        try:
            result = await self._read(queue_id, offset)
            if result is not None and result.status is not ReadStatus.FOUND:
                self._skip_gap(queue_id, offset, result)
                return
            data = b"" if result is None else b"".join(result.parts)
            records = split_records(data)
        except Exception as error:  # one message: logged and counted by _record_failure, as a request's is by request.py
            if self._record_failure(queue_id, offset, error):
                self._table.record_delivered(queue_id, offset + 1)
            return
        if result is None:
            self._due_ms[queue_id] = self._store.now_ms() + RETRY_MS
            return
        done = 0
        for begin, _ in records:
            try:
                is_finished = self._deliver_if_due(queue_id, offset + done, RecordView(data, begin))
            except Exception as error:  # one message: as above
                is_finished = self._record_failure(queue_id, offset + done, error)
            if not is_finished:
                break
            done += 1
        if done:
            self._table.record_delivered(queue_id, offset + done)

    def _skip_gap(self, queue_id: int, offset: int, result: ReadResult) -> None:
        """Continue after messages that are missing permanently, or wait for new messages."""
        if result.status not in LOSSES:
            if self._store.bounds(SCHEDULE_TOPIC, queue_id)[1] <= offset:  # otherwise one has arrived while the disk was read
                self._due_ms.pop(queue_id, None)
            return
        if result.next_offset <= offset:  # the queue's minimum has not moved yet
            self._due_ms[queue_id] = self._store.now_ms() + RETRY_MS
            return
        facts = {"delay_ms": queue_delay_ms(queue_id), "first": offset, "end": result.next_offset}
        log_limited(log, "error", "delay.gap", **facts, why=LOSSES[result.status])
        self._table.record_delivered(queue_id, result.next_offset)

    def _deliver_if_due(self, queue_id: int, offset: int, record: RecordView) -> bool:
        """Deliver the message if it is due. Return whether it is finished; otherwise `_due_ms` has the time of the next attempt."""
        self._due_ms[queue_id] = due_ms = self._store.stored_ms(record.physical_offset, record.store_ms) + queue_delay_ms(queue_id)
        if due_ms > self._store.now_ms():
            return False
        if self._home.deliver(record, Ended(SCHEDULE_TOPIC, queue_id, offset, 0)) is False:
            self._due_ms[queue_id] = self._store.now_ms() + RETRY_MS
            return False
        return True

    def _record_failure(self, queue_id: int, offset: int, error: Exception) -> bool:
        """Log an unexpected error of this message. Return True at the third one in a row: the message is skipped, and counts as lost.

        Return False if it is retried after RETRY_MS; messages with the same delay wait for it.
        """
        tried, count = self._failed.get(queue_id, (offset, 0))
        count = count + 1 if tried == offset else 1
        self._failed[queue_id] = offset, count
        is_skipped = count >= ATTEMPTS_MAX
        then = "it is lost: no attempt has succeeded" if is_skipped else f"it is retried in {RETRY_MS} ms"
        facts = {"delay_ms": queue_delay_ms(queue_id), "offset": offset, "try_count": count, "error": text_of(error)}
        log_limited(log, "error", "delay.failed", **facts, then=then, exc_info=error)
        if is_skipped:
            del self._failed[queue_id]
            self._store.damage.add_lost(SCHEDULE_TOPIC, queue_id, offset, offset + 1)
        self._due_ms[queue_id] = self._store.now_ms() + (0 if is_skipped else RETRY_MS)
        return is_skipped

    async def _read(self, queue_id: int, offset: int) -> ReadResult | None:
        """Return the next messages, or only the first if those after it can't be read. Return None, and log it once, if that fails too.

        A pull behaves in the same way: it fails for this queue, and other queues are served.
        """
        why = ""
        for count in (TURN_COUNT, 1):
            try:
                return await self._store.read_or_wait(SCHEDULE_TOPIC, queue_id, offset, count, TURN_BYTES)
            except (OSError, StoreCorruptError, SystemBusyError) as error:
                why = str(error)
        if self._unreadable.get(queue_id) != offset:
            self._unreadable[queue_id] = offset
            facts = {"delay_ms": queue_delay_ms(queue_id), "offset": offset, "error": why}
            log_limited(
                log,
                "error",
                "delay.unreadable",
                **facts,
                then=f"it is read again every {RETRY_MS} ms; messages with this delay wait for it",
            )
        return None
