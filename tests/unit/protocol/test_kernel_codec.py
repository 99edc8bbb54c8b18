"""The kernels of frames, headers and sequences: for any input they decline or give what the Python form gives, and take what is usual."""

import dataclasses
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.processors import send
from lockstep.broker.processors.send import check_stamp
from lockstep.protocol import fields, frame
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import MSGPACK, Command, response
from lockstep.protocol.errors import MessageIllegalError, RemoteProtocolError
from lockstep.protocol.fields import from_plain, to_plain
from lockstep.protocol.frame import FRAME_BYTES_MAX, HEADER_BYTES_MAX, FrameBuffer, encode_frame
from lockstep.protocol.headers.pull import PullHeader
from lockstep.protocol.headers.send import SendRecordsHeader, SendRecordsReply
from lockstep.protocol.messages.message import Message, encode_message
from lockstep.protocol.messages.sequence import FrameSequence, seal_frame
from lockstep.protocol.native import kernels
from support.kernels import Counting, mutations, needs_kernels, outcome, pure

pytestmark = needs_kernels

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 65), 1 << 65)
    | st.sampled_from([sign * (1 << bits) + more for bits in (5, 7, 8, 15, 16, 31, 32, 63, 64) for more in (-1, 0, 1) for sign in (-1, 1)])
    | st.floats(allow_nan=False)
    | st.text(max_size=40)
    | st.binary(max_size=40)
)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
commands = st.builds(
    Command, int32, int32, int32, int32, st.none() | st.text(max_size=300), st.dictionaries(st.text(max_size=8), scalars, max_size=20),
    st.binary(max_size=50),
)  # fmt: skip
HEADER = SendRecordsHeader(
    topic="orders", queue_id=3, count=2, producer_id="0" * 32, producer_epoch=5, first_sequence=100, crc=3_123_123_123
)
SEND = Command(RequestCode.SEND_RECORDS, 77, fields=to_plain(HEADER), body=b"x" * 300)


# ------------------------------------------------------------------------------------------------------------------------ frames


@given(commands)
def test_encoded_frame_is_that_of_python(command: Command) -> None:
    native = outcome(lambda: encode_frame(command))
    with pure(frame):
        assert native == outcome(lambda: encode_frame(command))


class Code(IntEnum):
    SEND = 10


@pytest.mark.parametrize(
    "value", [Code.SEND, True, *("x" * size for size in (31, 32, 255, 256)), "ü" * 40_000, b"", b"x" * 255, b"x" * 256, -0.0]
)
def test_encoded_value_is_that_of_python(value: object) -> None:
    command = Command(Code.SEND, fields={"f": value})
    native = encode_frame(command)
    assert kernels.encode_frame(command, HEADER_BYTES_MAX, FRAME_BYTES_MAX) == native
    with pure(frame):
        assert encode_frame(command) == native


@pytest.mark.parametrize("value", [1 << 64, "\ud800", [1], {"a": 1}, bytearray(b"x"), object()])
def test_value_that_is_no_scalar_is_declined(value: object) -> None:
    assert kernels.encode_frame(Command(1, fields={"f": value}), HEADER_BYTES_MAX, FRAME_BYTES_MAX) is None


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_limits_of_encoded_frames_are_those_of_python(more: int) -> None:
    bare = len(encode_frame(Command(1, fields={"f": "x" * 70_000}))) - 8
    for command in (
        Command(1, fields={"f": "x" * (HEADER_BYTES_MAX - bare + 70_000 + more)}),
        Command(1, body=bytes(FRAME_BYTES_MAX - len(encode_frame(Command(1))) + more)),
    ):
        native = outcome(lambda: encode_frame(command))  # noqa: B023
        with pure(frame):
            assert native == outcome(lambda: encode_frame(command))  # noqa: B023
        assert isinstance(native, bytes) is (more <= 0)


def read(data: bytes) -> object:
    """Return the first command of the bytes and what is left, or the error."""

    def first() -> object:
        buffer = FrameBuffer()
        buffer.feed(data)
        command = buffer.next()
        return None if command is None else (command, command.header_bytes, type(command.body), list(command.fields)), buffer.pending_bytes

    return outcome(first)


def check_read(data: bytes) -> None:
    native = read(data)
    with pure(frame):
        assert repr(native) == repr(read(data))  # by text: a NaN differs from itself


def test_every_changed_byte_of_a_frame_gives_what_python_gives() -> None:
    for data in mutations(encode_frame(SEND)):
        check_read(data)


@given(commands, st.data())
def test_frame_is_read_as_by_python(command: Command, data: st.DataObject) -> None:
    with pure(frame):
        whole = outcome(lambda: encode_frame(command))
    if isinstance(whole, bytes):
        check_read(whole)
        check_read(whole * 2)
        at = data.draw(st.integers(0, len(whole) - 1))
        check_read(whole[:at] + data.draw(st.binary(max_size=8)) + whole[at + data.draw(st.integers(0, 8)) :])


@given(st.binary(max_size=120))
def test_any_header_is_read_as_by_python(header: bytes) -> None:
    for head in (b"", b"\x96\x0a\x00\x01\x00\xc0", b"\x96\x0a\x00\x01\x00\xc0\x81\xa1a", b"\x97\x0a\x00\x01\x00\xc0\x80"):
        whole = head + header
        length = 4 + len(whole)
        check_read(length.to_bytes(4, "big") + bytes([MSGPACK]) + len(whole).to_bytes(3, "big") + whole)


# ------------------------------------------------------------------------------------------------------------------------ fields


@dataclass(frozen=True, slots=True)
class Mixed:
    number: int
    text: str | None
    flag: bool = True
    data: bytes | None = None
    codes: tuple[int, ...] = ()
    code: Code | None = None
    share: float = 0.5


VALUES = [None, True, False, 0, 1, 10, -5, 1 << 70, 1.5, "", "text", b"", b"bytes", [], [1], ["x"], (), {}, Code.SEND]


NAMES = [*(fields._wire_name(each) for each in dataclasses.fields(Mixed)), "other"]


@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES)))
def test_dataclass_is_read_as_by_python(plain: dict[str, Any]) -> None:
    fields._decoder.cache_clear()
    native = outcome(lambda: from_plain(Mixed, plain))
    fields._decoder.cache_clear()
    with pure(fields):
        assert native == outcome(lambda: from_plain(Mixed, plain))
    fields._decoder.cache_clear()


def test_read_dataclass_is_frozen_and_equal_to_one_that_was_constructed() -> None:
    made = from_plain(SendRecordsHeader, to_plain(HEADER))
    assert type(made) is SendRecordsHeader
    assert made == HEADER
    assert hash(made) == hash(HEADER)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.topic = "x"  # type: ignore[misc]


# ---------------------------------------------------------------------------------------------------------------------- sequence


def sealed(count: int, crc_before: int = 0, first: int = 0) -> tuple[bytes, FrameSequence]:
    records = [encode_message(Message("orders", b"%d" % n, tags="T"), 3, "A" * 32, 5) for n in range(count)]
    return seal_frame(records, FrameSequence("ab" * 16, 7, 2, first, count, first == 0, 0), crc_before)


def check_sequence(body: bytes, sequence: FrameSequence, crc_before: int | None) -> object:
    native = outcome(lambda: check_stamp(body, sequence, crc_before))
    with pure(send):
        assert native == outcome(lambda: check_stamp(body, sequence, crc_before))
    return native


def test_every_changed_byte_of_a_sequenced_frame_gives_what_python_gives() -> None:
    body, sequence = sealed(2, 99, 40)
    assert check_sequence(body, sequence, 99) is None
    assert check_sequence(body, sequence, None) is None
    assert isinstance(check_sequence(body, sequence, 98), tuple)
    for changed in mutations(body):
        check_sequence(changed, sequence, 99)


@pytest.mark.parametrize(
    "change",
    [
        {"producer_id": "cd" * 16},
        {"producer_id": "AB" * 16},
        {"producer_id": "é" + "a" * 31},
        {"producer_id": ""},
        {"partition": 8},
        {"partition": -7},
        {"partition": 1 << 32},
        {"epoch": 3},
        {"epoch": 1 << 63},
        {"first": 41},
        {"first": (1 << 63) - 1},
        {"count": 3},
        {"count": 1 << 24},
        {"first_known": True},
        {"given": True},
        {"crc": 5},
        {"crc": 1 << 32},
    ],
)
def test_header_that_differs_from_the_stamp_gives_what_python_gives(change: dict[str, Any]) -> None:
    body, sequence = sealed(2, 99, 40)
    assert isinstance(check_sequence(body, dataclasses.replace(sequence, **change), 99), tuple)


# -------------------------------------------------------------------------------------------------------------------- no decline


def test_kernels_do_not_decline_usual_frames_headers_and_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting()
    for module in (frame, send):
        monkeypatch.setattr(module, "kernels", counting)
    reply = to_plain(SendRecordsReply(5, 900, 1_764_000_000_000, "10.0.0.1:10911"))
    for command in (SEND, response(1, MSGPACK, 0, None, reply, b""), response(1, MSGPACK, 12, "no such topic", {}, b"")):
        check_read(encode_frame(command))
    body, sequence = sealed(3)
    check_stamp(body, sequence, 0)
    assert counting.calls["encode_frame"] == 3
    assert counting.declined == {"encode_frame": 0, "next_frame": 0, "carries_sequence": 0}
    for value in (HEADER, SendRecordsReply(5, 900, 1, "10.0.0.1:10911"), PullHeader("g", "orders", 3, 100)):
        kernel = fields._kernel(type(value), fields._plan(type(value), False))
        assert kernel is not None
        assert kernel(to_plain(value)) == value


def test_errors_are_those_of_python() -> None:
    with pytest.raises(RemoteProtocolError, match=r"SendRecordsHeader\.topic: missing"):
        from_plain(SendRecordsHeader, {})
    body, sequence = sealed(1)
    with pytest.raises(MessageIllegalError, match="does not begin its properties"):
        check_stamp(body, dataclasses.replace(sequence, epoch=9), 0)
