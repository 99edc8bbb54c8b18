"""The recorder's part for the records that brokers create: send-backs, dead letters, delayed sends, starts of concurrent groups."""

from lockstep.protocol.bodies import ConsumeFromWhere
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.headers.offsets import ProgressReply, QueryConsumerOffsetHeader
from lockstep.protocol.headers.send import DeadLetterHeader, SendBackHeader, SendMessageHeader, SendReply
from sweep.events import (
    DeadLetterAnswered,
    DeadLetterSent,
    DelayedAnswered,
    DelayedWritten,
    FrameAnswered,
    FrameWritten,
    ProgressAnswered,
    SendBackAnswered,
    SentBack,
)
from sweep.history import QueueKey, Reached
from unit.testing.test_wire_recorder import SESSION, Wire

STORED = QueueKey("", "broker-a", "orders", 1)
SHARED = QueueKey("mailing", "broker-a", "orders", 1)


def sent(properties: str) -> SendMessageHeader:
    return SendMessageHeader("shop", "orders", 1, properties=properties)


def test_a_delayed_send_is_no_frame_of_its_queue() -> None:
    wire = Wire()
    opaque = wire.ask(RequestCode.SEND_MESSAGE, sent("TAGS\x01A\x02DELAY\x013\x02"), b"m0")
    wire.now = 1.5
    wire.answer(opaque, 0, SendReply("id", 1, 17))
    (written,), (answered,) = wire.history.of(DelayedWritten), wire.history.of(DelayedAnswered)
    assert (written.t, written.machine, written.queue, written.body, written.level) == (1.0, "C", STORED, b"m0", 3)
    assert (answered.t, answered.machine, answered.queue, answered.code, answered.request) == (1.5, "B", STORED, 0, written.request)
    assert not wire.history.of(FrameWritten) + wire.history.of(FrameAnswered)


def test_a_plain_send_is_one() -> None:
    wire = Wire()
    wire.answer(wire.ask(RequestCode.SEND_MESSAGE, sent("TAGS\x01DELAY\x02"), b"m0"), 0, SendReply("id", 1, 17))
    assert not wire.history.of(DelayedWritten)
    assert [frame.bodies for frame in wire.history.of(FrameWritten)] == [(b"m0",)]


def test_a_send_back_names_a_place_of_the_log_and_its_answer_the_request() -> None:
    wire = Wire()
    one = wire.ask(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(4_711, "mailing", -1, max_reconsume_times=2))
    other = wire.ask(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(5_000, "mailing"))
    wire.answer(other, ResponseCode.SYSTEM_ERROR)
    wire.answer(one)
    first, second = wire.history.of(SentBack)
    assert (first.group, first.broker, first.position, first.level, first.retries_max) == ("mailing", "broker-a", 4_711, -1, 2)
    assert (second.position, second.level, second.retries_max) == (5_000, 0, None)
    answers = [(answer.request, answer.code, answer.client) for answer in wire.history.of(SendBackAnswered)]
    assert answers == [(second.request, ResponseCode.SYSTEM_ERROR, 9), (first.request, 0, 9)]


def test_a_dead_letter_names_its_queue_epoch_and_offset() -> None:
    wire = Wire()
    wire.answer(wire.ask(RequestCode.DEAD_LETTER, DeadLetterHeader("mailing", "orders", 1, 5, 8, attempts=3, advance=False)))
    (asked,), (answered,) = wire.history.of(DeadLetterSent), wire.history.of(DeadLetterAnswered)
    assert (asked.queue, asked.epoch, asked.offset, asked.attempts, asked.advance) == (SHARED, 5, 8, 3, False)
    assert (answered.queue, answered.epoch, answered.offset, answered.advance, answered.code) == (SHARED, 5, 8, False, 0)
    assert answered.request == asked.request


def test_where_a_concurrent_member_begins_is_heard_and_a_classic_query_is_not() -> None:
    wire = Wire()
    wire.answer(wire.heartbeat("mailing"))
    wire.answer(wire.ask(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader("mailing", "orders", 1)), 0, ProgressReply(4))
    opaque = wire.ask(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader("mailing", "orders", 1, ConsumeFromWhere.FIRST_OFFSET))
    wire.now = 2.0
    wire.answer(opaque, 0, ProgressReply(7, 3))
    (begins,) = wire.history.of(ProgressAnswered)
    assert (begins.t, begins.queue, begins.generation, begins.offset) == (2.0, SHARED, 3, 7)
    assert (begins.session, begins.client, begins.asked_t) == (SESSION, 9, 1.0)


def test_an_answer_that_is_lost_is_told_by_its_name() -> None:
    wire = Wire()
    wire.answer(wire.ask(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(1, "mailing")))
    wire.answer(wire.ask(RequestCode.SEND_MESSAGE, sent("DELAY\x011\x02"), b"m0"), 0, SendReply("id", 1, 17))
    wire.recorder.cut(1)
    names = [event.name for event in wire.history.of(Reached)]
    assert names == ["answer of SEND_MSG_BACK lost", "answer of a delayed send lost"]
