"""Timers: messages that wait for any delay, or until a time of day, and are then stored in their own topic. RocketMQ: TimerMessageStore.

    frame of a client ─▶ rmq_sys_wheel_timer, queue 0 ─▶ due ─▶ its own topic, and the copy names where it waited (`__LS_FROM`)

A delay counts by the store's clock, as those of the delay queues do (delayed_delivery.py). A message with a time of day is due when that
clock and the wall clock have reached it. None is early by either.

A timer that can't be delivered now does not stop the others: because the writes to its topic are held, the cluster has too many topics, or
its record can't be read. It stays pending, and is tried again each second together with the others of its topic.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from heapq import nlargest
from operator import itemgetter

from lockstep.broker.delivery.home_delivery import ATTEMPTS_MAX, LOSSES, RETRY_MS, HomeDelivery, HomePlace
from lockstep.broker.delivery.room_copies import Home, by_home
from lockstep.broker.store import ReadStatus, Store, StoreCorruptError
from lockstep.broker.tables.timer_table import PendingTimer, TimerTable
from lockstep.protocol.errors import RemoteProtocolError, SystemBusyError
from lockstep.protocol.messages.record import INT64, QUEUE_OFFSET_AT, RecordView, split_records
from lockstep.protocol.messages.rooms import read_timer
from lockstep.protocol.names import TIMER_TOPIC
from lockstep.protocol.object_text import text_of
from lockstep.runtime.clock import Clock
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.waiting import is_set_within

log = get_logger("broker")

LOOK_MS = 1_000
"""The interval at which the clocks are looked at while timers wait: they may be set."""
TURN_COUNT = 16
TURN_BYTES = 256 << 10
"""The limits of one read, and of its deliveries in one turn of the loop."""
DEFERRED_TOPICS_MAX = 100
"""Topics that the broker's status names."""
_ROOM = TIMER_TOPIC.encode()
UNREADABLE, UNCONFIRMED = "", " "
"""Instead of a topic: timers whose records could not be read, and those of which the log is not confirmed yet."""


class TimerDelivery:
    """Delivers timers: `run` delivers until it is cancelled, `on_arrival` reports new ones."""

    def __init__(self, store: Store, table: TimerTable, home: HomeDelivery, clock: Clock) -> None:
        self._store = store
        self._table = table
        self._home = home
        self._clock = clock
        self._wake = asyncio.Event()
        self._deferred: dict[str, deque[PendingTimer]] = {}
        """The topic that they wait for → timers that are due and were not delivered."""
        self._waiting: set[int] = set()
        """Their offsets."""
        self._retry_ms: dict[str, int] = {}
        """When they are tried again, by the monotonic clock."""
        self.delivered_count = 0
        """Timers that were delivered since the start."""
        self._failed: dict[int, int] = {}
        """Offset → number of unexpected errors."""

    @property
    def deferred_counts(self) -> dict[str, int]:
        """Return the number of timers that are due and were not delivered, by the topic that they wait for."""
        return {topic: len(timers) for topic, timers in self._deferred.items()}

    def undelivered(self) -> dict[str, int]:
        """Return the topics with the most timers that can't be delivered now, and how many each has; under "" those that can't be read.
        Those of which the log is not confirmed yet are left out."""
        counts = [(topic, count) for topic, count in self.deferred_counts.items() if topic != UNCONFIRMED]
        return dict(nlargest(DEFERRED_TOPICS_MAX, counts, key=itemgetter(1)))

    def waits(self, data: bytes) -> bool:
        """Return whether the message of a stored record of the room will still be delivered: not if its topic was deleted."""
        record = RecordView(data)
        timer = read_timer(record.properties)
        return timer is not None and self._table.holds(record.queue_offset, timer.code(record.store_ms)) and self._home.still_waits(record)

    def recalled(self, data: bytes) -> bool:
        """Return whether a stored record is that of a timer that was recalled. It is known for about a day after its due time."""
        record = RecordView(data)
        timer = read_timer(record.properties) if record.topic == _ROOM else None
        return timer is not None and self._table.was_recalled(record.queue_offset, timer.code(record.store_ms))

    def on_arrival(self) -> None:
        """Report new timers, which can be read now."""
        if UNCONFIRMED in self._retry_ms:
            self._retry_ms[UNCONFIRMED] = self._clock.monotonic_ms()
        self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            now = self._store.now_ms(), self._clock.wall_ms()
            more = self._table.prepare(*now)
            timers = self._table.take(*now, TURN_COUNT)
            await self._deliver(timers)
            for topic in [topic for topic, at_ms in self._retry_ms.items() if at_ms <= self._clock.monotonic_ms()]:
                await self._retry(topic)
            if timers or more:
                await asyncio.sleep(0)
            else:
                await self._wait_until_due()

    async def _wait_until_due(self) -> None:
        """Wait until a timer is due or tried again, or one arrives that may be due before the others."""
        waits = [at_ms - self._clock.monotonic_ms() for at_ms in self._retry_ms.values()]
        if (next_ms := self._table.next_ms(self._store.now_ms(), self._clock.wall_ms())) is not None:
            waits.append(next_ms)
        if not waits:
            await self._wake.wait()
        elif (rest_ms := min(waits)) > 0:
            await is_set_within(self._wake, min(rest_ms, LOOK_MS) / 1000)
        else:
            await asyncio.sleep(0)

    async def _retry(self, topic: str) -> None:
        """Try deferred timers again: the first one, and the others if it is delivered. Another one is then the first of those that could
        not be read, which do not wait for the same."""
        timers = self._deferred.pop(topic)
        del self._retry_ms[topic]
        count = 1
        while timers and topic not in self._deferred:
            tried = [timers.popleft() for _ in range(min(count, len(timers)))]
            self._waiting.difference_update(timer.offset for timer in tried)
            await self._deliver(tried)
            await asyncio.sleep(0)
            count = TURN_COUNT
        if not timers:
            return
        if topic == UNREADABLE:
            self._deferred[topic].extendleft(reversed(timers))
        else:
            self._deferred[topic].extend(timers)

    async def _deliver(self, timers: Iterable[PendingTimer]) -> None:
        """Deliver timers that were taken, by as few reads as possible: those with offsets that follow one another by one."""
        left = sorted(timers, key=lambda timer: timer.offset)
        due: list[tuple[PendingTimer, bytes]] = []
        size = 0
        while left:
            count = next((at for at, timer in enumerate(left) if timer.offset != left[0].offset + at), len(left))
            if left[0].offset >= self._store.bounds(TIMER_TOPIC, 0)[1]:
                for timer in left:
                    self._defer(UNCONFIRMED, timer)
                break
            records = await self._read(left[:count])
            if not records and self._table.is_taken(left[0].offset) and left[0].offset not in self._waiting:
                self._defer(UNREADABLE, left[0])
            due += zip(left, records, strict=False)
            left = left[max(1, len(records)) :]
            size += sum(map(len, records))
            if left and size >= TURN_BYTES:
                self._deliver_records(due)
                due, size = [], 0
                await asyncio.sleep(0)
        self._deliver_records(due)

    def _deliver_records(self, due: list[tuple[PendingTimer, bytes]]) -> None:
        """Deliver timers with their records, those of one home together; one by one if that raises an error."""
        due = [(timer, data) for timer, data in due if self._table.is_taken(timer.offset)]  # others were recalled, or lost
        try:
            for home, bound in by_home(TIMER_TOPIC, due).items():
                self._note(bound.waiting, home, self._home.deliver_bound(TIMER_TOPIC, home, bound))
        except Exception as error:  # one message: logged and counted
            left = [(timer, data) for timer, data in due if self._table.is_taken(timer.offset) and timer.offset not in self._waiting]
            if len(left) == 1:
                self._record_failure(left[0][0], error)
            elif left:
                for each in left:
                    self._deliver_records([each])

    def _note(self, timers: list[PendingTimer], home: Home, delivered: HomePlace | bool | None) -> None:
        """Note whether timers were delivered, never will be (None), or are tried again (False)."""
        for timer in timers:
            if delivered is False:
                self._defer(home.topic, timer)
                continue
            self._failed.pop(timer.offset, None)
            if delivered:
                self.delivered_count += 1
                self._table.remove(timer.offset, timer.code)
            else:
                self._table.end(timer.offset, timer.code)

    def _defer(self, topic: str, timer: PendingTimer) -> None:
        self._deferred.setdefault(topic, deque()).append(timer)
        self._waiting.add(timer.offset)
        self._retry_ms.setdefault(topic, self._clock.monotonic_ms() + RETRY_MS)

    def _record_failure(self, timer: PendingTimer, error: Exception) -> None:
        """Log an unexpected error of this timer. At the third one it counts as lost; before, it is tried again."""
        count = self._failed[timer.offset] = self._failed.get(timer.offset, 0) + 1
        is_lost = count >= ATTEMPTS_MAX
        then = "it is lost: no attempt has succeeded" if is_lost else f"it is tried again in {RETRY_MS} ms"
        log_limited(log, "error", "timer.failed", offset=timer.offset, try_count=count, error=text_of(error), then=then, exc_info=error)
        if is_lost:
            self._lose(timer)
        else:
            self._defer(UNREADABLE, timer)

    def _lose(self, timer: PendingTimer) -> None:
        self._failed.pop(timer.offset, None)
        self._store.damage.add_lost(TIMER_TOPIC, 0, timer.offset, timer.offset + 1)
        self._table.end(timer.offset, timer.code)

    async def _read(self, run: list[PendingTimer]) -> list[bytes]:
        """Return the records of the first timers, or only that of the first one if those after it can't be read. Return none if the first
        one can't be read now. It is lost if it never can be."""
        failure: Exception | None = None
        for count in dict.fromkeys((len(run), 1)):
            try:
                return await self._read_some(run[0], count)
            except Exception as error:  # one message: logged and counted
                failure = error
        if isinstance(failure, (OSError, StoreCorruptError, SystemBusyError, RemoteProtocolError)):
            then = f"it is read again every {RETRY_MS} ms"
            log_limited(log, "error", "timer.unreadable", offset=run[0].offset, error=str(failure), then=then)
        elif failure is not None and self._table.is_taken(run[0].offset):
            self._record_failure(run[0], failure)
        return []

    async def _read_some(self, timer: PendingTimer, count: int) -> list[bytes]:
        """Return the records of at most `count` timers from this one on, or none if it is lost."""
        first = timer.offset
        result = await self._store.read_or_wait(TIMER_TOPIC, 0, first, count, TURN_BYTES)
        data = b"".join(result.parts)
        bounds = split_records(data) if result.status is ReadStatus.FOUND else []
        if result.status in LOSSES and result.next_offset > first and self._table.is_taken(first):
            log_limited(log, "error", "timer.lost", offset=first, why=LOSSES[result.status])
            self._lose(timer)
        return [data[begin:end] for number, (begin, end) in enumerate(bounds) if offset_of(data, begin) == first + number]


def offset_of(data: bytes, begin: int) -> int:
    """Return the queue offset of the record that begins here."""
    return int(INT64.unpack_from(data, begin + QUEUE_OFFSET_AT)[0])
