import dataclasses
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.command import Command
from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.fields import camel, from_plain, to_plain
from lockstep.protocol.frame import FrameBuffer, encode_frame
from support.effort import examples
from support.wire_values import BODIES, HEADERS, values_of


class Colour(Enum):
    RED = "RED"


class Level(IntEnum):
    LOW = 1


@dataclass(frozen=True, slots=True)
class Inner:
    queue_id: int


@dataclass(frozen=True, slots=True)
class Outer:
    name: str
    client_id: str = field(metadata={"wire": "clientID"})
    inner: Inner
    many: tuple[Inner, ...] = ()
    by_name: dict[str, Inner] = field(default_factory=dict)
    maybe: int | None = None
    maybe_inner: Inner | None = None
    colour: Colour = Colour.RED
    level: Level = Level.LOW
    flag: bool = False
    raw: bytes = b""


FULL = Outer("a", "c", Inner(1), (Inner(2), Inner(3)), {"z": Inner(5), "b": Inner(4)}, 6, Inner(7), Colour.RED, Level.LOW, True, b"\xff")
PLAIN: dict[str, Any] = {"name": "a", "clientID": "c", "inner": {"queueId": 1}}


def test_field_names_are_camel_case_or_explicit_on_the_wire() -> None:
    assert camel("max_msg_nums") == "maxMsgNums"
    assert to_plain(FULL) == {
        "name": "a",
        "clientID": "c",
        "inner": {"queueId": 1},
        "many": [{"queueId": 2}, {"queueId": 3}],
        "byName": {"b": {"queueId": 4}, "z": {"queueId": 5}},
        "maybe": 6,
        "maybeInner": {"queueId": 7},
        "colour": "RED",
        "level": 1,
        "flag": True,
        "raw": b"\xff",
    }


def test_none_is_not_encoded() -> None:
    assert "maybe" not in to_plain(Outer("a", "c", Inner(1)))


def test_missing_field_gets_its_default() -> None:
    assert from_plain(Outer, PLAIN) == Outer("a", "c", Inner(1))


def test_unknown_fields_are_ignored() -> None:
    assert from_plain(Inner, {"queueId": 1, "later": [[]]}) == Inner(1)


def test_null_of_an_optional_field_is_none() -> None:
    assert from_plain(Outer, {**PLAIN, "maybe": None, "maybeInner": None}) == Outer("a", "c", Inner(1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", 1),
        ("name", None),
        ("name", b"a"),
        ("inner", 1),
        ("inner", []),
        ("inner", {}),
        ("inner", {"queueId": True}),
        ("inner", {"queueId": 1.0}),
        ("inner", {"queueId": "1"}),
        ("many", {}),
        ("many", "ab"),
        ("many", [1]),
        ("byName", []),
        ("byName", {1: {"queueId": 1}}),
        ("byName", {"a": 1}),
        ("maybe", "1"),
        ("maybe", True),
        ("colour", "BLUE"),
        ("colour", ["RED"]),
        ("colour", {}),
        ("level", True),
        ("level", 1.0),
        ("level", 2),
        ("flag", 1),
        ("raw", "a"),
    ],
)
def test_error_for_a_value_of_a_wrong_type_names_class_and_field(name: str, value: object) -> None:
    with pytest.raises(RemoteProtocolError, match=r"^(Outer|Inner)"):
        from_plain(Outer, {**PLAIN, name: value})


def test_error_for_a_missing_field_names_it() -> None:
    with pytest.raises(RemoteProtocolError, match=r"^Outer\.clientID: missing$"):
        from_plain(Outer, {"name": "a"})


@pytest.mark.parametrize("value", [None, 1, "x", [], [{}], b""])
def test_dataclass_is_decoded_only_from_a_map(value: object) -> None:
    with pytest.raises(RemoteProtocolError, match="Outer: expected map"):
        from_plain(Outer, value)


def test_error_text_does_not_contain_the_rejected_value() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    for value in (deep, "x" * 1_000_000, {"a": deep}):
        with pytest.raises(RemoteProtocolError) as caught:
            from_plain(Inner, {"queueId": value})
        assert len(str(caught.value)) < 200


def test_equal_values_are_encoded_equally_regardless_of_map_order() -> None:
    one = dataclasses.replace(FULL, by_name={"a": Inner(1), "b": Inner(2)})
    other = dataclasses.replace(FULL, by_name={"b": Inner(2), "a": Inner(1)})
    assert one == other
    assert encode_body(one) == encode_body(other)


def test_default_values_of_a_field_are_equal() -> None:
    assert from_plain(Outer, PLAIN) == from_plain(Outer, dict(PLAIN))


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
@examples(25)
@given(data=st.data())
def test_every_body_round_trips(kind: type, data: st.DataObject) -> None:
    value = data.draw(values_of(kind))
    encoded = encode_body(value)
    assert decode_body(kind, encoded) == value
    assert encode_body(decode_body(kind, encoded)) == encoded


@pytest.mark.parametrize("kind", HEADERS, ids=lambda kind: kind.__name__)
@examples(25)
@given(data=st.data())
def test_every_header_round_trips(kind: type, data: st.DataObject) -> None:
    value = data.draw(values_of(kind))
    buffer = FrameBuffer()
    buffer.feed(encode_frame(Command(10, 1, fields=to_plain(value))))
    command = buffer.next()
    assert command is not None
    assert from_plain(kind, command.fields) == value


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("kind", [*BODIES, *HEADERS], ids=lambda kind: kind.__name__)
@examples(25)
@given(data=st.data())
def test_any_field_value_is_decoded_or_rejected(kind: type, data: st.DataObject) -> None:
    """One field of a valid value is random data. It is decoded to a value that can be encoded, or raises RemoteProtocolError."""
    plain = to_plain(data.draw(values_of(kind)))
    if plain:
        plain[data.draw(st.sampled_from(sorted(plain)))] = data.draw(JUNK)
    try:
        value = from_plain(kind, plain)
    except RemoteProtocolError:
        return
    to_plain(value)
