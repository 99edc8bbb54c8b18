"""Header and body codecs with any data that a hostile peer can send."""

import gc
import tracemalloc
from collections.abc import Sequence

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.protocol.bodies import HeartbeatBody, LockItem, LockVerdict, RegisterBody, SyncBody, SyncReply, SyncResult
from lockstep.protocol.codec import CODECS
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codec.msgpack_header import ARRAY_MAX, FIELDS_MAX
from lockstep.protocol.codec.plain import (
    ELEMENT_BYTES_MIN,
    ELEMENTS_ALWAYS,
    ELEMENTS_MAX,
    ITEMS_MAX,
    PackedList,
    pack_around,
    pack_plain,
    unpack_plain,
)
from lockstep.protocol.command import MSGPACK, Command
from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError

HEADER = CODECS[MSGPACK]


def header(*items: object) -> bytes:
    encoded: bytes = msgpack.packb(list(items))
    return encoded


def test_header_is_an_array_of_six() -> None:
    command = Command(105, 7, 2, 409, "r", {"topic": "T", "n": 1 << 60, "on": True, "raw": b"\x00"})
    encoded = HEADER.encode(command)
    assert msgpack.unpackb(encoded) == [105, 2, 7, 409, "r", {"topic": "T", "n": 1 << 60, "on": True, "raw": b"\x00"}]
    assert HEADER.decode(encoded, b"") == command


def test_longer_header_array_is_accepted() -> None:
    assert HEADER.decode(header(1, 0, 2, 409, None, {}, "new", [1], {"x": 1}), b"b") == Command(1, 2, body=b"b")


@pytest.mark.parametrize("count", [0, 1, 5])
def test_shorter_header_array_is_rejected(count: int) -> None:
    with pytest.raises(RemoteProtocolError, match="array of 6"):
        HEADER.decode(header(*[1, 0, 2, 409, None, {}][:count]), b"")


@pytest.mark.parametrize("place", [0, 1, 2, 3])
@pytest.mark.parametrize("value", [None, True, 1.0, "1", b"1", [], {}, 1 << 31, -(1 << 31) - 1, 1 << 63])
def test_header_numbers_must_be_int32(place: int, value: object) -> None:
    items: list[object] = [1, 0, 2, 409, None, {}]
    items[place] = value
    with pytest.raises(RemoteProtocolError, match="int32"):
        HEADER.decode(header(*items), b"")


@pytest.mark.parametrize("value", [-(1 << 31), -1, 0, (1 << 31) - 1])
def test_int32_bounds_are_accepted(value: int) -> None:
    command = Command(value, value, value, value)
    assert HEADER.decode(HEADER.encode(command), b"") == command


@pytest.mark.parametrize("remark", [1, b"x", [], {}, False])
def test_remark_must_be_a_string_or_none(remark: object) -> None:
    with pytest.raises(RemoteProtocolError, match="remark"):
        HEADER.decode(header(1, 0, 2, 409, remark, {}), b"")


@pytest.mark.parametrize("fields", [None, [], 1, "x", {"a": []}, {"a": {}}, {b"a": 1}, {"a": [[1]]}])
def test_header_fields_must_be_a_map_of_names_to_plain_values(fields: object) -> None:
    with pytest.raises(RemoteProtocolError, match="fields"):
        HEADER.decode(header(1, 0, 2, 409, None, fields), b"")


@pytest.mark.parametrize(
    "raw", [b"", b"\xc1", b"\xc0", b"\x80", b"x", header(1, 0, 2, 409, None, {}) + b"\xc0", header(1, 0, 2, 409, None, {})[:-1]]
)
def test_invalid_header_is_rejected(raw: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="header"):
        HEADER.decode(raw, b"")


def test_header_array_and_map_lengths_are_limited() -> None:
    assert HEADER.decode(header(1, 0, 2, 409, None, {}, *[0] * (ARRAY_MAX - 6)), b"").code == 1
    with pytest.raises(RemoteProtocolError, match="max_array_len"):
        HEADER.decode(header(1, 0, 2, 409, None, {}, *[0] * (ARRAY_MAX - 5)), b"")
    assert len(HEADER.decode(header(1, 0, 2, 409, None, {str(i): i for i in range(FIELDS_MAX)}), b"").fields) == FIELDS_MAX
    with pytest.raises(RemoteProtocolError, match="max_map_len"):
        HEADER.decode(header(1, 0, 2, 409, None, {str(i): i for i in range(FIELDS_MAX + 1)}), b"")


@pytest.mark.parametrize("fields", [{"a": object()}, {"a": 1 << 64}, {"a": "\ud800"}])
def test_unencodable_header_field_is_a_local_protocol_error(fields: dict[str, object]) -> None:
    with pytest.raises(LocalProtocolError):
        HEADER.encode(Command(1, fields=fields))


CLAIMS = {
    "str of 4 GiB": b"\xdb\xff\xff\xff\xff",
    "bin of 4 GiB": b"\xc6\xff\xff\xff\xff",
    "array of 4 Gi": b"\xdd\xff\xff\xff\xff",
    "map of 4 Gi": b"\xdf\xff\xff\xff\xff",
    "array of 65535": b"\xdc\xff\xff",
    "map of 65535": b"\xde\xff\xff",
    "str of 255": b"\xd9\xff",
    "ext of 4 GiB": b"\xc9\xff\xff\xff\xff\x01",
    "timestamp": b"\xd6\xff\x00\x00\x00\x01",
    "fixext": b"\xd4\x01\x00",
    "bad UTF-8": b"\xa2\xff\xfe",
    "half a surrogate pair": b"\xa3\xed\xa0\x80",
    "map as key": b"\x81\x80\xc0",
    "array as key": b"\x81\x90\xc0",
    "int as key": b"\x81\x01\xc0",
    "two values": b"\xc0\xc0",
    "nothing": b"",
    "reserved byte": b"\xc1",
}


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
@pytest.mark.parametrize("prefix", [b"", b"\x91", b"\x81\xa1a", b"\x95\x01\x02\x03\x04"])
def test_length_beyond_the_data_is_rejected_without_allocating(prefix: bytes, claim: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match="is not msgpack"):
            unpack_plain(prefix + claim)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("opener", [b"\x91", b"\x81\xa1a", b"\xdc\x00\x01"])
@pytest.mark.parametrize("depth", [1025, 100_000])
def test_deep_nesting_is_rejected(opener: bytes, depth: int) -> None:
    with pytest.raises(RemoteProtocolError, match="is not msgpack"):
        unpack_plain(opener * depth + b"\xc0")


@pytest.mark.parametrize("depth", [10, 1000])
def test_nesting_accepted_by_msgpack_is_rejected_as_a_body(depth: int) -> None:
    with pytest.raises(RemoteProtocolError, match="SyncItem: expected map, got list"):
        decode_body(SyncBody, b"\x81\xa5items" + b"\x91" * depth + b"\xc0")


def test_memory_of_nested_lengths_is_limited_by_their_bytes() -> None:
    """Each level claims as many elements as there are bytes: at most 1,024 levels of 8 bytes per element."""
    raw = (b"\xdd" + (5000).to_bytes(4, "big")) * 1000
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            unpack_plain(raw)
        assert tracemalloc.get_traced_memory()[1] < 1024 * len(raw) * 8 + 1_000_000
    finally:
        tracemalloc.stop()


def test_list_length_is_limited() -> None:
    assert len(unpack_plain(pack_plain([0] * ITEMS_MAX))) == ITEMS_MAX
    with pytest.raises(RemoteProtocolError, match="max_array_len"):
        unpack_plain(pack_plain([0] * (ITEMS_MAX + 1)))


def padded(elements: int, size: int, each: object) -> bytes:
    """Return a value of `elements` elements in `size` bytes."""
    inner: bytes = msgpack.packb([each] * (ITEMS_MAX // 2))
    rest = elements - 1
    parts = []
    while rest > ITEMS_MAX // 2 + 1:
        parts.append(inner)
        rest -= ITEMS_MAX // 2 + 1
    parts.append(msgpack.packb([each] * (rest - 1)))
    head = b"\xdd" + (len(parts) + 1).to_bytes(4, "big") + b"".join(parts)
    return head + b"\xc6" + (size - len(head) - 5).to_bytes(4, "big") + bytes(size - len(head) - 5)


SMALL = [[], {}, 0, None, "x"]
"""Values of one or two bytes."""


SIZES = [ELEMENTS_ALWAYS * 3, ELEMENTS_ALWAYS * ELEMENT_BYTES_MIN * 2, 2 << 20, 16 << 20]


@pytest.mark.parametrize(("size", "each"), [*((size, []) for size in SIZES), *((SIZES[0], each) for each in SMALL[1:])])
def test_element_count_is_limited_by_the_size_and_by_500000(size: int, each: object) -> None:
    most = min(ELEMENTS_MAX, max(ELEMENTS_ALWAYS, size // ELEMENT_BYTES_MIN))
    assert len(padded(most, size, each)) == size
    unpack_plain(padded(most, size, each))
    with pytest.raises(RemoteProtocolError, match=f"more than {most} elements"):
        unpack_plain(padded(most + 1, size, each))


def test_map_entries_count_as_elements() -> None:
    entries: bytes = msgpack.packb({f"{number:04}": 0 for number in range(10_000)})
    blocks = ELEMENTS_MAX // 10_001
    body = b"\xdd" + blocks.to_bytes(4, "big") + entries * blocks
    unpack_plain(body)
    with pytest.raises(RemoteProtocolError, match="more than 500000 elements"):
        unpack_plain(b"\xdd" + (blocks + 1).to_bytes(4, "big") + entries * (blocks + 1))


@pytest.mark.parametrize("each", SMALL)
def test_memory_of_a_body_of_small_values_is_limited(each: object) -> None:
    raw = padded(1_000_000, 2_200_000, each)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match="elements"):
            unpack_plain(raw)
        assert tracemalloc.get_traced_memory()[1] < 80 * (ELEMENTS_MAX + ITEMS_MAX)
    finally:
        tracemalloc.stop()


def test_densest_own_body_is_accepted() -> None:
    """The response to a SYNC with the maximum number of items, ten bytes each."""
    most = SyncReply((SyncResult(LockVerdict.OK),) * ITEMS_MAX, {})
    assert decode_body(SyncReply, encode_body(most)) == most


@pytest.mark.parametrize("value", [[], {}, "", 0, [[]], {"a": {}}, [{}], b""])
def test_size_based_limits_accept_complete_values(value: object) -> None:
    assert unpack_plain(pack_plain(value)) == value


def test_error_for_an_invalid_body_names_its_class() -> None:
    with pytest.raises(RemoteProtocolError, match=r"^HeartbeatBody is not msgpack"):
        decode_body(HeartbeatBody, b"\xc1")
    with pytest.raises(RemoteProtocolError, match=r"^RegisterBody\.listeners: missing"):
        decode_body(RegisterBody, b"\x80")


def test_unencodable_body_is_a_local_protocol_error() -> None:
    with pytest.raises(LocalProtocolError):
        encode_body(LockItem("g", "t", 1 << 64))


BODY = encode_body(HeartbeatBody("10.0.0.1@7#ab", session="0" * 32, connection=3))


def test_body_with_a_flipped_bit_is_decoded_or_rejected_and_a_truncated_one_rejected() -> None:
    for position in range(len(BODY)):
        with pytest.raises(RemoteProtocolError):
            decode_body(HeartbeatBody, BODY[:position])
        for bit in range(8):
            flipped = bytearray(BODY)
            flipped[position] ^= 1 << bit
            try:
                decode_body(HeartbeatBody, flipped)
            except RemoteProtocolError:
                pass


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_random_bytes_are_decoded_or_rejected(raw: bytes) -> None:
    try:
        value = unpack_plain(raw)
    except RemoteProtocolError:
        return
    assert unpack_plain(pack_plain(value)) == value or value != value or "nan" in repr(value)


def test_list_and_map_lengths_are_limited_by_the_available_bytes() -> None:
    with pytest.raises(RemoteProtocolError, match=r"100 exceeds max_array_len\(3\)"):
        unpack_plain(b"\xdc\x00\x64")
    with pytest.raises(RemoteProtocolError, match=r"100 exceeds max_map_len\(3\)"):
        unpack_plain(b"\xde\x00\x64")


def packed(values: Sequence[object]) -> PackedList:
    made = PackedList()
    for value in values:
        made.append(value)
    return made


@given(st.lists(st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=3), max_size=40))
def test_list_packed_by_elements_equals_the_list_packed_at_once(rows: list[dict[str, int]]) -> None:
    assert pack_around({"a": 1, "b": {"rows": packed(rows), "c": None}, "d": [2]}) == pack_plain(
        {"a": 1, "b": {"rows": rows, "c": None}, "d": [2]}
    )


def test_element_that_cannot_be_packed_leaves_no_part_of_itself_in_the_list() -> None:
    rows = packed([1])
    with pytest.raises(LocalProtocolError, match="can't be written as msgpack"):
        rows.append({"a": 2, "b": 1 << 64})
    rows.append(3)
    assert pack_around({"rows": rows}) == pack_plain({"rows": [1, 3]})


def test_packing_leaves_nothing_to_the_garbage_collector() -> None:
    """A cycle would keep every part of a large response until the collector looks at the oldest objects."""
    gc.collect()
    gc.disable()
    try:
        pack_around({"rows": packed([1] * 10), "more": {"rows": packed([2])}})
        assert gc.collect() == 0
    finally:
        gc.enable()
