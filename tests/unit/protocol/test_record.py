import zlib
from struct import pack_into, unpack_from

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError
from lockstep.protocol.messages import record
from lockstep.protocol.messages.record import (
    HEAD,
    HOSTS,
    OFFSETS,
    RECORD_BYTES_MIN,
    RecordView,
    encode_record,
    host_address,
    iter_records,
    pack_host,
    record_bounds,
    split_records,
    zero_broker_fields,
)

# Made by Apache RocketMQ 4.9.8's own classes: topic TopicTest, body `hello`, queue 3, queue offset 42, physical offset 1234567.
APACHE = bytes.fromhex(
    "000000A7DAA320A73610A6860000000300000000000000000000002A000000000012D687000000000000018BCFE568007F0000010000D431"
    "0000018BCFE5687B7F00000100002A9F0000000000000000000000000000000568656C6C6F09546F70696354657374003E54414753015461"
    "6741024B455953016B31206B3202554E49515F4B4559013746303030303031304131423138423441414332313233343536373830304142"
)
PROPERTIES = b"TAGS\x01TagA\x02KEYS\x01k1 k2\x02UNIQ_KEY\x017F0000010A1B18B4AAC21234567800AB"
FRESH = encode_record(b"TopicTest", 3, b"hello", PROPERTIES, born_ms=1700000000000)


def test_rocketmqs_record_is_decoded_field_by_field() -> None:
    view = RecordView(APACHE)
    assert (view.total_size, view.magic, view.body_crc, view.queue_id, view.flag) == (167, 0xDAA320A7, 907060870, 3, 0)
    assert (view.queue_offset, view.physical_offset, view.sys_flag, view.reconsume_times, view.prepared_offset) == (42, 1234567, 0, 0, 0)
    assert (view.born_ms, host_address(view.born_host)) == (1700000000000, "127.0.0.1:54321")
    assert (view.store_ms, host_address(view.store_host)) == (1700000000123, "127.0.0.1:10911")
    assert (view.body, view.topic, view.properties) == (b"hello", b"TopicTest", PROPERTIES)
    assert view.crc_matches()


def test_encoded_record_equals_rocketmqs_once_the_broker_has_filled_in_its_fields() -> None:
    filled = bytearray(FRESH)
    OFFSETS.pack_into(filled, record.QUEUE_OFFSET_AT, 42, 1234567)
    HOSTS.pack_into(filled, record.BORN_HOST_AT, pack_host("127.0.0.1:54321"), 1700000000123, pack_host("127.0.0.1:10911"))
    assert filled == APACHE
    zero_broker_fields(filled)
    assert filled == FRESH


def test_zero_broker_fields_changes_only_its_record() -> None:
    two = bytearray(APACHE + APACHE + APACHE)
    zero_broker_fields(two, len(APACHE))
    assert two == APACHE + FRESH + APACHE


def test_record_offsets_agree_with_the_structs() -> None:
    assert HEAD.size == record.BODY_AT == 88
    forms = "IIIiiqqiq", "8s", "q", "8s", "iqi"
    places = [value for name, value in vars(record).items() if name.endswith("_AT")]
    read = [unpack_from(">" + form, APACHE, at)[0] for form, at in zip([*forms[0], *forms[1:4], *forms[4]], places, strict=False)]
    assert places == sorted(places)
    assert read == list(HEAD.unpack_from(APACHE))


@given(
    st.binary(max_size=127),
    st.integers(0, (1 << 31) - 1),
    st.binary(max_size=300),
    st.binary(max_size=300),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.integers(0, 15),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(0, (1 << 31) - 1),
)
@settings(max_examples=100)
def test_record_round_trips(
    topic: bytes, queue_id: int, body: bytes, properties: bytes, flag: int, sys_flag: int, born_ms: int, reconsume_times: int
) -> None:
    data = encode_record(topic, queue_id, body, properties, flag=flag, sys_flag=sys_flag, born_ms=born_ms, reconsume_times=reconsume_times)
    view = RecordView(data)
    assert (view.topic, view.queue_id, view.body, view.properties) == (topic, queue_id, body, properties)
    assert (view.flag, view.sys_flag, view.born_ms, view.reconsume_times) == (flag, sys_flag, born_ms, reconsume_times)
    assert (view.queue_offset, view.physical_offset, view.store_ms, view.prepared_offset) == (0, 0, 0, 0)
    assert view.born_host == view.store_host == bytes(8)
    assert view.total_size == len(data) == RECORD_BYTES_MIN + len(topic) + len(body) + len(properties)
    assert view.crc_matches()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_body_may_be_any_bytes_like_object(kind: type) -> None:
    assert encode_record(b"TopicTest", 3, kind(b"hello"), PROPERTIES, born_ms=1700000000000) == FRESH


def test_body_crc_is_never_negative_and_0_for_an_empty_body() -> None:
    assert zlib.crc32(b"a") >> 31, "the example must have its top bit set"
    assert RecordView(encode_record(b"t", 0, b"a", b"", born_ms=0)).body_crc == zlib.crc32(b"a") & 0x7FFFFFFF
    assert RecordView(encode_record(b"t", 0, b"", b"", born_ms=0)).body_crc == 0


@pytest.mark.parametrize(("topic_bytes", "properties_bytes"), [(127, 0), (0, 32767), (127, 32767)])
def test_longest_topic_and_properties_are_accepted(topic_bytes: int, properties_bytes: int) -> None:
    view = RecordView(encode_record(b"t" * topic_bytes, 0, b"x", b"p" * properties_bytes, born_ms=0))
    assert (len(view.topic), len(view.properties)) == (topic_bytes, properties_bytes)


@pytest.mark.parametrize(
    ("topic_bytes", "properties_bytes", "match"), [(128, 0, "topic has 128 bytes: at most 127"), (0, 32768, "32768 bytes: at most 32767")]
)
def test_too_long_topic_or_properties_is_a_local_protocol_error(topic_bytes: int, properties_bytes: int, match: str) -> None:
    with pytest.raises(LocalProtocolError, match=match):
        encode_record(b"t" * topic_bytes, 0, b"x", b"p" * properties_bytes, born_ms=0)


@pytest.mark.parametrize("wrong", [{"flag": 1 << 31}, {"born_ms": 1 << 63}, {"sys_flag": -(1 << 31) - 1}, {"reconsume_times": 1 << 31}])
def test_number_out_of_range_is_a_local_protocol_error(wrong: dict[str, int]) -> None:
    with pytest.raises(LocalProtocolError, match="do not fit"):
        encode_record(b"t", 0, b"x", b"", **{"born_ms": 0, **wrong})


def test_records_are_consecutive_without_padding() -> None:
    other = encode_record(b"t", 0, b"", b"", born_ms=0)
    assert split_records(APACHE + other + APACHE) == [(0, 167), (167, 259), (259, 426)]
    assert split_records(b"") == []
    assert list(iter_records(b"junk" + APACHE + b"junk", 4, 171)) == [(4, 171)]


@pytest.mark.parametrize("cut", range(1, 167))
def test_truncated_record_is_rejected(cut: int) -> None:
    with pytest.raises(RemoteProtocolError, match="record at 167"):
        split_records(APACHE + APACHE[:cut])
    with pytest.raises(RemoteProtocolError):
        RecordView(APACHE[:cut])
    with pytest.raises(RemoteProtocolError):
        record_bounds(APACHE[:cut])


@pytest.mark.parametrize(
    ("at", "form", "value"),
    [
        (record.TOTAL_SIZE_AT, ">I", 0),
        (record.TOTAL_SIZE_AT, ">I", 90),
        (record.TOTAL_SIZE_AT, ">I", 166),
        (record.TOTAL_SIZE_AT, ">I", 168),
        (record.TOTAL_SIZE_AT, ">I", 0x7FFFFFFF),
        (record.TOTAL_SIZE_AT, ">I", 0xFFFFFFFF),
        (record.MAGIC_AT, ">I", 0xDAA320AB),
        (record.MAGIC_AT, ">I", record.BLANK_MAGIC),
        (record.SYS_FLAG_AT, ">i", 0x10),
        (record.SYS_FLAG_AT, ">i", 0x20),
        (record.BODY_LENGTH_AT, ">i", -1),
        (record.BODY_LENGTH_AT, ">i", 4),
        (record.BODY_LENGTH_AT, ">i", 6),
        (record.BODY_LENGTH_AT, ">i", 0x7FFFFFFF),
        (93, ">B", 8),
        (93, ">B", 10),
        (93, ">B", 128),
        (93, ">B", 255),
        (103, ">H", 61),
        (103, ">H", 63),
        (103, ">H", 65535),
    ],
)
def test_inconsistent_record_lengths_are_rejected(at: int, form: str, value: int) -> None:
    broken = bytearray(APACHE)
    pack_into(form, broken, at, value)
    with pytest.raises(RemoteProtocolError, match="record at 0"):
        RecordView(broken)


def test_flipped_bit_in_a_record_is_rejected_or_detected_by_the_crc_or_in_a_plain_field() -> None:
    """No flip raises another error, and each flip in the body, the CRC or a length is detected."""
    plain = set(range(record.QUEUE_ID_AT, record.BODY_LENGTH_AT)) | set(range(94, 103)) | set(range(105, 167))
    for position in range(len(APACHE)):
        for bit in range(8):
            flipped = bytearray(APACHE)
            flipped[position] ^= 1 << bit
            try:
                view = RecordView(flipped)
            except RemoteProtocolError:
                continue
            assert not view.crc_matches() or position in plain, f"byte {position} bit {bit}"


@given(st.binary(min_size=0, max_size=400))
@settings(max_examples=100)
def test_random_bytes_do_not_raise_another_error(data: bytes) -> None:
    for raw in (data, APACHE[:8] + data):
        try:
            RecordView(raw)
        except RemoteProtocolError:
            pass


@pytest.mark.parametrize("address", ["0.0.0.0:0", "127.0.0.1:10911", "255.255.255.255:65535", "10.1.2.3:1"])
def test_hosts_round_trip(address: str) -> None:
    assert host_address(pack_host(address)) == address


@pytest.mark.parametrize(
    "address",
    [
        "",
        ":",
        "localhost:1",
        "1.2.3:1",
        "1.2.3.256:1",
        "1.2.3.4",
        "1.2.3.4:",
        "1.2.3.4:65536",
        "[::1]:1",
        "1.2.3.-4:1",
        "1.2.3.٤:1",
        "1.2.3.4:²",
    ],
)
def test_invalid_ipv4_address_is_rejected(address: str) -> None:
    with pytest.raises(LocalProtocolError, match="address"):
        pack_host(address)


def test_topic_length_beyond_a_signed_byte_is_rejected_even_if_all_lengths_agree() -> None:
    data = bytearray(encode_record(b"t" * 127, 0, b"x", b"\0" * 10, born_ms=0))
    data[89:90] = b"\x80"
    data[90:90] = b"t"
    pack_into(">I", data, 0, len(data))
    with pytest.raises(RemoteProtocolError, match="topic length 128"):
        RecordView(data)


def test_properties_length_beyond_a_signed_short_is_rejected_even_if_all_lengths_agree() -> None:
    data = bytearray(encode_record(b"t", 0, b"x", b"p" * 32767, born_ms=0)) + b"p"
    data[91:93] = b"\x80\x00"
    pack_into(">I", data, 0, len(data))
    with pytest.raises(RemoteProtocolError, match="properties length 32768"):
        RecordView(data)
