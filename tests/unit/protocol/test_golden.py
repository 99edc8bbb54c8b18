"""The bytes on the wire are frozen: golden_frames.txt and golden_bodies.txt have a line `name hex` for each kind.

A changed line means that older peers can no longer read or be read. A new field with a default may lengthen a line. A new kind adds a
line, which the failing test prints.
"""

from pathlib import Path

import pytest

from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.fields import from_plain
from lockstep.protocol.frame import FrameBuffer, encode_frame
from support.wire_values import BODIES, HEADERS, REPLIES, REQUESTS, example_frames, example_of

HERE = Path(__file__).parent
FRAMES = example_frames()


def frozen(name: str) -> dict[str, bytes]:
    lines = (HERE / name).read_text().splitlines()
    return {key: bytes.fromhex(value) for key, _, value in (line.partition(" ") for line in lines)}


GOLDEN_FRAMES = frozen("golden_frames.txt")
GOLDEN_BODIES = frozen("golden_bodies.txt")


def only(data: bytes) -> Command:
    buffer = FrameBuffer()
    buffer.feed(data)
    command = buffer.next()
    assert command is not None
    assert buffer.pending_bytes == 0
    return command


def test_smallest_frames_have_the_documented_bytes() -> None:
    """The bytes were checked by hand against the byte maps of frame.py and msgpack_header.py."""
    assert encode_frame(Command(105, 7, fields={"topic": "TopicTest"})) == bytes.fromhex(
        "0000001D 4D 000019"  # length 29 = 4 + 25, 'M', header length 25
        "96 69 00 07 CD0199 C0"  # array of 6: code 105, flag 0, opaque 7, version 409, remark nil
        "81 A5746F706963 A9546F70696354657374"  # map of 1: "topic" → "TopicTest"
    )
    assert encode_frame(Command(17, 7, 1, remark="no route", body=b"\x00\xff")) == bytes.fromhex(
        "00000017 4D 000011 96 11 01 07 CD0199 A86E6F20726F757465 80 00FF"
    )


def test_structured_body_has_the_documented_bytes() -> None:
    kind = next(kind for kind in BODIES if kind.__name__ == "FreeQueue")
    assert encode_body(kind("g", "t", 3)) == bytes.fromhex("83 A567726F7570 A167 A5746F706963 A174 A77175657565496403".replace(" ", ""))


@pytest.mark.parametrize("name", FRAMES)
def test_each_kind_of_frame_equals_its_golden_bytes(name: str) -> None:
    data = encode_frame(FRAMES[name])
    assert GOLDEN_FRAMES.get(name) == data, f"{name} {data.hex()}"
    assert only(GOLDEN_FRAMES[name]) == FRAMES[name]


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
def test_each_body_equals_its_golden_bytes(kind: type) -> None:
    data = encode_body(example_of(kind))
    assert GOLDEN_BODIES.get(kind.__name__) == data, f"{kind.__name__} {data.hex()}"
    assert decode_body(kind, data) == example_of(kind)


def test_golden_files_contain_only_existing_kinds() -> None:
    assert set(GOLDEN_FRAMES) == set(FRAMES)
    assert set(GOLDEN_BODIES) == {kind.__name__ for kind in BODIES}


def test_each_request_and_header_has_a_golden_frame() -> None:
    assert set(REQUESTS) == set(RequestCode)
    used = {header for header, _ in [*REQUESTS.values(), *REPLIES.values()]}
    assert set(HEADERS) <= used
    assert len(HEADERS) >= 20


@pytest.mark.parametrize(("table", "kind"), [(REQUESTS, "request"), (REPLIES, "reply")], ids=["request", "reply"])
def test_headers_and_bodies_are_decoded_from_the_golden_frames(
    table: dict[RequestCode, tuple[type | None, type | None]], kind: str
) -> None:
    for code, (header, body) in table.items():
        command = only(GOLDEN_FRAMES[f"{kind}.{code.name}"])
        if header:
            assert from_plain(header, command.fields) == example_of(header)
        if body:
            assert decode_body(body, command.body) == example_of(body)


@pytest.mark.parametrize("name", FRAMES)
def test_incomplete_golden_frame_is_decoded_once_complete(name: str) -> None:
    data = GOLDEN_FRAMES[name]
    for cut in range(len(data)):
        buffer = FrameBuffer()
        buffer.feed(data[:cut])
        assert buffer.next() is None
        buffer.feed(data[cut:])
        assert buffer.next() == FRAMES[name]


@pytest.mark.parametrize(("table", "kind"), [(REQUESTS, "request"), (REPLIES, "reply")], ids=["request", "reply"])
def test_flipped_byte_in_a_golden_frame_is_decoded_or_rejected(
    table: dict[RequestCode, tuple[type | None, type | None]], kind: str
) -> None:
    for code, (header, body) in table.items():
        data = GOLDEN_FRAMES[f"{kind}.{code.name}"]
        for position in range(len(data)):
            flipped = bytearray(data)
            flipped[position] ^= 0xFF if position % 2 else 0x81
            buffer = FrameBuffer()
            buffer.feed(flipped)
            try:
                command = buffer.next()
                if command is not None and header:
                    from_plain(header, command.fields)
                if command is not None and body:
                    decode_body(body, command.body)
            except RemoteProtocolError:
                pass
