"""Frames keep their sequence, and an abandoned frame can't be mistaken for the next one."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.client.producer.machines.sequencer import GivenId, SealedFrame, Sequencer
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.messages.message import Message, decode_messages, encode_message
from lockstep.protocol.messages.properties import LS_SEQ
from lockstep.protocol.messages.record import encode_record
from lockstep.protocol.messages.sequence import FrameSequence, crc_digits_at, frame_crc, seal_frame

PRODUCER = "0123456789abcdef" * 2


def records(*bodies: bytes) -> list[bytes]:
    return [encode_message(Message("t", body), 1, f"{place:032X}", 5) for place, body in enumerate(bodies)]


def sealed(sequencer: Sequencer, *bodies: bytes) -> SealedFrame:
    return sequencer.seal(b"".join(records(*bodies)), len(bodies))


def stamped(frame: SealedFrame) -> FrameSequence:
    return FrameSequence.parse(decode_messages(frame.body, "a")[0].all_properties[LS_SEQ])


def test_first_frame_has_epoch_0_and_sequence_0() -> None:
    frame = sealed(Sequencer(PRODUCER), b"a", b"b")
    assert (frame.epoch, frame.first, frame.count) == (0, 0, 2)
    assert stamped(frame) == FrameSequence(PRODUCER, 0, 0, 0, 2, True, frame.crc)
    assert LS_SEQ not in decode_messages(frame.body, "a")[1].all_properties


@given(
    st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=4),
    st.lists(st.binary(min_size=1, max_size=40), max_size=3),
    st.text("abcXYZ-_", min_size=1, max_size=127),
)
def test_frame_body_equals_seal_frame_of_the_protocol(bodies: list[bytes], before: list[bytes], topic: str) -> None:
    sequencer = Sequencer(PRODUCER, 3)
    if before:
        sealed(sequencer, *before)
    crc, first = sequencer.crc, sequencer.next_sequence
    parts = [encode_record(topic.encode(), 7, body, b"" if place % 2 else b"k\x01v", born_ms=9) for place, body in enumerate(bodies)]
    frame = sequencer.seal(b"".join(parts), len(parts))
    body, sequence = seal_frame(parts, FrameSequence(PRODUCER, 3, 0, first, len(parts), first == 0, 0), crc)
    assert frame.body == body
    assert stamped(frame) == sequence
    assert frame.crc == sequence.crc


def test_crc_covers_all_frames_since_sequence_0_with_its_own_digits_as_zeros() -> None:
    sequencer = Sequencer(PRODUCER)
    crc = 0
    for bodies in ((b"a",), (b"b", b"c"), (b"d",)):
        frame = sealed(sequencer, *bodies)
        crc = frame_crc(crc, frame.body, crc_digits_at(frame.body))
        assert frame.crc == crc
        digits = crc_digits_at(frame.body)
        assert frame.body[digits : digits + 8] == b"%08x" % crc


def test_next_frame_continues_the_sequence() -> None:
    sequencer = Sequencer(PRODUCER)
    sealed(sequencer, b"a", b"b", b"c")
    frame = sealed(sequencer, b"d")
    assert (frame.first, frame.count, stamped(frame).first_known) == (3, 1, False)


def test_next_frame_reuses_the_sequence_of_a_withdrawn_frame() -> None:
    sequencer, other = Sequencer(PRODUCER), Sequencer(PRODUCER)
    sealed(sequencer, b"a")
    sealed(other, b"a")
    sequencer.withdraw(sealed(sequencer, b"refused", b"too"))
    assert sealed(sequencer, b"b") == sealed(other, b"b")


def test_give_up_starts_a_new_epoch_at_sequence_0_with_a_new_crc() -> None:
    sequencer = Sequencer(PRODUCER)
    sealed(sequencer, b"a")
    sealed(sequencer, b"lost")
    sequencer.give_up()
    frame = sealed(sequencer, b"b")
    assert (frame.epoch, frame.first) == (1, 0)
    assert stamped(frame).first_known
    assert frame.crc == frame_crc(0, frame.body, crc_digits_at(frame.body))


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["ok", "withdraw", "give up"])), max_size=20))
def test_acknowledged_sequences_are_dense_within_each_epoch(steps: list[tuple[int, str]]) -> None:
    sequencer = Sequencer(PRODUCER)
    acknowledged: dict[int, list[tuple[int, int]]] = {}
    for count, step in steps:
        frame = sealed(sequencer, *[b"x"] * count)
        if step == "ok":
            acknowledged.setdefault(frame.epoch, []).append((frame.first, frame.first + frame.count))
        elif step == "withdraw":
            sequencer.withdraw(frame)
        else:
            sequencer.give_up()
    for ranges in acknowledged.values():
        assert ranges[0][0] == 0
        assert all(left[1] == right[0] for left, right in pairwise(ranges))


def test_frames_of_a_given_id_are_marked_as_given_with_their_epoch() -> None:
    sequencer = Sequencer(PRODUCER, 3, 7)
    frames = [sealed(sequencer, b"a"), sealed(sequencer, b"b")]
    assert [stamped(frame) for frame in frames] == [
        FrameSequence(PRODUCER, 3, 7, 0, 1, True, frames[0].crc, given=True),
        FrameSequence(PRODUCER, 3, 7, 1, 1, False, frames[1].crc, given=True),
    ]


def test_give_up_with_a_given_id_ends_the_sequencer_without_a_new_epoch() -> None:
    sequencer = Sequencer(PRODUCER, 0, 7)
    sequencer.give_up()
    assert (sequencer.epoch, sequencer.over) == (7, True)


@pytest.mark.parametrize(
    "bad", [("x",), (PRODUCER.upper(),), (PRODUCER, -1), (PRODUCER, 1 << 32), (PRODUCER, 0, -1), (PRODUCER, 0, 1 << 63)]
)
def test_invalid_given_id_is_rejected_by_its_constructor(bad: tuple[object, ...]) -> None:
    GivenId(PRODUCER, (1 << 32) - 1, (1 << 63) - 2)
    with pytest.raises(ConfigError, match="expected 32 lower-case hex digits"):
        GivenId(*bad)  # type: ignore[arg-type]
