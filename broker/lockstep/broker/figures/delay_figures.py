"""The messages that wait, by the time at which they are due: for OVERVIEW.

The messages of a queue have one delay and are in the order of their store times. So how many are due within a time is a position in the
queue, and a binary search finds it. Most positions need no search: every message is due within its queue's delay, and none before the
first one. In the queues of RocketMQ's 18 delays 24 positions are searched for at most, and one more in each queue that is overdue.
"""

from itertools import pairwise

from lockstep.broker.store import Store, StoreCorruptError
from lockstep.broker.tables.delay_table import DelayTable
from lockstep.broker.tables.timer_table import TimerTable
from lockstep.protocol.bodies import DelayFigures
from lockstep.protocol.delays import ANY_DELAY, DUE_WITHIN_MS, queue_delay_ms
from lockstep.protocol.errors import SystemBusyError
from lockstep.protocol.names import SCHEDULE_TOPIC

LOOK_UP_MS = 250
"""No queue's times are looked up later than this after the beginning: the disk may be slow, and the other figures wait."""


async def delay_figures(store: Store, delivered: DelayTable) -> list[DelayFigures]:
    """Return the figures of the queues in which messages wait, by id.

    Times are those of the store's clock, as for the delivery. A queue that can't be read now has none, and neither have those that were
    not looked up within LOOK_UP_MS.
    """
    began_ms = store.now_ms()
    found: list[DelayFigures] = []
    for queue_id in sorted(store.stored_queue_ids(SCHEDULE_TOPIC)):
        low, high = store.bounds(SCHEDULE_TOPIC, queue_id)
        first = max(low, delivered.next_offset(queue_id))
        if first >= high:
            continue
        first_due_ms: int | None = None
        due: tuple[int, ...] | None = None
        if store.now_ms() - began_ms <= LOOK_UP_MS:
            try:
                first_due_ms, due = await _due(store, queue_id, first, high)
            except (OSError, StoreCorruptError, SystemBusyError):
                pass  # the delivery logs why (delay.unreadable)
        found.append(DelayFigures(queue_delay_ms(queue_id), high - first, first_due_ms, due))
    return found


def timer_figures(timers: TimerTable, now_ms: int, wall_ms: int) -> DelayFigures:
    """Return the figures of the messages with a delay of any length, or that wait until a time of day."""
    due = timers.due_counts(now_ms, wall_ms, DUE_WITHIN_MS)
    return DelayFigures(ANY_DELAY, len(timers), timers.next_ms(now_ms, wall_ms), due, timers.last_ms(now_ms, wall_ms))


async def _due(store: Store, queue_id: int, first: int, high: int) -> tuple[int | None, tuple[int, ...] | None]:
    """Return when the first message is due, in ms from now, and the number of messages for each time of DUE_WITHIN_MS and later."""
    delay_ms, now_ms = queue_delay_ms(queue_id), store.now_ms()
    stored_ms = await store.stored_ms_from(SCHEDULE_TOPIC, queue_id, first, high)
    if stored_ms is None:
        return None, None
    first_due_ms = stored_ms + delay_ms - now_ms
    positions = [first]
    for within_ms in DUE_WITHIN_MS:
        if within_ms < first_due_ms:
            positions.append(first)
        elif within_ms >= delay_ms:
            positions.append(high)
        else:
            since_ms = now_ms + within_ms - delay_ms + 1
            positions.append(await store.offset_stored_since(SCHEDULE_TOPIC, queue_id, positions[-1], high, since_ms))
    return first_due_ms, tuple(after - before for before, after in pairwise([*positions, high]))
