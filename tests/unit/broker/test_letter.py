"""What of a stored message goes with its copies."""

from lockstep.broker.letter import HOME_LAYOUT, ORIGIN_QUEUE, REASON, Letter, failed_copy
from lockstep.protocol.headers.send import REASON_LENGTH_MAX
from lockstep.protocol.properties import encode_properties
from lockstep.protocol.record import HOSTS, PLACE, RecordView, encode_record, pack_host
from lockstep.protocol.sequence import FrameSequence

SEQUENCE = FrameSequence("ab" * 16, 0, 1, 0, 1, True, 7).encode()


def stored(topic: str = "orders", *, times: int = 0, **properties: str) -> RecordView:
    """A record as it lies in the log."""
    data = bytearray(encode_record(topic.encode(), 3, b"body", encode_properties(properties), flag=9, born_ms=1_000, reconsume_times=times))
    PLACE.pack_into(data, 20, 41, 4_096)
    HOSTS.pack_into(data, 48, pack_host("10.0.0.1:5"), 2_000, pack_host("127.0.0.1:10911"))
    return RecordView(bytes(data))


def test_a_delayed_message_arrives_as_it_was_sent() -> None:
    letter = Letter.of(stored(TAGS="paid", KEYS="a b"))
    waiting = letter.waiting(5, 3)
    assert (waiting.topic, waiting.queue_id) == ("SCHEDULE_TOPIC_XXXX", 4)
    assert (waiting.properties["DELAY"], waiting.properties[HOME_LAYOUT], waiting.home) == ("5", "3", "orders")
    read = Letter.of(RecordView(waiting.frame()))
    arrived = read.delivered()
    assert (arrived.topic, arrived.queue_id, arrived.properties) == ("orders", 3, {"TAGS": "paid", "KEYS": "a b"})
    assert (arrived.body, arrived.flag, arrived.born_ms) == (b"body", 9, 1_000)


def test_what_belongs_to_the_first_frame_does_not_go_with_a_copy() -> None:
    """Recovery would take the copy for the frame of an idempotent producer."""
    copy = failed_copy(stored(__LS_SEQ=SEQUENCE, TAGS="paid"), "%RETRY%g", 0)
    assert "__LS_SEQ" not in copy.properties
    assert copy.properties["TAGS"] == "paid"


def test_a_failed_copy_counts_and_names_where_it_came_from_the_first_time() -> None:
    first = failed_copy(stored(), "%RETRY%g", 0)
    assert (first.topic, first.reconsume_times, first.properties["RETRY_TOPIC"]) == ("%RETRY%g", 1, "orders")
    assert (first.properties[ORIGIN_QUEUE], first.home) == ("3", "orders")
    origin = first.properties["ORIGIN_MESSAGE_ID"]
    again = failed_copy(RecordView(first.waiting(3, 1).delivered().frame()), "%DLQ%g", 0, "gave\x01up\n" + "x" * 999)
    assert (again.reconsume_times, again.properties["RETRY_TOPIC"], again.properties["ORIGIN_MESSAGE_ID"]) == (2, "orders", origin)
    assert (again.properties[ORIGIN_QUEUE], again.home) == ("3", "orders")
    assert again.properties[REASON].startswith("gave up x")
    assert len(again.properties[REASON]) <= REASON_LENGTH_MAX
