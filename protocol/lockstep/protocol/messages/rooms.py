"""Waiting rooms: topics of the broker into which a client's frame is stored to wait.

RocketMQ: TimerMessageStore, TransactionalMessageBridge.

The properties of a record in a room begin with its home: the topic and the queue to which it will go, and `TopicLayout.began` of that
topic, which distinguishes a topic that was created again. Before them is only the sequence of a frame, or what a carried record ends.

    __LS_SEQ …  |  __LS_FROM …                                first, in some records
    REAL_TOPIC  REAL_QID  __LS_LAYOUT                         its home

A *timer*, in TIMER_TOPIC, has after them

    TIMER_DELAY_MS | TIMER_DELIVER_MS                         when it is due: after so many ms, or at this time
    __LS_DUE  __LS_FIRST                                      instead, in a record that was stored again: its due code, and its first offset

and a *half message*, in HALF_TOPIC, whose transaction is not decided,

    TRAN_MSG  PGROUP  __TXN_PRODUCER_CID__                    its sender
    __LS_DUE  __LS_FIRST                                      in a record that was stored again

*Due codes* say when a timer is due and by which clock: `due ms << 2 | carried << 1 | absolute`. The code of a record is a function of its
properties and its store time, and is in its entry of the consume queue instead of the tag's hash. A time without `absolute` is one of the
store's clock, which counts a delay; with it, a time of day. A carried record was stored again because the log's old end is removed. The
code of a half message has the time at which it was stored at first.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from lockstep.protocol.messages.properties import (
    CARRIED_DUE,
    CARRIED_FIRST,
    LS_SEQ,
    ORIGIN_LAYOUT,
    PGROUP,
    PRODUCER_CLIENT,
    REAL_QID,
    REAL_TOPIC,
    SEQUENCE_DIGITS,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    WAITED,
)
from lockstep.protocol.names import HALF_TOPIC, TIMER_TOPIC

TIMER_DAYS_MAX = 40
"""The longest wait that a broker accepts unless it is configured differently, in days. RocketMQ: timerMaxDelaySec."""
ABSOLUTE, CARRIED = 1, 2
"""Bits of a due code."""
DUE_SHIFT = 2
TIMER_MS_MAX = 10**15 - 1
"""The largest number of a timer's property."""
NUMBER_DIGITS_MAX = 18
"""The digits of the largest due code."""

_HOME = (
    f"(?:{LS_SEQ}\x01[0-9a-f]{{{SEQUENCE_DIGITS}}}\x02)?(?:{WAITED}\x01[^\x02]*\x02)?"
    f"{REAL_TOPIC}\x01([^\x01\x02]{{1,127}})\x02{REAL_QID}\x01([0-9]{{1,10}})\x02{ORIGIN_LAYOUT}\x01([0-9]{{1,19}})\x02"
)
_NUMBER = f"\x01([0-9]{{1,{NUMBER_DIGITS_MAX}}})(?:\x02|\\Z)"
_FIRST = f"(?:{CARRIED_FIRST}\x01([0-9]{{1,19}})(?:\x02|\\Z))?"
_TIMER = re.compile(f"{_HOME}({TIMER_DELAY_MS}|{TIMER_DELIVER_MS}|{CARRIED_DUE}){_NUMBER}{_FIRST}".encode())
_HALF = re.compile(
    f"{_HOME}{TRAN_MSG}\x01true\x02{PGROUP}\x01([^\x01\x02]{{1,255}})\x02{PRODUCER_CLIENT}\x01([^\x01\x02]{{0,255}})(?:\x02|\\Z)"
    f"(?:{CARRIED_DUE}{_NUMBER})?{_FIRST}".encode()
)
_DELAY, _DELIVER, _CARRIED, _UNDECIDED = TIMER_DELAY_MS.encode(), TIMER_DELIVER_MS.encode(), CARRIED_DUE.encode(), TRAN_MSG.encode()


class RoomProperties(NamedTuple):
    """What the properties of a record in a waiting room say."""

    topic: bytes
    queue_id: int
    began: int
    """`TopicLayout.began` of the topic, or 0 if it had no layout."""
    name: bytes
    """The property that says when it is due: TRAN_MSG if the decision of its transaction does."""
    value: int
    end: int
    """Where the properties of the room end."""
    first: int | None
    """Where a record that was stored again was stored at first: its offset in the room."""
    group: bytes = b""
    """Of a half message: the producer group of its sender."""
    client_id: bytes = b""
    """Of a half message: the client id of its sender; empty if that was not known."""

    @property
    def home(self) -> bytes:
        """Return the properties by which the record begins: its home, and of a half message its sender."""
        home = home_properties(self.topic.decode(), self.queue_id, self.began)
        return home + half_properties(self.group.decode(), self.client_id.decode()) if self.group else home

    def code(self, store_ms: int) -> int:
        """Return the due code of a record that was stored at this time."""
        if self.name == _CARRIED:
            return self.value | CARRIED
        return due_ms_of(self.name, self.value, store_ms) << DUE_SHIFT | (ABSOLUTE if self.name == _DELIVER else 0)


def read_timer(properties: bytes) -> RoomProperties | None:
    """Return what stored properties say of a timer, or None if they are not those of a record in the room of timers."""
    found = _TIMER.match(properties)
    if found is None:
        return None
    topic, queue_id, began, name, value, first = found.groups()
    return RoomProperties(topic, int(queue_id), int(began), name, int(value), found.end(), None if first is None else int(first))


def read_half(properties: bytes) -> RoomProperties | None:
    """Return what stored properties say of a half message, or None if they are not those of a record in the room of half messages."""
    found = _HALF.match(properties)
    if found is None:
        return None
    topic, queue_id, began, group, client_id, code, first = found.groups()
    name, value = (_UNDECIDED, 0) if code is None else (_CARRIED, int(code))
    place = int(queue_id), int(began), name, value, found.end(), None if first is None else int(first)
    return RoomProperties(topic, *place, group, client_id)


READERS: Mapping[str, Callable[[bytes], RoomProperties | None]] = {TIMER_TOPIC: read_timer, HALF_TOPIC: read_half}
"""The waiting rooms, and what reads the properties of a record in them."""


def due_ms_of(name: bytes, value: int, store_ms: int) -> int:
    """Return when a message is due that has this property with this value, and was stored at this time. A half message: that time."""
    return value if name == _DELIVER else store_ms + value


def home_properties(topic: str, queue_id: int, began: int) -> bytes:
    """Return the beginning of the properties of a message that waits for this queue."""
    return f"{REAL_TOPIC}\x01{topic}\x02{REAL_QID}\x01{queue_id}\x02{ORIGIN_LAYOUT}\x01{began}\x02".encode()


def half_properties(group: str, client_id: str) -> bytes:
    """Return the properties that follow the home of a half message."""
    return f"{TRAN_MSG}\x01true\x02{PGROUP}\x01{group}\x02{PRODUCER_CLIENT}\x01{client_id}\x02".encode()


def due_of_code(code: int) -> int:
    """Return the time of a due code in ms since 1970."""
    return code >> DUE_SHIFT
