import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError
from lockstep.protocol.messages import record
from lockstep.protocol.messages.properties import SEQUENCE_DIGITS, decode_properties
from lockstep.protocol.messages.record import HOSTS, OFFSETS, RecordView, encode_record, split_records, zero_broker_fields
from lockstep.protocol.messages.sequence import (
    NUMBER_MAX,
    STAMP_HEAD,
    FrameSequence,
    add_sequence,
    crc_digits_at,
    find_sequence,
    frame_crc,
    seal_frame,
)

STAMP_BYTES = len(STAMP_HEAD) + SEQUENCE_DIGITS + 1
"""What `add_sequence` adds to a record that has other properties (its 0x02 included)."""
PRODUCER = "00112233445566778899aabbccddeeff"
ONE = FrameSequence(PRODUCER, 7, 2, 100, 3, True, 0xDEADBEEF)
DIGITS = PRODUCER + "00000007" + "0000000000000002" + "0000000000000064" + "000003" + "1" + "deadbeef"
SEQUENCES = st.builds(
    FrameSequence,
    st.binary(min_size=16, max_size=16).map(bytes.hex),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, NUMBER_MAX),
    st.integers(0, NUMBER_MAX - (1 << 24)),
    st.integers(0, (1 << 24) - 1),
    st.booleans(),
    st.integers(0, (1 << 32) - 1),
)


def records(count: int, properties: bytes = b"TAGS\x01a") -> list[bytes]:
    return [encode_record(b"orders", 3, b"event %d" % i, properties, born_ms=1700000000000 + i) for i in range(count)]


def test_sequence_digits_have_fixed_positions() -> None:
    assert ONE.encode() == DIGITS
    assert len(DIGITS) == SEQUENCE_DIGITS == 87
    assert FrameSequence.parse(DIGITS) == FrameSequence.parse(DIGITS.encode()) == FrameSequence.parse(memoryview(DIGITS.encode())) == ONE
    assert ONE.next == 103


@given(SEQUENCES)
def test_sequences_round_trip(sequence: FrameSequence) -> None:
    assert len(sequence.encode()) == SEQUENCE_DIGITS
    assert FrameSequence.parse(sequence.encode()) == sequence


@pytest.mark.parametrize(
    "wrong",
    [
        {"producer_id": PRODUCER.upper()},
        {"producer_id": PRODUCER[:31]},
        {"producer_id": PRODUCER[:31] + "-"},
        {"partition": -1},
        {"partition": 1 << 32},
        {"epoch": 1 << 63},
        {"first": (1 << 63) - ONE.count},
        {"first": -1},
        {"count": 1 << 24},
        {"crc": 1 << 32},
    ],
)
def test_sequence_value_beyond_its_width_is_a_local_protocol_error(wrong: dict[str, object]) -> None:
    values = {name: getattr(ONE, name) for name in FrameSequence.__slots__} | wrong
    with pytest.raises(LocalProtocolError, match="fixed width"):
        FrameSequence(**values).encode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        DIGITS[:-1],
        DIGITS + "0",
        DIGITS.upper(),
        " " + DIGITS[1:],
        DIGITS[:78] + "4" + DIGITS[79:],
        "-" + DIGITS[1:],
        "é" * 87,
        DIGITS + "\n",
        DIGITS[:40] + "8" + DIGITS[41:],
        DIGITS[:56] + "7ffffffffffffffd" + DIGITS[72:],
    ],
)
def test_invalid_sequence_digits_are_rejected(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="__LS_SEQ"):
        FrameSequence.parse(text)


@pytest.mark.parametrize(
    ("flags", "first_known", "given"), [("0", False, False), ("1", True, False), ("2", False, True), ("3", True, True)]
)
def test_sequence_flags_are_two_bits(flags: str, first_known: bool, given: bool) -> None:
    text = DIGITS[:78] + flags + DIGITS[79:]
    sequence = FrameSequence.parse(text)
    assert (sequence.first_known, sequence.given, sequence.encode()) == (first_known, given, text)
    assert seal_frame(records(2), sequence, 0)[1].given is given


@pytest.mark.parametrize("properties", [b"", b"TAGS\x01a\x02UNIQ_KEY\x01x"])
def test_add_sequence_prepends_a_property_and_changes_nothing_else(properties: bytes) -> None:
    (bare,) = records(1, properties)
    stamped = add_sequence(bare, ONE)
    view, before = RecordView(stamped), RecordView(bare)
    assert view.properties == b"__LS_SEQ\x01" + DIGITS.encode() + (b"\x02" + properties if properties else b"")
    assert next(iter(decode_properties(view.properties))) == "__LS_SEQ"
    for name in RecordView.__slots__:
        if name not in ("properties", "total_size"):
            assert getattr(view, name) == getattr(before, name)
    assert len(stamped) - len(bare) <= STAMP_BYTES
    assert find_sequence(view.properties) == ONE
    at = crc_digits_at(stamped)
    assert stamped[at : at + 8] == b"deadbeef"


def test_add_sequence_respects_the_properties_limit() -> None:
    (full,) = records(1, b"p" * (32767 - STAMP_BYTES))
    assert len(RecordView(add_sequence(full, ONE)).properties) == 32767
    (over,) = records(1, b"p" * (32768 - STAMP_BYTES))
    with pytest.raises(LocalProtocolError, match="32768 bytes"):
        add_sequence(over, ONE)


@pytest.mark.parametrize("properties", [b"", b"TAGS\x01a", b"TAGS\x01a\x02__LS_SEQ\x01" + DIGITS.encode(), b"__LS_SEQ", b"__LS_SEQX\x01a"])
def test_only_the_first_property_is_a_sequence(properties: bytes) -> None:
    assert find_sequence(properties) is None


@pytest.mark.parametrize(
    "value", [b"", b"x", DIGITS.encode()[:-1], DIGITS.encode()[:-1] + b"\x02A\x01b", DIGITS.encode() + b"0", DIGITS.encode() + b"0\x02"]
)
def test_malformed_sequence_property_is_rejected(value: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="__LS_SEQ"):
        find_sequence(b"__LS_SEQ\x01" + value)


def test_running_crc_covers_all_frames_with_its_own_digits_as_zeros() -> None:
    first, second = records(5)[:2], records(5)[2:]
    body, sealed = seal_frame(first, FrameSequence(PRODUCER, 0, 0, 0, 2, True, 1234), 0)
    zeroed = add_sequence(first[0], FrameSequence(PRODUCER, 0, 0, 0, 2, True, 0)) + first[1]
    assert sealed.crc == zlib.crc32(zeroed)
    at = crc_digits_at(body)
    assert body == zeroed[:at] + b"%08x" % sealed.crc + zeroed[at + 8 :]
    assert frame_crc(0, body, at) == sealed.crc
    assert find_sequence(RecordView(body).properties) == sealed
    body2, sealed2 = seal_frame(second, FrameSequence(PRODUCER, 0, 0, 2, 3, False, 0), sealed.crc)
    zeroed2 = add_sequence(second[0], FrameSequence(PRODUCER, 0, 0, 2, 3, False, 0)) + b"".join(second[1:])
    assert sealed2.crc == zlib.crc32(zeroed + zeroed2)
    assert frame_crc(sealed.crc, body2, crc_digits_at(body2)) == sealed2.crc
    assert len(split_records(body2)) == 3


def test_stored_records_have_the_same_crc_once_broker_fields_are_zeroed() -> None:
    body, sealed = seal_frame(records(3), FrameSequence(PRODUCER, 0, 0, 0, 3, True, 0), 99)
    stored = bytearray(body)
    for number, (start, _) in enumerate(split_records(body)):
        OFFSETS.pack_into(stored, start + record.QUEUE_OFFSET_AT, 40 + number, 1000 + start)
        HOSTS.pack_into(stored, start + record.BORN_HOST_AT, b"12345678", 1700000000999, b"abcdefgh")
    assert frame_crc(99, stored, crc_digits_at(stored)) != sealed.crc
    for start, _ in split_records(stored):
        zero_broker_fields(stored, start)
    assert frame_crc(99, stored, crc_digits_at(stored)) == sealed.crc
    assert stored == body


def test_flipped_bit_anywhere_in_a_frame_is_detected() -> None:
    body, sealed = seal_frame(records(2), FrameSequence(PRODUCER, 0, 0, 0, 2, True, 0), 0)
    for position in range(len(body)):
        flipped = bytearray(body)
        flipped[position] ^= 0x04
        try:
            sequence = find_sequence(RecordView(flipped).properties)
            same = sequence is not None and frame_crc(0, flipped, crc_digits_at(flipped)) == sequence.crc
        except RemoteProtocolError:
            continue
        assert not same, f"byte {position}"
    assert frame_crc(0, body, crc_digits_at(body)) == sealed.crc


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6), SEQUENCES, st.integers(0, (1 << 32) - 1))
@settings(max_examples=60)
def test_sealed_frame_is_valid(bodies: list[bytes], sequence: FrameSequence, previous: int) -> None:
    frame, sealed = seal_frame([encode_record(b"t", 0, body, b"", born_ms=0) for body in bodies], sequence, previous)
    assert find_sequence(RecordView(frame).properties) == sealed
    assert frame_crc(previous, frame, crc_digits_at(frame)) == sealed.crc
    assert [RecordView(frame, start).body for start, _ in split_records(frame)] == bodies
