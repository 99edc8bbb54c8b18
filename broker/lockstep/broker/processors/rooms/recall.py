"""RECALL_MESSAGE: takes back a message that still waits. RocketMQ: RecallMessageProcessor."""

from collections.abc import Iterable

from lockstep.broker.processors.query import QUERY_LANE
from lockstep.broker.processors.rooms.timer_lookup import TimerLookup
from lockstep.broker.store import Store
from lockstep.broker.tables.timer_table import TimerTable
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import (
    LocalProtocolError,
    QueryNotFoundError,
    RemoteProtocolError,
    TooLateToRecallError,
)
from lockstep.protocol.headers.send import RecallMessageHeader, RecallMessageReply
from lockstep.protocol.messages.properties import UNIQ_KEY, decode_properties
from lockstep.protocol.messages.recall import RecallHandle
from lockstep.protocol.messages.record import RecordView
from lockstep.protocol.messages.rooms import CARRIED, due_of_code, read_timer
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import PUB, on_topic
from lockstep.runtime.requests.request import HandlerResult, PendingResponse, Request


class RecallProcessor:
    """Recalls timers. A message whose recall was answered is never delivered: the answer waits until the disk has it."""

    def __init__(self, store: Store, timers: TimerTable, broker_name: str) -> None:
        self._store = store
        self._timers = timers
        self._lookup = TimerLookup(store, timers, broker_name)

    @handles(RequestCode.RECALL_MESSAGE, RecallMessageHeader, needs=[on_topic(PUB)], lane=QUERY_LANE, classic=True)
    async def recall(self, request: Request) -> HandlerResult:
        """Recall the message of a handle. The record that the handle leads to has to agree with all of it: a handle is plain text, and a
        user of one topic may not recall the messages of another."""
        header: RecallMessageHeader = request.header
        handle = self._handle(header)
        tried, recalled = set[int](), None
        while not recalled and (new := self._lookup.offsets_of(handle) - tried):  # it may be stored again while it is read
            tried |= new
            found = await self._recall(new, handle)
            recalled = recalled if found is None else found
        if recalled:
            return PendingResponse(request.reply(RecallMessageReply(handle.message_id)), "synced")
        if recalled is not None:
            raise TooLateToRecallError(f"message {handle.message_id} does not wait any more: it was delivered, or its topic was deleted")
        raise QueryNotFoundError(f"no message {handle.message_id} of topic {header.topic} waits here until {handle.due_ms}")

    async def _recall(self, offsets: Iterable[int], handle: RecallHandle) -> bool | None:
        """Recall the message of a handle, if it is at one of these offsets.

        Return False if it does not wait any more, None if it is at none of them.
        """
        found = None
        for offset, record in await self._records(offsets):
            timer = read_timer(record.properties)
            if timer is None or timer.topic != handle.topic.encode() or not is_named(record, handle.message_id):
                continue
            code = timer.code(record.store_ms)
            if not code & CARRIED and due_of_code(code) != handle.due_ms:
                continue
            # No await from here to the change.
            if self._timers.was_recalled(offset, code) or self._timers.holds(offset, code):
                self._timers.recall(offset, code)
                return True
            found = False
        return found

    def _handle(self, header: RecallMessageHeader) -> RecallHandle:
        handle = RecallHandle.decode(header.recall_handle)
        if handle.topic != header.topic:
            raise LocalProtocolError(f"the handle is of topic {handle.topic}, the request of topic {header.topic}")
        self._lookup.check_broker(handle)
        return handle

    async def _records(self, offsets: Iterable[int]) -> list[tuple[int, RecordView]]:
        read = self._lookup.records.read_for_change
        return [(offset, RecordView(data)) for offset in offsets if (data := await read(offset))]


def is_named(record: RecordView, message_id: str) -> bool:
    """Return whether the record has this UNIQ_KEY."""
    try:
        return decode_properties(record.properties).get(UNIQ_KEY) == message_id
    except RemoteProtocolError:
        return False
