"""Delayed messages: they wait in a queue for each delay until they are due. RocketMQ: ScheduleMessageService.

The messages of a queue have one delay and are in the order in which they were stored, so only the first one is looked at: nothing is kept
in memory for the others, and nothing runs while none is due. A message is due when its queue's delay has passed since it was stored, never
earlier. Time is counted by the boot clock: the clock that stamps records does not follow a wall clock that jumps and returns
(runtime/steady_clock.py). When it was set, forward or back, earlier store times are read as if they had been moved by the same amount
(store/store_clock.py). There are no delays up to a time of day: the `TIMER_` properties of RocketMQ 5 are refused. Senders name levels, and
a start may bring another table of them: which queue has which delay never changes (protocol/delays.py), so pending messages keep their due
times, and queues of delays that are no longer in the table are emptied like the others.

    append ─▶ SCHEDULE_TOPIC_XXXX, queue of the level's delay ─▶ due ─▶ its own topic, with the queue's progress, in one write
"""

import asyncio
from collections.abc import Callable, Sequence

from lockstep.broker.message_copy import MessageCopy
from lockstep.broker.store import Appended, ReadResult, ReadStatus, Store, StoreCorruptError
from lockstep.broker.tables.delay_table import DelayTable
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.protocol.delays import delay_queue_id, find_delay_level, queue_delay_ms
from lockstep.protocol.errors import (
    BrokerError,
    LocalProtocolError,
    MessageIllegalError,
    NoPermissionError,
    RemoteProtocolError,
    ServiceNotAvailableError,
    SystemBusyError,
)
from lockstep.protocol.names import SCHEDULE_TOPIC, group_of_topic
from lockstep.protocol.record import RecordView, split_records
from lockstep.runtime.log import get_logger
from lockstep.runtime.log_limit import log_limited

log = get_logger("broker")

LOOK_MS = 1_000
"""How often to look at the clock while messages are pending: it may be set."""
AGAIN_MS = 1_000
"""After how long a queue is tried again that the store has refused."""
TRIES_MAX = 3
"""Tries of a message at which an unexpected error occurs."""
LOSSES = {
    ReadStatus.OFFSET_TOO_SMALL: "retention removed messages that still waited",
    ReadStatus.LOST: "the log is damaged there: messages that still waited are lost",
}
"""Why the next messages are gone for ever."""
TURN_COUNT = 100
TURN_BYTES = 256 << 10
"""Messages and bytes of one queue that one loop turn delivers."""


class GroupTopics:
    """Topics to which the broker itself adds messages: `%RETRY%…` and `%DLQ%…` of groups, and those of delayed messages."""

    def __init__(self, topics: TopicTable, may_begin: Callable[[str], None] | None = None) -> None:
        """`may_begin` raises ServiceNotAvailableError if the disk has no room for a new topic."""
        self._topics = topics
        self._may_begin = may_begin

    def create(self, topic: str) -> None:
        """Give the topic a queue of this broker if it has none, for a request.

        Raise ServiceNotAvailableError if the disk has no room for a new topic, NoPermissionError if the cluster has too many
        (TopicTable.create, `for_group`).
        """
        if self._is_missing(topic):
            if self._may_begin is not None:
                self._may_begin(f"topic {topic}")
            self._create(topic)

    def _ready(self, topic: str) -> None:
        """Create the topic of a message that was acknowledged: also on a full disk. Raise ServiceNotAvailableError, so that the message
        waits, if the cluster has too many topics.
        """
        if self._is_missing(topic):
            try:
                self._create(topic)
            except NoPermissionError as error:
                raise ServiceNotAvailableError(f"a delayed message waits: {error.remark}") from error

    def _is_missing(self, topic: str) -> bool:
        layout = self._topics.find_layout(topic)
        return layout is None or not self._topics.own_write_count(layout)

    def _create(self, topic: str) -> None:
        layout = self._topics.create_own(topic, 1, 1, for_group=True)
        log_limited(log, "info", "topic.created", topic=topic, counter=layout.version.counter, why="the broker has a message for it")

    def began(self, topic: str) -> int:
        """Return the counter of the oldest queues in the layout in force; 0 if there is none."""
        layout = self._topics.find_layout(topic)
        return 0 if layout is None else layout.began

    def deleted_since(self, topic: str, began: int) -> bool:
        """Return whether the topic was deleted, and perhaps created again, since its layout began with `began`; False for 0.

        Records of earlier versions have the layout's counter instead, which is not below it.
        """
        layout = self._topics.find_layout(topic)
        return began > 0 and (layout is None or layout.began > began)

    def place(self, topic: str, queue_id: int) -> int | None:
        """Return the queue of this broker that takes a delayed message for the topic; None if the topic does not exist any more."""
        if group_of_topic(topic) is not None or self._topics.find_layout(topic) is not None:
            self._ready(topic)
        layout = self._topics.find_layout(topic)
        count = 0 if layout is None else self._topics.own_write_count(layout)
        return queue_id % count if count else None


class DelayedDelivery:
    """Delivers pending messages when they are due: `run` until it is cancelled, `arrived` for each queue with new messages. Use it after
    recovery.
    """

    def __init__(self, store: Store, table: DelayTable, homes: GroupTopics, levels_ms: Sequence[int]) -> None:
        self._store = store
        self._table = table
        self._homes = homes
        self._levels_ms = levels_ms
        self._due_ms = dict.fromkeys(store.queue_ids(SCHEDULE_TOPIC), 0)
        """Queue id → when its first message is due, by Store.now_ms. Empty queues are left out."""
        self._clock_sets = 0
        """`Store.clock_sets` when `_due_ms` was computed."""
        self._unreadable: dict[int, int] = {}
        """Queue id → offset that the disk could not read."""
        self._failed: dict[int, tuple[int, int]] = {}
        """Queue id → (offset, number of unexpected errors there in a row)."""
        self._wake = asyncio.Event()

    def find_delay_level(self, delay_ms: int) -> int:
        """Return the level of a delay. Raise MessageIllegalError, with the table, if no level has it."""
        return find_delay_level(delay_ms, self._levels_ms)

    def append(self, letter: MessageCopy, level: int) -> Appended:
        """Store a pending message; a level above the last one counts as the last (RocketMQ)."""
        level = min(level, len(self._levels_ms))
        queue_id = delay_queue_id(self._levels_ms[level - 1])
        return store_letter(self._store, letter.waiting(level, queue_id, self._homes.began(letter.home)))

    def arrived(self, queue_id: int) -> None:
        """Look at the queue: it has new visible messages."""
        if queue_id not in self._due_ms:
            self._due_ms[queue_id] = 0
            self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            now_ms = self._store.now_ms()
            if self._store.clock_sets != self._clock_sets:  # the clock was set, so pending messages are due at another time
                self._clock_sets = self._store.clock_sets
                self._due_ms = dict.fromkeys(self._due_ms, 0)
            for queue_id in [queue_id for queue_id, due_ms in self._due_ms.items() if due_ms <= now_ms]:
                await self._deliver(queue_id)
            await self._rest()

    async def _rest(self) -> None:
        """Wait until the first message is due, or one arrives in an empty queue."""
        due_ms = min(self._due_ms.values(), default=None)
        if due_ms is None:
            await self._wake.wait()
            return
        rest_ms = due_ms - self._store.now_ms()
        if rest_ms <= 0:
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(min(rest_ms, LOOK_MS) / 1000):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _deliver(self, queue_id: int) -> None:
        """Deliver the due messages of a queue, as many as one turn may.

        An unexpected error ends neither this nor the process: the store and the journal end the process themselves if they can't rely on
        their tables. The error is logged with its traceback, and `_given_up` decides about its message.
        """
        offset = self._table.next_offset(queue_id)
        try:
            result = await self._read(queue_id, offset)
            if result is not None and result.status is not ReadStatus.FOUND:
                self._pass_gap(queue_id, offset, result)
                return
            data = b"" if result is None else b"".join(result.parts)
            places = split_records(data)
        except Exception as error:  # one message: logged and counted by _given_up, as Request.fail does for a request
            if self._given_up(queue_id, offset, error):
                self._table.record_delivered(queue_id, offset + 1)
            return
        if result is None:
            self._due_ms[queue_id] = self._store.now_ms() + AGAIN_MS
            return
        done = 0
        for begin, _ in places:
            try:
                passed = self._pass_on_due(queue_id, offset + done, RecordView(data, begin))
            except Exception as error:  # one message: as above
                passed = self._given_up(queue_id, offset + done, error)
            if not passed:
                break
            done += 1
        if done:
            self._table.record_delivered(queue_id, offset + done)

    def _pass_gap(self, queue_id: int, offset: int, result: ReadResult) -> None:
        """Go on after messages that are gone, or wait until there are some."""
        if result.status not in LOSSES:
            if self._store.bounds(SCHEDULE_TOPIC, queue_id)[1] <= offset:  # otherwise one has arrived while the disk was read
                self._due_ms.pop(queue_id, None)
            return
        if result.next_offset <= offset:  # the queue's minimum has not moved yet
            self._due_ms[queue_id] = self._store.now_ms() + AGAIN_MS
            return
        facts = {"delay_ms": queue_delay_ms(queue_id), "first": offset, "end": result.next_offset}
        log_limited(log, "error", "delay.gap", **facts, why=LOSSES[result.status])
        self._table.record_delivered(queue_id, result.next_offset)

    def _pass_on_due(self, queue_id: int, offset: int, record: RecordView) -> bool:
        """Deliver the message if it is due; return whether it is done. Otherwise `_due_ms` is set to when it is looked at again."""
        self._due_ms[queue_id] = due_ms = self._store.stored_ms(record.physical_offset, record.store_ms) + queue_delay_ms(queue_id)
        if due_ms > self._store.now_ms():
            return False
        if not self._pass_on(offset, record):
            self._due_ms[queue_id] = self._store.now_ms() + AGAIN_MS
            return False
        return True

    def _given_up(self, queue_id: int, offset: int, error: Exception) -> bool:
        """Log an unexpected error at this message. Return True for the third one in a row: the message is skipped, and counts as lost.

        Otherwise it is tried again after AGAIN_MS, and later messages with the same delay wait for it.
        """
        tried, count = self._failed.get(queue_id, (offset, 0))
        count = count + 1 if tried == offset else 1
        self._failed[queue_id] = offset, count
        given_up = count >= TRIES_MAX
        then = "it is lost: no try has succeeded" if given_up else f"it is tried again in {AGAIN_MS} ms"
        facts = {"delay_ms": queue_delay_ms(queue_id), "offset": offset, "try_count": count, "error": repr(error)}
        log_limited(log, "error", "delay.failed", **facts, then=then, exc_info=error)
        if given_up:
            del self._failed[queue_id]
            self._store.damage.add_lost(SCHEDULE_TOPIC, queue_id, offset, offset + 1)
        self._due_ms[queue_id] = self._store.now_ms() + (0 if given_up else AGAIN_MS)
        return given_up

    async def _read(self, queue_id: int, offset: int) -> ReadResult | None:
        """Return the next messages, or the first one alone if those after it can't be read. If it can't be read either, log that once and
        return None: as for a pull, this queue fails and the others go on.
        """
        why = ""
        for count in (TURN_COUNT, 1):
            try:
                return await self._store.read_some(SCHEDULE_TOPIC, queue_id, offset, count, TURN_BYTES)
            except (OSError, StoreCorruptError, SystemBusyError) as error:
                why = str(error)
        if self._unreadable.get(queue_id) != offset:
            self._unreadable[queue_id] = offset
            facts = {"delay_ms": queue_delay_ms(queue_id), "offset": offset, "error": why}
            log_limited(
                log, "error", "delay.unreadable", **facts, then=f"it is read again every {AGAIN_MS} ms; what has this delay waits behind it"
            )
        return None

    def _pass_on(self, offset: int, record: RecordView) -> bool:
        """Store the message in its topic; return False if that must be tried later. A message that can never be delivered is logged,
        counted as lost if it is damaged, and skipped.
        """
        facts = {"queue_id": record.queue_id, "offset": offset}
        try:
            waiting = MessageCopy.of(record)
            letter = waiting.delivered()
            if self._homes.deleted_since(letter.home, waiting.home_began):
                log_limited(log, "warning", "delay.homeless", topic=letter.home, **facts, why="its topic was deleted")
                return True
            queue_id = self._homes.place(letter.topic, letter.queue_id)
            if queue_id is None:
                log_limited(log, "warning", "delay.homeless", topic=letter.topic, **facts, why="its topic has no queue here any more")
                return True
            store_letter(self._store, letter.sent_to(letter.topic, queue_id))
        except (BrokerError, LocalProtocolError, RemoteProtocolError) as error:
            if isinstance(error, BrokerError) and error.retriable:
                log_limited(log, "warning", "delay.refused", **facts, error=str(error))
                return False
            log_limited(log, "error", "delay.undeliverable", **facts, error=str(error))
            self._store.damage.add_lost(SCHEDULE_TOPIC, record.queue_id, offset, offset + 1)
        return True


def store_letter(store: Store, letter: MessageCopy) -> Appended:
    """Store a message that the broker itself sends."""
    try:
        frame = letter.frame()
    except LocalProtocolError as error:
        raise MessageIllegalError(str(error)) from None
    return store.append_frame(letter.topic, letter.queue_id, frame, 1, born_host=letter.born_host, trusted=True)
