"""Bounds of queues, offsets by time, and messages by their log offset or key. RocketMQ: AdminBrokerProcessor, QueryMessageProcessor."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from lockstep.broker.store import Store
from lockstep.broker.store.queues.search import PIECE_BYTES, Searched, SearchLimits, Wanted
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.protocol.bodies import OffsetRange, TopicOffsets
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import BrokerSystemError, LocalProtocolError, QueryNotFoundError, RemoteProtocolError
from lockstep.protocol.headers.offsets import (
    MinOffsetReply,
    OffsetReply,
    QueryMessageHeader,
    QueryMessageReply,
    QueueHeader,
    SearchOffsetHeader,
    StoreTimeReply,
    TopicHeader,
    ViewMessageHeader,
)
from lockstep.protocol.messages.properties import REAL_TOPIC, UNIQ_KEY, check_text, decode_properties
from lockstep.protocol.messages.record import RecordView
from lockstep.protocol.names import WAITING_TOPICS, is_sendable_topic
from lockstep.runtime.clock import Clock
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import GET, PUB, SUB, inside, on_topic
from lockstep.runtime.requests.request import HandlerResult, Request
from lockstep.runtime.security.authenticated_user import ANYBODY
from lockstep.runtime.security.rights import Kind

QUERY_LANE = "query"
"""The lane of searches, which may wait for the disk."""
NATIVE_SCAN_BYTES = 256 << 20
NATIVE_MS = 1_000
"""One request of a client of lockstep searches so many bytes of the log at most, and for so long."""
CLASSIC_SCAN_BYTES = 2 << 30
CLASSIC_MS = 3_000
"""One of RocketMQ's clients, which wait for 5 seconds."""
COUNT_DEFAULT = 32
COUNT_MAX = 64
"""Messages of a response. RocketMQ: maxMsgsNumBatch, and defaultQueryMaxNum for a UNIQ_KEY."""
UNIQUE_KEY_WINDOW_MS = 601_000
"""RocketMQ's clients ask for a UNIQ_KEY from a second before its time on. A message is stored soon after it was made."""


class QueryProcessor:
    """Handles reads of the store that do not depend on a group."""

    def __init__(
        self,
        store: Store,
        topics: TopicTable,
        waits: Callable[[bytes], bool],
        recalled: Callable[[bytes], bool],
        added: Callable[[str, int], int],
        clock: Clock,
    ) -> None:
        """`waits` returns whether the message of a record of a delay queue will still be delivered, `recalled` whether it was taken back,
        `added(topic, queue id)` the offset of the first message after the queue was added to the topic."""
        self._store = store
        self._topics = topics
        self._waits = waits
        self._recalled = recalled
        self._added = added
        self._clock = clock

    @handles(RequestCode.GET_MAX_OFFSET, QueueHeader, needs=[on_topic(PUB, SUB, GET)], classic=True)
    def max_offset(self, request: Request) -> HandlerResult:
        """Return the offset after the last visible message. As in RocketMQ, 0 if the queue does not exist."""
        header: QueueHeader = request.header
        return request.reply(OffsetReply(self._store.bounds(header.topic, header.queue_id)[1] if self._has(header) else 0))

    @handles(RequestCode.GET_MIN_OFFSET, QueueHeader, needs=[on_topic(PUB, SUB, GET)], classic=True)
    def min_offset(self, request: Request) -> HandlerResult:
        """Return the first offset that is still stored. As in RocketMQ, −1 if the queue does not exist.

        Lockstep's clients also learn where a broadcasting member begins in a queue that was added after its start (ordering.md 7.2).
        """
        header: QueueHeader = request.header
        if not self._has(header):
            return request.reply(MinOffsetReply(-1))
        added = self._added(header.topic, header.queue_id) if request.is_native else 0
        return request.reply(MinOffsetReply(self._store.bounds(header.topic, header.queue_id)[0], added or None))

    @handles(RequestCode.GET_EARLIEST_MSG_STORETIME, QueueHeader, needs=[on_topic(PUB, SUB, GET)], lane=QUERY_LANE, classic=True)
    async def earliest_store_time(self, request: Request) -> HandlerResult:
        """Return when the first message that is still stored was stored. As in RocketMQ, −1 if there is none."""
        header: QueueHeader = request.header
        stored_ms = await self._store.first_stored_ms(header.topic, header.queue_id) if self._has(header) else None
        return request.reply(StoreTimeReply(-1 if stored_ms is None else stored_ms))

    @handles(RequestCode.TOPIC_OFFSETS, TopicHeader, needs=[on_topic(PUB, SUB, GET)])
    def topic_offsets(self, request: Request) -> HandlerResult:
        header: TopicHeader = request.header
        count = self._topics.own_read_count(self._topics.require_layout(header.topic))
        bounds = [self._store.bounds(header.topic, queue_id) for queue_id in range(count)]
        ranges = tuple(OffsetRange(queue_id, *pair) for queue_id, pair in enumerate(bounds))
        return request.reply(body=encode_body(TopicOffsets(ranges)))

    @handles(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader, needs=[on_topic(PUB, SUB, GET)], lane=QUERY_LANE, classic=True)
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

    @handles(
        RequestCode.QUERY_MESSAGE,
        QueryMessageHeader,
        needs=[inside("Sub or Get topic; without one, those of which the user may")],
        lane=QUERY_LANE,
        classic=True,
    )
    async def query_message(self, request: Request) -> HandlerResult:
        """Return messages with a key or UNIQ_KEY, the newest first. RocketMQ: QueryMessageProcessor.queryMessage.

        The log is searched, since there is no index, so that a search may end before the whole log is searched. Lockstep's clients get a
        cursor then. RocketMQ's are not told, except in the remark if nothing was found. Only lockstep's can ask for messages that wait for
        their delay or retry, or were recalled.
        """
        header: QueryMessageHeader = request.header
        check_text("key", header.key)
        if header.topic:
            request.user.check_topic(header.topic, SUB, GET)
        now_ms, end = self._store.now_ms(), self._store.writer.confirmed
        if request.is_native:
            kinds = [of for of, asked in ((self._waits, header.waiting), (self._recalled, header.recalled)) if asked]
            waits = (lambda data: any(of(data) for of in kinds)) if kinds else None
            scan_bytes = NATIVE_SCAN_BYTES if header.scan_bytes_max is None else header.scan_bytes_max
            found = await self._search(header, min(max(scan_bytes, PIECE_BYTES), CLASSIC_SCAN_BYTES), self._now() + NATIVE_MS, waits)
            unread = found.unread_bytes or None
            reply = QueryMessageReply(now_ms, end, found.cursor, found.scanned_bytes, found.remaining_bytes, unread)
            return request.reply(reply, b"".join(_readable(request, found.records)))
        found = await self._search_as_rocketmq(header)
        if not (records := _readable(request, found.records)):
            raise QueryNotFoundError(_not_found(found))
        return request.reply(QueryMessageReply(now_ms, end), b"".join(records))

    async def _search_as_rocketmq(self, header: QueryMessageHeader) -> Searched:
        """Search for one of RocketMQ's clients: for a UNIQ_KEY at first near the time at which its client says that it was made."""
        until_ms = self._now() + CLASSIC_MS
        if header.unique_key:
            header = replace(header, max_num=COUNT_DEFAULT)
            if header.begin_timestamp > 0:
                near = replace(header, end_timestamp=min(header.end_timestamp, header.begin_timestamp + UNIQUE_KEY_WINDOW_MS))
                found = await self._search(near, CLASSIC_SCAN_BYTES, until_ms)
                if found.records:
                    return found
        return await self._search(header, CLASSIC_SCAN_BYTES, until_ms)

    async def _search(
        self, header: QueryMessageHeader, scan_bytes: int, until_ms: int, waits: Callable[[bytes], bool] | None = None
    ) -> Searched:
        key = header.key.encode()
        wanted = Wanted(key, header.unique_key, header.topic, header.begin_timestamp, header.end_timestamp, waits)
        limits = SearchLimits(min(max(header.max_num, 1), COUNT_MAX), scan_bytes, until_ms)
        return await self._store.search(wanted, limits, header.cursor)

    def _now(self) -> int:
        return self._clock.monotonic_ms()

    @handles(
        RequestCode.VIEW_MESSAGE_BY_ID,
        ViewMessageHeader,
        needs=[inside("Sub or Get the topic of the message")],
        lane=QUERY_LANE,
        classic=True,
    )
    async def view_message(self, request: Request) -> HandlerResult:
        """Return the stored record at a log offset. The broker's own records are not returned.

        Lockstep's clients also get the record of a message that waits for its delay or retry; later they are told how to find it. With
        `recalled` they get only that of one that was recalled.
        """
        header: ViewMessageHeader = request.header
        data = await self._store.record_at(header.offset)
        record = None if data is None else _decoded(data)
        if data is not None and record is not None:
            if is_sendable_topic(record.topic.decode()) and not header.recalled:
                request.user.check_message(_topic_of(record), SUB, GET)
                return request.reply(body=data)
            if request.is_native and record.topic.decode() in WAITING_TOPICS:
                request.user.check_message(_topic_of(record), SUB, GET)
                is_recalled = self._recalled(data)
                if is_recalled if header.recalled else self._waits(data):
                    return request.reply(body=data)
                ended = "was recalled" if is_recalled else f"does not wait any more{_id(record)}"
                raise BrokerSystemError(f"the message at log offset {header.offset} waited for its delay, and {ended}")
        raise BrokerSystemError(f"no message begins at log offset {header.offset}: the id is another broker's, or the message was removed")

    def _has(self, header: QueueHeader | SearchOffsetHeader) -> bool:
        layout = self._topics.find_layout(header.topic)
        return layout is not None and 0 <= header.queue_id < self._topics.own_read_count(layout)


def _not_found(found: Searched) -> str:
    if found.cursor is None:
        return "no message has this key, in this topic and time"
    return (
        f"no message has this key in the newest {found.scanned_bytes} bytes of the broker's log; {found.remaining_bytes} older ones "
        "were not searched: narrow the time, or use `lockstep message find`"
    )


def _is_upper(boundary: str | None) -> bool:
    kind = (boundary or "lower").lower()
    if kind not in ("lower", "upper"):
        raise LocalProtocolError(f"boundaryType {kind[:40]!r}: expected lower or upper")
    return kind == "upper"


def _decoded(data: bytes) -> RecordView | None:
    """Return the record, or None if it is damaged: also one whose topic is no text."""
    try:
        record = RecordView(data)
        record.topic.decode()
    except (RemoteProtocolError, UnicodeDecodeError):
        return None
    return record


def _topic_of(record: RecordView) -> str:
    """Return the topic that the record belongs to: that for which it waits."""
    topic = record.topic.decode()
    if topic not in WAITING_TOPICS:
        return topic
    try:
        return decode_properties(record.properties).get(REAL_TOPIC, "")
    except RemoteProtocolError:
        return ""


def _readable(request: Request, records: Sequence[bytes]) -> Sequence[bytes]:
    """Return the records that the user may read."""
    if request.user is ANYBODY:
        return records
    return [data for data in records if request.user.may((SUB, GET), Kind.TOPIC, _topic_of(RecordView(data)))]


def _id(record: RecordView) -> str:
    """Return how to find the delivered copy of a message that was delayed."""
    try:
        found = decode_properties(record.properties).get(UNIQ_KEY)
    except RemoteProtocolError:
        found = None
    return "" if found is None else f": find it by the id {found}"
