import copy
import dataclasses
import pickle
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from struct import pack_into

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError
from lockstep.protocol.frame import BODY_BYTES_MAX
from lockstep.protocol.message import Message, MessageExt, decode_messages, encode_message
from lockstep.protocol.properties import LS_SEQ, SENT_PROPERTIES_BYTES_MAX, sent_bytes
from lockstep.protocol.record import RecordView, encode_record
from lockstep.protocol.sequence import FrameSequence, add_sequence

APACHE = bytes.fromhex(
    "000000A7DAA320A73610A6860000000300000000000000000000002A000000000012D687000000000000018BCFE568007F0000010000D431"
    "0000018BCFE5687B7F00000100002A9F0000000000000000000000000000000568656C6C6F09546F70696354657374003E54414753015461"
    "6741024B455953016B31206B3202554E49515F4B4559013746303030303031304131423138423441414332313233343536373830304142"
)
UNIQUE = "7F0000010A1B18B4AAC21234567800AB"


def one(data: bytes) -> MessageExt:
    (message,) = decode_messages(data, "broker-a")
    return message


# ----------------------------------------------------------------------------------------------------------------------- Message


def test_a_message_is_what_was_given() -> None:
    message = Message("orders", b"created", tags="a", keys=["k1", "k2"], properties={"tenant": "x"}, flag=-5)
    assert (message.topic, message.body, message.tags, message.keys, message.flag) == ("orders", b"created", "a", ("k1", "k2"), -5)
    assert dict(message.properties) == {"tenant": "x"}
    assert message == Message("orders", b"created", tags="a", keys=("k1", "k2"), properties={"tenant": "x"}, flag=-5)
    assert hash(message) == hash(Message("orders", b"created", tags="a", keys="k1 k2", properties={"tenant": "x"}, flag=-5))
    assert message != Message("orders", b"created")


def test_a_message_cannot_be_changed_and_keeps_nothing_of_the_callers() -> None:
    properties = {"tenant": "x"}
    body = bytearray(b"abc")
    message = Message("orders", body, properties=properties)
    properties["tenant"] = "y"
    body[0] = 0
    assert message.properties["tenant"] == "x"
    assert message.body == b"abc"
    for field in dataclasses.fields(Message):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(message, field.name, "other")
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(message, field.name)
    with pytest.raises(AttributeError):
        message.other = 1  # type: ignore[attr-defined]
    assert not hasattr(message, "__dict__")
    with pytest.raises(TypeError):
        message.properties["tenant"] = "z"  # type: ignore[index]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda message: pickle.loads(pickle.dumps(message))])
def test_a_copy_is_equal_and_as_frozen(again: Callable[[Message], Message]) -> None:
    message = Message("orders", b"created", tags="a", keys="k1 k2", properties={"tenant": "x"}, flag=-5)
    other = again(message)
    assert (other, hash(other), repr(other), type(other)) == (message, hash(message), repr(message), Message)
    assert other.stored_properties == message.stored_properties
    with pytest.raises(dataclasses.FrozenInstanceError):
        other.topic = "other"  # type: ignore[misc]


def test_a_message_equals_messages_only_and_has_no_subclasses() -> None:
    assert Message("t", b"x") != ("t", b"x", None, (), {}, None, 0)
    fields = "tags=None, keys=(), properties=mappingproxy({}), sharding_key='k', flag=0"
    assert repr(Message("t", b"x", sharding_key="k")) == f"Message(topic='t', body=b'x', {fields})"
    with pytest.raises(TypeError, match="subclassed"):
        type("Mine", (Message,), {})


def test_a_message_with_more_properties_is_otherwise_the_same() -> None:
    message = Message("t", b"x", tags="a", keys="k", properties={"b": "1"}, sharding_key="s", flag=7)
    more = {"tags": "a", "keys": "k", "sharding_key": "s", "flag": 7}
    assert message.with_properties({"c": "2"}) == Message("t", b"x", properties={"b": "1", "c": "2"}, **more)  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="reserved"):
        message.with_properties({"TAGS": "b"})


def test_keys_may_be_one_text_with_blanks_between() -> None:
    assert Message("t", b"x", keys="k1  k2 ").keys == ("k1", "k2")
    assert Message("t", b"x", keys="").keys == ()


@pytest.mark.parametrize("body", [b"x", bytes(BODY_BYTES_MAX), memoryview(b"x")])
def test_bodies_of_any_allowed_size(body: bytes) -> None:
    assert len(Message("t", body).body) == len(body)


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"body": b""}, "length is zero"),
        ({"body": bytes(BODY_BYTES_MAX + 1)}, "over max value, MAX: 4194304"),
        ({"body": "text"}, r"body is a str, expected bytes: call .encode\(\)"),
        ({"body": None}, "body is a NoneType"),
        ({"topic": ""}, "topic is blank"),
        ({"topic": "a b"}, "illegal characters"),
        ({"topic": "t" * 128}, "longer than topic max length 127"),
        ({"topic": None}, "topic is a NoneType"),
        ({"topic": ["t"]}, "topic is a list"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "broker's own"),
        ({"topic": "LOCKSTEP_SYS_STATE"}, "broker's own"),
        ({"tags": ""}, "tag is empty"),
        ({"tags": " a"}, "could not be subscribed to"),
        ({"tags": "a||b"}, "could not be subscribed to"),
        ({"tags": "*"}, "could not be subscribed to"),
        ({"tags": "a\x02"}, "0x01 or 0x02"),
        ({"tags": ["a"]}, "tag is a list"),
        ({"keys": ["a b"]}, "holds a blank"),
        ({"keys": [" a"]}, "holds a blank"),
        ({"keys": [""]}, "key is empty"),
        ({"keys": [1]}, "key is a int"),
        ({"keys": ["a\x01"]}, "0x01 or 0x02"),
        ({"properties": {"UNIQ_KEY": "x"}}, "reserved"),
        ({"properties": {"__LS_SEQ": "x"}}, "reserved"),
        ({"properties": {"a": ""}}, "empty"),
        ({"properties": {"a": "x" * (SENT_PROPERTIES_BYTES_MAX - 1)}}, "have 30721 bytes: at most 30720; put large values into the body"),
        ({"properties": {"a": "é" * (SENT_PROPERTIES_BYTES_MAX // 2 - 1), "b": "x"}}, "at most 30720"),
        ({"flag": 1 << 31}, "int32"),
        ({"flag": True}, "int32"),
        ({"flag": "1"}, "int32"),
    ],
)
def test_what_cannot_be_sent_is_refused_when_it_is_made(kwargs: dict[str, object], match: str) -> None:
    arguments: dict[str, object] = {"topic": "orders", "body": b"x", **kwargs}
    with pytest.raises(LocalProtocolError, match=match):
        Message(**arguments)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------------- encode_message


def test_a_message_becomes_apaches_record() -> None:
    message = Message("TopicTest", b"hello", tags="TagA", keys=["k1", "k2"])
    fresh = bytearray(APACHE)
    fresh[20:36] = bytes(16)
    fresh[48:72] = bytes(24)
    assert encode_message(message, 3, UNIQUE, 1700000000000) == fresh


def test_properties_are_in_one_order() -> None:
    message = Message("t", b"x", tags="a", keys="k", properties={"b": "1", "a": "2"}, sharding_key="1001")
    data = encode_message(message, 0, UNIQUE, 0, {"__LS_X": "y"})
    assert RecordView(data).properties == (
        f"__LS_X\x01y\x02b\x011\x02a\x012\x02TAGS\x01a\x02KEYS\x01k\x02__SHARDINGKEY\x011001\x02UNIQ_KEY\x01{UNIQUE}".encode()
    )


@pytest.mark.parametrize("tags", [None, "a"])
@pytest.mark.parametrize(
    ("key", "match"),
    [
        ("", "sharding_key is empty"),
        ("a\x01", "0x01"),
        (5, "is a int"),
        ([], "is a list"),
        ("\ud800", "surrogate"),
        ("s" * 30_720, "bytes: at most"),
    ],
)
def test_a_sharding_key_must_fit_a_property(key: str, match: str, tags: str | None) -> None:
    with pytest.raises(LocalProtocolError, match=match):
        Message("t", b"x", tags=tags, sharding_key=key)


def test_blank_keys_store_nothing_beside_a_sharding_key() -> None:
    assert Message("t", b"x", keys="  ", sharding_key="k").stored_properties == Message("t", b"x", sharding_key="k").stored_properties


def test_a_sharding_key_counts_with_the_properties_and_what_the_sdk_adds_does_not() -> None:
    properties = {"a": "x" * 100}
    room = SENT_PROPERTIES_BYTES_MAX - len("a\x01") - 100 - len("\x02__SHARDINGKEY\x01")
    longest = encode_message(Message("t", b"x", properties=properties, sharding_key="s" * room), 0, UNIQUE, 0, {"DELAY": "18"})
    assert sent_bytes(RecordView(longest).properties) == SENT_PROPERTIES_BYTES_MAX
    stamped = add_sequence(longest, FrameSequence("0" * 32, 0, 0, 0, 1, True, 0))
    assert sent_bytes(RecordView(stamped).properties) == SENT_PROPERTIES_BYTES_MAX
    with pytest.raises(LocalProtocolError, match="sharding key have 30721 bytes: at most 30720"):
        Message("t", b"x", properties=properties, sharding_key="s" * (room + 1))


# -------------------------------------------------------------------------------------------------------------------- MessageExt


def test_apaches_record_is_read() -> None:
    message = one(APACHE)
    assert (message.topic, message.broker_name, message.queue_id, message.queue_offset) == ("TopicTest", "broker-a", 3, 42)
    assert (message.body, message.body_bytes, message.record_bytes) == (b"hello", 5, 167)
    assert (message.tags, message.keys, message.sharding_key, message.flag, message.sys_flag) == ("TagA", ("k1", "k2"), None, 0, 0)
    assert message.properties == {"TAGS": "TagA", "KEYS": "k1 k2", "UNIQ_KEY": UNIQUE}
    assert (message.message_id, message.offset_message_id) == (UNIQUE, "7F00000100002A9F000000000012D687")
    assert (message.born_ms, message.stored_ms, message.reconsume_times) == (1700000000000, 1700000000123, 0)
    assert message.physical_offset == 1234567
    assert message.born_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert message.stored_at == datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)
    assert repr(message) == f"MessageExt(TopicTest@broker-a:3 offset 42, 5 bytes, {UNIQUE})"


def test_without_a_unique_key_the_id_is_the_offsets() -> None:
    data = bytearray(encode_record(b"t", 0, b"x", b"", born_ms=0))
    assert one(bytes(data)).message_id == "0" * 32
    assert one(bytes(data)).tags is None
    assert one(bytes(data)).keys == ()
    assert one(bytes(data)).properties == {}


def test_locksteps_own_properties_are_hidden() -> None:
    message = one(
        add_sequence(encode_message(Message("t", b"x", properties={"a": "1"}), 0, UNIQUE, 0), FrameSequence("0" * 32, 0, 0, 0, 1, True, 0))
    )
    assert message.properties == {"a": "1", "UNIQ_KEY": UNIQUE}
    assert LS_SEQ in message.all_properties


def test_properties_are_a_dict_of_the_callers_own() -> None:
    message = one(APACHE)
    message.properties.clear()
    assert message.tags == "TagA"


def test_nothing_raises_when_it_is_read() -> None:
    data = bytearray(encode_record(b"\xff\xfe", 0, b"x", b"TAGS\x01\xff\x02KEYS\x01a\xff", born_ms=(1 << 63) - 1))
    pack_into(">q", data, 56, -(1 << 63))
    message = one(bytes(data))
    for name in dir(message):
        getattr(message, name)
    assert message.born_at.year == 9999
    assert message.stored_at.year == 1970
    assert message.topic == "\ufffd\ufffd"
    assert message.tags == "\ufffd"
    assert repr(message)


TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=("Cs",)), min_size=1, max_size=10)
WORD = TEXT.filter(lambda text: text.split() == [text])
TAG = WORD.filter(lambda text: text != "*" and "||" not in text)
NAMES = st.from_regex(r"[a-z][a-z0-9 .é]{0,10}", fullmatch=True)
MESSAGES = st.builds(
    Message,
    st.from_regex(r"[a-zA-Z0-9_%|-]{1,20}", fullmatch=True).filter(lambda topic: topic != "TBW102"),
    st.binary(min_size=1, max_size=60),
    tags=st.none() | TAG,
    keys=st.lists(WORD, max_size=3),
    properties=st.dictionaries(NAMES, TEXT, max_size=3),
    sharding_key=st.none() | TEXT,
    flag=st.integers(-(1 << 31), (1 << 31) - 1),
)


@given(st.lists(st.tuples(MESSAGES, st.integers(0, 1 << 20)), max_size=5))
@settings(max_examples=80)
def test_what_was_sent_is_what_is_read(sent: list[tuple[Message, int]]) -> None:
    data = b"".join(encode_message(message, queue_id, UNIQUE, 5) for message, queue_id in sent)
    read = decode_messages(data, "b")
    assert len(read) == len(sent)
    for (message, queue_id), got in zip(sent, read, strict=True):
        assert (got.topic, got.body, got.tags, got.keys) == (message.topic, message.body, message.tags, message.keys)
        assert (got.queue_id, got.sharding_key, got.flag, got.born_ms) == (queue_id, message.sharding_key, message.flag, 5)
        assert message.properties.items() <= got.properties.items()


@pytest.mark.parametrize("cut", range(1, len(APACHE)))
def test_records_cut_anywhere_are_refused(cut: int) -> None:
    with pytest.raises(RemoteProtocolError, match="record at 167"):
        decode_messages(APACHE + APACHE[:cut], "b")


def test_the_decoder_and_the_checked_view_refuse_the_same_records() -> None:
    """But for a topic length above 127 and IPv6 bits, which decode_messages leaves to the broker's check."""
    for position in range(len(APACHE)):
        for bit in range(8):
            flipped = bytearray(APACHE)
            flipped[position] ^= 1 << bit
            try:
                view = RecordView(flipped)
            except RemoteProtocolError:
                view = None
            try:
                (message,) = decode_messages(bytes(flipped), "b")
            except RemoteProtocolError:
                message = None
            if message is None:
                assert view is None, f"byte {position} bit {bit}"
                continue
            if view is None:
                assert position == 39, f"byte {position} bit {bit} went through"
            else:
                assert (message.stored_body, message.queue_offset, message.queue_id) == (view.body, view.queue_offset, view.queue_id)


@pytest.mark.parametrize("broken", [b"\0" * 91, b"\xff" * 200, APACHE + b"x"])
def test_other_bytes_are_no_messages(broken: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="record at"):
        decode_messages(broken, "b")


def test_a_topic_length_byte_beyond_127_is_refused() -> None:
    data = bytearray(encode_record(b"t" * 100, 0, b"x", b"p" * 200, born_ms=0))
    at = 89
    data[at] = 200
    with pytest.raises(RemoteProtocolError):
        decode_messages(bytes(data), "b")


def test_no_bytes_are_no_messages() -> None:
    assert decode_messages(b"", "b") == []


def kept_bytes(look: Callable[[], object]) -> int:
    """Memory that is still held after `look`."""
    tracemalloc.start()
    try:
        look()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def page_of_compressed(count: int, body_bytes: int) -> list[MessageExt]:
    record = encode_message(Message("t", bytes(body_bytes)), 0, "A" * 32, 1, compress_over=4_096)
    return decode_messages(record * count, "broker-a")


def test_a_page_whose_large_compressed_bodies_have_all_been_looked_at_holds_none_of_them() -> None:
    page = page_of_compressed(50, BODY_BYTES_MAX)
    assert kept_bytes(lambda: [len(message.body) for message in page]) < BODY_BYTES_MAX // 2
    assert page[0].body == bytes(BODY_BYTES_MAX), "and can be looked at again"


@pytest.mark.parametrize(("body_bytes", "kept"), [(64 * 1024 - 1, True), (64 * 1024, False)])
def test_a_decompressed_body_is_kept_below_64_kib(body_bytes: int, kept: bool) -> None:
    (message,) = page_of_compressed(1, body_bytes)
    assert len(message.body) == body_bytes
    assert (message.body is message.body) is kept


def test_a_body_that_is_stored_as_it_is_is_kept() -> None:
    (message,) = decode_messages(encode_message(Message("t", bytes(100_000)), 0, "A" * 32, 1), "broker-a")
    assert message.body is message.body
