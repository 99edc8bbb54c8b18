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
from lockstep.protocol.names import HALF_TOPIC, TIMER_TOPIC
from lockstep.testing.simulation.disk import SimFiles
from support.kernels import mutations, needs_kernels
from support.store_kit import BORN_HOST, Recorded, confirmed, kill, open_store, record, recovered
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
]
OWN = [b"__LS_X\x01y", b"__LS_LAYOUT\x019", b"__LS_FROM\x01h31:7", b"__LS_DUE\x0131", b"__LS_FIRST\x010"]
"""Names of lockstep, which belong nowhere behind the room's own."""


def half(properties: bytes) -> bytes:
    return record(b"half", topic=HALF_TOPIC, properties=properties)


def in_sequence(records: list[bytes]) -> bytes:
    return seal_frame(records, FrameSequence("ab" * 16, 0, 1, 0, len(records), True, 0), 0)[0]


def check(frame: bytes, count: int, **arguments: Any) -> bool:
    return check_take(frame, count, *PLACE, **{"room": ROOM, **arguments})


@pytest.mark.parametrize("properties", GOOD)
@needs_kernels
def test_kernel_takes_a_good_frame_with_and_without_a_sequence(properties: bytes) -> None:
    records = [half(properties), half(HOME + ID)]
    assert check(b"".join(records), 2)
    assert check(in_sequence(records), 2)
    assert not check(in_sequence(records), 2, sequenced=False)


def with_wrong(properties: bytes, number: int) -> list[bytes]:
    """Return two frames of which the record with this number is wrong: one without a sequence, and one with."""
    records = [half(HOME + ID), half(HOME + ID)]
    records[number] = half(properties)
    return [b"".join(records), in_sequence(records)]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(("properties", "words"), WRONG)
def test_record_of_another_sender_or_home_is_refused_at_each_place_and_leaves_nothing(properties: bytes, words: str, number: int) -> None:
    for frame in with_wrong(properties, number):
        tail = bytearray(b"before")
        with pytest.raises(MessageIllegalError, match=f"record {number}: .*{words}"):
            take_frame(tail, frame, 2, *PLACE, **{**DEFAULT, "room": ROOM})
        assert tail == b"before"


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("own", OWN)
def test_own_names_of_lockstep_behind_those_of_the_room_are_refused(own: bytes, number: int) -> None:
    """Else a client could say that its message was stored before, or ends another one."""
    for frame in with_wrong(HOME + own, number):
        with pytest.raises(MessageIllegalError, match="__LS_"):
            take_frame(bytearray(), frame, 2, *PLACE, **{**DEFAULT, "room": ROOM})


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("properties", [*(properties for properties, _words in WRONG), *(HOME + own for own in OWN)])
@needs_kernels
def test_kernel_declines_what_is_refused(properties: bytes, number: int) -> None:
    for frame in with_wrong(properties, number):
        assert not check(frame, 2)


@pytest.mark.parametrize("properties", GOOD)
@needs_kernels
def test_both_forms_agree_on_frames_that_were_changed_anywhere(properties: bytes) -> None:
    for frame in mutations(half(properties)):
        check(frame, 1)
    for frame in mutations(in_sequence([half(properties), half(HOME + ID)])):
        check(frame, 2)


pieces = st.sampled_from(
    [
        HOME,
        ORDERS,
        half_properties("shop", "10.0.0.7@1#a"),
        half_properties("", ""),
        ID,
        b"\x01",
        b"\x02",
        b"\0",
        b"TIMER_DELAY_MS\x01",
        b"5",
        b"TAGS\x01red",
        b"TRAN_MSG\x01true",
        b"__LS_",
        b"\xd9",
    ]
)


@given(st.lists(st.lists(pieces, max_size=6).map(b"".join), min_size=1, max_size=3), st.booleans(), st.booleans(), st.booleans())
@needs_kernels
def test_any_properties_give_what_python_gives(texts: list[bytes], begun: bool, sequenced: bool, trusted: bool) -> None:
    """`begun`: all records have the right home and sender first, so that the rest counts."""
    records = [half((HOME if begun else b"") + text) for text in texts]
    for frame in (b"".join(records), in_sequence(records)):
        check(frame, len(records), sequenced=sequenced, trusted=trusted)


@needs_kernels
def test_rooms_refuse_each_others_records() -> None:
    delay = ORDERS + b"TIMER_DELAY_MS\x015000"
    timers, timed = TopicField(TIMER_TOPIC), Room(ORDERS, 3_600_000)
    assert check_take(record(b"later", topic=TIMER_TOPIC, properties=delay), 1, timers, 0, room=timed)
    assert not check_take(record(b"half", topic=TIMER_TOPIC, properties=HOME + ID), 1, timers, 0, room=timed)
    assert not check(half(delay), 1)


@pytest.mark.parametrize("with_snapshot", [False, True])
async def test_start_reads_a_frame_of_half_messages_with_its_running_crc(with_snapshot: bool) -> None:
    """So that the producer's next frame is checked against it, and a repeat of this one is known."""
    files, live = SimFiles(), Recorded()
    store = await open_store(files)
    store.on_waiting = live.waits
    if with_snapshot:
        await store.write_snapshot([])
    wanted = FrameSequence("ab" * 16, 0, 1, 0, 3, True, 0)
    frame, sealed = seal_frame([half(HOME + ID), half(HOME), half(HOME + ID)], wanted, 0)
    place = store.append_frame(HALF_TOPIC, 0, frame, 3, born_host=BORN_HOST, sequenced=True, room=ROOM)
    await confirmed(store)
    (before,) = [era for *_, era in live.waiting[:1]]
    assert live.waiting == [(HALF_TOPIC, offset, place.store_timestamp << DUE_SHIFT, before) for offset in range(3)]
    await kill(store, files)

    recorded = Recorded()
    store, found = await recovered(files, recorded)
    assert (found.cut_bytes, found.lost_messages) == (0, 0)
    assert recorded.waiting == live.waiting
    ((scope, end, stored),) = recorded.frames
    assert (scope, end[:4]) == (("ab" * 16, 0, HALF_TOPIC, 0), (1, 0, 3, sealed.crc))
    assert stored == (place.queue_offset, place.physical_offset, place.store_timestamp)
    await store.close()


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


PLAIN = ORDERS + half_properties("shop", "c")


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        ORDERS,
        PLAIN.removeprefix(b"REAL_TOPIC\x01orders\x02"),
        b"TAGS\x01red\x02" + PLAIN,
        PLAIN.replace(b"true", b"false"),
        PLAIN.replace(b"TRAN_MSG", b"tran_msg"),
        PLAIN.replace(b"\x01shop", b"\x01"),
        PLAIN.replace(b"\x01shop", b"\x01" + b"s" * 256),
        PLAIN.replace(b"\x01c", b"\x01" + b"c" * 256),
        PLAIN.replace(b"\x01orders", b"\x01" + b"o" * 128),
        PLAIN.replace(b"\x013", b"\x01-3"),
        PLAIN.replace(b"\x017", b"\x01x"),
        PLAIN.replace(b"PGROUP\x01shop\x02", b""),
        ORDERS + b"PGROUP\x01shop\x02TRAN_MSG\x01true\x02__TXN_PRODUCER_CID__\x01c",
        ORDERS + b"TIMER_DELAY_MS\x015000",
        ORDERS + b"TAGS\x01red\x02" + half_properties("shop", "c"),
    ],
)
def test_other_properties_are_no_half_message(properties: bytes) -> None:
    assert read_half(PLAIN) is not None
    assert read_half(properties) is None


@pytest.mark.parametrize("client_id", ["", "c" * 255])
@pytest.mark.parametrize("end", [b"", b"\x02", b"\x02" + ID])
def test_shortest_and_longest_names_are_read(client_id: str, end: bytes) -> None:
    found = read_half(home_properties("t" * 127, 0, 0) + half_properties("g" * 255, client_id)[:-1] + end)
    assert found is not None
    assert (len(found.topic), found.group, found.client_id.decode(), found.first) == (127, b"g" * 255, client_id, None)
