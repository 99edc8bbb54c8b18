"""The kernels of the client: for any input they decline, or give what the Python form gives; and they do not decline good input."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.messages import message
from lockstep.protocol.messages.ids import KeyRange, UniqueKeys
from lockstep.protocol.messages.message import Message, MessageExt, decode_messages, encode_message, encode_messages
from lockstep.protocol.messages.properties import SENT_PROPERTIES_BYTES_MAX
from lockstep.protocol.messages.record import PROPERTIES_BYTES_MAX, encode_record
from lockstep.protocol.native import kernels
from support.kernels import Counting, mutations, needs_kernels, outcome, pure

pytestmark = needs_kernels

BORN_MS = 1_764_000_000_000
KEY = "0123456789ABCDEF0123456789ABCDEF"

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=12)
tags = texts.filter(lambda tag: tag == tag.strip() and "||" not in tag and tag != "*")
names = texts.map(lambda text: f"x{text}")
messages = st.builds(
    Message,
    st.sampled_from(["orders", "a", "t" * 127]),
    st.binary(min_size=1, max_size=300),
    tags=st.none() | tags,
    properties=st.dictionaries(names, texts, max_size=3),
    sharding_key=st.none() | texts,
    flag=st.integers(-(1 << 31), (1 << 31) - 1),
)
queue_ids = st.integers(0, (1 << 31) - 1)
numbers = st.integers(-(1 << 70), 1 << 70) | st.sampled_from([0, -1, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, 1 << 63])


@given(messages, queue_ids, texts, st.integers(-(1 << 63), (1 << 63) - 1))
def test_record_of_a_good_message_is_that_of_python(each: Message, queue_id: int, key: str, born_ms: int) -> None:
    native = kernels.encode_message(each.stored_topic, queue_id, each.body, each.stored_properties, key, each.flag, born_ms)
    with pure(message):
        assert native == encode_message(each, queue_id, key, born_ms)


@given(numbers, numbers, numbers, st.binary(max_size=130), st.binary(max_size=5))
def test_numbers_and_lengths_that_do_not_fit_give_the_errors_of_python(
    queue_id: int, flag: int, born_ms: int, topic: bytes, body: bytes
) -> None:
    native = kernels.encode_message(topic, queue_id, body, b"", KEY, flag, born_ms)
    python = outcome(lambda: encode_record(topic, queue_id, body, b"UNIQ_KEY\x01" + KEY.encode(), flag=flag, born_ms=born_ms))
    assert native == (python if isinstance(python, bytes) else None)


@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize(
    ("topic", "queue_id", "flag", "born_ms", "property_bytes"),
    [
        (127, 0, 0, 0, 0),
        (5, (1 << 31) - 1, 0, 0, 0),
        (5, -(1 << 31), 0, 0, 0),
        (5, 0, (1 << 31) - 1, 0, 0),
        (5, 0, -(1 << 31), 0, 0),
        (5, 0, 0, (1 << 63) - 1, 0),
        (5, 0, 0, -(1 << 63), 0),
        (5, 0, 0, 0, PROPERTIES_BYTES_MAX - len(KEY) - 10),
    ],
)
def test_limits_of_a_record_are_those_of_python(topic: int, queue_id: int, flag: int, born_ms: int, property_bytes: int, more: int) -> None:
    arguments: dict[str, Any] = {"queue_id": queue_id, "flag": flag, "born_ms": born_ms}
    arguments = {name: value + (more if value else 0) for name, value in arguments.items()}
    stored_topic = b"t" * (topic + (more if topic > 5 else 0))
    properties = b"p" * (property_bytes + more if property_bytes else 0)
    native = kernels.encode_message(stored_topic, arguments["queue_id"], b"body", properties, KEY, arguments["flag"], arguments["born_ms"])
    stored = properties + (b"\x02" if properties else b"") + b"UNIQ_KEY\x01" + KEY.encode()
    python = outcome(lambda: encode_record(stored_topic, body=b"body", properties=stored, **arguments))
    assert native == (python if isinstance(python, bytes) else None)


@given(st.lists(messages, max_size=5), queue_ids, st.none() | st.integers(1, 400), st.integers(0, 0xFFFA))
def test_records_of_a_batch_are_those_of_its_messages(batch: list[Message], queue_id: int, compress_over: int | None, first: int) -> None:
    keys = KeyRange("0" * 28, range(first, first + len(batch)))
    born_ms = [BORN_MS + place for place in range(len(batch))]
    native = encode_messages(batch, queue_id, keys, born_ms, compress_over)
    with pure(message):
        assert native == encode_messages(batch, queue_id, keys, born_ms, compress_over)
    body_bytes_max = 400 if compress_over is None else compress_over - 1
    declined = kernels.encode_messages(batch, queue_id, "0" * 28, first, len(batch), born_ms, body_bytes_max) is None
    assert declined == any(compress_over is not None and len(each.body) >= compress_over for each in batch)


def test_batch_with_other_objects_is_declined() -> None:
    good = Message("orders", b"a")
    others: list[Any] = [None, object(), "orders", 7, MessageExt()]
    for other in others:
        assert kernels.encode_messages([good, other], 0, "h", 0, 2, [0, 0], 10) is None
    for born_ms in ([0], [0, 0, 0], [0, None], [0, "0"], [0, 1 << 63]):
        assert kernels.encode_messages([good, good], 0, "h", 0, 2, born_ms, 10) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("first", "count"), [(-1, 1), (0x10000, 1), (0xFFFF, 2), (0, 1), (0, 3), (0, 0)])
def test_keys_outside_of_the_counter_or_of_another_number_are_declined(first: int, count: int) -> None:
    assert kernels.encode_messages([Message("orders", b"a")] * 2, 0, "h", first, count, [0] * count, 10) is None


# ------------------------------------------------------------------------------------------------------------------------ decode


def fields(found: "list[MessageExt]") -> list[tuple[object, ...]]:
    return [(m._data, m._start, m._topic_at, m._properties_at, m._end, m.broker_name, m.queue_offset) for m in found]


def decoded(data: bytes) -> object:
    return outcome(lambda: fields(decode_messages(data, "a")))


def check_decode(data: bytes) -> None:
    """Check that the kernel gives what Python gives if that is good, and otherwise declines."""
    native, direct = decoded(data), kernels.split_records(data)
    with pure(message):
        assert native == decoded(data)
    expected = outcome(lambda: message._split_records(data))
    assert direct == (expected if isinstance(expected, list) else None)


PULL = b"".join(
    encode_message(each, 3, KEY, BORN_MS) for each in (Message("orders", b"hello", tags="A"), Message("t", b"x"), Message("orders", b"yy"))
)


def test_every_changed_byte_of_a_pull_gives_what_python_gives() -> None:
    for data in mutations(PULL):
        check_decode(data)


@given(st.lists(messages, max_size=6), st.data())
def test_pull_is_split_as_by_python(batch: list[Message], data: st.DataObject) -> None:
    whole = encode_messages(batch, 1, [KEY] * len(batch), [BORN_MS] * len(batch))[0]
    assert kernels.split_records(whole) is not None
    check_decode(whole)
    if whole:
        at = data.draw(st.integers(0, len(whole) - 1))
        check_decode(whole[:at] + data.draw(st.binary(max_size=8)) + whole[at + data.draw(st.integers(0, 8)) :])


@given(st.binary(max_size=400))
def test_random_bytes_are_split_as_by_python(data: bytes) -> None:
    check_decode(data)
    check_decode(PULL[:8] + data)


def test_error_text_of_a_bad_pull_is_that_of_python() -> None:
    with pytest.raises(RemoteProtocolError, match="record at 0: magic 00000000, expected DAA320A7"):
        decode_messages(bytes(100), "a")


# ------------------------------------------------------------------------------------------------------------------- no decline


def test_kernels_do_not_decline_what_clients_send_and_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting()
    monkeypatch.setattr(message, "kernels", counting)
    batch = [
        Message("orders", b"a"),
        Message("orders", b"b" * 100_000, tags="red", keys="k1 k2", sharding_key="user-7"),
        Message("注文".encode().hex(), "本文".encode(), properties={"名": "値", "p": "x" * (SENT_PROPERTIES_BYTES_MAX - 100)}, flag=-1),
    ]
    records = [encode_message(each, 3, KEY, BORN_MS) for each in batch]
    data, sizes = encode_messages(batch, 3, UniqueKeys(bytes(10)).next_many(BORN_MS, 3), [BORN_MS] * 3)
    assert sizes == list(map(len, records))
    assert [each.body for each in decode_messages(data, "a")] == [each.body for each in batch]
    assert counting.declined == {"encode_message": 0, "encode_messages": 0, "split_records": 0}
    assert counting.calls == {"encode_message": 3, "encode_messages": 1, "split_records": 1}
