"""SEND_RECORDS and SEND_MESSAGE: the order of the checks, the response to a repetition, refusals."""

from typing import cast

import pytest

from lockstep.broker.classic.connections import ClientConnections
from lockstep.broker.delivery.delayed_delivery import DelayedDelivery
from lockstep.broker.delivery.failed_messages import FailedMessages
from lockstep.broker.delivery.group_topics import GroupTopics
from lockstep.broker.delivery.home_delivery import HomeDelivery
from lockstep.broker.delivery.room_bytes import RoomBytes
from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.journal import Journal
from lockstep.broker.processors import sent_frames
from lockstep.broker.processors.send import SendProcessor
from lockstep.broker.processors.send_message import SendMessageProcessor
from lockstep.broker.processors.sent_frames import SentFrames, WaitingLimits
from lockstep.broker.processors.topic import TopicProcessor
from lockstep.broker.processors.user_quotas import UserQuotas
from lockstep.broker.store import Store
from lockstep.broker.tables.delay_table import DelayTable
from lockstep.broker.tables.send_gate import SendGate
from lockstep.broker.tables.sequence_table import SequenceTable
from lockstep.broker.tables.timer_table import TimerTable
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.broker.tables.transaction_table import TransactionTable
from lockstep.broker.tables.write_holds import WriteHolds
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.delays import LEVELS_MS
from lockstep.protocol.errors import ServiceNotAvailableError
from lockstep.protocol.fields import from_plain
from lockstep.protocol.frame import BODY_BYTES_MAX
from lockstep.protocol.headers.send import SendMessageHeader, SendRecordsHeader, SendRecordsReply, SendReply
from lockstep.protocol.messages.ids import parse_offset_message_id
from lockstep.protocol.messages.properties import decode_properties
from lockstep.protocol.messages.record import RecordView, encode_record, pack_host
from lockstep.protocol.messages.sequence import FrameSequence, seal_frame
from lockstep.protocol.topics.layouts import LayoutTable
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.runtime.requests.dispatch import Dispatcher
from support.broker_fakes import FakeEndpoint, FakeHost, FakeStore, request

PRODUCER = "ab" * 16
TOPIC = "orders"


class Broker:
    """The send path with a store in memory."""

    def __init__(self, *, auto_create: bool = False) -> None:
        self.host = FakeHost()
        self.store = FakeStore()
        self.topics = TopicTable(LayoutTable(), Journal(), "broker-a")
        self.gate, self.holds = SendGate(), WriteHolds()
        creator = TopicProcessor(self.topics, self.holds, self.host.clock, auto_create=auto_create)
        self.sequences = SequenceTable()
        homes = GroupTopics(self.topics)
        store, clock = cast(Store, self.store), self.host.clock
        self.delays = DelayedDelivery(store, DelayTable(Journal()), homes, HomeDelivery(store, homes), LEVELS_MS)
        failed = FailedMessages(store, cast(Coordination, None), self.delays, homes)
        timers, transactions = TimerTable(Journal(), lambda era: 0), TransactionTable(Journal(), lambda era: 0)
        rooms = timers, transactions, WaitingLimits(10, 60_000, 10), RoomBytes(store, "rmq_sys_wheel_timer", timers, lambda: 1 << 40)
        frames = SentFrames(store, self.topics, self.gate, self.holds, clock, UserQuotas(None, clock), *rooms)
        records = SendProcessor(self.sequences, frames)
        connections = ClientConnections(cast(Coordination, None))
        names = {"broker_name": "broker-a", "cluster": "DefaultCluster"}
        messages = SendMessageProcessor(frames, creator, failed, self.host.random, connections, **names)
        self.dispatcher = Dispatcher([records, messages, creator], self.store)
        self.endpoint = FakeEndpoint()
        self.lay_out(1)

    def lay_out(self, counter: int, topic: str = TOPIC) -> TopicLayout:
        return self.topics.create(TopicLayout(topic, LayoutVersion(counter, 7), (LayoutEntry("broker-a", 4, 4, counter),)))

    def send(self, command: Command) -> Command:
        self.dispatcher(command, self.endpoint)  # type: ignore[arg-type]
        (response,) = self.endpoint.take()
        return response

    def stored(self, queue_id: int = 3) -> int:
        return len(self.store.queues.get((TOPIC, queue_id), []))


def records(count: int, body: bytes = b"x", topic: str = TOPIC, queue_id: int = 3) -> list[bytes]:
    return [encode_record(topic.encode(), queue_id, body + b"%d" % i, b"", born_ms=1) for i in range(count)]


class Stream:
    """An idempotent producer that returns its frames, with the running CRC."""

    def __init__(self, *, epoch: int = 1) -> None:
        self.epoch = epoch
        self.next = 0
        self.crc = 0

    def frame(self, count: int, body: bytes = b"x", **header: object) -> Command:
        wanted = FrameSequence(PRODUCER, 0, self.epoch, self.next, count, self.next == 0, 0)
        data, sealed = seal_frame(records(count, body), wanted, self.crc)
        self.next, self.crc = sealed.next, sealed.crc
        return self.command(data, sealed, **header)

    def command(self, data: bytes, s: FrameSequence, **header: object) -> Command:
        known = {"topic": TOPIC, "queue_id": 3, "count": s.count, "producer_id": s.producer_id, "partition": s.partition}
        place = {"producer_epoch": s.epoch, "first_sequence": s.first, "first": s.first_known, "crc": s.crc}
        return request(RequestCode.SEND_RECORDS, SendRecordsHeader(**{**known, **place, **header}), data)  # type: ignore[arg-type]


def reply_of(response: Command) -> SendRecordsReply:
    return from_plain(SendRecordsReply, response.fields)


def plain_frame(count: int = 1, **header: object) -> Command:
    known: dict[str, object] = {"topic": TOPIC, "queue_id": 3, "count": count}
    return request(RequestCode.SEND_RECORDS, SendRecordsHeader(**{**known, **header}), b"".join(records(count)))  # type: ignore[arg-type]


def test_response_has_the_position_of_the_first_record() -> None:
    broker = Broker()
    assert broker.send(plain_frame(2)).code == ResponseCode.SUCCESS
    response = reply_of(broker.send(plain_frame(3)))
    size = sum(map(len, records(2)))
    assert response == SendRecordsReply(2, size, 1_800_000_000_000, "127.0.0.1:10911")
    assert broker.store.born_hosts[-1] == pack_host("10.0.0.7:5000")


def test_response_waits_until_the_log_is_confirmed() -> None:
    broker = Broker()
    broker.store.confirm_now = False
    broker.dispatcher(plain_frame(), broker.endpoint)  # type: ignore[arg-type]
    assert broker.endpoint.sent == []
    broker.store.waiting.pop()()
    assert [one.code for one in broker.endpoint.take()] == [ResponseCode.SUCCESS]


def test_repeated_send_waits_until_the_log_is_confirmed() -> None:
    broker = Broker()
    frame = Stream().frame(1)
    broker.send(frame)
    broker.store.confirm_now = False
    broker.dispatcher(frame, broker.endpoint)  # type: ignore[arg-type]
    assert broker.endpoint.sent == []
    assert len(broker.store.waiting) == 1


@pytest.mark.parametrize("durable", [True, False])
def test_durable_option_overrides_the_flush_mode_for_a_send_and_its_repeat(durable: bool) -> None:
    broker = Broker()
    waiting = broker.store.waiting_synced if durable else broker.store.waiting_written
    frame = Stream().frame(1)
    frame.fields["durable"] = durable
    for count in (1, 2):
        broker.dispatcher(frame, broker.endpoint)  # type: ignore[arg-type]
        assert (broker.endpoint.sent, len(waiting)) == ([], count)
    plain = plain_frame()
    broker.dispatcher(plain, broker.endpoint)  # type: ignore[arg-type]
    assert len(broker.endpoint.take()) == 1, "without the flag the response is sent when the log is confirmed"
    for each in waiting:
        each()
    first, repeat = broker.endpoint.take()
    assert first.fields["queueOffset"] == repeat.fields["queueOffset"]


@pytest.mark.parametrize(
    ("durable", "properties", "waits"),
    [
        (None, "", "confirmed"),
        (None, "WAIT\x01true\x02", "confirmed"),
        (None, "WAIT\x01false\x02", "written"),
        (None, "AWAIT\x01false\x02", "confirmed"),
        (True, "WAIT\x01false\x02", "synced"),
        (False, "", "written"),
    ],
)
def test_single_send_waits_as_its_header_or_rocketmqs_property_specifies(durable: bool | None, properties: str, waits: str) -> None:
    broker = Broker()
    broker.store.confirm_now = False
    store = broker.store
    command = message(properties=properties, durable=durable)
    broker.dispatcher(command, broker.endpoint)  # type: ignore[arg-type]
    waiting = {"written": store.waiting_written, "confirmed": store.waiting, "synced": store.waiting_synced}
    assert {name: len(rows) for name, rows in waiting.items()} == {name: int(name == waits) for name in waiting}


def test_repeated_frame_gets_the_first_response_and_is_stored_once() -> None:
    broker, stream = Broker(), Stream()
    first = stream.frame(2)
    one, two = broker.send(first), broker.send(first)
    assert one.code == ResponseCode.SUCCESS
    assert reply_of(one) == reply_of(two)
    assert broker.stored() == 2


def test_sequence_is_checked_before_layout_topic_stop_and_disk() -> None:
    broker, stream = Broker(), Stream()
    version = {"layout_counter": 1, "layout_writer": 7}
    first = stream.frame(2, **version)
    response = reply_of(broker.send(first))
    broker.lay_out(2)
    broker.gate.closed_because = "the broker is shutting down"
    broker.store.refuse = ServiceNotAvailableError("disk full")
    assert reply_of(broker.send(first)) == response
    assert broker.send(Stream().frame(1, b"other", **version)).code == ResponseCode.DUPLICATE
    broker.topics.create(TopicLayout(TOPIC, LayoutVersion(3, 7), ()))
    assert reply_of(broker.send(first)) == response


def test_stale_layout_response_waits_until_the_newer_layout_is_confirmed() -> None:
    broker = Broker()
    broker.lay_out(2)
    broker.store.confirm_now = False
    broker.dispatcher(Stream().frame(1, layout_counter=1, layout_writer=7), broker.endpoint)  # type: ignore[arg-type]
    assert broker.endpoint.take() == []
    (confirm,) = broker.store.waiting
    confirm()
    assert broker.endpoint.take()[0].code == ResponseCode.LAYOUT_STALE


def test_unconfirmed_responses_are_limited_and_repeats_are_still_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent_frames, "UNCONFIRMED_MAX", 2)
    broker, stream = Broker(), Stream()
    first = stream.frame(1)
    broker.store.confirm_now = False
    for command in (first, plain_frame()):
        broker.dispatcher(command, broker.endpoint)  # type: ignore[arg-type]
    busy = broker.send(plain_frame())
    assert (busy.code, busy.fields) == (ResponseCode.SYSTEM_BUSY, {"retryAfterMs": 200})
    broker.dispatcher(first, broker.endpoint)  # type: ignore[arg-type]
    for confirm in broker.store.waiting:
        confirm()
    assert [response.code for response in broker.endpoint.take()] == [ResponseCode.SUCCESS] * 3
    broker.store.waiting.clear()
    broker.store.confirm_now = True
    assert broker.send(plain_frame()).code == ResponseCode.SUCCESS


def test_new_frame_is_checked_for_layout_then_stop_then_disk() -> None:
    broker, stream = Broker(), Stream()
    broker.lay_out(2)
    broker.gate.closed_because = "the broker is shutting down"
    broker.store.refuse = ServiceNotAvailableError("disk of /x has 1 bytes free")
    keyed, unkeyed = {"layout_counter": 1, "layout_writer": 7}, stream.frame(1)
    stale = broker.send(Stream().frame(1, **keyed))
    assert stale.code == ResponseCode.LAYOUT_STALE
    assert (reply_of(stale).layout_counter, reply_of(stale).layout_writer) == (2, 7)
    stopped = broker.send(unkeyed)
    assert (stopped.code, "shutting down" in str(stopped.remark)) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)
    broker.gate.closed_because = None
    assert broker.send(unkeyed).code == ResponseCode.SERVICE_NOT_AVAILABLE
    broker.store.refuse = None
    assert broker.send(unkeyed).code == ResponseCode.SUCCESS


def test_rejected_frame_does_not_use_its_sequence() -> None:
    broker, stream = Broker(), Stream()
    broker.store.refuse = ServiceNotAvailableError("disk full")
    first = stream.frame(2)
    broker.send(first)
    broker.store.refuse = None
    assert broker.send(first).code == ResponseCode.SUCCESS
    assert broker.stored() == 2


@pytest.mark.parametrize(("counter", "writer", "code"), [(1, 7, 30104), (2, 6, 30104), (2, 7, 0), (2, 8, 0), (3, 0, 0)])
def test_keyed_send_with_an_older_layout_is_rejected(counter: int, writer: int, code: int) -> None:
    broker = Broker()
    broker.lay_out(2)
    assert broker.send(plain_frame(layout_counter=counter, layout_writer=writer)).code == code


def test_frame_for_a_queue_that_was_closed_is_certainly_not_stored() -> None:
    broker, stream = Broker(), Stream()
    closed = (LayoutEntry("broker-a", 0, 4, 1), LayoutEntry("broker-b", 4, 4, 2))
    broker.topics.create(TopicLayout(TOPIC, LayoutVersion(2, 7), closed))
    response = broker.send(stream.frame(2))
    assert (response.code, reply_of(response).layout_counter) == (ResponseCode.LAYOUT_STALE, 2)
    assert broker.stored() == 0


def test_sequence_gap_response_has_the_expected_sequence() -> None:
    broker, stream = Broker(), Stream()
    broker.send(stream.frame(2))
    stream.frame(1)
    response = broker.send(stream.frame(1))
    assert (response.code, reply_of(response).next_sequence) == (ResponseCode.OUT_OF_SEQUENCE, 2)
    assert broker.stored() == 2


def test_repeat_with_other_bytes_is_rejected_as_non_deterministic() -> None:
    broker = Broker()
    broker.send(Stream().frame(2))
    assert broker.send(Stream().frame(2, b"y")).code == ResponseCode.NON_DETERMINISTIC_RETRY


def test_frame_whose_property_differs_from_its_header_is_not_stored() -> None:
    """Recovery reads only the property: a difference would store a frame twice, or cut an intact log."""
    broker, stream = Broker(), Stream()
    broker.send(stream.frame(2))
    good = stream.frame(2)
    differences: list[dict[str, object]] = [
        {"producerEpoch": 2, "firstSequence": 0},
        {"count": 1},
        {"partition": 1, "first": True},
        {"producerId": "cd" * 16, "first": True},
        {"first": True},
        {"crc": 1},
    ]
    for difference in differences:
        bad = Command(good.code, 1, fields={**good.fields, **difference}, body=good.body)
        assert broker.send(bad).code == ResponseCode.MESSAGE_ILLEGAL, difference
    assert broker.stored() == 2
    assert broker.send(good).code == ResponseCode.SUCCESS


def test_frame_with_a_wrong_running_crc_is_not_stored() -> None:
    broker, stream = Broker(), Stream()
    broker.send(stream.frame(1))
    stream.crc ^= 1
    response = broker.send(stream.frame(1))
    assert (response.code, "CRC" in str(response.remark)) == (ResponseCode.MESSAGE_ILLEGAL, True)
    assert broker.stored() == 1


@pytest.mark.parametrize("body", [b"", b"x", b"\0" * 200, b"\xff" * 91])
def test_idempotent_frame_with_an_invalid_record_is_rejected(body: bytes) -> None:
    broker = Broker()
    command = Stream().frame(1)
    command.body = body
    assert broker.send(command).code == ResponseCode.MESSAGE_ILLEGAL


def test_missing_topic_is_rejected_with_the_next_step() -> None:
    broker = Broker()
    response = broker.send(plain_frame(topic="nowhere"))
    assert response.code == ResponseCode.TOPIC_NOT_EXIST
    assert "lockstep topic create nowhere" in str(response.remark)


@pytest.mark.parametrize(("queue_id", "code"), [(-1, 1), (0, 0), (3, 0), (4, 1)])
def test_unknown_queue_is_rejected(queue_id: int, code: int) -> None:
    broker = Broker()
    body = b"".join(records(1, queue_id=max(queue_id, 0)))
    response = broker.send(request(RequestCode.SEND_RECORDS, SendRecordsHeader(TOPIC, queue_id, 1), body))
    assert response.code == code


# ---------------------------------------------------------------------------------------------------------------- SEND_MESSAGE


def message(body: bytes = b"hello", **header: object) -> Command:
    known: dict[str, object] = {"producer_group": "g", "topic": TOPIC, "queue_id": 1, "born_timestamp": 5}
    return request(RequestCode.SEND_MESSAGE, SendMessageHeader(**{**known, **header}), body)  # type: ignore[arg-type]


def test_single_message_is_stored_as_a_record_with_its_message_id() -> None:
    broker = Broker()
    broker.send(message())
    response = from_plain(SendReply, broker.send(message(b"two", properties="TAGS\x01a\x02WAIT\x01true\x02k\x01v", flag=9)).fields)
    assert (response.queue_id, response.queue_offset) == (1, 1)
    (first, _), (second, _) = broker.store.queues[TOPIC, 1]
    view = RecordView(second)
    assert (view.body, view.flag, view.born_ms, view.topic) == (b"two", 9, 5, TOPIC.encode())
    assert decode_properties(view.properties) == {"TAGS": "a", "k": "v"}
    assert parse_offset_message_id(response.msg_id) == ("127.0.0.1:10911", len(first))


def test_broker_chooses_the_queue_for_a_negative_queue_id() -> None:
    broker = Broker()
    assert from_plain(SendReply, broker.send(message(queue_id=-1)).fields).queue_id == 3


@pytest.mark.parametrize(
    ("body", "header", "code", "words"),
    [
        (b"", {}, ResponseCode.MESSAGE_ILLEGAL, "empty"),
        (b"x" * (BODY_BYTES_MAX + 1), {}, ResponseCode.MESSAGE_ILLEGAL, "4194304"),
        (b"x", {"properties": "k\x01" + "v" * 30_719}, ResponseCode.MESSAGE_ILLEGAL, "30721 bytes: at most 30720"),
        (b"x", {"properties": "DELAY\x011\x02k\x01" + "v" * 30_719}, ResponseCode.MESSAGE_ILLEGAL, "30721 bytes: at most 30720"),
        (b"x", {"properties": "UNIQ_KEY\x01" + "v" * 32_768}, ResponseCode.MESSAGE_ILLEGAL, "at most"),
        (b"x", {"properties": "__LS_SEQ\x01x"}, ResponseCode.MESSAGE_ILLEGAL, "__LS_"),
        (b"x", {"topic": "no such topic"}, ResponseCode.SYSTEM_ERROR, "illegal characters"),
        (b"x", {"topic": "t" * 128}, ResponseCode.SYSTEM_ERROR, "127"),
        (b"x", {"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "broker alone"),
        (b"x", {"topic": "LOCKSTEP_SYS_STATE"}, ResponseCode.NO_PERMISSION, "broker alone"),
        (b"x", {"topic": "nowhere"}, ResponseCode.TOPIC_NOT_EXIST, "lockstep topic create"),
        (b"x", {"queue_id": 4}, ResponseCode.SYSTEM_ERROR, "queue 4"),
        (b"x", {"batch": True}, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "30003"),
        (b"x", {"flag": 1 << 40}, ResponseCode.MESSAGE_ILLEGAL, "flag"),
    ],
)
def test_invalid_single_message_is_rejected(body: bytes, header: dict[str, object], code: ResponseCode, words: str) -> None:
    broker = Broker()
    response = broker.send(message(body, **header))
    assert response.code == code
    assert words in str(response.remark)
    assert not broker.store.queues


def test_largest_body_is_accepted() -> None:
    assert Broker().send(message(b"x" * BODY_BYTES_MAX)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(("requested", "made"), [(4, 4), (0, 1), (100, 8)])
def test_first_send_creates_its_topic_with_limited_queues(requested: int, made: int) -> None:
    broker = Broker(auto_create=True)
    assert broker.send(message(topic="fresh", queue_id=0, default_topic_queue_nums=requested)).code == ResponseCode.SUCCESS
    layout = broker.topics.require_layout("fresh")
    assert (layout.read_count("broker-a"), layout.write_count("broker-a")) == (made, made)
