"""Accepting a frame: its checks, the fields that are patched, and the errors of rejected frames."""

import zlib
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.store.log.append import ENTRY, STAMP, TopicField, tag_code, take_frame
from lockstep.protocol.errors import MessageIllegalError
from lockstep.protocol.messages.properties import SEQUENCE_DIGITS
from lockstep.protocol.messages.record import RecordView, record_bounds, split_records
from lockstep.protocol.messages.sequence import STAMP_HEAD
from lockstep.protocol.tags import tags_code
from support.store_kit import record, sequenced

STAMPED = STAMP.pack(b"\x7f\0\0\1\0\0\x1f\x90", 1_700_000_000_123, b"\x0a\0\0\2\0\0\x2a\x9f")


def take(
    frame: bytes,
    count: int,
    tail: bytearray | None = None,
    *,
    trusted: bool = False,
    sequenced: bool = True,
    position: int = 1000,
    size_max: int = 5000,
) -> bytearray:
    return take_frame(
        bytearray() if tail is None else tail,
        frame,
        count,
        TopicField("orders"),
        3,
        queue_offset=40,
        position=position,
        stamp=STAMPED,
        size_max=size_max,
        trusted=trusted,
        sequenced=sequenced,
    )


def valid_record(body: bytes = b"hello", properties: bytes = b"", **fields: int) -> bytes:
    return record(body, queue_id=3, properties=properties, **fields)


def patched(frame: bytes, at: int, data: bytes) -> bytes:
    return frame[:at] + data + frame[at + len(data) :]


def test_each_record_gets_its_offsets_timestamps_and_a_queue_entry() -> None:
    frame = valid_record(b"a", b"TAGS\x01TagA\x02") + valid_record(b"bb") + valid_record(b"ccc", "KEYS\x01k\x02TAGS\x01中文".encode())
    tail = bytearray(b"before")
    entries = take(frame, 3, tail)
    assert tail[:6] == b"before"
    places = split_records(tail[6:])
    for number, (start, _) in enumerate(places):
        view = RecordView(tail[6:], start)
        assert (view.queue_offset, view.physical_offset) == (40 + number, 1000 + start)
        assert (view.born_host, view.store_ms, view.store_host) == (STAMPED[:8], 1_700_000_000_123, STAMPED[16:])
        assert view.crc_matches()
    found = [ENTRY.unpack_from(entries, 20 * i) for i in range(3)]
    sizes = [end - start for start, end in places]
    assert [size for _, size, _ in found] == sizes
    assert [at for at, _, _ in found] == [1000, 1000 + sizes[0], 1000 + sizes[0] + sizes[1]]
    assert [tag for _, _, tag in found] == [2598919, 0, 646394]


@pytest.mark.parametrize(
    ("frame", "count", "words"),
    [
        (valid_record() + valid_record()[:-1], 2, "record 1: size .* runs over the frame's end by 1 bytes"),
        (valid_record() + valid_record(), 1, "more than the 1 records"),
        (valid_record(), 2, "holds 1 records and claims 2"),
        (valid_record() + patched(valid_record(), 4, b"\xda\xa3\x20\xab"), 2, "record 1: magic 0xdaa320ab"),
        (patched(valid_record(), 0, pack(">i", 40)), 1, "record 0: size 40, expected 97 to 5000"),
        (patched(valid_record(), 0, pack(">i", -5)), 1, "record 0: size -5"),
        (record(b"x", queue_id=4), 1, "record 0: queue id 4, the request names 3"),
        (record(b"x", topic="bills!", queue_id=3), 1, "record 0: topic is not orders"),
        (record(b"x", topic="order", queue_id=3), 1, "record 0: "),
        (valid_record() + patched(valid_record(), 8, b"\0\0\0\1"), 2, "record 1: body CRC 0x00000001"),
        (patched(valid_record(), 20, pack(">q", 1)), 1, "record 0: queue offset, .* are the broker's"),
        (patched(valid_record(), 48, b"\x7f"), 1, "are the broker's"),
        (patched(valid_record(), 56, b"\0\0\0\0\0\0\0\1"), 1, "are the broker's"),
        (patched(valid_record(), 64, b"\x7f"), 1, "are the broker's"),
        (valid_record(reconsume_times=1), 1, "record 0: reconsume times"),
        (patched(valid_record(), 76, b"\0\0\0\0\0\0\0\1"), 1, "prepared transaction offset"),
        (valid_record(sys_flag=0x4), 1, "record 0: system flag 0x4"),
        (valid_record(sys_flag=0x8), 1, "system flag 0x8"),
        (valid_record(sys_flag=0x10), 1, "system flag 0x10"),
        (valid_record(sys_flag=0x80), 1, "system flag 0x80"),
        (patched(valid_record(), 84, pack(">i", -1)), 1, "record 0: body of 4294967295 bytes"),
        (patched(valid_record(), 84, pack(">i", 50)), 1, "record 0: body of 50 bytes"),
        (patched(valid_record(properties=b"A\x01b\x02"), len(valid_record()) - 1, b"\x05"), 1, "record 0: its fields make"),
        (valid_record(b"x" * 5000), 1, "record 0: size 5097, expected 97 to 5000"),
        (valid_record(properties=b"DELAY\x013\x02"), 1, "record 0: property DELAY has no place"),
        (valid_record() + valid_record(properties=b"A\x01b\x02TIMER_OUT_MS\x011\x02"), 2, r"record 1: property TIMER_\*"),
        (valid_record(properties=b"TRAN_MSG\x01true"), 1, "property TRAN_MSG"),
        (valid_record(properties=b"A\x01b\x02RETRY_TOPIC\x01x"), 1, "property RETRY_TOPIC"),
        (valid_record(properties=b"A\x01b\x02REAL_TOPIC\x01x"), 1, "property REAL_TOPIC"),
        (valid_record(properties=b"REAL_QID\x010"), 1, "property REAL_QID"),
        (valid_record(properties=b"PGROUP\x01shop"), 1, "property PGROUP"),
        (valid_record(properties=b"A\x01\xff\x02"), 1, "record 0: properties are not UTF-8"),
        (valid_record() + valid_record(properties=b"A\x01b\0c\x02"), 2, "record 1: a byte 0"),
        (valid_record(properties=b"__LS_X\x011\x02"), 1, "__LS_SEQ belongs first"),
        (valid_record(properties=b"A\x01b\x02__LS_SEQ\x011\x02"), 1, "__LS_SEQ belongs first"),
        (valid_record(properties=b"__LS_SEQ\x01123\x02"), 1, "record 0: __LS_SEQ"),
        (valid_record() + valid_record(b""), 2, r"record 1: body of 0 bytes, expected 1 to 4194304"),
        (valid_record() + valid_record(properties=b"a\x01" + b"x" * 30_719), 2, r"record 1: properties of 30721 bytes, limit 30720"),
        (b"\0" * 97, 1, "record 0: size 0"),
        (b"\0" * 10, 1, "does not hold the 1 whole records"),
    ],
)
def test_invalid_frame_is_rejected_with_record_and_rule_and_leaves_nothing(frame: bytes, count: int, words: str) -> None:
    tail = bytearray(b"before")
    with pytest.raises(MessageIllegalError, match=words):
        take(frame, count, tail, size_max=5000 if len(frame) < 9_000 else 40_000)
    assert tail == b"before"


def test_body_limit_is_4_mib_even_if_the_record_may_be_larger() -> None:
    limit = 4 << 20
    tail = bytearray()
    take(valid_record(bytes(limit)), 1, tail, size_max=limit + 65536)
    assert len(tail) == limit + 97
    with pytest.raises(MessageIllegalError, match="record 1: body of 4194305 bytes, expected 1 to 4194304"):
        take(valid_record() + valid_record(bytes(limit + 1)), 2, tail, size_max=limit + 65536)
    assert len(tail) == limit + 97


def test_longest_properties_leave_room_for_those_added_by_clients_and_brokers() -> None:
    longest = b"a\x01" + b"x" * 30_718
    named = longest + b"\x02UNIQ_KEY\x01" + b"A" * 32
    take(valid_record(properties=named), 1, size_max=40_000)
    take(valid_record(properties=named + b"\x02RETRY_TOPIC\x01" + b"t" * 127), 1, size_max=40_000, trusted=True)
    with pytest.raises(MessageIllegalError, match="properties of 30721 bytes, limit 30720"):
        take(valid_record(properties=named + b"A"), 1, size_max=40_000)


def test_broker_records_may_use_reserved_property_names() -> None:
    take(valid_record(properties=b"DELAY\x013\x02", reconsume_times=2), 1, trusted=True)


def test_reserved_name_inside_a_value_or_a_longer_name_is_accepted() -> None:
    take(valid_record(properties=b"A\x01DELAY\x02XDELAY\x011\x02BTIMER_\x011") + valid_record(b"\x02DELAY\x013\x02"), 2)


def test_property_name_that_ends_in_tags_is_not_a_tag() -> None:
    assert tag_code(b"XTAGS\x01a\x02", 1) == 0
    assert tag_code(b"XTAGS\x01a\x02TAGS\x01TagA", 1) == 2598919


def test_frame_sequence_must_count_the_records_of_the_frame() -> None:
    frame, _ = sequenced([b"a", b"b"], first=0, previous_crc=0, queue_id=3)
    take(frame, 2)
    with pytest.raises(MessageIllegalError, match="counts 2 records, the frame has 3"):
        take(frame + valid_record(b"c"), 3)


def test_unsequenced_frame_with_a_reserved_property_name_is_rejected() -> None:
    """No check compares such a stamp with the scope: recovery would take its wrong CRC for a torn frame and cut the log there."""
    frame, _ = sequenced([b"a", b"b"], first=0, previous_crc=0, queue_id=3)
    with pytest.raises(MessageIllegalError, match="record 0: property names beginning with __LS_ are lockstep's own"):
        take(frame, 2, sequenced=False)
    with pytest.raises(MessageIllegalError, match="record 1: property names beginning with __LS_"):
        take(valid_record() + valid_record(properties=b"A\x01b\x02__LS_X\x011"), 2, sequenced=False)


def test_large_body_is_stored_unchanged() -> None:
    body = bytes(range(256)) * 400
    tail = bytearray()
    take(valid_record(body), 1, tail, size_max=1 << 20)
    assert RecordView(tail).body == body


@given(
    bodies=st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=8),
    tags=st.lists(st.text(st.characters(exclude_characters="\x00\x01\x02", exclude_categories=["Cs"]), min_size=1), min_size=8, max_size=8),
)
def test_queue_entries_hold_position_size_and_tag_code(bodies: list[bytes], tags: list[str]) -> None:
    frame = b"".join(valid_record(body, b"TAGS\x01" + tag.encode()) for body, tag in zip(bodies, tags, strict=False))
    tail = bytearray()
    entries = take(frame, len(bodies), tail, position=0)
    for number, body in enumerate(bodies):
        at, size, tag = ENTRY.unpack_from(entries, 20 * number)
        assert RecordView(tail[at : at + size]).body == body
        assert tag == tags_code(tags[number])


@given(at=st.integers(0, 199), bit=st.integers(0, 7))
def test_flipped_bit_is_rejected_or_changes_only_user_data(at: int, bit: int) -> None:
    """Any input raises nothing but MessageIllegalError, and each accepted frame is well-formed."""
    frame = valid_record(b"first", b"A\x01b\x02") + valid_record(b"second")
    at %= len(frame)
    damaged = patched(frame, at, bytes([frame[at] ^ 1 << bit]))
    tail = bytearray()
    try:
        take(damaged, 2, tail)
    except MessageIllegalError:
        assert not tail
    else:
        views = [RecordView(tail, start) for start, _ in split_records(tail)]
        assert [view.body for view in views] == [b"first", b"second"]
        assert [view.body_crc for view in views] == [zlib.crc32(b"first") & 0x7FFFFFFF, zlib.crc32(b"second") & 0x7FFFFFFF]
        assert [view.queue_offset for view in views] == [40, 41]


def test_truncated_or_overlong_sequence_property_is_rejected() -> None:
    frame, _ = sequenced([b"a"], first=0, previous_crc=0, queue_id=3)
    _, properties_at, end = record_bounds(frame)
    stamp = frame[properties_at:end]
    width = len(STAMP_HEAD) + SEQUENCE_DIGITS
    take(valid_record(properties=stamp[:width]), 1)
    take(valid_record(properties=stamp[:width] + b"\x02A\x01b"), 1)
    for wrong in (stamp[: width - 1], stamp[:width] + b"0", stamp[:width] + b"\x01"):
        with pytest.raises(MessageIllegalError, match="record 0: __LS_SEQ"):
            take(valid_record(properties=wrong), 1)
