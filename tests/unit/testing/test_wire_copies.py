"""The recorder for send-backs, dead letters, timers and starts of concurrent groups."""

from lockstep.protocol.bodies import ConsumeFromWhere
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.headers.offsets import ProgressReply, QueryConsumerOffsetHeader
from lockstep.protocol.headers.send import (
    DeadLetterHeader,
    RecallMessageHeader,
    SendBackHeader,
    SendMessageHeader,
    SendRecordsHeader,
    SendRecordsReply,
    SendReply,
)
from lockstep.protocol.names import TIMER_TOPIC
from sweep.events import sends
from sweep.events.progress import ProgressResponded
from sweep.history import PlaceReached, QueueKey
from unit.testing.test_wire_recorder import SESSION, Wire, record

STORED = QueueKey("", "broker-a", "orders", 1)
SHARED = QueueKey("mailing", "broker-a", "orders", 1)


def test_send_of_timers_is_recorded_by_its_home_and_not_as_a_frame() -> None:
    wire = Wire()
    home = SendRecordsHeader(
        "orders", 1, 1, producer_id="p" * 32, partition=2, producer_epoch=3, first_sequence=4, room=TIMER_TOPIC, began=7
    )
    wire.response(wire.send_request(RequestCode.SEND_RECORDS, home, record(b"m0")), 0, SendRecordsReply(17, 900, 1_234))
    (written,), (responded,) = wire.history.of(sends.TimersWritten), wire.history.of(sends.TimersResponded)
    assert (written.queue, written.bodies, written.producer, written.sequence, written.began) == (STORED, (b"m0",), "p" * 32, (2, 3, 4), 7)
    assert (responded.queue, responded.code, responded.offset, responded.position, responded.stamp_ms) == (STORED, 0, 17, 900, 1_234)
    assert responded.request == written.request
    assert not wire.history.of(sends.FrameWritten) + wire.history.of(sends.FrameResponded)


def test_response_to_a_recall_is_recorded() -> None:
    wire = Wire()
    wire.response(wire.send_request(RequestCode.RECALL_MESSAGE, RecallMessageHeader("orders", "handle")), ResponseCode.QUERY_NOT_FOUND)
    (responded,) = wire.history.of(sends.RecallResponded)
    assert (responded.machine, responded.broker, responded.client, responded.code) == ("B", "broker-a", 9, ResponseCode.QUERY_NOT_FOUND)


def test_plain_send_is_recorded_as_a_frame() -> None:
    wire = Wire()
    sent = SendMessageHeader("shop", "orders", 1, properties="TAGS\x01A\x02")
    wire.response(wire.send_request(RequestCode.SEND_MESSAGE, sent, b"m0"), 0, SendReply("id", 1, 17))
    assert [frame.bodies for frame in wire.history.of(sends.FrameWritten)] == [(b"m0",)]


def test_send_back_is_recorded_with_its_position_and_its_response_with_the_request() -> None:
    wire = Wire()
    one = wire.send_request(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(4_711, "mailing", -1, max_reconsume_times=2))
    other = wire.send_request(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(5_000, "mailing"))
    wire.response(other, ResponseCode.SYSTEM_ERROR)
    wire.response(one)
    first, second = wire.history.of(sends.SendBackSent)
    assert (first.group, first.broker, first.position, first.level, first.retries_max) == ("mailing", "broker-a", 4_711, -1, 2)
    assert (second.position, second.level, second.retries_max) == (5_000, 0, None)
    responses = [(response.request, response.code, response.client) for response in wire.history.of(sends.SendBackResponded)]
    assert responses == [(second.request, ResponseCode.SYSTEM_ERROR, 9), (first.request, 0, 9)]


def test_dead_letter_is_recorded_with_queue_epoch_and_offset() -> None:
    wire = Wire()
    wire.response(wire.send_request(RequestCode.DEAD_LETTER, DeadLetterHeader("mailing", "orders", 1, 5, 8, attempts=3, advance=False)))
    (requested,), (responded,) = wire.history.of(sends.DeadLetterSent), wire.history.of(sends.DeadLetterResponded)
    assert (requested.queue, requested.epoch, requested.offset, requested.attempts, requested.advance) == (SHARED, 5, 8, 3, False)
    assert (responded.queue, responded.epoch, responded.offset, responded.advance, responded.code) == (SHARED, 5, 8, False, 0)
    assert responded.request == requested.request


def test_start_offset_of_a_concurrent_member_is_recorded_and_a_classic_query_is_not() -> None:
    wire = Wire()
    wire.response(wire.heartbeat("mailing"))
    wire.response(
        wire.send_request(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader("mailing", "orders", 1)), 0, ProgressReply(4)
    )
    opaque = wire.send_request(
        RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader("mailing", "orders", 1, ConsumeFromWhere.FIRST_OFFSET)
    )
    wire.now = 2.0
    wire.response(opaque, 0, ProgressReply(7, 3))
    (begins,) = wire.history.of(ProgressResponded)
    assert (begins.t, begins.queue, begins.generation, begins.offset) == (2.0, SHARED, 3, 7)
    assert (begins.session, begins.client, begins.request_t) == (SESSION, 9, 1.0)


def test_lost_response_is_recorded_by_name() -> None:
    wire = Wire()
    wire.response(wire.send_request(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(1, "mailing")))
    home = SendRecordsHeader("orders", 1, 1, producer_id="p" * 32, room=TIMER_TOPIC, began=7)
    wire.response(wire.send_request(RequestCode.SEND_RECORDS, home, record(b"m0")), 0, SendRecordsReply(17, 900, 1_234))
    wire.recorder.cut(1)
    names = [event.name for event in wire.history.of(PlaceReached)]
    assert names == ["response to SEND_MSG_BACK lost", "response to a send of timers lost"]
