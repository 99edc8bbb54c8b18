"""Counts the bytes that the messages of a waiting room take in the log.

Each of them is stored again before retention removes its file. If they took more than the log may keep, that would never end.
"""

import asyncio
from collections.abc import Callable
from itertools import compress
from struct import Struct
from typing import Generic

from lockstep.broker.delivery.room_carry import RoomTable
from lockstep.broker.delivery.room_copies import W
from lockstep.broker.store import Store
from lockstep.protocol.object_text import text_of
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited

log = get_logger("broker")

MEASURE_S = 60
"""The interval in which the bytes are counted, while they are more than half of the limit."""
READ_COUNT = 4_096
"""The entries of the room's queue that are read at once."""
_SIZE = Struct(">8xi8x")
"""The size of the record in an entry."""


class RoomBytes(Generic[W]):
    """The bytes of one room: those that were counted last, and what was admitted since. So it may be more than there is, and never less."""

    def __init__(self, store: Store, room: str, table: RoomTable[W], limit: Callable[[], int]) -> None:
        """`limit` returns how many bytes the messages may take. It is asked again every minute."""
        self._store = store
        self._room = room
        self._table = table
        self._find_limit = limit
        self.limit = limit()
        """How many they may take."""
        self._measured = 0
        self._since = 0

    @property
    def bytes(self) -> int:
        """Return how many bytes the room's messages take at the most. Those from before a start are counted after it."""
        return self._measured + self._since

    def add(self, size: int) -> None:
        """Count a frame that is about to be stored in the room."""
        self._since += size

    async def run(self) -> None:
        """Count the bytes now, and every minute while they may be many."""
        is_due = True
        while True:
            try:
                if is_due:
                    await self.measure()
            except OSError as error:
                log_limited(log, "error", "waiting.not_counted", room=self._room, error=text_of(error), then="they are counted again")
            await asyncio.sleep(MEASURE_S)
            self.limit = self._find_limit()
            is_due = self.bytes * 2 > self.limit

    async def measure(self) -> None:
        """Count the bytes. Raises OSError."""
        since = self._since
        first, end = self._store.bounds(self._room, 0)[0], self._store.end_offset(self._room, 0)
        marks = bytearray(end - first)
        for part in self._table.below(end):
            for waiting in part:
                if waiting.offset >= first:
                    marks[waiting.offset - first] = 1
            await asyncio.sleep(0)
        total, at = 0, marks.find(1)
        while at >= 0:
            entries = await self._store.queue_entries(self._room, 0, first + at, READ_COUNT)
            count = max(1, len(entries) // _SIZE.size)
            total += sum(size for (size,) in compress(_SIZE.iter_unpack(entries), marks[at : at + count]))
            at = marks.find(1, at + count)
            await asyncio.sleep(0)
        self._measured, self._since = total, self._since - since
