"""Bounds of queues, offsets by time, and messages by their log offset. RocketMQ: AdminBrokerProcessor, QueryMessageProcessor."""

from lockstep.broker.store import Store
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.protocol.bodies import OffsetRange, TopicOffsets
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import BrokerSystemError, LocalProtocolError, QueryNotFoundError, RemoteProtocolError
from lockstep.protocol.headers.offsets import (
    OffsetReply,
    QueryMessageHeader,
    QueueHeader,
    SearchOffsetHeader,
    StoreTimeReply,
    TopicHeader,
    ViewMessageHeader,
)
from lockstep.protocol.names import is_sendable_topic
from lockstep.protocol.record import RecordView
from lockstep.runtime.dispatch import handles
from lockstep.runtime.request import HandlerResult, Request

QUERY_LANE = "query"
"""The lane of searches, which may wait for the disk."""


class QueryProcessor:
    """Handles reads of the store that do not depend on a group."""

    def __init__(self, store: Store, topics: TopicTable) -> None:
        self._store = store
        self._topics = topics

    @handles(RequestCode.GET_MAX_OFFSET, QueueHeader, classic=True)
    def max_offset(self, request: Request) -> HandlerResult:
        """Return the offset after the last visible message. As in RocketMQ, 0 if the queue does not exist."""
        header: QueueHeader = request.header
        return request.reply(OffsetReply(self._store.bounds(header.topic, header.queue_id)[1] if self._has(header) else 0))

    @handles(RequestCode.GET_MIN_OFFSET, QueueHeader, classic=True)
    def min_offset(self, request: Request) -> HandlerResult:
        """Return the first offset that is still stored. As in RocketMQ, −1 if the queue does not exist."""
        header: QueueHeader = request.header
        return request.reply(OffsetReply(self._store.bounds(header.topic, header.queue_id)[0] if self._has(header) else -1))

    @handles(RequestCode.GET_EARLIEST_MSG_STORETIME, QueueHeader, lane=QUERY_LANE, classic=True)
    async def earliest_store_time(self, request: Request) -> HandlerResult:
        """Return when the first message that is still stored was stored. As in RocketMQ, −1 if there is none."""
        header: QueueHeader = request.header
        stored_ms = await self._store.first_stored_ms(header.topic, header.queue_id) if self._has(header) else None
        return request.reply(StoreTimeReply(-1 if stored_ms is None else stored_ms))

    @handles(RequestCode.TOPIC_OFFSETS, TopicHeader)
    def topic_offsets(self, request: Request) -> HandlerResult:
        header: TopicHeader = request.header
        count = self._topics.own_read_count(self._topics.require_layout(header.topic))
        bounds = [self._store.bounds(header.topic, queue_id) for queue_id in range(count)]
        ranges = tuple(OffsetRange(queue_id, *pair) for queue_id, pair in enumerate(bounds))
        return request.reply(body=encode_body(TopicOffsets(ranges)))

    @handles(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader, lane=QUERY_LANE, classic=True)
    async def search_offset(self, request: Request) -> HandlerResult:
        """Return the offset of the first message stored at or after the time, else the next offset; 0 if the queue does not exist.

        With the upper boundary return that of the last message stored at or before the time, else of the first message.
        """
        header: SearchOffsetHeader = request.header
        upper = _is_upper(header.boundary_type)
        if not self._has(header):
            return request.reply(OffsetReply(0))
        offset = await self._store.offset_by_time(header.topic, header.queue_id, header.timestamp + upper)
        if upper:
            offset = max(offset - 1, self._store.bounds(header.topic, header.queue_id)[0])
        return request.reply(OffsetReply(offset))

    @handles(RequestCode.QUERY_MESSAGE, QueryMessageHeader, classic=True)
    def query_message(self, request: Request) -> HandlerResult:
        header: QueryMessageHeader = request.header
        kind = "UNIQ_KEY" if header.unique_key else "key"
        raise QueryNotFoundError(
            f"messages can't be found by {kind}: the broker has no index of keys. Ask for a message by its offsetMsgId, or pull the topic"
        )

    @handles(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader, lane=QUERY_LANE, classic=True)
    async def view_message(self, request: Request) -> HandlerResult:
        """Return the stored record at a log offset. The broker's own records are not returned."""
        header: ViewMessageHeader = request.header
        record = await self._store.record_at(header.offset)
        if record is None or not _is_users(record):
            raise BrokerSystemError(
                f"no message begins at log offset {header.offset}: the id is another broker's, or retention has removed it"
            )
        return request.reply(body=record)

    def _has(self, header: QueueHeader | SearchOffsetHeader) -> bool:
        layout = self._topics.find_layout(header.topic)
        return layout is not None and 0 <= header.queue_id < self._topics.own_read_count(layout)


def _is_upper(boundary: str | None) -> bool:
    kind = (boundary or "lower").lower()
    if kind not in ("lower", "upper"):
        raise LocalProtocolError(f"boundaryType {kind[:40]!r}: expected lower or upper")
    return kind == "upper"


def _is_users(record: bytes) -> bool:
    try:
        return is_sendable_topic(RecordView(record).topic.decode())
    except (RemoteProtocolError, UnicodeDecodeError):
        return False
