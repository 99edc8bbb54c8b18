"""Messages that wait before consumers receive them: the arguments `delay_level`, `delay` and `deliver_at` of a send, and what its result
knows."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from lockstep.client.producer.machines.pending import PendingSend
from lockstep.client.producer.result import Place, RoomResult, room_result
from lockstep.protocol.delays import check_delay_level
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.messages.properties import DELAY, NAME_END, TIMER_DELAY_MS, TIMER_DELIVER_MS
from lockstep.protocol.messages.recall import RecallHandle
from lockstep.protocol.messages.rooms import TIMER_MS_MAX, due_ms_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_LEVEL = f"{DELAY}{NAME_END}".encode()


class TimerResult(RoomResult):
    """The position of a stored frame of timers."""

    __slots__ = ("store_ms", "timers")
    store_ms: int
    timers: list[bytes]
    """The property by which each message waits."""

    def handle(self, index: int) -> str:
        """Return the recall handle of one message; empty if its place in the room is not known."""
        if self.room_offset < 0:
            return ""
        name, _, value = self.timers[index].partition(NAME_END.encode())
        due_ms = due_ms_of(name, int(value), self.store_ms)
        handle = RecallHandle(self.queue.topic, self.queue.broker_name, due_ms, self.ids[index], self.room_offset + index)
        return handle.encode()


def timer_result(place: Place, sends: Sequence[PendingSend], store_ms: Any) -> TimerResult:
    """Return the result of a stored frame of timers. The offset of `place` is that in the room."""
    result = room_result(TimerResult, place)
    if type(store_ms) is not int:
        result.room_offset = -1
    result.store_ms = store_ms
    result.timers = [pending.waits for pending in sends for _ in range(pending.count)]
    return result


def timer_of(delay_level: int | None, delay: timedelta | None, deliver_at: datetime | None) -> bytes:
    """Return the property by which a message waits. Raise LocalProtocolError if an argument is invalid, or more than one is given.

    At least one is given. The property of a level is DELAY, which is never stored: `timer_at` replaces it.
    """
    terms = {"delay_level": delay_level, "delay": delay, "deliver_at": deliver_at}
    given = [name for name, value in terms.items() if value is not None]
    if len(given) > 1:
        raise LocalProtocolError(f"{' and '.join(given[:2])} are both given: give one of them")
    if delay_level is not None:
        check_delay_level(delay_level)
        return _LEVEL + b"%d" % delay_level
    if deliver_at is not None:
        if not isinstance(deliver_at, datetime):
            raise LocalProtocolError(f"deliver_at is a {type(deliver_at).__name__}: expected a datetime.datetime with a time zone")
        if deliver_at.tzinfo is None or deliver_at.utcoffset() is None:
            raise LocalProtocolError(
                f"deliver_at {deliver_at} has no time zone, so it names no moment: deliver_at.astimezone() has the zone of this machine"
            )
        return _property(TIMER_DELIVER_MS, max(1, -((_EPOCH - deliver_at) // _MS)))
    if not isinstance(delay, timedelta):
        raise LocalProtocolError(f"delay {delay!r}: expected a datetime.timedelta, such as timedelta(seconds=5)")
    if delay < _MS:
        raise LocalProtocolError(f"delay {delay}: expected a millisecond or more; leave it out for a message without a delay")
    whole, rest = divmod(delay, _MS)
    return _property(TIMER_DELAY_MS, whole + bool(rest))


def timer_at(timer: bytes, levels_ms: Sequence[int]) -> bytes:
    """Return the property by which a message waits at a broker with this table of delay levels.

    A level becomes the time that it has there. A level above the table is its last one, as when the broker itself reads the level.
    """
    if not timer.startswith(_LEVEL):
        return timer
    level = int(timer[len(_LEVEL) :])
    return f"{TIMER_DELAY_MS}{NAME_END}{levels_ms[min(level, len(levels_ms)) - 1]}".encode()


def _property(name: str, value_ms: int) -> bytes:
    if value_ms > TIMER_MS_MAX:
        raise LocalProtocolError(f"{value_ms} ms: at most {TIMER_MS_MAX}")
    return f"{name}{NAME_END}{value_ms}".encode()
