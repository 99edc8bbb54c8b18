import tracemalloc
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.protocol.command import JSON, ONEWAY_FLAG, RESPONSE_FLAG, Command
from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError
from lockstep.protocol.frame import BODY_BYTES_MAX, FRAME_BYTES_MAX, HEADER_BYTES_MAX, FrameBuffer, encode_frame, encode_frame_parts

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
SCALARS = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text(max_size=8) | st.binary(max_size=8)
COMMANDS = st.builds(
    Command,
    code=INT32,
    opaque=INT32,
    flag=INT32,
    version=INT32,
    remark=st.none() | st.text(max_size=20),
    fields=st.dictionaries(st.text(max_size=8), SCALARS, max_size=5),
    body=st.binary(max_size=50),
)
SOME = [
    Command(10, 1, fields={"topic": "orders", "queueId": 3}, body=b"created"),
    Command(0, 1, RESPONSE_FLAG, remark="ünïcode 😀", fields={}),
    Command(40, 7, ONEWAY_FLAG, fields={"consumerGroup": "g", "listTerm": 1 << 40}),
    Command(30003, -1, fields={"crc": 0xFFFFFFFF}, body=bytes(range(256))),
]


def drain(buffer: FrameBuffer) -> list[Command]:
    commands = []
    while (command := buffer.next()) is not None:
        commands.append(command)
    return commands


@given(st.lists(COMMANDS, max_size=4))
@settings(max_examples=60)
def test_commands_round_trip(commands: list[Command]) -> None:
    buffer = FrameBuffer()
    buffer.feed(b"".join(map(encode_frame, commands)))
    assert drain(buffer) == commands
    assert buffer.pending_bytes == 0


@given(st.lists(COMMANDS, min_size=1, max_size=4), st.data())
@settings(max_examples=60)
def test_any_split_of_the_bytes_yields_the_same_commands(commands: list[Command], data: st.DataObject) -> None:
    stream = b"".join(map(encode_frame, commands))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    buffer = FrameBuffer()
    got: list[Command] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        buffer.feed(stream[start:end])
        if data.draw(st.booleans()):
            got += drain(buffer)
    assert got + drain(buffer) == commands


def test_split_at_any_byte_yields_the_same_commands() -> None:
    stream = b"".join(map(encode_frame, SOME))
    for cut in range(len(stream) + 1):
        buffer = FrameBuffer()
        buffer.feed(stream[:cut])
        got = drain(buffer)
        buffer.feed(stream[cut:])
        assert got + drain(buffer) == SOME
    buffer, got = FrameBuffer(), []
    for byte in stream:
        buffer.feed(bytes((byte,)))
        got += drain(buffer)
    assert got == SOME


@pytest.mark.parametrize("pieces", [2, 3])
def test_frame_that_ends_in_later_data_is_joined_alone(pieces: int) -> None:
    first, second = (encode_frame(Command(number, body=bytes(1000))) for number in (1, 2))
    buffer = FrameBuffer()
    for at in range(0, 100 * (pieces - 1), 100):
        buffer.feed(first[at : at + 100])
        assert buffer.next() is None
    last = first[100 * (pieces - 1) :] + second + second[:50]
    buffer.feed(last)
    assert buffer.pending_bytes == len(first) + len(second) + 50
    assert [command.code for command in drain(buffer)] == [1, 2]
    assert buffer._data is last
    buffer.feed(second[50:])
    assert [command.code for command in drain(buffer)] == [2]
    assert (buffer.pending_bytes, buffer._data, buffer._joined) == (0, b"", b"")


def test_fed_buffer_may_be_reused_and_bodies_are_bytes() -> None:
    frame = encode_frame(SOME[0])
    reused = bytearray(frame[:20])
    buffer = FrameBuffer()
    buffer.feed(memoryview(reused))
    reused[:] = bytes(20)
    rest = bytearray(frame[20:])
    buffer.feed(rest)
    rest[:] = bytes(len(rest))
    command = buffer.next()
    assert command == SOME[0]
    assert type(command.body) is bytes


def test_body_remains_valid_after_more_bytes_are_fed() -> None:
    buffer = FrameBuffer()
    stream = b"".join(map(encode_frame, SOME))
    for byte in stream[:-1]:
        buffer.feed(bytes((byte,)))
    first = buffer.next()
    assert first is not None
    buffer.feed(stream[-1:])
    assert [first, *drain(buffer)] == SOME


def test_pending_bytes_counts_undecoded_bytes() -> None:
    frame = encode_frame(SOME[0])
    buffer = FrameBuffer()
    buffer.feed(frame + frame[:5])
    assert buffer.pending_bytes == len(frame) + 5
    buffer.next()
    assert buffer.pending_bytes == 5


def test_largest_frame_is_decoded_and_leaves_no_bytes() -> None:
    head = len(encode_frame(Command(10)))
    command = Command(10, body=bytes(FRAME_BYTES_MAX - head))
    frame = encode_frame(command)
    assert len(frame) == FRAME_BYTES_MAX
    buffer = FrameBuffer()
    for start in range(0, len(frame), 65536):
        buffer.feed(frame[start : start + 65536])
    assert buffer.next() == command
    assert buffer.pending_bytes == 0
    assert not buffer._data


def test_frame_beyond_the_limit_is_rejected_by_encoder_and_decoder() -> None:
    head = len(encode_frame(Command(10)))
    with pytest.raises(LocalProtocolError, match="at most 16777216"):
        encode_frame(Command(10, body=bytes(FRAME_BYTES_MAX - head + 1)))
    with pytest.raises(LocalProtocolError, match="header"):
        encode_frame(Command(10, remark="x" * HEADER_BYTES_MAX))
    buffer = FrameBuffer()
    buffer.feed(pack(">iI", FRAME_BYTES_MAX - 3, 0x4D000010))
    with pytest.raises(RemoteProtocolError, match="frame length 16777213 is refused"):
        buffer.next()


def test_message_body_beyond_its_limit_fits_a_frame_so_that_the_broker_can_reject_it() -> None:
    assert BODY_BYTES_MAX + HEADER_BYTES_MAX < FRAME_BYTES_MAX
    buffer = FrameBuffer()
    buffer.feed(encode_frame(Command(10, body=bytes(BODY_BYTES_MAX + 1))))
    assert buffer.next() is not None


@pytest.mark.parametrize("length", [-(1 << 31), -1, 0, 3, FRAME_BYTES_MAX - 3, (1 << 31) - 1])
def test_invalid_frame_length_is_rejected_after_four_bytes(length: int) -> None:
    buffer = FrameBuffer()
    buffer.feed(pack(">i", length))
    with pytest.raises(RemoteProtocolError, match=f"frame length {length} is refused"):
        buffer.next()


def test_frame_that_claims_2_gib_allocates_no_memory() -> None:
    buffer = FrameBuffer(frame_bytes_max=(1 << 31) - 1)
    tracemalloc.start()
    try:
        buffer.feed(pack(">iI", (1 << 31) - 1 - 4, 0x4D000010) + bytes(100))
        assert buffer.next() is None
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("serialize_type", [2, 0x47, 0x4C, 0xCD, 0xFF])
def test_unknown_serialize_type_is_rejected(serialize_type: int) -> None:
    buffer = FrameBuffer()
    buffer.feed(pack(">iI", 10, serialize_type << 24 | 6))
    with pytest.raises(RemoteProtocolError, match=f"serialize type 0x{serialize_type:02X} is unknown"):
        buffer.next()


@pytest.mark.parametrize(("length", "header_bytes"), [(10, 7), (4, 1), (FRAME_BYTES_MAX - 4, HEADER_BYTES_MAX + 1), (10, 0xFFFFFF)])
def test_too_long_header_length_is_rejected_before_the_header_arrives(length: int, header_bytes: int) -> None:
    buffer = FrameBuffer()
    buffer.feed(pack(">iI", length, 0x4D << 24 | header_bytes))
    with pytest.raises(RemoteProtocolError, match=f"header length {header_bytes} is refused"):
        buffer.next()


@pytest.mark.parametrize(
    ("garbage", "words"),
    [
        *((method + b" / HTTP/1.1\r\nHost: a\r\n\r\n", "; a request of HTTP begins so") for method in (b"GET", b"POST", b"OPTIONS")),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "; a request of HTTP begins so"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "; a handshake of TLS begins so"),
        (b"\xff" * 64, "refused: 4 … [0-9]+$"),
        (bytes(64), "refused: 4 … [0-9]+$"),
    ],
)
def test_bytes_of_another_protocol_are_rejected(garbage: bytes, words: str) -> None:
    buffer = FrameBuffer()
    buffer.feed(garbage)
    with pytest.raises(RemoteProtocolError, match=words):
        buffer.next()


def test_buffer_is_unusable_and_empty_after_an_error() -> None:
    buffer = FrameBuffer()
    buffer.feed(encode_frame(SOME[0]) + b"\xff" * 1000 + encode_frame(SOME[1]))
    assert buffer.next() == SOME[0]
    with pytest.raises(RemoteProtocolError) as first:
        buffer.next()
    buffer.feed(encode_frame(SOME[1]))
    assert buffer.pending_bytes == 0
    with pytest.raises(RemoteProtocolError) as second:
        buffer.next()
    assert str(first.value) == str(second.value)


def test_smaller_frame_limits_are_enforced() -> None:
    buffer = FrameBuffer(frame_bytes_max=64, header_bytes_max=16)
    buffer.feed(encode_frame(Command(10, body=bytes(64))))
    with pytest.raises(RemoteProtocolError, match="4 … 60"):
        buffer.next()
    buffer = FrameBuffer(frame_bytes_max=64, header_bytes_max=16)
    buffer.feed(encode_frame(Command(10, remark="long enough to be above")))
    with pytest.raises(RemoteProtocolError, match="at most 16"):
        buffer.next()


@pytest.mark.parametrize("number", range(len(SOME)))
def test_flipped_bit_yields_another_command_a_protocol_error_or_a_wait(number: int) -> None:
    frame = encode_frame(SOME[number])
    for position in range(len(frame)):
        for bit in range(8):
            flipped = bytearray(frame)
            flipped[position] ^= 1 << bit
            buffer = FrameBuffer()
            buffer.feed(flipped)
            try:
                command = buffer.next()
            except RemoteProtocolError:
                continue
            assert command != SOME[number], f"byte {position} bit {bit} is not looked at"


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_random_header_bytes_are_decoded_or_rejected(header: bytes) -> None:
    buffer = FrameBuffer()
    buffer.feed(pack(">iI", 4 + len(header), 0x4D << 24 | len(header)) + header)
    try:
        assert buffer.next() is not None
    except RemoteProtocolError:
        pass


def test_frame_parts_equal_the_frame_and_bodies_are_not_copied() -> None:
    command = Command(11, 5, RESPONSE_FLAG, fields={"nextBeginOffset": 9})
    bodies = [b"one", memoryview(b"two"), b""]
    parts = encode_frame_parts(command, bodies)
    assert parts[1] is bodies[0]
    assert parts[2] is bodies[1]
    command.body = b"onetwo"
    assert b"".join(parts) == encode_frame(command)


def test_frame_parts_have_the_same_size_limit() -> None:
    with pytest.raises(LocalProtocolError, match="at most 16777216"):
        encode_frame_parts(Command(11), [bytes(FRAME_BYTES_MAX // 2)] * 2)


def test_reply_has_the_opaque_and_codec_of_its_request() -> None:
    request = Command(11, 5, fields={"topic": "t"})
    reply = request.reply(19, "later", {"nextBeginOffset": 1}, b"x")
    assert (reply.opaque, reply.codec, reply.code, reply.body) == (5, request.codec, 19, b"x")
    assert reply.is_response
    assert not reply.is_oneway
    assert Command(1, flag=ONEWAY_FLAG).is_oneway


LONG = [Command(10, number, fields={"AccessKey": key}, body=bytes(300), codec=JSON) for number, key in enumerate(["a", "b", "a"])]


def test_longer_frame_is_read_if_its_header_lets_it_pass_wherever_the_bytes_are_split() -> None:
    stream = b"".join(map(encode_frame, [SOME[0], LONG[0], LONG[2], SOME[1]]))
    for step in (1, 7, 100, len(stream)):
        buffer, asked = FrameBuffer(), list[tuple[int, bytes, int]]()
        buffer.frame_bytes_max = 200

        def reads(command: Command, size: int, asked: list[tuple[int, bytes, int]] = asked) -> bool:
            asked.append((command.opaque, bytes(command.body), size))
            return True

        buffer.reads_long = reads
        got: list[Command] = []
        for at in range(0, len(stream), step):
            buffer.feed(stream[at : at + step])
            got += drain(buffer)
        assert [(each.opaque, len(each.body)) for each in got] == [(1, 7), (0, 300), (2, 300), (1, 0)]
        assert asked == [(number, b"", len(encode_frame(LONG[number]))) for number in (0, 2)], "each is asked for once"


def test_longer_frame_is_refused_before_its_body_arrives() -> None:
    frame = encode_frame(LONG[1])
    size = len(frame)
    for sent, words in [
        (frame[: size - 300], f"frame length {size - 4} is refused: 4 … 196"),
        (pack(">iI", FRAME_BYTES_MAX, JSON << 24 | 8), f"frame length {FRAME_BYTES_MAX} is refused"),
        (pack(">iI", 1_000, JSON << 24 | 250), "frame length 1000 is refused"),
        (pack(">iI", 1_000, JSON << 24 | 4) + b"null", "header is not a JSON object"),
    ]:
        buffer = FrameBuffer()
        buffer.frame_bytes_max, buffer.reads_long = 200, lambda command, _: command.fields["AccessKey"] == "a"
        buffer.feed(sent)
        with pytest.raises(RemoteProtocolError, match=words):
            buffer.next()
