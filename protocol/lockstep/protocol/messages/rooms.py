"""Waiting rooms: topics of the broker into which a client's frame is stored to wait. RocketMQ: TimerMessageStore.

The properties of a record in a room begin with its home: the topic and the queue to which it will go, and `TopicLayout.began` of that
topic, which distinguishes a topic that was created again. Before them is only the sequence of a frame, or what a carried record ends.

    __LS_SEQ …  |  __LS_FROM …                                first, in some records
    REAL_TOPIC  REAL_QID  __LS_LAYOUT                         its home
    TIMER_DELAY_MS | TIMER_DELIVER_MS                         when it is due: after so many ms, or at this time
    __LS_DUE  __LS_FIRST                                      instead, in a record that was stored again: its due code, and its first offset

*Due codes* say when a timer is due and by which clock: `due ms << 2 | carried << 1 | absolute`. The code of a record is a function of its
properties and its store time, and is in its entry of the consume queue instead of the tag's hash. A time without `absolute` is one of the
store's clock, which counts a delay; with it, a time of day. A carried record was stored again because the log's old end is removed.
"""

import re
from typing import NamedTuple

from lockstep.protocol.messages.properties import (
    CARRIED_DUE,
    CARRIED_FIRST,
    LS_SEQ,
    ORIGIN_LAYOUT,
    REAL_QID,
    REAL_TOPIC,
    SEQUENCE_DIGITS,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    WAITED,
)

TIMER_DAYS_MAX = 40
"""The longest wait that a broker accepts unless it is configured differently, in days. RocketMQ: timerMaxDelaySec."""
ABSOLUTE, CARRIED = 1, 2
"""Bits of a due code."""
DUE_SHIFT = 2
TIMER_MS_MAX = 10**15 - 1
"""The largest number of a timer's property."""
NUMBER_DIGITS_MAX = 18
"""The digits of the largest due code."""

_HOME = re.compile(
    f"(?:{LS_SEQ}\x01[0-9a-f]{{{SEQUENCE_DIGITS}}}\x02)?(?:{WAITED}\x01[^\x02]*\x02)?"
    f"{REAL_TOPIC}\x01([^\x01\x02]{{1,127}})\x02{REAL_QID}\x01([0-9]{{1,10}})\x02{ORIGIN_LAYOUT}\x01([0-9]{{1,19}})\x02"
    f"(?:({TIMER_DELAY_MS}|{TIMER_DELIVER_MS}|{CARRIED_DUE})\x01([0-9]{{1,{NUMBER_DIGITS_MAX}}})(?:\x02|\\Z))"
    f"(?:{CARRIED_FIRST}\x01([0-9]{{1,19}})(?:\x02|\\Z))?".encode()
)
_DELAY, _DELIVER, _CARRIED = TIMER_DELAY_MS.encode(), TIMER_DELIVER_MS.encode(), CARRIED_DUE.encode()


class TimerProperties(NamedTuple):
    """What the properties of a record in the room of timers say."""

    topic: bytes
    queue_id: int
    began: int
    """`TopicLayout.began` of the topic, or 0 if it had no layout."""
    name: bytes
    """The property that says when it is due."""
    value: int
    end: int
    """Where the properties of the room end."""
    first: int | None
    """Where a record that was stored again was stored at first: its offset in the room."""

    def code(self, store_ms: int) -> int:
        """Return the due code of a record that was stored at this time."""
        if self.name == _CARRIED:
            return self.value | CARRIED
        return due_ms_of(self.name, self.value, store_ms) << DUE_SHIFT | (ABSOLUTE if self.name == _DELIVER else 0)


def read_timer(properties: bytes) -> TimerProperties | None:
    """Return what stored properties say of a timer, or None if they are not those of a record in the room of timers."""
    found = _HOME.match(properties)
    if found is None:
        return None
    topic, queue_id, began, name, value, first = found.groups()
    return TimerProperties(topic, int(queue_id), int(began), name, int(value), found.end(), None if first is None else int(first))


def due_ms_of(name: bytes, value: int, store_ms: int) -> int:
    """Return when a message is due that has TIMER_DELAY_MS or TIMER_DELIVER_MS with this value, and was stored at this time."""
    return store_ms + value if name == _DELAY else value


def home_properties(topic: str, queue_id: int, began: int) -> bytes:
    """Return the beginning of the properties of a message that waits for this queue."""
    return f"{REAL_TOPIC}\x01{topic}\x02{REAL_QID}\x01{queue_id}\x02{ORIGIN_LAYOUT}\x01{began}\x02".encode()


def due_of_code(code: int) -> int:
    """Return the time of a due code in ms since 1970."""
    return code >> DUE_SHIFT
