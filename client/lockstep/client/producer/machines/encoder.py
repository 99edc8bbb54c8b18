"""Encodes the messages of a frame as records when the frame is sealed: a send that waits keeps the user's own objects, and no copy."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lockstep.client.producer.machines.pending import PendingSend
from lockstep.client.producer.result import FrameResult, Place, RoomResult, room_result
from lockstep.client.producer.waiting import timer_at, timer_result
from lockstep.protocol.messages.ids import UniqueKeys
from lockstep.protocol.messages.message import Message, RoomMessage, encode_messages
from lockstep.protocol.messages.rooms import home_properties
from lockstep.protocol.names import HALF_TOPIC, TIMER_TOPIC
from lockstep.protocol.sql92 import can_be_named
from lockstep.protocol.topics.queue import MessageQueue, TopicLayout
from lockstep.runtime.logs.log import get_logger

log = get_logger("lockstep.client.producer")

NAMES_MAX = 4_096
"""Names of properties that a producer remembers, so that each is examined once. Of more the first ones are."""
NO_IDS: Sequence[str] = ("",)
"""The id of the result of a `send_records`: its records carry their own ids."""


class FrameEncoder:
    """Gives messages their ids and encodes them."""

    __slots__ = ("_compress_over", "_keys", "_names", "_wall_ms")
    room: str | None = None
    """The waiting room into which the frames go."""

    def __init__(self, keys: UniqueKeys, wall_ms: Callable[[], int], compress_over: int | None) -> None:
        """`compress_over`: a body of so many bytes or more is compressed; None disables compression."""
        self._keys = keys
        self._wall_ms = wall_ms
        self._compress_over = compress_over
        self._names: set[str] = set()
        """Names of properties that were examined."""

    def adopt(self, layout: TopicLayout) -> None:
        """Encode for this layout of the messages' topic from the next frame on."""

    def fields(self) -> Mapping[str, object]:
        """Return what the request of a frame says of its waiting room."""
        return {}

    def result(self, place: Place, sends: Sequence[PendingSend], store_ms: Any) -> FrameResult:
        """Return the result of a stored frame. `store_ms`: when it was stored, by the response."""
        return FrameResult(*place)

    def encode(self, sends: Sequence[PendingSend], queue: MessageQueue, now_ms: int) -> tuple[bytes, list[int], Sequence[str]]:
        """Return the records of these sends in their order, without a sequence, the size of each in bytes, and the id of each message
        (UNIQ_KEY). A message that was in a frame before keeps its id."""
        head = sends[0]
        if head.records is not None:
            return head.records.data, head.records.sizes, NO_IDS
        wall_ms = self._wall_ms()
        messages: list[Message] = []
        born_ms: list[int] = []
        repeated = False
        for pending in sends:
            # It was born when it was called, by the present setting of the wall clock.
            born = wall_ms - now_ms + pending.begun_ms
            if pending.count == 1:
                messages.append(pending.messages[0])
                born_ms.append(born)
            else:
                messages += pending.messages
                born_ms += [born] * pending.count
            if pending.message_ids is not None:
                repeated = True
        for message in messages:
            if message.properties and not self._names.issuperset(message.properties):
                self._examine_names(message.properties)
        ids = self._repeated_ids(sends, wall_ms) if repeated else self._keys.next_many(wall_ms, len(messages))
        data, sizes = self._encode(sends, messages, queue, ids, born_ms)
        return data, sizes, ids

    def _encode(
        self, sends: Sequence[PendingSend], messages: list[Message], queue: MessageQueue, ids: Sequence[str], born_ms: list[int]
    ) -> tuple[bytes, list[int]]:
        return encode_messages(messages, queue.queue_id, ids, born_ms, self._compress_over)

    def _examine_names(self, names: Iterable[str]) -> None:
        """Log each name that no condition of a subscription can name: it is sent all the same, as RocketMQ's clients do."""
        for name in names:
            if name not in self._names and len(self._names) < NAMES_MAX:
                self._names.add(name)
                if not can_be_named(name):
                    why = "a name in a condition has letters of ASCII, digits, _ and $, begins with no digit, and is no keyword"
                    log.warning("property.not_for_conditions", name=name, effect="no subscription by SQL92 can select by it", why=why)

    def _repeated_ids(self, sends: Sequence[PendingSend], wall_ms: int) -> list[str]:
        ids: list[str] = []
        for pending in sends:
            ids += self._keys.next_many(wall_ms, pending.count) if pending.message_ids is None else pending.message_ids
        return ids


class RoomEncoder(FrameEncoder):
    """Encodes messages that are to wait. Their frames go into a waiting room, and their queue is where they will be delivered."""

    __slots__ = ("_began",)
    room: str

    def __init__(self, plain: FrameEncoder) -> None:
        """`plain` encodes the other messages of the same producer."""
        self._began = 0
        self._keys = plain._keys
        self._wall_ms = plain._wall_ms
        self._compress_over = plain._compress_over
        self._names = plain._names

    def adopt(self, layout: TopicLayout) -> None:
        self._began = layout.began

    def fields(self) -> Mapping[str, object]:
        return {"room": self.room, "began": self._began}

    def result(self, place: Place, sends: Sequence[PendingSend], store_ms: Any) -> FrameResult:
        return room_result(RoomResult, place)

    def _encode(
        self, sends: Sequence[PendingSend], messages: list[Message], queue: MessageQueue, ids: Sequence[str], born_ms: list[int]
    ) -> tuple[bytes, list[int]]:
        home, room = home_properties(messages[0].topic, queue.queue_id, self._began), self.room.encode()
        heads = [home + pending.waits for pending in sends for _ in range(pending.count)]
        waiting = [RoomMessage(message, room, head) for message, head in zip(messages, heads, strict=True)]
        return encode_messages(waiting, 0, ids, born_ms, self._compress_over)


class TimerEncoder(RoomEncoder):
    """Encodes timers: messages that wait for any delay, or until a time of day."""

    __slots__ = ("_levels_ms",)
    room = TIMER_TOPIC

    def __init__(self, plain: FrameEncoder, levels_ms: Callable[[str], Sequence[int]]) -> None:
        """`levels_ms` returns the table of delay levels of a broker."""
        super().__init__(plain)
        self._levels_ms = levels_ms

    def result(self, place: Place, sends: Sequence[PendingSend], store_ms: Any) -> FrameResult:
        return timer_result(place, sends, store_ms)

    def _encode(
        self, sends: Sequence[PendingSend], messages: list[Message], queue: MessageQueue, ids: Sequence[str], born_ms: list[int]
    ) -> tuple[bytes, list[int]]:
        levels_ms = self._levels_ms(queue.broker_name)
        for pending in sends:
            # For good: another broker may have another table, and what is sent again waits for the same time.
            pending.waits = timer_at(pending.waits, levels_ms)
        return super()._encode(sends, messages, queue, ids, born_ms)


class HalfEncoder(RoomEncoder):
    """Encodes half messages, which wait until their transaction is decided."""

    __slots__ = ("_group",)
    room = HALF_TOPIC

    def __init__(self, plain: FrameEncoder, group: str) -> None:
        """`group`: the producer group that is asked how a transaction has ended."""
        super().__init__(plain)
        self._group = group

    def fields(self) -> Mapping[str, object]:
        return {**super().fields(), "producerGroup": self._group}
