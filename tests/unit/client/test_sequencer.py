"""Frames keep their place; a given-up one can't be taken for the next."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lockstep.client.producer.sequencer import Sequencer
from lockstep.protocol.message import Message, decode_messages, encode_message
from lockstep.protocol.properties import LS_SEQ
from lockstep.protocol.sequence import FrameSequence, crc_digits_at, frame_crc, seal

PRODUCER = "0123456789abcdef" * 2


def records(*bodies: bytes) -> list[bytes]:
    return [encode_message(Message("t", body), 1, f"{place:032X}", 5) for place, body in enumerate(bodies)]


def test_the_first_frame_begins_at_epoch_0_sequence_0_and_says_so() -> None:
    frame = Sequencer(PRODUCER).seal(records(b"a", b"b"))
    assert frame.sequence == FrameSequence(PRODUCER, 0, 0, 0, 2, True, frame.sequence.crc)
    first, second = decode_messages(frame.body, "a")
    assert FrameSequence.parse(first.all_properties[LS_SEQ]) == frame.sequence
    assert LS_SEQ not in second.all_properties


def test_the_body_is_what_the_protocols_own_seal_makes() -> None:
    sequencer = Sequencer(PRODUCER, 3)
    sequencer.seal(records(b"a"))
    before = sequencer.crc
    frame = sequencer.seal(records(b"b", b"c", b"d"))
    body, sequence = seal(records(b"b", b"c", b"d"), FrameSequence(PRODUCER, 3, 0, 1, 3, False, 0), before)
    assert frame.body == body
    assert frame.sequence == sequence


def test_the_crc_runs_over_everything_since_sequence_0_with_its_own_digits_as_zeros() -> None:
    sequencer = Sequencer(PRODUCER)
    crc = 0
    for bodies in ((b"a",), (b"b", b"c"), (b"d",)):
        frame = sequencer.seal(records(*bodies))
        crc = frame_crc(crc, frame.body, crc_digits_at(frame.body))
        assert frame.sequence.crc == crc
        digits = crc_digits_at(frame.body)
        assert frame.body[digits : digits + 8] == b"%08x" % crc


def test_the_next_frame_goes_on_where_the_last_one_ended() -> None:
    sequencer = Sequencer(PRODUCER)
    sequencer.seal(records(b"a", b"b", b"c"))
    frame = sequencer.seal(records(b"d"))
    assert (frame.sequence.first, frame.sequence.count, frame.sequence.first_known) == (3, 1, False)


def test_a_withdrawn_frames_place_is_taken_by_the_next_as_if_it_had_never_been() -> None:
    sequencer, other = Sequencer(PRODUCER), Sequencer(PRODUCER)
    sequencer.seal(records(b"a"))
    other.seal(records(b"a"))
    sequencer.withdraw(sequencer.seal(records(b"refused", b"too")))
    assert sequencer.seal(records(b"b")) == other.seal(records(b"b"))


def test_giving_up_raises_the_epoch_and_begins_at_sequence_0_with_a_fresh_crc() -> None:
    sequencer = Sequencer(PRODUCER)
    sequencer.seal(records(b"a"))
    sequencer.seal(records(b"lost"))
    sequencer.give_up()
    frame = sequencer.seal(records(b"b"))
    assert (frame.sequence.epoch, frame.sequence.first, frame.sequence.first_known) == (1, 0, True)
    assert frame.sequence.crc == frame_crc(0, frame.body, crc_digits_at(frame.body))


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["ok", "withdraw", "give up"])), max_size=20))
def test_acknowledged_sequences_are_dense_within_each_epoch(steps: list[tuple[int, str]]) -> None:
    sequencer = Sequencer(PRODUCER)
    acknowledged: dict[int, list[tuple[int, int]]] = {}
    for count, step in steps:
        frame = sequencer.seal(records(*[b"x"] * count))
        if step == "ok":
            acknowledged.setdefault(frame.sequence.epoch, []).append((frame.sequence.first, frame.sequence.next))
        elif step == "withdraw":
            sequencer.withdraw(frame)
        else:
            sequencer.give_up()
    for ranges in acknowledged.values():
        assert ranges[0][0] == 0
        assert all(left[1] == right[0] for left, right in pairwise(ranges))
