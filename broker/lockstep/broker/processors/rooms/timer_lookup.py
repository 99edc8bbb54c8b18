"""Finds the stored records of messages that wait."""

from lockstep.broker.processors.rooms.room_records import RoomRecords
from lockstep.broker.store import Store
from lockstep.broker.tables.timer_table import TimerTable
from lockstep.protocol.errors import LocalProtocolError, SystemBusyError
from lockstep.protocol.messages.recall import RecallHandle
from lockstep.protocol.names import TIMER_TOPIC

CANDIDATES_MAX = 1_024
"""Records that are read for one handle of RocketMQ's clients, which names no offset."""


class TimerLookup:
    """Finds the records of timers by recall handle and by offset."""

    def __init__(self, store: Store, timers: TimerTable, broker_name: str) -> None:
        self._store = store
        self._timers = timers
        self.records = RoomRecords(store, TIMER_TOPIC)
        self.broker_name = broker_name

    def check_broker(self, handle: RecallHandle) -> None:
        """Raise LocalProtocolError if the handle is of another broker."""
        if handle.broker_name != self.broker_name:
            raise LocalProtocolError(f"the handle is of broker {handle.broker_name}, this is {self.broker_name}")

    def offsets_of(self, handle: RecallHandle) -> set[int]:
        """Return the offsets at which the message of a handle may be. Raise SystemBusyError if there are too many."""
        if handle.offset is not None:
            return {self._timers.carried.find(handle.offset)}
        # RocketMQ's handles name no offset. A timer that was carried is due by the setting of the clock then.
        dues = {handle.due_ms + self._store.stored_ms(era, 0) for era in self._store.eras} | {handle.due_ms}
        offsets = {offset for due_ms in dues for offset in self._timers.offsets_at(due_ms, CANDIDATES_MAX + 1)}
        if len(offsets) > CANDIDATES_MAX:
            raise SystemBusyError(f"more than {CANDIDATES_MAX} messages are due at {handle.due_ms}: use the handle of lockstep's clients")
        return offsets
