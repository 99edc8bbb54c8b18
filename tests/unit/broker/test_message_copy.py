"""Which properties of a stored message its copies keep, and that there is room for them."""

from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lockstep.broker.delivery.message_copy import MessageCopy, failed_copy
from lockstep.broker.store.log.stored_record import Ended
from lockstep.operations.messages.dead_letters import DeadLetter
from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.messages.message import decode_messages, encode_message
from lockstep.protocol.messages.properties import (
    COPY_GROWTH_BYTES_MAX,
    ORIGIN_LAYOUT,
    ORIGIN_QUEUE,
    REAL_QID,
    REAL_TOPIC,
    REASON,
    REASON_LENGTH_MAX,
    SENT_PROPERTIES_BYTES_MAX,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    WAITED,
    encode_properties,
    sent_bytes,
)
from lockstep.protocol.messages.record import HOSTS, OFFSETS, TOPIC_BYTES_MAX, RecordView, encode_record, pack_host
from lockstep.protocol.messages.rooms import TIMER_MS_MAX, read_timer
from lockstep.protocol.messages.sequence import FrameSequence
from lockstep.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC

SEQUENCE = FrameSequence("ab" * 16, 0, 1, 0, 1, True, 7).encode()


def stored_record(topic: str = "orders", *, times: int = 0, **properties: str) -> RecordView:
    """Return a record as it is in the log."""
    data = bytearray(encode_record(topic.encode(), 3, b"body", encode_properties(properties), flag=9, born_ms=1_000, reconsume_times=times))
    OFFSETS.pack_into(data, 20, 41, 4_096)
    HOSTS.pack_into(data, 48, pack_host("10.0.0.1:5"), 2_000, pack_host("127.0.0.1:10911"))
    return RecordView(bytes(data))


def test_delayed_message_is_delivered_as_it_was_sent() -> None:
    letter = MessageCopy.of(stored_record(TAGS="paid", KEYS="a b"))
    waiting = letter.as_delayed(5, 4, 3)
    assert (waiting.topic, waiting.queue_id) == ("SCHEDULE_TOPIC_XXXX", 4)
    assert (waiting.properties["DELAY"], waiting.properties[ORIGIN_LAYOUT], waiting.origin_topic) == ("5", "3", "orders")
    read = MessageCopy.of(RecordView(waiting.frame()))
    arrived = read.as_delivered()
    assert (arrived.topic, arrived.queue_id, arrived.properties) == ("orders", 3, {"TAGS": "paid", "KEYS": "a b"})
    assert (arrived.body, arrived.flag, arrived.born_ms) == (b"body", 9, 1_000)


def timer_of(record: RecordView) -> tuple[bytes, int, int, bytes, int]:
    """Return the home of a timer, and when it is due."""
    found = read_timer(record.properties)
    assert found is not None
    return found.topic, found.queue_id, found.began, found.name, found.value


@pytest.mark.parametrize("name", [TIMER_DELAY_MS, TIMER_DELIVER_MS])
def test_timer_begins_with_its_home_and_is_delivered_as_it_was_sent(name: str) -> None:
    letter = MessageCopy.of(stored_record(TAGS="paid", KEYS="a b"))
    waiting = letter.as_timer(6, name, 90_000)
    assert (waiting.topic, waiting.queue_id, waiting.origin_topic, waiting.origin_began) == (TIMER_TOPIC, 0, "orders", 6)
    record = RecordView(waiting.frame())
    assert timer_of(record) == (b"orders", 3, 6, name.encode(), 90_000)
    arrived = MessageCopy.of(record).as_delivered()
    assert (arrived.topic, arrived.queue_id, arrived.properties) == ("orders", 3, {"TAGS": "paid", "KEYS": "a b"})
    assert (arrived.body, arrived.flag, arrived.born_ms) == (b"body", 9, 1_000)


def test_home_of_a_timer_is_its_queue_whatever_its_sender_set() -> None:
    given = {REAL_TOPIC: "t" * 200, REAL_QID: "x", TIMER_DELAY_MS: "soon"}
    letter = MessageCopy.of(stored_record(TAGS="paid", **given))
    record = RecordView(letter.as_timer(6, TIMER_DELAY_MS, 90_000).frame())
    assert timer_of(record) == (b"orders", 3, 6, TIMER_DELAY_MS.encode(), 90_000)
    arrived = MessageCopy.of(record).as_delivered()
    assert (arrived.topic, arrived.queue_id, arrived.properties) == ("orders", 3, {"TAGS": "paid"})


@pytest.mark.parametrize(
    ("ended", "value"), [(Ended(SCHEDULE_TOPIC, 17, 41, 0), "17:41"), (Ended(TIMER_TOPIC, 0, 41, 6_800_000_000_001), "t6800000000001:41")]
)
def test_copy_that_ends_a_wait_names_it_first(ended: Ended, value: str) -> None:
    copy = MessageCopy.of(stored_record(TAGS="paid")).ending(ended)
    assert list(copy.properties.items()) == [(WAITED, value), ("TAGS", "paid")]


def test_frame_sequence_is_not_copied() -> None:
    """Recovery would take the copy for the frame of an idempotent producer."""
    copy = failed_copy(stored_record(__LS_SEQ=SEQUENCE, TAGS="paid"), "%RETRY%g", 0)
    assert "__LS_SEQ" not in copy.properties
    assert copy.properties["TAGS"] == "paid"


def test_failed_copy_counts_attempts_and_keeps_its_first_origin() -> None:
    first = failed_copy(stored_record(), "%RETRY%g", 0)
    assert (first.topic, first.reconsume_times, first.properties["RETRY_TOPIC"]) == ("%RETRY%g", 1, "orders")
    assert (first.properties[ORIGIN_QUEUE], first.origin_topic) == ("3", "orders")
    origin = first.properties["ORIGIN_MESSAGE_ID"]
    again = failed_copy(RecordView(first.as_delayed(3, 2, 1).as_delivered().frame()), "%DLQ%g", 0, "gave\x01up\n" + "x" * 999)
    assert (again.reconsume_times, again.properties["RETRY_TOPIC"], again.properties["ORIGIN_MESSAGE_ID"]) == (2, "orders", origin)
    assert (again.properties[ORIGIN_QUEUE], again.origin_topic) == ("3", "orders")
    assert again.properties[REASON].startswith("gave up x")
    assert len(again.properties[REASON]) <= REASON_LENGTH_MAX


GIVEN = ("UNIQ_KEY", "DELAY", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "REAL_TOPIC", "REAL_QID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES")
"""Properties that a sender may set although copies have them too."""
LONGEST = "t" * TOPIC_BYTES_MAX
COUNTER = (1 << 63) - 1
BROKER = BrokerAddress("broker-a", "c", "127.0.0.1:1", True, 1)


def after_delay(letter: MessageCopy) -> MessageCopy:
    """Return the record after its delay."""
    return MessageCopy.of(RecordView(letter.as_delayed(18, 17, COUNTER).frame())).as_delivered()


def after_timer(letter: MessageCopy) -> MessageCopy:
    """Return the record after the wait of a timer."""
    ended = Ended(TIMER_TOPIC, 0, COUNTER, 10**18 - 1)
    return MessageCopy.of(RecordView(letter.as_timer(COUNTER, TIMER_DELIVER_MS, TIMER_MS_MAX).frame())).as_delivered().ending(ended)


def sent_again(record: bytes) -> MessageCopy:
    """Return the record sent again, as by `dlq replay`."""
    (message,) = decode_messages(record, "broker-a")
    again = DeadLetter(BROKER, message, 0, None, None, None).original_message()
    return MessageCopy.of(RecordView(encode_message(again, 0, "A" * 32, 0)))


STEPS: dict[str, Callable[[bytes], MessageCopy]] = {
    "delayed": lambda record: after_delay(MessageCopy.of(RecordView(record))),
    "timed": lambda record: after_timer(MessageCopy.of(RecordView(record))),
    "sent back": lambda record: after_delay(failed_copy(RecordView(record), LONGEST, 0)),
    "dead": lambda record: failed_copy(RecordView(record), LONGEST, 0, "\U0001f4a3" * 500),
    "given up again": lambda record: MessageCopy.of(RecordView(record)),
    "replayed": sent_again,
}


@settings(max_examples=150)
@given(
    given=st.dictionaries(st.sampled_from(GIVEN), st.sampled_from(["1", "t" * 127, "t" * 200])),
    key=st.booleans(),
    steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=40),
)
@example(given={}, key=False, steps=["sent back"] * 16 + ["dead", "replayed", "delayed"])
@example(given={}, key=True, steps=["dead", "sent back"] * 20)
def test_copies_of_an_accepted_message_always_fit(given: dict[str, str], key: bool, steps: list[str]) -> None:
    """The message's own properties never grow, and a copy adds its properties once, not once for each copy."""
    properties = {"__LS_SEQ": SEQUENCE, **given, **({"__SHARDINGKEY": "k"} if key else {}), "é": "x"}
    properties["é"] += "x" * (SENT_PROPERTIES_BYTES_MAX - sent_bytes(encode_properties(properties)))
    record = encode_record(LONGEST.encode(), (1 << 31) - 1, b"body", encode_properties(properties), born_ms=0)
    sent = sent_bytes(RecordView(record).properties)
    assert sent == SENT_PROPERTIES_BYTES_MAX
    for step in steps:
        copy = STEPS[step](record).frame()
        assert len(copy) <= len(record) + COPY_GROWTH_BYTES_MAX
        assert sent_bytes(RecordView(copy).properties) <= sent
        record = copy
