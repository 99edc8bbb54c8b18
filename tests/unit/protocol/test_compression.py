"""Compression is compatible with the official clients in both directions; invalid data and bombs are refused without unpacking them."""

import json
import random
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.compression import SYS_ZLIB, compress_body, decompress_body
from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.frame import BODY_BYTES_MAX
from lockstep.protocol.message import Message, MessageExt, decode_messages, encode_message
from lockstep.protocol.record import RecordView, encode_record

UNIQUE = "7F0000010A1B18B4AAC21234567800AB"
JSON = json.dumps([{"order": number, "state": "paid"} for number in range(500)]).encode()
NOISE = random.Random(1).randbytes(10_000)
ZERO_STREAM = zlib.compress(bytes(BODY_BYTES_MAX))


def sent(body: bytes, over: int | None) -> RecordView:
    return RecordView(encode_message(Message("t", body), 0, UNIQUE, 5, compress_over=over))


def stored(body: bytes, sys_flag: int) -> MessageExt:
    (message,) = decode_messages(encode_record(b"t", 0, body, b"", sys_flag=sys_flag, born_ms=5), "b")
    return message


def test_compressed_body_is_zlib_level_5_with_javas_flags_and_the_crc_of_the_stored_bytes() -> None:
    record = sent(JSON, 4_096)
    assert record.sys_flag == 0x301
    assert record.body == zlib.compress(JSON, 5)
    assert record.body_crc == zlib.crc32(record.body) & 0x7FFFFFFF
    assert record.crc_matches()


@pytest.mark.parametrize(("size", "flag"), [(4_095, 0), (4_096, 0x301), (4_097, 0x301)])
def test_bodies_are_compressed_from_the_limit_on(size: int, flag: int) -> None:
    record = sent(b"x" * size, 4_096)
    assert record.sys_flag == flag
    assert (record.body == b"x" * size) is (flag == 0)


def test_body_is_not_compressed_without_a_limit() -> None:
    assert (sent(JSON, None).sys_flag, sent(JSON, None).body) == (0, JSON)


def test_body_that_would_not_shrink_is_not_compressed() -> None:
    assert compress_body(NOISE) == (NOISE, 0)
    assert (sent(NOISE, 4_096).sys_flag, sent(NOISE, 4_096).body) == (0, NOISE)


@pytest.mark.parametrize("sys_flag", [0x1, 0x301, 0x303, 0x30D])
def test_zlib_bodies_of_go_cpp_and_java_clients_are_decompressed(sys_flag: int) -> None:
    message = stored(zlib.compress(JSON, 9), sys_flag)
    assert message.body == JSON
    assert message.stored_body == zlib.compress(JSON, 9)
    assert message.body_bytes == len(message.stored_body)


def test_compression_type_bits_without_the_compressed_flag_are_ignored() -> None:
    assert stored(b"plain", 0x300).body == b"plain"


@pytest.mark.parametrize(
    ("body", "sys_flag", "why"),
    [
        (b"rubbish", 0x301, "is not a zlib stream"),
        (JSON, 0x1, "is not a zlib stream"),
        (zlib.compress(JSON)[:-1], 0x301, "ends too early"),
        (zlib.compress(JSON)[:20], 0x301, "ends too early"),
        (zlib.compress(JSON) + b"!", 0x301, "has bytes after its end"),
        (zlib.compress(JSON), 0x101, "compressed by LZ4.*set the producer's compression type to ZLIB"),
        (zlib.compress(JSON), 0x201, "compressed by Zstandard"),
        (zlib.compress(JSON), 0x401, "an unknown algorithm .sys flag 0x401"),
        (zlib.compress(bytes(BODY_BYTES_MAX + 1)), 0x301, "decompresses to more than 4194304"),
    ],
)
def test_error_for_an_invalid_compressed_body_names_the_reason_and_the_message(body: bytes, sys_flag: int, why: str) -> None:
    message = stored(body, sys_flag)
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match=why) as failed:
            _ = message.body
    assert message.offset_message_id in str(failed.value)
    assert message.stored_body == body
    assert repr(message)


def test_largest_body_is_decompressed_and_a_zip_bomb_is_rejected_without_allocating() -> None:
    assert decompress_body(ZERO_STREAM, SYS_ZLIB) == bytes(BODY_BYTES_MAX)
    bomb = zlib.compress(bytes(256 << 20), 9)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match="more than 4194304"):
            decompress_body(bomb, SYS_ZLIB)
        assert tracemalloc.get_traced_memory()[1] < 4 * BODY_BYTES_MAX
    finally:
        tracemalloc.stop()


@given(st.binary(min_size=1, max_size=9_000), st.integers(1, 9_000))
def test_body_round_trips_with_any_compression_limit(body: bytes, over: int) -> None:
    record = encode_message(Message("t", body), 0, UNIQUE, 5, compress_over=over)
    (message,) = decode_messages(record, "b")
    assert message.body == body
    assert message.body_bytes <= len(body)


@given(st.binary(max_size=400), st.sampled_from([0x1, 0x301]))
def test_any_stored_bytes_are_decompressed_or_rejected(body: bytes, sys_flag: int) -> None:
    try:
        found = decompress_body(body, sys_flag)
    except RemoteProtocolError:
        return
    assert zlib.decompress(body) == found
