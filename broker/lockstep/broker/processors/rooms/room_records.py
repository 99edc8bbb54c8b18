"""Reads the stored records of messages that wait in a room, for requests."""

from lockstep.broker.store import ReadStatus, Store, StoreCorruptError
from lockstep.protocol.errors import BrokerSystemError
from lockstep.protocol.messages.record import INT64, QUEUE_OFFSET_AT
from lockstep.runtime.requests.request import RetryLaterError

UNCONFIRMED_RETRY_MS = 100
"""When a request is repeated that came before its message was confirmed: a send may be answered when it is written."""


class RoomRecords:
    """Finds the records of one room by offset."""

    def __init__(self, store: Store, room: str) -> None:
        self._store = store
        self._room = room

    async def read(self, offset: int) -> bytes:
        """Return the record at this offset, nothing if there is none. Raises OSError, StoreCorruptError and SystemBusyError."""
        result = await self._store.read_or_wait(self._room, 0, offset, 1, 1)
        data = b"".join(result.parts) if result.status is ReadStatus.FOUND else b""
        return data if data and INT64.unpack_from(data, QUEUE_OFFSET_AT)[0] == offset else b""

    async def read_for_change(self, offset: int) -> bytes:
        """Return the same, for a request that ends the wait. Raise RetryLaterError if the message is not confirmed yet, BrokerSystemError
        if its record can't be read."""
        if self._store.bounds(self._room, 0)[1] <= offset < self._store.end_offset(self._room, 0):
            raise RetryLaterError(f"the message at offset {offset} of {self._room} is not confirmed yet", UNCONFIRMED_RETRY_MS)
        try:
            return await self.read(offset)
        except (OSError, StoreCorruptError) as error:
            raise BrokerSystemError(f"the message at offset {offset} of {self._room} can't be read: {error}") from error
