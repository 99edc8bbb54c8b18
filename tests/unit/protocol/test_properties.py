import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError
from lockstep.protocol.messages.properties import RESERVED, check_user_properties, decode_properties, encode_properties

TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=("Cs",)), min_size=1, max_size=20)


def test_encoded_properties_have_no_trailing_separator() -> None:
    assert encode_properties({"TAGS": "TagA", "KEYS": "k1 k2"}) == b"TAGS\x01TagA\x02KEYS\x01k1 k2"
    assert encode_properties({}) == b""


@given(st.dictionaries(TEXT, TEXT, max_size=5))
def test_properties_round_trip_with_and_without_a_trailing_separator(properties: dict[str, str]) -> None:
    encoded = encode_properties(properties)
    assert decode_properties(encoded) == properties
    assert decode_properties(encoded + b"\x02") == properties
    assert decode_properties(encoded.decode()) == properties
    assert list(decode_properties(memoryview(encoded))) == list(properties)


@pytest.mark.parametrize(
    ("stored", "properties"),
    [
        (b"", {}),
        (b"\x02", {}),
        (b"\x02\x02A\x011\x02\x02", {"A": "1"}),
        (b"A\x01\x02B\x012", {"B": "2"}),
        (b"\x01x\x02B\x012", {"B": "2"}),
        (b"A\x02B\x012", {"B": "2"}),
        (b"A\x011\x02C\x01x\x01y", {"A": "1", "C": "x\x01y"}),
        (b"A\x011\x02A\x012", {"A": "2"}),
        ("K\x01中文😀".encode(), {"K": "中文😀"}),
    ],
)
def test_property_pairs_are_decoded_as_by_java(stored: bytes, properties: dict[str, str]) -> None:
    assert decode_properties(stored) == properties


def test_properties_that_are_not_utf_8_are_rejected() -> None:
    with pytest.raises(RemoteProtocolError, match=r"UTF-8.* at byte 2"):
        decode_properties(b"A\x01\xff")


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_as_properties_or_rejected(stored: bytes) -> None:
    try:
        properties = decode_properties(stored)
    except RemoteProtocolError:
        return
    assert all(name and value for name, value in properties.items())


@pytest.mark.parametrize("name", [*sorted(RESERVED), "__LS_", "__LS_SEQ", "__LS_anything", "__RMQ.TRANSIENT.x", "TIMER_ANY"])
def test_reserved_property_names_are_rejected(name: str) -> None:
    with pytest.raises(LocalProtocolError, match="reserved"):
        check_user_properties({name: "x"})


@pytest.mark.parametrize(
    ("properties", "match"),
    [
        ({"": "x"}, "property name is empty"),
        ({"a": ""}, "'a' is empty"),
        ({"a\x01b": "x"}, "0x01 or 0x02"),
        ({"a\x02b": "x"}, "0x01 or 0x02"),
        ({"a": "x\x01"}, "0x01 or 0x02"),
        ({"a": "\x02"}, "0x01 or 0x02"),
        ({"a": 1}, "is a int: expected str"),
        ({"a": None}, "is a NoneType: expected str"),
        ({1: "a"}, "name is a int: expected str"),
        ({"a": "\ud800"}, "surrogate"),
        ({"\udfff": "a"}, "surrogate"),
    ],
)
def test_property_that_can_not_be_encoded_is_rejected(properties: dict[str, str], match: str) -> None:
    with pytest.raises(LocalProtocolError, match=match):
        check_user_properties(properties)


@pytest.mark.parametrize("properties", [{}, {"tenant": "a"}, {"tags": "lower case is free"}, {"é": "中文"}, {"a": "x" * 32765}])
def test_other_properties_are_accepted(properties: dict[str, str]) -> None:
    check_user_properties(properties)
    assert decode_properties(encode_properties(properties)) == properties
