"""Large bodies: the tap records them uncompressed even if they are stored compressed."""

from random import Random

import pytest

from lockstep.protocol.codes import RequestCode
from lockstep.protocol.headers.send import SendMessageHeader
from lockstep.protocol.messages.message import Message, encode_message
from lockstep.protocol.messages.record import RecordView
from sweep.compressed import LARGE_BYTES, LARGEST_BYTES, decompress_body, make_large_body, record_bodies
from sweep.events.sends import FrameWritten
from sweep.history import PlaceReached
from unit.testing.test_wire_recorder import Wire

ZLIB = 0x301


def record(body: bytes, compress_over: int | None = LARGE_BYTES) -> bytes:
    return encode_message(Message("orders", body), 0, "id", 1, None, compress_over)


def test_large_body_starts_with_its_name_and_compresses_well() -> None:
    random = Random("sizes")
    bodies = [make_large_body(b"a-%d" % number, random) for number in range(50)]
    assert all(body.startswith(b"a-%d" % number) and LARGE_BYTES <= len(body) <= LARGEST_BYTES for number, body in enumerate(bodies))
    assert len(dict.fromkeys(bodies)) == 50
    assert all(len(record(body)) < 400 < len(record(body, None)) for body in bodies)


def test_bodies_of_a_frame_are_uncompressed() -> None:
    body = make_large_body(b"m1", Random(1))
    assert record_bodies(record(b"m0") + record(body) + record(body, None)) == ((b"m0", body, body), 1)


@pytest.mark.parametrize(("stored", "flag"), [(b"m0", 0), (b"m0", ZLIB), (b"x\x9c", ZLIB)])
def test_body_that_is_not_a_zlib_stream_is_returned_unchanged(stored: bytes, flag: int) -> None:
    assert decompress_body(stored, flag) == stored


def test_tap_records_uncompressed_bodies_of_single_sends() -> None:
    wire, body = Wire().bound(), make_large_body(b"m1", Random(1))
    stored = bytes(RecordView(record(body)).body)
    assert len(stored) < 200
    wire.send_request(RequestCode.SEND_MESSAGE, SendMessageHeader("shop", "orders", 1, sys_flag=ZLIB), stored)
    assert [written.bodies for written in wire.history.of(FrameWritten)] == [(body,)]
    assert not wire.history.of(PlaceReached)
