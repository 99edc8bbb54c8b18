"""Carries timers: before retention removes a file of the log, those that still wait in it are stored again at the log's end.

RocketMQ stores each timer again that is due after the end of its wheel (TimerMessageStore). Here only the age of the log decides. A file of
which a timer can't be carried is not removed: retention waits for it.
"""

import asyncio

from lockstep.broker.delivery.timer_copies import carried_record
from lockstep.broker.store import ReadStatus, Store, StoreCorruptError
from lockstep.broker.tables.timer_table import PendingTimer, TimerTable
from lockstep.protocol.errors import BrokerError, RemoteProtocolError, StoreError
from lockstep.protocol.messages.record import BORN_HOST_AT, STORE_TIMESTAMP_AT
from lockstep.protocol.names import TIMER_TOPIC
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited

log = get_logger("broker")

TURN_BYTES = 256 << 10
"""The bytes that are carried in one turn of the loop, except that one timer always is."""


class TimerCarry:
    """Carries the timers of one broker."""

    def __init__(self, store: Store, table: TimerTable) -> None:
        self._store = store
        self._table = table
        self.refusal = ""
        """Why the last attempt could not carry all timers; empty if it has."""

    async def carry_before(self, position: int) -> int:
        """Carry the timers whose records begin below this position of the log. Return up to which position files may be removed.

        Then the disk has what was stored again, and the copies of those that were delivered.
        """
        self.refusal = ""
        if len(self._table):
            position = await self._carry_below(position)
        await self._store.sync()
        return position

    async def _carry_below(self, position: int) -> int:
        end = await self._store.first_offset_from(TIMER_TOPIC, 0, position)
        self._table.carried.forget_below(self._store.bounds(TIMER_TOPIC, 0)[0])
        found: dict[int, PendingTimer] = {}
        self._table.watched = watched = set[int]()
        for part in self._table.below(end):
            watched.update(timer.offset for timer in part)
            found.update((timer.offset, timer) for timer in part)
            await asyncio.sleep(0)
        waiting = [found[offset] for offset in sorted(watched)]  # without those that were delivered or recalled meanwhile
        done = size = 0
        try:
            for timer in waiting:
                size += await self._carry(timer)
                done += 1
                if size >= TURN_BYTES:
                    size = 0
                    await asyncio.sleep(0)
        except (BrokerError, StoreError, OSError, RemoteProtocolError) as error:
            self.refusal = f"{len(waiting) - done} messages that wait can't be stored again: {error}"
            log_limited(log, "error", "timer.not_carried", count=len(waiting) - done, error=str(error), then="their log files are kept")
            entry = await self._store.queue_entry(TIMER_TOPIC, 0, waiting[done].offset)
            position = position if entry is None else min(position, entry[0])
        if done:
            log.info("timer.carried", count=done, why="retention removes the log files in which they were stored")
        return position

    async def _carry(self, timer: PendingTimer) -> int:
        """Store a timer again if it still waits. Return the bytes of its record."""
        result = await self._store.read_or_wait(TIMER_TOPIC, 0, timer.offset, 1, 1)
        if timer.offset not in self._table.watched:
            return 0  # delivered or recalled meanwhile
        if result.status in (ReadStatus.OFFSET_TOO_SMALL, ReadStatus.LOST):
            return 0  # the delivery finds and reports that
        data = b"".join(result.parts)
        if result.status is not ReadStatus.FOUND:
            raise StoreCorruptError(f"offset {timer.offset} of {TIMER_TOPIC} can't be read")
        frame, first = carried_record(data, timer, self._table.present_ms(timer))
        born_host = data[BORN_HOST_AT:STORE_TIMESTAMP_AT]
        appended = self._store.append_frame(TIMER_TOPIC, 0, frame, 1, born_host=born_host, trusted=True, from_reserve=True)
        self._table.carried.add(first, appended.queue_offset)
        self._table.remove(timer.offset, timer.code)
        return len(frame)
