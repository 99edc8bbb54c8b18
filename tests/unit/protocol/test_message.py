import copy
import dataclasses
import pickle
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from struct import pack_into

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError
from lockstep.protocol.frame import BODY_BYTES_MAX
from lockstep.protocol.messages.message import Message, MessageExt, decode_messages, encode_message
from lockstep.protocol.messages.properties import LS_SEQ, SENT_PROPERTIES_BYTES_MAX, sent_bytes
from lockstep.protocol.messages.record import RecordView, encode_record
from lockstep.protocol.messages.sequence import FrameSequence, add_sequence

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


def test_message_has_the_given_values() -> None:
    message = Message("orders", b"created", tags="a", keys=["k1", "k2"], properties={"tenant": "x"}, flag=-5)
    assert (message.topic, message.body, message.tags, message.keys, message.flag) == ("orders", b"created", "a", ("k1", "k2"), -5)
    assert dict(message.properties) == {"tenant": "x"}
    assert message == Message("orders", b"created", tags="a", keys=("k1", "k2"), properties={"tenant": "x"}, flag=-5)
    assert hash(message) == hash(Message("orders", b"created", tags="a", keys="k1 k2", properties={"tenant": "x"}, flag=-5))
    assert message != Message("orders", b"created")


def test_message_is_immutable_and_copies_its_arguments() -> None:
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
def test_copy_of_a_message_is_equal_and_immutable(again: Callable[[Message], Message]) -> None:
    message = Message("orders", b"created", tags="a", keys="k1 k2", properties={"tenant": "x"}, flag=-5)
    other = again(message)
    assert (other, hash(other), repr(other), type(other)) == (message, hash(message), repr(message), Message)
    assert other.stored_properties == message.stored_properties
    with pytest.raises(dataclasses.FrozenInstanceError):
        other.topic = "other"  # type: ignore[misc]


def test_message_equals_only_messages_and_can_not_be_subclassed() -> None:
    assert Message("t", b"x") != ("t", b"x", None, (), {}, None, 0)
    fields = "tags=None, keys=(), properties=mappingproxy({}), sharding_key='k', flag=0"
    assert repr(Message("t", b"x", sharding_key="k")) == f"Message(topic='t', body=b'x', {fields})"
    with pytest.raises(TypeError, match="subclassed"):
        type("Mine", (Message,), {})


def test_with_properties_adds_properties_only() -> None:
    message = Message("t", b"x", tags="a", keys="k", properties={"b": "1"}, sharding_key="s", flag=7)
    more = {"tags": "a", "keys": "k", "sharding_key": "s", "flag": 7}
    assert message.with_properties({"c": "2"}) == Message("t", b"x", properties={"b": "1", "c": "2"}, **more)  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="reserved"):
        message.with_properties({"TAGS": "b"})


def test_keys_may_be_a_space_separated_string() -> None:
    assert Message("t", b"x", keys="k1  k2 ").keys == ("k1", "k2")
    assert Message("t", b"x", keys="").keys == ()


@pytest.mark.parametrize("body", [b"x", bytes(BODY_BYTES_MAX), memoryview(b"x")])
def test_bodies_of_allowed_sizes_are_accepted(body: bytes) -> None:
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
def test_invalid_message_is_rejected_by_its_constructor(kwargs: dict[str, object], match: str) -> None:
    arguments: dict[str, object] = {"topic": "orders", "body": b"x", **kwargs}
    with pytest.raises(LocalProtocolError, match=match):
        Message(**arguments)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------------- encode_message


def test_encoded_message_equals_rocketmqs_record() -> None:
    message = Message("TopicTest", b"hello", tags="TagA", keys=["k1", "k2"])
    fresh = bytearray(APACHE)
    fresh[20:36] = bytes(16)
    fresh[48:72] = bytes(24)
    assert encode_message(message, 3, UNIQUE, 1700000000000) == fresh


def test_properties_have_a_fixed_order() -> None:
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
def test_invalid_sharding_key_is_rejected(key: str, match: str, tags: str | None) -> None:
    with pytest.raises(LocalProtocolError, match=match):
        Message("t", b"x", tags=tags, sharding_key=key)


def test_blank_keys_are_not_stored() -> None:
    assert Message("t", b"x", keys="  ", sharding_key="k").stored_properties == Message("t", b"x", sharding_key="k").stored_properties


def test_sharding_key_of_a_subclass_of_str_is_kept_as_a_str() -> None:
    """Its own methods, such as those of an enum, decide neither the queue nor what is stored."""

    class Key(str):
        __slots__ = ()

        def __hash__(self) -> int:
            raise RuntimeError("no hash")

        def encode(self, *_: str) -> bytes:
            return b"another"

    class Level(StrEnum):
        LOW = "low"

    for kind, key in ((Key("1001"), "1001"), (Level.LOW, "low")):
        message = Message("t", b"x", sharding_key=kind)
        assert type(message.sharding_key) is str
        assert message.stored_properties == Message("t", b"x", sharding_key=key).stored_properties


def test_sharding_key_counts_toward_the_property_limit_and_properties_of_the_sdk_do_not() -> None:
    properties = {"a": "x" * 100}
    room = SENT_PROPERTIES_BYTES_MAX - len("a\x01") - 100 - len("\x02__SHARDINGKEY\x01")
    longest = encode_message(Message("t", b"x", properties=properties, sharding_key="s" * room), 0, UNIQUE, 0, {"DELAY": "18"})
    assert sent_bytes(RecordView(longest).properties) == SENT_PROPERTIES_BYTES_MAX
    stamped = add_sequence(longest, FrameSequence("0" * 32, 0, 0, 0, 1, True, 0))
    assert sent_bytes(RecordView(stamped).properties) == SENT_PROPERTIES_BYTES_MAX
    with pytest.raises(LocalProtocolError, match="sharding key have 30721 bytes: at most 30720"):
        Message("t", b"x", properties=properties, sharding_key="s" * (room + 1))


# -------------------------------------------------------------------------------------------------------------------- MessageExt


def test_rocketmqs_record_is_decoded() -> None:
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


def test_message_id_without_a_unique_key_is_the_offset_message_id() -> None:
    data = bytearray(encode_record(b"t", 0, b"x", b"", born_ms=0))
    assert one(bytes(data)).message_id == "0" * 32
    assert one(bytes(data)).tags is None
    assert one(bytes(data)).keys == ()
    assert one(bytes(data)).properties == {}


def test_internal_properties_are_hidden() -> None:
    message = one(
        add_sequence(encode_message(Message("t", b"x", properties={"a": "1"}), 0, UNIQUE, 0), FrameSequence("0" * 32, 0, 0, 0, 1, True, 0))
    )
    assert message.properties == {"a": "1", "UNIQ_KEY": UNIQUE}
    assert LS_SEQ in message.all_properties


def test_properties_are_returned_as_a_copy() -> None:
    message = one(APACHE)
    message.properties.clear()
    assert message.tags == "TagA"


def test_attributes_of_a_message_with_invalid_text_or_times_do_not_raise() -> None:
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
def test_messages_round_trip(sent: list[tuple[Message, int]]) -> None:
    data = b"".join(encode_message(message, queue_id, UNIQUE, 5) for message, queue_id in sent)
    read = decode_messages(data, "b")
    assert len(read) == len(sent)
    for (message, queue_id), got in zip(sent, read, strict=True):
        assert (got.topic, got.body, got.tags, got.keys) == (message.topic, message.body, message.tags, message.keys)
        assert (got.queue_id, got.sharding_key, got.flag, got.born_ms) == (queue_id, message.sharding_key, message.flag, 5)
        assert message.properties.items() <= got.properties.items()


@pytest.mark.parametrize("cut", range(1, len(APACHE)))
def test_truncated_records_are_rejected(cut: int) -> None:
    with pytest.raises(RemoteProtocolError, match="record at 167"):
        decode_messages(APACHE + APACHE[:cut], "b")


def test_decode_messages_and_record_view_reject_the_same_records() -> None:
    """Except for a topic length above 127, which only the broker checks."""
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
def test_bytes_that_are_not_records_are_rejected(broken: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="record at"):
        decode_messages(broken, "b")


def test_topic_length_above_127_is_rejected() -> None:
    data = bytearray(encode_record(b"t" * 100, 0, b"x", b"p" * 200, born_ms=0))
    at = 89
    data[at] = 200
    with pytest.raises(RemoteProtocolError):
        decode_messages(bytes(data), "b")


def test_empty_bytes_are_no_messages() -> None:
    assert decode_messages(b"", "b") == []


def kept_bytes(look: Callable[[], object]) -> int:
    """Return the memory (bytes) that is still allocated after `look`."""
    tracemalloc.start()
    try:
        look()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def page_of_compressed(count: int, body_bytes: int) -> list[MessageExt]:
    record = encode_message(Message("t", bytes(body_bytes)), 0, "A" * 32, 1, compress_over=4_096)
    return decode_messages(record * count, "broker-a")


def test_large_decompressed_bodies_are_not_kept_in_memory() -> None:
    page = page_of_compressed(50, BODY_BYTES_MAX)
    assert kept_bytes(lambda: [len(message.body) for message in page]) < BODY_BYTES_MAX // 2
    assert page[0].body == bytes(BODY_BYTES_MAX), "and can be looked at again"


@pytest.mark.parametrize(("body_bytes", "kept"), [(64 * 1024 - 1, True), (64 * 1024, False)])
def test_decompressed_body_is_cached_below_64_kib(body_bytes: int, kept: bool) -> None:
    (message,) = page_of_compressed(1, body_bytes)
    assert len(message.body) == body_bytes
    assert (message.body is message.body) is kept


def test_uncompressed_body_is_cached() -> None:
    (message,) = decode_messages(encode_message(Message("t", bytes(100_000)), 0, "A" * 32, 1), "broker-a")
    assert message.body is message.body
