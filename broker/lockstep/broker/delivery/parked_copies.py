"""Copies the waiting messages of parked keys to the dead-letter topic: of keys that are dropped, and before retention removes them.

A copy and the key's progress past it are written in the same turn, so a key that is dropped while the broker crashes has each message there
once, or in rare cases one of them twice.
"""

import asyncio

from lockstep.broker.delivery.failed_messages import FailedMessages
from lockstep.broker.delivery.message_copy import failed_copy
from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.groups.parking import queue_of
from lockstep.broker.groups.tables.park_table import KeyFilter
from lockstep.broker.processors.pull_request import EVERY_MESSAGE, filter_of
from lockstep.broker.store import ReadResult, Store
from lockstep.broker.tables.send_gate import SendGate
from lockstep.protocol.bodies import ParkedKey, ParkState
from lockstep.protocol.errors import BrokerError, LocalProtocolError, StoreError
from lockstep.protocol.messages.record import RecordView, iter_records
from lockstep.protocol.names import dlq_topic
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.waiting import is_set_within

log = get_logger("broker.park")

DROP_CHECK_S = 1.0
"""How often keys that are being dropped are looked at for further messages, until their owner ends the drop."""
COUNT_PER_TURN = 100
BYTES_PER_TURN = 256 << 10


class ParkedCopies:
    def __init__(self, store: Store, coordination: Coordination, failed: FailedMessages, gate: SendGate) -> None:
        self._store = store
        self._coordination = coordination
        self._parks = coordination.state.parks
        self._failed = failed
        self._gate = gate
        self._wake = asyncio.Event()
        self._stopping = False

    def wake(self) -> None:
        """Look at the keys that are being dropped soon."""
        self._wake.set()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()

    async def keep_dropping(self) -> None:
        """Copy the messages of keys that are being dropped, until `stop`."""
        while not self._stopping:
            dropping = [row for row in self._parks if row.state is ParkState.DROPPING]
            for row in dropping:
                await self._try_to_copy(row, None)
            self._wake.clear()
            await is_set_within(self._wake, DROP_CHECK_S if dropping else None)

    async def copy_before(self, position: int) -> None:
        """Copy the waiting messages whose records begin below this position of the log: retention removes them."""
        for row in list(self._parks):
            await self._try_to_copy(row, position)

    async def _try_to_copy(self, row: ParkedKey, position: int | None) -> None:
        try:
            while await self._copy_page(row, position):
                pass
        except (BrokerError, LocalProtocolError, StoreError, OSError) as error:
            place = {"group": row.group, "topic": row.topic, "queue_id": row.queue_id, "key": row.key}
            log_limited(log, "error", "park.copy_failed", **place, error=str(error))

    async def _copy_page(self, known: ParkedKey, position: int | None) -> bool:
        """Copy the next messages of a key. Return whether there may be more."""
        await asyncio.sleep(0)
        queue = queue_of(known)
        row = self._parks.get(queue, known.key)
        if self._stopping or row is None or row.state is ParkState.ENDED or (position is None and row.state is not ParkState.DROPPING):
            return False
        if position is not None and not await self._begins_below(row, position):
            return False
        result = await self._read(row)
        if self._parks.get(queue, row.key) is not row:
            return True
        if result.next_offset <= row.next:
            if position is None:
                self._coordination.parking.end_unpolled_drop(row)
            return False
        self._gate.check()
        for part in result.parts:
            for start, end in iter_records(part):
                record = RecordView(part[start:end])
                if position is not None and record.physical_offset >= position:
                    return False
                row = self._copy(row, record, position)
        self._parks.advance(row, result.next_offset)
        return True

    async def _begins_below(self, row: ParkedKey, position: int) -> bool:
        """Return whether the queue has messages from `next` on whose records begin below this position."""
        first, end = self._store.bounds(row.topic, row.queue_id)
        if (offset := max(row.next, first)) >= end:
            return False
        entry = await self._store.queue_entry(row.topic, row.queue_id, offset)
        return entry is None or entry[0] < position  # None: it is lost, and later ones may not be

    async def _read(self, row: ParkedKey) -> ReadResult:
        """Read the key's next messages that the group's subscription matches. The group has none if its last member has left for long."""
        subscription = self._coordination.membership.subscription(row.group, row.topic)
        wanted = EVERY_MESSAGE if subscription is None else filter_of(subscription.expression_type, subscription.expression)
        wanted = wanted.also(KeyFilter(row.key).keep)
        place, hashes, keep = (row.topic, row.queue_id, row.next), wanted.tag_hashes, wanted.keep
        result = self._store.read(*place, max_count=COUNT_PER_TURN, max_bytes=BYTES_PER_TURN, tag_hashes=hashes, keep=keep)
        if result is None:
            result = await self._store.read_cold(*place, max_count=COUNT_PER_TURN, max_bytes=BYTES_PER_TURN, tag_hashes=hashes, keep=keep)
        return result

    def _copy(self, row: ParkedKey, record: RecordView, position: int | None) -> ParkedKey:
        why = "its key was dropped" if position is None else "retention would have removed it while its key was parked"
        failures = row.attempts if record.queue_offset == row.next else 0
        self._failed.store(row.group, failed_copy(record, dlq_topic(row.group), 0, f"{why}: {row.error}", failures))
        return self._parks.advance(row, record.queue_offset + 1)
