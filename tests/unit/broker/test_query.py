"""Bounds, search by time, one message by position, and creation of topics by request."""

import asyncio
from typing import Any

import pytest

from lockstep.broker.journal import Journal
from lockstep.broker.processors.query import QUERY_LANE, QueryProcessor
from lockstep.broker.processors.topic import TopicProcessor
from lockstep.broker.store.queues.search import Searched, SearchLimits, Wanted
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.broker.tables.write_holds import WriteHolds
from lockstep.protocol.bodies import CreateTopicReply, OffsetRange, TopicOffsets
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import JSON, Command
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.offsets import (
    QueryMessageHeader,
    QueryMessageReply,
    QueueHeader,
    SearchOffsetHeader,
    TopicHeader,
    ViewMessageHeader,
)
from lockstep.protocol.headers.routes import CreateTopicHeader
from lockstep.protocol.messages.record import encode_record
from lockstep.protocol.names import SCHEDULE_TOPIC, STATE_TOPIC, TIMER_TOPIC
from lockstep.protocol.topics.layouts import LayoutTable
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.runtime.requests.dispatch import Dispatcher
from lockstep.runtime.requests.lanes import LaneLimits
from support.broker_fakes import FakeEndpoint, FakeHost, FakeStore, request
from support.clocks import SetClock

LAYOUT = TopicLayout("t", LayoutVersion(1, 7), (LayoutEntry("broker-a", 2, 2, 1), LayoutEntry("broker-b", 2, 2, 1)))


class SearchableStore(FakeStore):
    records: dict[int, bytes]
    searches: list[Searched]
    """What the next searches return."""
    asked: list[tuple[Wanted, SearchLimits, int | None]]
    confirmed = 1_000

    async def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        await asyncio.sleep(0)
        return timestamp_ms // 10

    async def first_stored_ms(self, topic: str, queue_id: int) -> int | None:
        await asyncio.sleep(0)
        return 1_700 if self.queues.get((topic, queue_id)) else None

    async def record_at(self, physical_offset: int) -> bytes | None:
        await asyncio.sleep(0)
        return self.records.get(physical_offset)

    async def search(self, wanted: Wanted, limits: SearchLimits, cursor: int | None = None) -> Searched:
        await asyncio.sleep(0)
        self.asked.append((wanted, limits, cursor))
        return self.searches.pop(0)

    def now_ms(self) -> int:
        return 1_700


class Broker:
    def __init__(self, *, auto_create: bool = False) -> None:
        self.store = SearchableStore()
        self.store.records = {
            0: encode_record(b"t", 0, b"x", b"", born_ms=1),
            9: encode_record(STATE_TOPIC.encode(), 0, b"x", b"", born_ms=1),
        }
        self.topics = TopicTable(LayoutTable(), Journal(), "broker-a")
        self.topics.create(LAYOUT)
        self.store.append("t", 1, [b"x"] * 3)
        creator = TopicProcessor(self.topics, WriteHolds(), FakeHost().clock, auto_create=auto_create)
        lanes = {QUERY_LANE: LaneLimits(1, 1)}
        self.clock = SetClock()
        self.until_ms = self.clock.now_ms + 3_000
        self.store.asked = []
        self.waiting: set[bytes] = set()
        self.taken_back: set[bytes] = set()
        self.begins: dict[tuple[str, int], int] = {}
        known = self.waiting.__contains__, self.taken_back.__contains__, self.begins_at, self.clock
        query = QueryProcessor(self.store, self.topics, *known)  # type: ignore[arg-type]
        self.dispatcher = Dispatcher([query, creator], None, lanes)
        self.endpoint = FakeEndpoint()

    def begins_at(self, topic: str, queue_id: int) -> int:
        return self.begins.get((topic, queue_id), 0)

    async def send_request(self, code: RequestCode, header: object, body: bytes = b"") -> Command:
        self.dispatcher(request(code, header, body), self.endpoint)  # type: ignore[arg-type]
        for _ in range(8):
            await asyncio.sleep(0)
        (response,) = self.endpoint.take()
        return response

    async def send_classic(self, fields: dict[str, Any], code: RequestCode = RequestCode.QUERY_MESSAGE) -> Command:
        command = Command(code, 7, fields=fields, codec=JSON)
        self.dispatcher(command, self.endpoint)  # type: ignore[arg-type]
        for _ in range(8):
            await asyncio.sleep(0)
        (response,) = self.endpoint.take()
        return response


@pytest.mark.parametrize(
    ("topic", "queue_id", "low", "high"),
    [("t", 1, 0, 3), ("t", 0, 0, 0), ("t", 2, -1, 0), ("t", -1, -1, 0), ("nowhere", 0, -1, 0), (STATE_TOPIC, 0, -1, 0)],
)
async def test_bounds_of_unknown_queues_follow_rocketmq(topic: str, queue_id: int, low: int, high: int) -> None:
    broker = Broker()
    header = QueueHeader(topic, queue_id)
    assert (await broker.send_request(RequestCode.GET_MIN_OFFSET, header)).fields == {"offset": low}
    assert (await broker.send_request(RequestCode.GET_MAX_OFFSET, header)).fields == {"offset": high}


async def test_topic_offsets_returns_the_bounds_of_all_local_queues() -> None:
    broker = Broker()
    response = await broker.send_request(RequestCode.TOPIC_OFFSETS, TopicHeader("t"))
    assert decode_body(TopicOffsets, response.body) == TopicOffsets((OffsetRange(0, 0, 0), OffsetRange(1, 0, 3)))
    assert (await broker.send_request(RequestCode.TOPIC_OFFSETS, TopicHeader("nowhere"))).code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize(("topic", "queue_id", "found"), [("t", 1, 100), ("t", 2, 0), ("nowhere", 0, 0)])
async def test_search_by_time_reads_the_store_for_known_queues_only(topic: str, queue_id: int, found: int) -> None:
    response = await Broker().send_request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader(topic, queue_id, 1_000))
    assert response.fields == {"offset": found}


@pytest.mark.parametrize(
    ("boundary", "timestamp", "found"),
    [("lower", 20, 2), ("LOWER", 20, 2), ("", 20, 2), ("upper", 28, 1), ("UPPER", 29, 2), ("upper", 5, 0)],
)
async def test_search_by_time_has_two_boundaries(boundary: str, timestamp: int, found: int) -> None:
    """The fake has one message each 10 ms: 1 at 10, 2 at 20."""
    response = await Broker().send_request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader("t", 1, timestamp, boundary))
    assert response.fields == {"offset": found}


async def test_unknown_boundary_is_refused_by_name() -> None:
    response = await Broker().send_request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader("t", 1, 1, "middle"))
    assert (response.code, "expected lower or upper" in (response.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


@pytest.mark.parametrize(("topic", "queue_id", "found"), [("t", 1, 1_700), ("t", 0, -1), ("t", 9, -1), ("nowhere", 0, -1)])
async def test_earliest_store_time_is_that_of_the_first_message_or_none(topic: str, queue_id: int, found: int) -> None:
    response = await Broker().send_request(RequestCode.GET_EARLIEST_MSG_STORETIME, QueueHeader(topic, queue_id))
    assert response.fields == {"timestamp": found}


async def test_query_by_key_returns_the_records_and_how_to_go_on() -> None:
    broker = Broker()
    broker.store.searches = [Searched([b"second", b"first"], 700, 300, 700, 64)]
    header = QueryMessageHeader("t", "k", 5, 10, 20, cursor=1_000, scan_bytes_max=8 << 20)
    response = await broker.send_request(RequestCode.QUERY_MESSAGE, header)
    assert from_plain(QueryMessageReply, response.fields) == QueryMessageReply(1_700, 1_000, 700, 300, 700, 64)
    assert (response.code, bytes(response.body)) == (ResponseCode.SUCCESS, b"secondfirst")
    ((wanted, limits, cursor),) = broker.store.asked
    assert (wanted, cursor) == (Wanted(b"k", False, "t", 10, 20), 1_000)
    assert limits == SearchLimits(5, 8 << 20, broker.clock.now_ms + 1_000)


async def test_native_query_that_finds_nothing_says_how_far_it_came() -> None:
    broker = Broker()
    broker.store.searches = [Searched([], None, 300, 0)]
    response = await broker.send_request(RequestCode.QUERY_MESSAGE, QueryMessageHeader(None, "k"))
    assert from_plain(QueryMessageReply, response.fields) == QueryMessageReply(1_700, 1_000, None, 300, 0)
    ((wanted, _, _),) = broker.store.asked
    assert wanted == Wanted(b"k")


@pytest.mark.parametrize("waiting", [None, False, True])
async def test_native_query_finds_messages_that_wait_only_if_it_asks_for_them(waiting: bool | None) -> None:
    broker = Broker()
    broker.waiting.add(b"waits")
    broker.store.searches = [Searched()]
    await broker.send_request(RequestCode.QUERY_MESSAGE, QueryMessageHeader(None, "k", waiting=waiting))
    waits = broker.store.asked[0][0].waits
    assert (waits is not None) is bool(waiting)
    assert waits is None or [waits(b"waits"), waits(b"delivered")] == [True, False]


async def test_classic_query_never_finds_messages_that_wait() -> None:
    broker = Broker()
    broker.store.searches = [Searched([b"record"])]
    await broker.send_classic({**CLASSIC, "waiting": "true"})
    assert broker.store.asked[0][0].waits is None


@pytest.mark.parametrize(("wished", "limit"), [(None, 256 << 20), (1, 4 << 20), (-1, 4 << 20), (1 << 50, 2 << 30)])
async def test_bytes_of_one_request_are_limited(wished: int | None, limit: int) -> None:
    broker = Broker()
    broker.store.searches = [Searched()]
    await broker.send_request(RequestCode.QUERY_MESSAGE, QueryMessageHeader(None, "k", scan_bytes_max=wished))
    assert broker.store.asked[0][1].bytes == limit


@pytest.mark.parametrize(("wished", "limit"), [(-1, 1), (0, 1), (64, 64), (65, 64)])
async def test_messages_of_one_response_are_limited(wished: int, limit: int) -> None:
    broker = Broker()
    broker.store.searches = [Searched()]
    await broker.send_request(RequestCode.QUERY_MESSAGE, QueryMessageHeader(None, "k", max_num=wished))
    assert broker.store.asked[0][1].count == limit


@pytest.mark.parametrize("key", ["", "a\x01b", "a\x02"])
async def test_key_that_no_message_can_have_is_refused(key: str) -> None:
    response = await Broker().send_request(RequestCode.QUERY_MESSAGE, QueryMessageHeader(None, key))
    assert (response.code, (response.remark or "").startswith("key ")) == (ResponseCode.SYSTEM_ERROR, True)


CLASSIC: dict[str, Any] = {"topic": "t", "key": "k", "maxNum": "40", "beginTimestamp": "1000", "endTimestamp": "9999999999999"}


async def test_classic_query_gets_two_fields_and_the_records() -> None:
    broker = Broker()
    broker.store.searches = [Searched([b"record"], 700, 300, 700)]
    response = await broker.send_classic(CLASSIC)
    assert response.fields == {"indexLastUpdateTimestamp": "1700", "indexLastUpdatePhyoffset": "1000"}
    assert (response.code, bytes(response.body)) == (ResponseCode.SUCCESS, b"record")
    assert broker.store.asked == [(Wanted(b"k", False, "t", 1_000, 9_999_999_999_999), SearchLimits(40, 2 << 30, broker.until_ms), None)]


@pytest.mark.parametrize(
    ("cursor", "words"),
    [(None, "no message has this key, in this topic and time"), (5, "in the newest 300 bytes of the broker's log; 700 older")],
)
async def test_classic_query_that_finds_nothing_is_answered_with_what_was_searched(cursor: int | None, words: str) -> None:
    broker = Broker()
    broker.store.searches = [Searched([], cursor, 300, 700)]
    response = await broker.send_classic(CLASSIC)
    assert (response.code, words in (response.remark or "")) == (ResponseCode.QUERY_NOT_FOUND, True)


@pytest.mark.parametrize("found_near", [True, False])
async def test_classic_query_by_unique_key_begins_near_its_time(found_near: bool) -> None:
    broker = Broker()
    broker.store.searches = [Searched([b"record"] if found_near else []), Searched([b"record"])]
    response = await broker.send_classic({**CLASSIC, "_UNIQUE_KEY_QUERY": "true"})
    assert (response.code, bytes(response.body)) == (ResponseCode.SUCCESS, b"record")
    asked = [(wanted.unique, wanted.begin_ms, wanted.end_ms, limits.count) for wanted, limits, _ in broker.store.asked]
    assert asked == [(True, 1_000, 602_000, 32), (True, 1_000, 9_999_999_999_999, 32)][: 1 if found_near else 2]


@pytest.mark.parametrize(("offset", "code"), [(0, ResponseCode.SUCCESS), (1, ResponseCode.SYSTEM_ERROR), (9, ResponseCode.SYSTEM_ERROR)])
async def test_message_is_returned_by_position_and_state_records_are_hidden(offset: int, code: ResponseCode) -> None:
    broker = Broker()
    response = await broker.send_request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset))
    assert response.code == code
    assert response.body == (broker.store.records[0] if code == ResponseCode.SUCCESS else b"")


async def test_message_that_waits_is_returned_by_position_until_it_is_delivered() -> None:
    broker = Broker()
    broker.store.records[20] = encode_record(SCHEDULE_TOPIC.encode(), 2, b"x", b"UNIQ_KEY\x01" + b"A" * 32, born_ms=1)
    broker.waiting.add(broker.store.records[20])
    response = await broker.send_request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(20))
    assert (response.code, response.body) == (ResponseCode.SUCCESS, broker.store.records[20])
    classic = await broker.send_classic({"offset": "20"}, RequestCode.VIEW_MESSAGE_BY_ID)
    assert (classic.code, "no message begins at log offset 20" in (classic.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    broker.waiting.clear()
    response = await broker.send_request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(20))
    assert (response.code, response.body) == (ResponseCode.SYSTEM_ERROR, b"")
    assert (response.remark or "").endswith(f"does not wait any more: find it by the id {'A' * 32}")


async def test_message_that_was_recalled_is_returned_only_to_who_asks_for_it() -> None:
    broker = Broker()
    broker.store.records[20] = encode_record(TIMER_TOPIC.encode(), 0, b"x", b"UNIQ_KEY\x01" + b"A" * 32, born_ms=1)
    broker.store.records[21] = encode_record(TIMER_TOPIC.encode(), 0, b"y", b"", born_ms=1)
    broker.taken_back.add(broker.store.records[20])
    broker.waiting.add(broker.store.records[21])
    for offset, recalled, code in [
        *((20, None, ResponseCode.SYSTEM_ERROR), (20, True, ResponseCode.SUCCESS)),
        *((21, None, ResponseCode.SUCCESS), (21, True, ResponseCode.SYSTEM_ERROR)),
        *((0, None, ResponseCode.SUCCESS), (0, True, ResponseCode.SYSTEM_ERROR)),
    ]:
        response = await broker.send_request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset, recalled))
        assert response.code == code, (offset, recalled)
        assert response.body == (broker.store.records[offset] if code == ResponseCode.SUCCESS else b"")
    response = await broker.send_request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(20))
    assert (response.remark or "").endswith("waited for its delay, and was recalled")


@pytest.mark.parametrize(("waiting", "recalled", "found"), [(None, None, ""), (True, None, "w"), (None, True, "r"), (True, True, "wr")])
async def test_query_finds_what_waits_and_what_was_recalled_as_it_says(waiting: bool | None, recalled: bool | None, found: str) -> None:
    broker = Broker()
    broker.waiting.add(b"w")
    broker.taken_back.add(b"r")
    broker.store.searches = [Searched()]
    header = QueryMessageHeader("t", "k", waiting=waiting, recalled=recalled)
    assert (await broker.send_request(RequestCode.QUERY_MESSAGE, header)).code == ResponseCode.SUCCESS
    ((wanted, _, _),) = broker.store.asked
    assert "".join(each.decode() for each in (b"w", b"r", b"x") if wanted.waits is not None and wanted.waits(each)) == found


async def test_topic_is_created_with_the_requested_layout_and_the_first_one_wins() -> None:
    broker = Broker()
    requested = TopicLayout("u", LayoutVersion(1, 5), LAYOUT.entries)
    response = await broker.send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("u"), encode_body(requested))
    assert decode_body(CreateTopicReply, response.body).layout == requested
    other = TopicLayout("u", LayoutVersion(1, 9), LAYOUT.entries[:1])
    response = await broker.send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("u"), encode_body(other))
    assert decode_body(CreateTopicReply, response.body).layout == requested


async def test_topic_without_a_requested_layout_gets_queues_of_this_broker() -> None:
    broker = Broker()
    response = await broker.send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("u", 3, 3))
    assert decode_body(CreateTopicReply, response.body).layout.entries == (LayoutEntry("broker-a", 3, 3, 1),)


@pytest.mark.parametrize(("auto_create", "code"), [(False, ResponseCode.TOPIC_NOT_EXIST), (True, ResponseCode.SUCCESS)])
async def test_first_send_creates_a_topic_only_if_permitted(auto_create: bool, code: ResponseCode) -> None:
    broker = Broker(auto_create=auto_create)
    body = encode_body(TopicLayout("u", LayoutVersion(1, 5), LAYOUT.entries))
    assert (await broker.send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("u", auto=True), body)).code == code
    known = encode_body(LAYOUT)
    assert (
        await broker.send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("t", auto=True), known)
    ).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(("topic", "body"), [("u", b"\xc1"), ("u", b"\x80"), ("other", encode_body(LAYOUT))])
async def test_invalid_layout_is_rejected(topic: str, body: bytes) -> None:
    response = await Broker().send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader(topic), body)
    assert response.code == ResponseCode.MESSAGE_ILLEGAL
