"""Frames of half messages: the records name their sender, as the request does, and wait for no time."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.store.log.append import TopicField, take_frame
from lockstep.broker.store.log.stored_record import read_record
from lockstep.broker.store.log.waiting_records import Room
from lockstep.protocol.errors import MessageIllegalError
from lockstep.protocol.messages.rooms import CARRIED, DUE_SHIFT, half_properties, home_properties, read_half, read_timer
from lockstep.protocol.messages.sequence import FrameSequence, seal_frame
from lockstep.protocol.names import HALF_TOPIC
from support.kernels import mutations, needs_kernels
from support.store_kit import record
from support.taken_frames import DEFAULT, STORED_MS, check_take

PLACE = TopicField(HALF_TOPIC), 0
ORDERS = home_properties("orders", 3, 7)
HOME = ORDERS + half_properties("shop", "10.0.0.7@1#a")
ROOM = Room(HOME, None)
ID = b"UNIQ_KEY\x01A"
GOOD = [HOME, HOME + ID, HOME + ID + b"\x02TAGS\x01red"]
WRONG = [
    (ORDERS + ID, "its home"),
    (ORDERS + half_properties("other", "10.0.0.7@1#a") + ID, "its home"),
    (ORDERS + half_properties("shop", "10.0.0.7@1#b") + ID, "its home"),
    (ORDERS + b"TIMER_DELAY_MS\x015000", "its home"),
    (home_properties("bills", 3, 7) + half_properties("shop", "10.0.0.7@1#a") + ID, "its home"),
    (HOME + b"TIMER_DELAY_MS\x015000", r"property TIMER_\* has no place"),
    (HOME + b"PGROUP\x01other", "property PGROUP has no place"),
    (HOME + b"TRAN_MSG\x01true", "property TRAN_MSG has no place"),
    (HOME + b"__LS_FROM\x01h31:7", "lockstep's own"),
]


def half(properties: bytes) -> bytes:
    return record(b"half", topic=HALF_TOPIC, properties=properties)


def check(frame: bytes, count: int, **arguments: Any) -> bool:
    return check_take(frame, count, *PLACE, **{"room": ROOM, **arguments})


@pytest.mark.parametrize("properties", GOOD)
@needs_kernels
def test_kernel_takes_a_good_frame_with_and_without_a_sequence(properties: bytes) -> None:
    records = [half(properties), half(HOME + ID)]
    assert check(b"".join(records), 2)
    assert check(seal_frame(records, FrameSequence("ab" * 16, 0, 1, 0, 2, True, 0), 0)[0], 2)


@pytest.mark.parametrize(("properties", "words"), WRONG)
def test_record_of_another_sender_or_home_is_refused(properties: bytes, words: str) -> None:
    with pytest.raises(MessageIllegalError, match=words):
        take_frame(bytearray(), half(properties), 1, *PLACE, **{**DEFAULT, "room": ROOM, "sequenced": False})


@pytest.mark.parametrize("properties", [properties for properties, _words in WRONG])
@needs_kernels
def test_kernel_refuses_a_record_of_another_sender_or_home(properties: bytes) -> None:
    assert not check(half(properties), 1, sequenced=False)


@pytest.mark.parametrize("properties", GOOD)
@needs_kernels
def test_both_forms_agree_on_frames_that_were_changed_anywhere(properties: bytes) -> None:
    for frame in mutations(half(properties)):
        check(frame, 1)


def test_entry_of_a_half_message_has_the_time_at_which_it_was_stored() -> None:
    tail = bytearray()
    take_frame(tail, half(HOME + ID), 1, *PLACE, **{**DEFAULT, "room": ROOM, "sequenced": False, "position": 0})
    stored = read_record(bytes(tail), 0, {})
    assert (stored.topic, stored.due, stored.first, stored.ends) == (HALF_TOPIC, STORED_MS << DUE_SHIFT, None, None)


@given(st.integers(0, 10**16), st.integers(0, 10**12), st.text("ab1@#.", max_size=20), st.binary(max_size=20))
def test_properties_of_a_half_message_are_read_back(code: int, first: int, client_id: str, rest: bytes) -> None:
    plain = ORDERS + half_properties("shop", client_id)
    found = read_half(plain + rest)
    assert found is not None
    assert (found.topic, found.queue_id, found.began, found.group, found.home) == (b"orders", 3, 7, b"shop", plain)
    assert (found.client_id.decode(), found.end, found.first, found.code(5)) == (client_id, len(plain), None, 5 << DUE_SHIFT)
    carried = b"__LS_FROM\x01h4:9\x02" + plain + b"__LS_DUE\x01%d\x02__LS_FIRST\x01%d\x02" % (code, first) + ID
    again = read_half(carried)
    assert again is not None
    assert (again.first, again.code(5), carried[again.end :]) == (first, code | CARRIED, ID)
    assert read_timer(carried) is None
