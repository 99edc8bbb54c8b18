"""Frames that clients send into a waiting room: what is accepted, what a start reads of them, and that damage in them is found."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.store import Appended, Store
from lockstep.broker.store.log.append import TopicField, take_frame
from lockstep.broker.store.log.stored_record import BadRecordError, read_record
from lockstep.broker.store.log.waiting_records import Room, is_sealed
from lockstep.protocol.errors import MessageIllegalError, StateError
from lockstep.protocol.messages.record import HOSTS, OFFSETS, PREPARED_OFFSET_AT, STORE_TIMESTAMP_AT, record_bounds
from lockstep.protocol.messages.rooms import ABSOLUTE, DUE_SHIFT, TIMER_MS_MAX, home_properties
from lockstep.protocol.messages.sequence import STAMP_HEAD, FrameSequence, seal_frame
from lockstep.protocol.names import TIMER_TOPIC
from lockstep.testing.simulation.disk import SimFiles
from support.clocks import SetClock
from support.kernels import mutations, needs_kernels
from support.store_kit import (
    BORN_HOST,
    LOG,
    STARTED_MS,
    Recorded,
    append,
    confirmed,
    host_of,
    kill,
    open_store,
    read_queue_as_consumer,
    record,
    recovered,
)
from support.taken_frames import DEFAULT, STORED_MS, check_take

PLACE = TopicField(TIMER_TOPIC), 0
HOME = home_properties("orders", 3, 7)
DELAY, DELIVER = b"TIMER_DELAY_MS\x01", b"TIMER_DELIVER_MS\x01"
SOON = DELAY + b"5000"
WAIT_MAX_MS = 3_600_000
ROOM = Room(HOME, WAIT_MAX_MS)
ANY_TIME = Room(HOME, TIMER_MS_MAX)
SEQUENCE = STAMP_HEAD + FrameSequence("ab" * 16, 0, 1, 0, 1, True, 0).encode().encode()


def room_record(properties: bytes, body: bytes = b"later") -> bytes:
    return record(body, topic=TIMER_TOPIC, properties=properties)


def in_sequence(records: list[bytes], *, first: int = 0, previous_crc: int = 0) -> tuple[bytes, FrameSequence]:
    """Return the frame of an idempotent producer, and its sequence."""
    return seal_frame(records, FrameSequence("ab" * 16, 0, 1, first, len(records), first == 0, 0), previous_crc)


def check_room(frame: bytes, count: int, **arguments: Any) -> bool:
    """Check that both forms agree on a frame for the room. Return whether the kernel took it."""
    return check_take(frame, count, *PLACE, **{"room": ANY_TIME, **arguments})


# ---------------------------------------------------------------------------------------------------------------------- kernel laws

GOOD = [
    HOME + SOON,
    HOME + DELAY + b"1",
    HOME + DELIVER + b"1700000000000",
    HOME + DELAY + str(TIMER_MS_MAX).encode(),
    HOME + DELAY + b"000000000000001",
    HOME + SOON + b"\x02",
    HOME + SOON + b"\x02TAGS\x01red\x02KEYS\x01k",
]
WRONG = [
    (b"", "do not begin with .* its home"),
    (SOON, "its home"),
    (b"TAGS\x01red\x02" + HOME + SOON, "its home"),
    (home_properties("bills", 3, 7) + SOON, "its home"),
    (home_properties("orders", 2, 7) + SOON, "its home"),
    (home_properties("orders", 3, 8) + SOON, "its home"),
    (HOME[:-1], "its home"),
    (HOME, "does not follow its home"),
    (HOME + b"TAGS\x01red\x02" + SOON, "does not follow its home"),
    (HOME + b"\x02" + SOON, "does not follow its home"),
    (HOME + b"TIMER_DELAY_SEC\x015", "does not follow its home"),
    (HOME + b"TIMER_DELAY_MS", "does not follow its home"),
    (HOME + b"__LS_DUE\x015000", "does not follow its home"),
    (HOME + DELAY, "expected a number of ms from 1 to 999999999999999"),
    (HOME + DELAY + b"0", "expected a number"),
    (HOME + DELIVER + b"000", "expected a number"),
    (HOME + DELAY + b"1" * 16, "expected a number"),
    (HOME + DELAY + b"0" * 15 + b"1", "expected a number"),
    (HOME + DELAY + b"5s", "expected a number"),
    (HOME + DELAY + b"-5", "expected a number"),
    (HOME + DELAY + b"5 ", "expected a number"),
    (HOME + DELAY + b"5\x015", "expected a number"),
    (HOME + DELAY + "٥".encode(), "expected a number"),
    (HOME + DELAY + b"\xff", "expected a number"),
    (HOME + SOON + b"\x02TAGS\x01\xff", "properties are not UTF-8"),
    (HOME + SOON + b"\x02a\x01\0", "a byte 0"),
    (HOME + SOON + b"\x02DELAY\x013", "property DELAY has no place"),
    (HOME + SOON + b"\x02" + SOON, r"property TIMER_\* has no place"),
    (HOME + SOON + b"\x02" + DELIVER + b"5", r"property TIMER_\* has no place"),
    (HOME + SOON + b"\x02REAL_TOPIC\x01bills", "property REAL_TOPIC has no place"),
    (HOME + SOON + b"\x02REAL_QID\x011", "property REAL_QID has no place"),
    (HOME + SOON + b"\x02" + HOME[:-1], "property REAL_TOPIC has no place"),
]
OWN = [b"__LS_X\x01y", b"__LS_LAYOUT\x019", b"__LS_FROM\x01t31:7", b"__LS_DUE\x0131", SEQUENCE]
"""Names of lockstep, which belong nowhere behind the room's own."""


@pytest.mark.parametrize("properties", GOOD)
@needs_kernels
def test_kernel_takes_a_good_frame_with_and_without_a_sequence(properties: bytes) -> None:
    records = [room_record(properties), room_record(HOME + SOON)]
    for sequenced in (False, True):
        assert check_room(b"".join(records), 2, sequenced=sequenced)
    assert check_room(in_sequence(records)[0], 2)
    assert not check_room(in_sequence(records)[0], 2, sequenced=False)


@pytest.mark.parametrize(("properties", "words"), WRONG, ids=repr)
@pytest.mark.parametrize("number", [0, 1])
def test_record_without_the_properties_of_the_room_is_refused_and_leaves_nothing(properties: bytes, words: str, number: int) -> None:
    records = [room_record(HOME + SOON), room_record(HOME + SOON)]
    records[number] = room_record(properties)
    for frame in (b"".join(records), in_sequence(records)[0]):
        tail = bytearray(b"before")
        with pytest.raises(MessageIllegalError, match=f"record {number}: .*{words}"):
            take_frame(tail, frame, 2, *PLACE, **DEFAULT | {"room": ANY_TIME})
        assert tail == b"before"


@pytest.mark.parametrize(("properties", "words"), WRONG, ids=repr)
@needs_kernels
def test_kernel_declines_what_is_refused(properties: bytes, words: str) -> None:
    for records in ([room_record(properties)], [room_record(HOME + SOON), room_record(properties)]):
        assert not check_room(b"".join(records), len(records))
        assert not check_room(in_sequence(records)[0], len(records))


@pytest.mark.parametrize("own", OWN)
@needs_kernels
def test_own_names_of_lockstep_behind_those_of_the_room_are_refused(own: bytes) -> None:
    good, wrong = room_record(HOME + SOON), room_record(HOME + SOON + b"\x02" + own)
    for records in ([wrong], [wrong, good], [good, wrong]):
        for sequenced in (False, True):
            assert not check_room(b"".join(records), len(records), sequenced=sequenced)
        assert not check_room(in_sequence(records)[0], len(records))


@needs_kernels
def test_sequence_belongs_before_the_home_of_the_first_record_and_counts_the_records() -> None:
    first, other = room_record(SEQUENCE + b"\x02" + HOME + SOON), room_record(HOME + SOON)
    assert check_room(first, 1)
    assert not check_room(first, 1, sequenced=False)
    assert not check_room(first + other, 2), "it counts 1"
    assert not check_room(other + first, 2)
    for properties in (HOME + SEQUENCE + b"\x02" + SOON, SEQUENCE + HOME + SOON, SEQUENCE[:-1] + b"\x02" + HOME + SOON, SEQUENCE, b""):
        assert not check_room(room_record(properties), 1)


@needs_kernels
def test_every_changed_byte_of_a_frame_gives_what_python_gives() -> None:
    frame = in_sequence([room_record(HOME + SOON + b"\x02TAGS\x01red"), room_record(HOME + DELIVER + b"1700000000000")])[0]
    assert check_room(frame, 2)
    assert sum(check_room(each, 2) for each in mutations(frame)) > 50, "other digits of a time are good as well"


@pytest.mark.parametrize("wait_ms", [4_999, 5_000, 5_001])
@pytest.mark.parametrize("when", [SOON, DELIVER + b"%d" % (STORED_MS + 5_000)])
@needs_kernels
def test_kernel_takes_the_longest_wait_and_declines_a_longer_one(when: bytes, wait_ms: int) -> None:
    records = [room_record(HOME + DELIVER + b"1"), room_record(HOME + when)]
    assert check_room(b"".join(records), 2, room=Room(HOME, wait_ms)) == (wait_ms >= 5_000)


@needs_kernels
def test_frame_longer_than_a_piece_is_sealed_whole() -> None:
    records = [room_record(HOME + SOON, b"%03d" % number * (1 + 31 * number)) for number in range(100)]
    assert check_room(in_sequence(records)[0], len(records), size_max=1 << 20)


pieces = st.sampled_from(
    [HOME, home_properties("bills", 3, 7), DELAY, DELIVER, b"5", b"0" * 14, b"\x01", b"\x02", b"TAGS\x01red", b"__LS_", SEQUENCE, b"\xd9"]
)


@given(st.lists(st.lists(pieces, max_size=6).map(b"".join), min_size=1, max_size=3), st.booleans(), st.booleans(), st.booleans())
@needs_kernels
def test_any_properties_give_what_python_gives(texts: list[bytes], begun: bool, sequenced: bool, trusted: bool) -> None:
    records = [room_record((HOME + DELAY if begun else b"") + text) for text in texts]
    for frame in (b"".join(records), in_sequence(records)[0]):
        check_room(frame, len(records), sequenced=sequenced, trusted=trusted)


# ------------------------------------------------------------------------------------------------------------------------- starts


NOTHING_SENT = FrameSequence("ab" * 16, 0, 1, 0, 0, True, 0)


@dataclass
class Waited:
    """A store that tells which messages wait in the room."""

    files: SimFiles = field(default_factory=SimFiles)
    clock: SetClock = field(default_factory=lambda: SetClock(STARTED_MS))
    live: Recorded = field(default_factory=Recorded)
    sequence: FrameSequence = NOTHING_SENT

    async def start(self, recorded: Recorded | None = None, **settings: Any) -> Store:
        host = host_of(self.files)
        object.__setattr__(host, "clock", self.clock)
        self.store = await open_store(self.files, host=host, recorded=recorded, **settings)
        self.store.on_waiting = self.live.waits
        self.store.record_clock()
        await confirmed(self.store)
        return self.store

    def send(self, *properties: bytes) -> Appended:
        """Append the next frame of an idempotent producer to the room."""
        records = [room_record(HOME + each, b"%d" % number * 20) for number, each in enumerate(properties)]
        frame, self.sequence = in_sequence(records, first=self.sequence.next, previous_crc=self.sequence.crc)
        return self.store.append_frame(TIMER_TOPIC, 0, frame, len(records), born_host=BORN_HOST, sequenced=True, room=ROOM)


def frame_rows(counts: list[int], places: list[Appended]) -> list[object]:
    """Return what a start knows of the frames, up to their running CRCs."""
    scope, first, rows = ("ab" * 16, 0, TIMER_TOPIC, 0), 0, []
    for count, place in zip(counts, places, strict=True):
        rows.append((scope, (1, first, first + count), (place.queue_offset, place.physical_offset, place.store_timestamp)))
        first += count
    return rows


@pytest.mark.parametrize("with_snapshot", [False, True])
async def test_start_reads_what_was_appended_whatever_the_clock_did(with_snapshot: bool) -> None:
    waited = Waited()
    store = await waited.start()
    if with_snapshot:
        await store.write_snapshot([])
    append(store, b"between")
    places = [waited.send(SOON)]
    waited.clock.now_ms += 10
    waited.clock.ahead_ms = 1_000
    store.follow_clock()
    at_ms = waited.clock.wall_ms()
    times = [DELIVER + b"%d" % (at_ms + by_ms) for by_ms in (-60_000, 60_000)]
    places.append(waited.send(times[0], times[1] + b"\x02TAGS\x01red", SOON))
    await confirmed(store)
    (before, after) = {era: None for *_, era in waited.live.waiting}
    assert before < after < places[1].physical_offset
    assert waited.live.waiting == [
        (TIMER_TOPIC, 0, (STARTED_MS + 5_000) << DUE_SHIFT, before),
        (TIMER_TOPIC, 1, (at_ms - 60_000) << DUE_SHIFT | ABSOLUTE, after),
        (TIMER_TOPIC, 2, (at_ms + 60_000) << DUE_SHIFT | ABSOLUTE, after),
        (TIMER_TOPIC, 3, (at_ms + 5_000) << DUE_SHIFT, after),
    ]
    await store.sync()
    await kill(store, waited.files, power=True)

    recorded = Recorded()
    store, found = await recovered(waited.files, recorded)
    assert (found.clean, found.cut_bytes, found.lost_messages) == (False, 0, 0)
    assert len(recorded.snapshots) == with_snapshot
    assert recorded.waiting == waited.live.waiting
    assert [(scope, end[:3], place) for scope, end, place in recorded.frames] == frame_rows([1, 3], places)
    assert recorded.frames[-1][1][3] == waited.sequence.crc
    for _, offset, due, _ in waited.live.waiting:
        entry = await store.queue_entry(TIMER_TOPIC, 0, offset)
        assert entry is not None
        assert entry[2] == due
    assert len((await read_queue_as_consumer(store, TIMER_TOPIC)).found) == 4
    await store.close()


async def test_torn_frame_in_the_room_is_cut_whole() -> None:
    waited = Waited()
    store = await waited.start()
    waited.send(SOON)
    await confirmed(store)
    end = store.log_bounds[1]
    waited.send(SOON, SOON, SOON)
    await confirmed(store)
    await kill(store, waited.files)
    waited.files.overwrite(LOG, end + 400, bytes(2_000))
    recorded = Recorded()
    store, found = await recovered(waited.files, recorded)
    assert found.end == end
    assert recorded.waiting == waited.live.waiting[:1]
    await store.close()


# ------------------------------------------------------------------------------------------------------------------------- damage

HARMED = 1
PROPERTIES = SOON + b"\x02TAGS\x01red"


class Harmed(Waited):
    """A store with three frames of one record each, of which the second one is changed while the store is stopped."""

    async def fill(self, *, with_snapshot: bool) -> None:
        """Store the frames. With a snapshot, the next start does not read them."""
        store = await self.start()
        self.places = [self.send(PROPERTIES) for _ in range(3)]
        await confirmed(store)
        if with_snapshot:
            await store.write_snapshot([])
        await store.close()
        self.begin, self.end = (self.places[number].physical_offset for number in (HARMED, HARMED + 1))

    @property
    def data(self) -> bytes:
        """Return the second record."""
        return self.files.open(LOG).pread(self.end - self.begin, self.begin)

    def overwrite(self, data: bytes, at: int = 0) -> None:
        self.files.overwrite(LOG, self.begin + at, data)

    async def check_others(self, store: Store, *, lost: bool) -> None:
        """Check that the second message is reported as lost, or has been read, and that the others have been read."""
        reported = await read_queue_as_consumer(store, TIMER_TOPIC)
        assert sorted(reported.found) == [offset for offset in range(3) if offset != HARMED or not lost]
        assert reported.lost == ([HARMED] if lost else [])
        assert store.damage.lost() == ([(TIMER_TOPIC, 0, HARMED, HARMED + 1)] if lost else [])


def changed_bits(data: bytes) -> list[tuple[str, int]]:
    """Return a bit of each part of a record that no other check covers."""
    _, properties, end = record_bounds(data)
    home, tag = data.index(HOME), data.index(b"red")
    places = {"properties": properties, "home": home, "its queue": home + len(HOME) - 10, "delay": data.index(b"5000"), "tag": tag}
    return [*places.items(), ("the last one", end - 1), ("store time", STORE_TIMESTAMP_AT + 7), ("checksum", PREPARED_OFFSET_AT + 5)]


@pytest.mark.parametrize("number", range(8))
async def test_start_counts_a_message_with_a_flipped_bit_as_lost_and_the_others_wait(number: int) -> None:
    harmed = Harmed()
    await harmed.fill(with_snapshot=False)
    name, at = changed_bits(harmed.data)[number]
    harmed.overwrite(bytes([harmed.data[at] ^ 1]), at)
    recorded = Recorded()
    store, found = await recovered(harmed.files, recorded, cut_corrupt=True)
    assert (found.lost_messages, recorded.waiting) == (1, [each for each in harmed.live.waiting if each[1] != HARMED]), name
    await harmed.check_others(store, lost=True)
    await store.close()


@pytest.mark.parametrize("number", range(8))
async def test_read_reports_a_message_with_a_flipped_bit_as_lost(number: int) -> None:
    harmed = Harmed()
    await harmed.fill(with_snapshot=True)
    name, at = changed_bits(harmed.data)[number]
    harmed.overwrite(bytes([harmed.data[at] ^ 1]), at)
    store, found = await recovered(harmed.files)
    assert (found.clean, found.lost_messages) == (True, 0), name
    await harmed.check_others(store, lost=True)
    await store.close()


async def test_any_flipped_bit_of_a_record_in_the_room_is_found() -> None:
    harmed = Harmed()
    await harmed.fill(with_snapshot=True)
    data, position = harmed.data, harmed.begin
    good = read_record(data, position, {})
    assert (good.due, good.queue_offset) == (harmed.live.waiting[HARMED][2], HARMED)
    for at in range(len(data)):
        for bit in range(8):
            with pytest.raises(BadRecordError):
                read_record(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :], position, {})


async def test_clients_record_without_the_checksum_counts_as_damage() -> None:
    harmed = Harmed()
    await harmed.fill(with_snapshot=False)
    assert is_sealed(harmed.data)
    harmed.overwrite(bytes(8), PREPARED_OFFSET_AT)
    with pytest.raises(BadRecordError, match="the CRC of the waiting message is missing"):
        read_record(harmed.data, harmed.begin, {})
    recorded = Recorded()
    store, found = await recovered(harmed.files, recorded, cut_corrupt=True)
    assert (found.lost_messages, [offset for _, offset, *_ in recorded.waiting]) == (1, [0, 2])
    await harmed.check_others(store, lost=True)
    await store.close()


@pytest.mark.parametrize(
    "properties",
    [
        b"REAL_TOPIC\x01orders\x02REAL_QID\x013\x02TIMER_OUT_MS\x011700000005000\x02TIMER_DELAY_MS\x015000",
        b"TIMER_DELAY_MS\x015000\x02REAL_TOPIC\x01orders\x02REAL_QID\x013",
        b"TAGS\x01red\x02" + HOME + SOON,
    ],
)
async def test_record_of_another_form_is_read_and_does_not_wait(properties: bytes) -> None:
    """As those of RocketMQ's brokers are."""
    harmed = Harmed()
    await harmed.fill(with_snapshot=False)
    unpadded = len(room_record(properties + b"\x02KEYS\x01"))
    other = bytearray(room_record(properties + b"\x02KEYS\x01" + b"k" * (len(harmed.data) - unpadded)))
    OFFSETS.pack_into(other, 20, HARMED, harmed.begin)
    HOSTS.pack_into(other, 48, BORN_HOST, STARTED_MS, BORN_HOST)
    harmed.overwrite(bytes(other))
    recorded = Recorded()
    store, found = await recovered(harmed.files, recorded)
    assert (found.lost_messages, [offset for _, offset, *_ in recorded.waiting]) == (0, [0, 2])
    await harmed.check_others(store, lost=False)
    await store.close()


# ------------------------------------------------------------------------------------------------------------------------ refusals


def stored_state(store: Store) -> list[object]:
    """Return what an append changes."""
    return [store.log_bounds, store.bounds(TIMER_TOPIC, 0), bytes(store._log.tail), store._state.last_record, store._disk.room]


TOO_LATE = {
    "delay": DELAY + b"%d" % (WAIT_MAX_MS + 1),
    "time of day": DELIVER + b"%d" % (STARTED_MS + WAIT_MAX_MS + 1),
    "very long": DELAY + str(TIMER_MS_MAX).encode(),
}


@pytest.mark.parametrize("known", [False, True], ids=["first frame", "later frame"])
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("late", TOO_LATE)
async def test_frame_that_waits_too_long_is_refused_and_changes_nothing(late: str, number: int, known: bool) -> None:
    waited = Waited()
    store = await waited.start()
    if known:
        waited.send(SOON)
    before, live, sequence = stored_state(store), list(waited.live.waiting), waited.sequence
    texts = [SOON] * 3
    texts[number] = TOO_LATE[late]
    with pytest.raises(MessageIllegalError, match=rf"record {number}: waits for .* days: at most 0\.0416667 \(timer_days_max\)$"):
        waited.send(*texts)
    assert stored_state(store) == before
    assert waited.live.waiting == live
    waited.sequence = sequence
    assert waited.send(SOON, SOON, SOON).queue_offset == known
    assert [offset for _, offset, *_ in waited.live.waiting] == list(range(3 + known))
    append(store, b"other")
    await confirmed(store)
    await kill(store, waited.files)
    recorded = Recorded()
    store, found = await recovered(waited.files, recorded)
    assert (found.cut_bytes, recorded.waiting) == (0, waited.live.waiting)
    await store.close()


async def test_longest_wait_is_accepted() -> None:
    waited = Waited()
    store = await waited.start()
    end_ms = STARTED_MS + WAIT_MAX_MS
    waited.send(DELAY + b"%d" % WAIT_MAX_MS, DELIVER + b"%d" % end_ms, DELIVER + b"1")
    assert [due for _, _, due, _ in waited.live.waiting] == [
        end_ms << DUE_SHIFT,
        end_ms << DUE_SHIFT | ABSOLUTE,
        1 << DUE_SHIFT | ABSOLUTE,
    ]
    await store.close()


async def test_store_without_a_table_of_timers_fails_rather_than_lose_one() -> None:
    files = SimFiles()
    store = await open_store(files)
    with pytest.raises(StateError, match=f"nobody takes messages that wait in {TIMER_TOPIC}"):
        store.append_frame(TIMER_TOPIC, 0, room_record(HOME + SOON), 1, born_host=BORN_HOST, room=ROOM)
    await kill(store, files)
