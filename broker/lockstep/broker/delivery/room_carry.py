"""Carries messages of the waiting rooms: before retention removes a file of the log, those that still wait in it are stored again at the
log's end.

RocketMQ stores each timer again that is due after the end of its wheel (TimerMessageStore). Here only the age of the log decides. A file of
which a message can't be carried is not removed: retention waits for it.
"""

import asyncio
from collections.abc import Iterator
from typing import Generic, Protocol

from lockstep.broker.delivery.room_copies import W, carried_record
from lockstep.broker.store import ReadStatus, Store, StoreCorruptError
from lockstep.broker.tables.carried_offsets import CarriedOffsets
from lockstep.protocol.errors import BrokerError, RemoteProtocolError, StoreError
from lockstep.protocol.messages.record import BORN_HOST_AT, STORE_TIMESTAMP_AT
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited

log = get_logger("broker")

TURN_BYTES = 256 << 10
"""The bytes that are carried in one turn of the loop, except that one message always is."""


class RoomTable(Protocol[W]):
    """The messages that wait in one room."""

    carried: CarriedOffsets
    watched: set[int]
    """Offsets of waiting messages, set by who wants to know which of them are removed: those are taken out."""

    def __len__(self) -> int: ...

    def below(self, end: int) -> Iterator[list[W]]:
        """Yield the messages with an offset below `end`, in parts, each at least once. The table may change between them."""
        ...

    def present_ms(self, waiting: W) -> int:
        """Return the time of its due code by the present setting of the clock."""
        ...

    def remove(self, offset: int, code: int) -> None:
        """Remove a message: the log has the copy that ends its wait here."""
        ...


class RoomCarry(Generic[W]):
    """Carries the messages of one room."""

    def __init__(self, store: Store, room: str, table: RoomTable[W]) -> None:
        self._store = store
        self._room = room
        self._table = table
        self.refusal = ""
        """Why the last attempt could not carry all messages; empty if it has."""

    async def carry_before(self, position: int) -> int:
        """Carry the messages whose records begin below this position of the log. Return up to which position files may be removed.

        Then the disk has what was stored again, and the copies of those that were delivered.
        """
        self.refusal = ""
        if len(self._table):
            position = await self._carry_below(position)
        await self._store.sync()
        return position

    async def _carry_below(self, position: int) -> int:
        end = await self._store.first_offset_from(self._room, 0, position)
        self._table.carried.forget_below(self._store.bounds(self._room, 0)[0])
        found: dict[int, W] = {}
        self._table.watched = watched = set[int]()
        for part in self._table.below(end):
            watched.update(each.offset for each in part)
            found.update((each.offset, each) for each in part)
            await asyncio.sleep(0)
        waiting = [found[offset] for offset in sorted(watched)]  # without those whose wait has ended meanwhile
        done = size = 0
        try:
            for each in waiting:
                size += await self._carry(each)
                done += 1
                if size >= TURN_BYTES:
                    size = 0
                    await asyncio.sleep(0)
        except (BrokerError, StoreError, OSError, RemoteProtocolError) as error:
            left, then = len(waiting) - done, "their log files are kept"
            self.refusal = f"{left} messages that wait can't be stored again: {error}"
            log_limited(log, "error", "waiting.not_carried", room=self._room, count=left, error=str(error), then=then)
            entry = await self._store.queue_entry(self._room, 0, waiting[done].offset)
            position = position if entry is None else min(position, entry[0])
        if done:
            why = "retention removes the log files in which they were stored"
            log.info("waiting.carried", room=self._room, count=done, why=why)
        return position

    async def _carry(self, waiting: W) -> int:
        """Store a message again if it still waits. Return the bytes of its record."""
        result = await self._store.read_or_wait(self._room, 0, waiting.offset, 1, 1)
        if waiting.offset not in self._table.watched:
            return 0  # its wait has ended meanwhile
        if result.status in (ReadStatus.OFFSET_TOO_SMALL, ReadStatus.LOST):
            return 0  # who ends its wait finds and reports that
        data = b"".join(result.parts)
        if result.status is not ReadStatus.FOUND:
            raise StoreCorruptError(f"offset {waiting.offset} of {self._room} can't be read")
        frame, first = carried_record(self._room, data, waiting, self._table.present_ms(waiting))
        born_host = data[BORN_HOST_AT:STORE_TIMESTAMP_AT]
        appended = self._store.append_frame(self._room, 0, frame, 1, born_host=born_host, trusted=True, from_reserve=True)
        self._table.carried.add(first, appended.queue_offset)
        self._table.remove(waiting.offset, waiting.code)
        return len(frame)
