"""Compression is compatible with the official clients in both directions; invalid data and bombs are refused without unpacking them."""

import json
import random
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.frame import BODY_BYTES_MAX
from lockstep.protocol.messages import compression
from lockstep.protocol.messages.compression import SYS_ZLIB, compress_body, decompress_body
from lockstep.protocol.messages.message import Message, MessageExt, decode_messages, encode_message
from lockstep.protocol.messages.record import RecordView, encode_record

LZ4, ZSTD = 0x101, 0x201
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


@pytest.mark.parametrize(
    ("sys_flag", "module", "words"),
    [
        (0x101, "lz4.frame", r"compressed by LZ4, and lz4 is not installed: run pip install 'lockstep-mq\[lz4\]', or set"),
        (0x201, "zstandard", r"compressed by Zstandard, and zstandard is not installed: run pip install 'lockstep-mq\[zstd\]'"),
    ],
)
def test_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, sys_flag: int, module: str, words: str) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(compression, "import_module", missing)
    message = stored(b"x", sys_flag)
    with pytest.raises(RemoteProtocolError, match=words):
        _ = message.body


def compress(body: bytes, sys_flag: int) -> bytes:
    """Compress as Java does: without the size of the content in the frame."""
    if sys_flag == LZ4:
        return bytes(pytest.importorskip("lz4.frame").compress(body, store_size=False))
    zstandard = pytest.importorskip("zstandard")
    return bytes(zstandard.ZstdCompressor(level=5, write_content_size=False).compress(body))


@pytest.mark.parametrize("sys_flag", [LZ4, ZSTD])
@pytest.mark.parametrize("body", [b"x", JSON, NOISE, bytes(BODY_BYTES_MAX)], ids=["one byte", "json", "noise", "largest"])
def test_bodies_of_java_5_by_lz4_and_zstandard_are_decompressed(sys_flag: int, body: bytes) -> None:
    message = stored(compress(body, sys_flag), sys_flag)
    assert message.body == body
    assert message.stored_body == compress(body, sys_flag)


@pytest.mark.parametrize("sys_flag", [LZ4, ZSTD])
def test_invalid_lz4_and_zstandard_bodies_are_refused_with_the_reason(sys_flag: int) -> None:
    whole, name = compress(JSON, sys_flag), {LZ4: "LZ4", ZSTD: "Zstandard"}[sys_flag]
    for data, why in (
        (b"rubbish of some length", f"is not an? {name} stream"),
        (whole[:-1], f"its {name} stream ends too early"),
        (whole[: len(whole) // 2], f"its {name} stream ends too early"),
        (whole + b"!", f"its {name} stream has bytes after its end"),
        (whole + whole, f"its {name} stream has bytes after its end"),
        (compress(bytes(BODY_BYTES_MAX + 1), sys_flag), "decompresses to more than 4194304"),
    ):
        with pytest.raises(RemoteProtocolError, match=why):
            decompress_body(data, sys_flag)


@pytest.mark.parametrize("sys_flag", [LZ4, ZSTD])
def test_lz4_and_zstandard_bombs_are_not_unpacked(sys_flag: int) -> None:
    bomb = compress(bytes(64 << 20), sys_flag)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match="more than 4194304"):
            decompress_body(bomb, sys_flag)
        assert tracemalloc.get_traced_memory()[1] < 4 * BODY_BYTES_MAX
    finally:
        tracemalloc.stop()


def test_zstandard_frame_with_a_large_window_is_refused() -> None:
    zstandard = pytest.importorskip("zstandard")
    wide = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    writer = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    frame = writer.compress(JSON) + writer.flush()
    with pytest.raises(RemoteProtocolError, match="is not a Zstandard stream"):
        decompress_body(frame, ZSTD)
    assert zstandard.ZstdDecompressor().decompressobj().decompress(frame) == JSON


@pytest.mark.parametrize("sys_flag", [LZ4, ZSTD])
@given(data=st.binary(max_size=400))
def test_any_bytes_are_decompressed_by_lz4_and_zstandard_or_rejected(sys_flag: int, data: bytes) -> None:
    compress(b"x", sys_flag)  # skips without the library
    try:
        decompress_body(data, sys_flag)
    except RemoteProtocolError:
        pass


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
