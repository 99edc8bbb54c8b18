"""Stored records become columns; a damaged record is rejected, never skipped."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="needs the extra [spark]")
pytest.importorskip("numpy", reason="needs the extra [spark]")

from lockstep.protocol.errors import RemoteProtocolError  # noqa: E402
from lockstep.protocol.messages.message import Message, decode_messages, encode_message  # noqa: E402
from lockstep.protocol.messages.record import (  # noqa: E402
    INT64,
    QUEUE_OFFSET_AT,
    STORE_TIMESTAMP_AT,
    SYS_BORN_IPV6,
    SYS_IPV6_MASK,
    SYS_STORE_IPV6,
    encode_record,
    split_records,
)
from lockstep.protocol.topics.queue import MessageQueue  # noqa: E402
from lockstep.spark.columns import ARROW_TYPES, Columns  # noqa: E402
from lockstep.spark.options import COLUMN_TYPES, SourceOptions  # noqa: E402
from lockstep.spark.pages import INT64 as LONG  # noqa: E402
from lockstep.spark.pages import PLAIN_BYTES_MAX, QUEUE_OFFSET, RangePage, keys, property_of  # noqa: E402
from support.foreign_store import STORED_MS, ForeignDirectory  # noqa: E402

QUEUE = MessageQueue("t", "broker-a", 3)
EVERY = ",".join(COLUMN_TYPES)


def stored(offset: int, body: bytes, *, key: str | None = None, store_ms: int = 7, **more: object) -> bytes:
    message = Message("t", body, sharding_key=key, **more)  # type: ignore[arg-type]
    record = bytearray(encode_message(message, QUEUE.queue_id, f"{offset:032X}", 5))
    record[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8] = INT64.pack(offset)
    record[STORE_TIMESTAMP_AT : STORE_TIMESTAMP_AT + 8] = INT64.pack(store_ms)
    return bytes(record)


def options(**more: str) -> SourceOptions:
    return SourceOptions.parse({"nameserver": "h:1", "subscribe": "t", **more})


def page_of(data: bytes, end: int, tags: frozenset[str] | None = None) -> RangePage:
    page = RangePage(end, tags)
    page.take(data)
    return page


def rows(data: bytes, end: int = 1 << 40, **more: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for batch in Columns(options(**more), QUEUE, 11).batches(page_of(data, end)):
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


def test_each_column_has_an_arrow_and_a_spark_type() -> None:
    assert ARROW_TYPES.keys() == COLUMN_TYPES.keys()


def test_record_becomes_a_row() -> None:
    data = stored(42, b"body", key="k1", tags="paid", keys=["o-1", "o-2"], properties={"colour": "red"}, store_ms=1_500)
    (row,) = rows(data, columns=EVERY)
    assert row["key"] == b"k1"
    assert row["value"] == b"body"
    assert (row["topic"], row["partition"], row["queueId"], row["brokerName"]) == ("t", 11, 3, "broker-a")
    assert (row["offset"], row["timestampType"], row["reconsumeTimes"]) == (42, 1, 0)
    assert (row["timestamp"].timestamp(), row["bornTimestamp"].timestamp()) == (1.5, 0.005)  # type: ignore[attr-defined]
    assert (row["tags"], row["keys"], row["messageId"]) == ("paid", "o-1 o-2", f"{42:032X}")
    assert row["headers"] == [{"key": "colour", "value": b"red"}]


def test_compressed_value_is_decompressed_and_an_invalid_one_is_reported() -> None:
    body = b"paid " * 2_000
    small = bytearray(encode_message(Message("t", body), QUEUE.queue_id, "A" * 32, 5, compress_over=4_096))
    assert len(small) < 500
    small[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8] = INT64.pack(1)
    data = stored(0, b"first") + bytes(small) + stored(2, b"last")
    assert [row["value"] for row in rows(data, columns="value")] == [b"first", body, b"last"]
    assert [row["bornTimestamp"].timestamp() for row in rows(data, columns="bornTimestamp")] == [0.005] * 3  # type: ignore[attr-defined]
    data += encode_record(b"t", 0, b"rubbish", b"", sys_flag=0x301, born_ms=5)
    with pytest.raises(RemoteProtocolError, match=r"message at offset 0: the body of 7 bytes .* is not a zlib stream"):
        rows(data, columns="value")
    assert len(rows(data, columns="offset")) == 4, "who does not read the value is not held up by it"


def test_highly_compressed_bodies_are_returned_in_batches_of_a_few_mebibytes() -> None:
    data = b""
    for offset in range(10):
        record = bytearray(
            encode_message(Message("t", b"%d" % offset * (4 << 20)), QUEUE.queue_id, f"{offset:032X}", 5, compress_over=4_096)
        )
        record[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8] = INT64.pack(offset)
        data += record + stored(100 + offset, b"small")
    assert len(data) < 100_000
    batches = list(Columns(options(columns=EVERY), QUEUE, 11).batches(page_of(data, 1 << 40)))
    assert max(batch.column("value").nbytes for batch in batches) < 25 << 20
    found = [row for batch in batches for row in batch.to_pylist()]
    assert [row["offset"] for row in found] == [offset for number in range(10) for offset in (number, 100 + number)]
    assert [row["messageId"] for row in found] == [f"{offset:032X}" for number in range(10) for offset in (number, 100 + number)]
    assert [len(row["value"]) for row in found] == [4 << 20, 5] * 10


def test_several_pulls_make_one_batch() -> None:
    page = RangePage(3)
    for offset in range(5):
        page.take(stored(offset, b"%d" % offset, key="k"))
    (batch,) = Columns(options(columns=EVERY), QUEUE, 11).batches(page)
    assert [(row["offset"], row["value"], row["messageId"]) for row in batch.to_pylist()] == [
        (offset, b"%d" % offset, f"{offset:032X}") for offset in range(3)
    ]


def test_missing_property_is_null() -> None:
    (row,) = rows(stored(0, b"x"), columns="key,tags,keys,headers")
    assert row == {"key": None, "tags": None, "keys": None, "headers": []}


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=60), st.one_of(st.none(), st.text("abkTAGS", min_size=1, max_size=9)))),
    st.integers(0, 12),
    st.integers(1, 5),
)
def test_page_columns_equal_the_sdks_messages(messages: list[tuple[bytes, str | None]], end: int, pull_count: int) -> None:
    """This holds for any number of pulls."""
    records = [
        stored(offset, body, key=key, properties={"x__SHARDINGKEY": "no"}, tags=f"t{len(body) % 3}")
        for offset, (body, key) in enumerate(messages)
    ]
    page = RangePage(end)
    for first in range(0, len(records), pull_count):
        page.take(b"".join(records[first : first + pull_count]))
    found = [row for batch in Columns(options(columns="offset,value,key,tags"), QUEUE, 11).batches(page) for row in batch.to_pylist()]
    expected = [message for message in decode_messages(b"".join(records), "broker-a") if message.queue_offset < end]
    assert [(row["offset"], row["value"], row["key"], row["tags"]) for row in found] == [
        (message.queue_offset, message.body, None if message.sharding_key is None else message.sharding_key.encode(), message.tags)
        for message in expected
    ]


def test_keys_of_a_slice_are_those_of_its_rows() -> None:
    properties = pa.array([b"__SHARDINGKEY\x01a", b"A\x01b", b"__SHARDINGKEY\x01c\x02A\x01b"], pa.binary())
    assert keys(properties[1:]).to_pylist() == [None, b"c"]


@given(
    st.lists(
        st.sampled_from(
            [
                b"",
                b"A\x01b",
                b"A\x01",
                b"__SHARDINGKEY\x01",
                b"__SHARDINGKEY\x01k",
                b"__SHARDINGKEY\x01k\x02A\x01b",
                b"A\x01b\x02__SHARDINGKEY\x01k",
            ]
        )
    )
)
def test_key_is_found_at_any_position_and_only_by_its_own_name(properties: list[bytes]) -> None:
    data = b"".join(encode_record(b"t", 0, b"body", each, born_ms=5) for each in properties)
    assert [row["key"] for row in rows(data, columns="key")] == [property_of(each, b"__SHARDINGKEY\x01") for each in properties]


def test_tag_with_only_an_equal_hash_is_filtered_out() -> None:
    data = stored(0, b"x", tags="Aa") + stored(1, b"y", tags="BB") + stored(2, b"z")
    assert page_of(data, 10, frozenset({"Aa"})).numbers(QUEUE_OFFSET, LONG).tolist() == [0]


@pytest.mark.parametrize("cut", range(0, 140, 7))
def test_truncated_page_is_rejected(cut: int) -> None:
    data = stored(0, b"body", key="k", properties={"a": "b"})
    assert page_of(data, 10).count == 1
    if cut:
        with pytest.raises(RemoteProtocolError):
            page_of(data[:-cut] if cut < len(data) else data[:1], 10)


def test_record_with_size_zero_is_rejected() -> None:
    with pytest.raises(RemoteProtocolError, match="record at 0: size 0"):
        page_of(bytes(4) + stored(0, b"body")[4:], 10)


@given(st.integers(0, 87), st.integers(1, 255))
def test_flipped_byte_in_lengths_or_magic_never_reads_past_the_record(at: int, flip: int) -> None:
    data = bytearray(stored(0, b"body") + stored(1, b"more"))
    data[at] ^= flip
    try:
        bodies = [body for _, run in page_of(bytes(data), 1 << 62).bodies() for body in run.to_pylist()]
    except RemoteProtocolError:
        return
    assert all(len(body) == 4 for body in bodies)


def test_property_is_found_only_by_its_own_name() -> None:
    head = b"K\x01"
    assert property_of(b"K\x01v", head) == b"v"
    assert property_of(b"a\x01b\x02K\x01v\x02c\x01d", head) == b"v"
    assert property_of(b"xK\x01no\x02K\x01v", head) == b"v"
    assert property_of(b"xK\x01no", head) is None
    assert property_of(b"", head) is None


def test_at_most_two_batches_of_a_compressed_page_are_decompressed_at_once() -> None:
    count, body = 24, bytes(4 << 20)
    record = bytearray(encode_message(Message("t", body), QUEUE.queue_id, "A" * 32, 5, compress_over=4_096))
    data = b""
    for offset in range(count):
        record[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8] = INT64.pack(offset)
        data += record
    assert len(data) < 1 << 20
    before, sizes, held = pa.total_allocated_bytes(), [], []
    for batch in Columns(options(columns=EVERY), QUEUE, 11).batches(page_of(data, count)):
        sizes.append(batch.nbytes)
        held.append(pa.total_allocated_bytes() - before)
    assert sum(sizes) > count * len(body)
    assert max(sizes) < PLAIN_BYTES_MAX + len(body) + (1 << 20)
    assert max(held) < 2 * max(sizes)


def test_records_with_ipv6_hosts_become_rows_like_others(tmp_path: Path) -> None:
    """RocketMQ's brokers write them, and lockstep's take their logs over."""
    directory = ForeignDirectory(tmp_path)
    for number, flag in enumerate((0, SYS_BORN_IPV6, SYS_STORE_IPV6, SYS_IPV6_MASK)):
        directory.add("t", b"body %d" % number, queue_id=3, properties=b"TAGS\x01paid\x02", sys_flag=flag)
    found = rows(directory.log, columns=EVERY)
    assert [(row["offset"], row["value"]) for row in found] == [(number, b"body %d" % number) for number in range(4)]
    assert {row["timestamp"].timestamp() for row in found} == {STORED_MS / 1000}  # type: ignore[attr-defined]
    assert {(row["tags"], row["reconsumeTimes"]) for row in found} == {("paid", 0)}
    assert page_of(directory.log, 1 << 40, frozenset({"unpaid"})).count == 0
    for cut in range(len(directory.log)):
        with pytest.raises(RemoteProtocolError) if cut not in starts(directory.log) else nullcontext():
            page_of(directory.log[:cut], 1 << 40)


def starts(data: bytes) -> set[int]:
    return {start for start, _ in split_records(data)}
