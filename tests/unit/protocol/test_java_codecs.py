"""The two header codecs of RocketMQ's clients, the fields and bodies that they write, and hostile input."""

import json
import struct
from dataclasses import dataclass
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.codec import CODECS
from lockstep.protocol.codec.java import LANGUAGES, read_json
from lockstep.protocol.command import BINARY, JSON, Command
from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError
from lockstep.protocol.fields import from_text, to_text
from lockstep.protocol.frame import FrameBuffer, encode_frame
from lockstep.protocol.headers.offsets import TopicHeader
from lockstep.protocol.headers.pull import PullHeader

# Recorded from the classes of Apache RocketMQ 4.9.8.
ROUTE_BINARY = bytes.fromhex(
    "0000002D 01000029 0069 00 0199 00000007 00000000 00000000 00000014 0005 746F706963 00000009 546F70696354657374"
)
ROUTE_JSON = bytes.fromhex("00000087 00000083") + (
    b'{"code":105,"extFields":{"topic":"TopicTest"},"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":409}'
)
NO_ROUTE_BINARY = bytes.fromhex("00000021 0100001D 0011 00 0199 00000007 00000001 00000008 6E6F20726F757465 00000000")


def decoded(frame: bytes) -> Command:
    buffer = FrameBuffer()
    buffer.feed(frame)
    command = buffer.next()
    assert command is not None
    assert buffer.next() is None
    return command


def json_header(header: bytes) -> Command:
    return CODECS[JSON].decode(header, b"")


@pytest.mark.parametrize(("frame", "codec"), [(ROUTE_BINARY, BINARY), (ROUTE_JSON, JSON)])
def test_request_of_apaches_client_is_read(frame: bytes, codec: int) -> None:
    command = decoded(frame)
    assert command == Command(105, 7, 0, 409, None, {"topic": "TopicTest"}, b"", codec, language="JAVA")
    assert CODECS[codec].read_fields(TopicHeader, command.fields) == TopicHeader("TopicTest")


def test_binary_frames_equal_those_of_apaches_classes() -> None:
    assert encode_frame(Command(105, 7, 0, 409, None, {"topic": "TopicTest"}, b"", BINARY, language="JAVA")) == ROUTE_BINARY
    assert encode_frame(Command(17, 7, 1, 409, "no route", {}, b"", BINARY, language="JAVA")) == NO_ROUTE_BINARY


def test_json_response_has_neither_nulls_nor_blanks_and_only_text_in_its_fields() -> None:
    command = Command(0, 7, 1, 409, None, {"offset": 5, "found": True, "none": None}, b"", JSON)
    assert CODECS[JSON].encode(command) == (
        b'{"code":0,"extFields":{"offset":"5","found":"true"},"flag":1,"language":"PYTHON","opaque":7,'
        b'"serializeTypeCurrentRPC":"JSON","version":409}'
    )


TEXTS = st.text(max_size=20).filter(lambda text: not any("\ud800" <= sign <= "\udfff" for sign in text))
FIELDS = st.dictionaries(TEXTS.filter(bool), TEXTS.filter(bool), max_size=5)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)


@given(
    st.sampled_from([JSON, BINARY]), st.integers(0, 32_767), INT32, st.integers(0, 3), st.integers(0, 32_767), TEXTS, FIELDS, st.binary()
)
def test_every_command_survives_a_round_trip(
    codec: int, code: int, opaque: int, flag: int, version: int, remark: str, fields: dict[str, str], body: bytes
) -> None:
    command = Command(code, opaque, flag, version, remark or None, fields, body, codec, language="GO")
    assert decoded(encode_frame(command)) == command


@pytest.mark.parametrize(
    ("header", "fields", "language"),
    [
        (b'{"code":"15","opaque":3}', {}, None),
        (b'{"code":15,"opaque":"3","extFields":null,"language":9,"remark":null}', {}, 9),
        (b'{"code":15,"opaque":3,"extFields":{"a":1,"b":true,"c":null,"d":1.5},"unknown":[]}', {"a": 1, "b": True, "d": 1.5}, None),
        (b' { "code" : 15 , "opaque" : 3 , "language" : "CPP" } ', {}, "CPP"),
    ],
)
def test_headers_of_other_clients_are_read(header: bytes, fields: dict[str, object], language: object) -> None:
    found = json_header(header)
    assert (found.code, found.opaque, found.fields, found.language, found.version) == (15, 3, fields, language, 0)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"code":1e3}',
        b'{"code":2147483648}',
        b'{"code":true}',
        b'{"code":"x"}',
        b'{"code":1,"extFields":[]}',
        b'{"code":1,"extFields":{"a":{}}}',
        b'{"code":1,"extFields":{"a":NaN}}',
        b'{"code":1,"extFields":{"a":Infinity}}',
        b'{"code":1,"extFields":{"a":1e999}}',
        b'{"code":1,"remark":5}',
        b'{"code":1,"language":{}}',
        b'{"code":1,"extFields":{"topic":"\\ud800"}}',
        b'{"code":1,"extFields":{"\\udfff":"a"}}',
        b'{"code":1,"remark":"\\ud83d"}',
        b'{"code":1,"extFields":{"a":"\xff"}}',
        b'{"code":' + b"9" * 5_000 + b"}",
        b'{"a":' + b"[" * 100_000,
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        json.dumps({"extFields": {str(number): "" for number in range(129)}}).encode(),
    ],
)
def test_json_header_that_can_not_be_used_is_refused(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        json_header(header)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("item", ["[]", "{}", "0", '""'])
def test_json_with_more_elements_than_a_msgpack_body_is_refused(item: str) -> None:
    assert len(read_json(f"[{','.join([item] * 30_000)}]".encode(), what="body")) == 30_000
    with pytest.raises(RemoteProtocolError, match="body is not JSON within its limits: more than 65536 elements"):
        read_json(f"[{','.join([item] * 66_000)}]".encode(), what="body")


def test_whole_surrogate_pair_is_read() -> None:
    assert json_header(b'{"extFields":{"a":"\\ud83d\\ude00"}}').fields == {"a": "😀"}


@given(st.binary(max_size=80))
def test_random_bytes_are_a_header_or_are_refused(data: bytes) -> None:
    for codec in (JSON, BINARY):
        try:
            CODECS[codec].decode(data, b"")
        except RemoteProtocolError:
            pass


@given(st.integers(0, len(ROUTE_BINARY) - 9), st.binary(min_size=1, max_size=4))
def test_damaged_binary_header_is_read_or_refused(at: int, change: bytes) -> None:
    header = bytearray(ROUTE_BINARY[8:])
    header[at : at + len(change)] = change
    try:
        found = CODECS[BINARY].decode(bytes(header), b"")
    except RemoteProtocolError:
        return
    assert all(isinstance(name, str) and isinstance(value, str) for name, value in found.fields.items())


def test_binary_header_with_a_name_twice_has_the_last_value() -> None:
    entries = b"".join(struct.pack(">h", 1) + b"a" + struct.pack(">i", len(value)) + value for value in (b"1", b"", b"2"))
    header = struct.pack(">hbhiiii", 11, 9, 317, 1, 0, 0, len(entries)) + entries
    found = CODECS[BINARY].decode(header, b"")
    assert (found.fields, found.language) == ({"a": "2"}, "GO")


def test_code_beyond_the_binary_header_is_refused_by_name() -> None:
    with pytest.raises(LocalProtocolError, match=r"code 200050 does not fit into a binary header: at most 32767"):
        CODECS[BINARY].encode(Command(200_050))


def test_half_a_surrogate_pair_is_not_written() -> None:
    for codec in (JSON, BINARY):
        with pytest.raises(LocalProtocolError, match="can't be encoded"):
            CODECS[codec].encode(Command(0, remark="\ud800"))


class Colour(Enum):
    RED = "COLOUR_RED"
    GREEN = "COLOUR_GREEN"


@dataclass(frozen=True, slots=True)
class Header:
    text: str
    number: int
    flag: bool = False
    colour: Colour = Colour.RED
    maybe: int | None = None
    word: str | None = None


@pytest.mark.parametrize(
    ("fields", "header"),
    [
        ({"text": "a", "number": "-7"}, Header("a", -7)),
        ({"text": 5, "number": 7, "flag": "TRUE"}, Header("5", 7, True)),
        ({"text": True, "number": "7", "flag": "yes"}, Header("true", 7, False)),
        ({"text": "a", "number": "7", "flag": "1"}, Header("a", 7, True)),
        ({"text": "a", "number": "7", "flag": "0"}, Header("a", 7, False)),
        ({"text": "a", "number": "7", "colour": "GREEN"}, Header("a", 7, colour=Colour.GREEN)),
        ({"text": "a", "number": "7", "colour": "COLOUR_GREEN"}, Header("a", 7, colour=Colour.GREEN)),
        ({"text": "a", "number": "7", "colour": 1}, Header("a", 7, colour=Colour.GREEN)),
        ({"text": "a", "number": "7", "colour": "1", "other": "ignored"}, Header("a", 7, colour=Colour.GREEN)),
        ({"text": "a", "number": "7", "maybe": "", "word": ""}, Header("a", 7, word="")),
    ],
)
def test_fields_are_read_from_text_numbers_and_booleans(fields: dict[str, object], header: Header) -> None:
    assert from_text(Header, fields) == header


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"number": "7"}, "Header.text: missing"),
        ({"text": "a", "number": "7.5"}, "Header.number: expected int, got str '7.5'"),
        ({"text": "a", "number": "9" * 20}, "Header.number: expected int"),
        ({"text": "a", "number": "9" * 5_000}, "Header.number: expected int"),
        ({"text": "a", "number": True}, "Header.number: expected int, got bool"),
        ({"text": "a", "number": "7", "flag": 1}, "Header.flag: expected bool, got int 1"),
        ({"text": "a", "number": "7", "colour": "BLUE"}, "Header.colour: expected one of COLOUR_RED, COLOUR_GREEN, got str 'BLUE'"),
        ({"text": ["a"], "number": "7"}, "Header.text: expected str, got list"),
    ],
)
def test_unfit_field_is_named(fields: dict[str, object], said: str) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        from_text(Header, fields)
    assert said in str(refused.value)


def test_fields_are_written_as_text() -> None:
    assert to_text(Header("a", 7, True, Colour.GREEN)) == {"text": "a", "number": "7", "flag": "true", "colour": "COLOUR_GREEN"}


def test_pull_of_a_c_client_with_numbers_is_read() -> None:
    fields = {
        **{"consumerGroup": "cg", "topic": "orders", "queueId": 3, "queueOffset": 42, "maxMsgNums": "32", "sysFlag": 6},
        **{
            "commitOffset": "0",
            "suspendTimeoutMillis": 15000,
            "subscription": "a || b",
            "subVersion": "1700000000000",
            "bname": "broker-a",
        },
    }
    header = from_text(PullHeader, fields)
    assert (header.queue_id, header.queue_offset, header.sys_flag, header.subscription) == (3, 42, 6, "a || b")
    assert (header.epoch, header.generation, header.max_msg_bytes) == (None, None, None)


def test_languages_have_rocketmqs_codes() -> None:
    assert [LANGUAGES.index(name) for name in ("JAVA", "CPP", "PYTHON", "OTHER", "GO", "RUST", "NODE_JS")] == [0, 1, 3, 7, 9, 12, 13]


def test_json_error_names_what_was_read() -> None:
    with pytest.raises(RemoteProtocolError, match="HeartbeatBody is not JSON that can be read"):
        read_json(b"\x80", what="HeartbeatBody")
