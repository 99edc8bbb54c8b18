"""The kernels of the store: for any input they decline, or do what the Python form does; and they do not decline good input."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.store import ReadStatus
from lockstep.broker.store.log import append
from lockstep.broker.store.log.append import ENTRY, take_frame
from lockstep.broker.store.log.commit_log import CommitLog
from lockstep.broker.store.queues import reader
from lockstep.broker.store.queues.reader import Check, MismatchError
from lockstep.protocol.messages.properties import SENT_PROPERTIES_BYTES_MAX
from lockstep.protocol.messages.record import encode_record
from lockstep.protocol.messages.sequence import STAMP_HEAD, FrameSequence, seal_frame
from lockstep.protocol.native import kernels
from lockstep.testing.simulation.disk import SimFiles
from support.kernels import Counting, mutations, needs_kernels, outcome, pure
from support.store_kit import BORN_HOST, confirmed, open_store, record
from support.taken_frames import DEFAULT, ORDERS, check_take

pytestmark = needs_kernels

names = st.sampled_from(
    [*b"TAGS KEYS UNIQ_KEY DELAY TIMER_ TRAN_MSG PGROUP RETRY_TOPIC REAL_TOPIC REAL_QID __LS_ __LS_SEQ XTAGS".split(), b""]
)
values = st.binary(max_size=6) | st.text(max_size=6).map(str.encode) | st.sampled_from([b"red", "注文".encode(), "😀".encode()])
pairs = st.tuples(names, st.sampled_from([b"\x01", b""]), values).map(b"".join)
properties_of = st.lists(pairs, max_size=4).map(b"\x02".join) | st.binary(max_size=30)


def good(body: bytes, properties: bytes = b"", **more: int) -> bytes:
    return record(body, queue_id=3, properties=properties, **more)


def sealed(records: list[bytes]) -> bytes:
    """Return the frame of an idempotent producer."""
    return seal_frame(records, FrameSequence("ab" * 16, 0, 1, 0, len(records), True, 0), 0)[0]


def stamp_of(count: int) -> bytes:
    """Return the property `__LS_SEQ` of a frame of `count` records."""
    return STAMP_HEAD + FrameSequence("ab" * 16, 0, 1, 0, count, True, 0).encode().encode()


def good_frame() -> bytes:
    return sealed([good(b"a", b"TAGS\x01red"), good(b"bb"), good(b"ccc", "KEYS\x01k\x02TAGS\x01注".encode())])


def test_every_changed_byte_of_a_frame_gives_what_python_gives() -> None:
    frame = good_frame()
    assert check_take(frame, 3)
    assert sum(check_take(each, 3) for each in mutations(frame)) > 100, "a changed tag or a changed flag is good as well"


def test_every_changed_byte_of_a_copy_gives_what_python_gives() -> None:
    frame = good(b"a", b"DELAY\x013\x02TAGS\x01red") + good(b"bb", b"__LS_REASON\x01no")
    assert check_take(frame, 2, trusted=True)
    for each in mutations(frame):
        check_take(each, 2, trusted=True)


def test_sequence_belongs_first_into_the_first_record_of_a_sequenced_frame() -> None:
    assert check_take(good_frame(), 3)
    assert not check_take(good_frame(), 3, sequenced=False)
    assert not check_take(good(b"before") + good_frame(), 4)
    for more in (b"__LS_X\x01y", b"KEYS\x01k\x02__LS_", stamp_of(2)):
        assert not check_take(sealed([good(b"a", more), good(b"b")]), 2)
        assert not check_take(sealed([good(b"a"), good(b"b", more)]), 2)
    assert not check_take(good(b"a", b"KEYS\x01k\x02" + stamp_of(1)), 1)
    assert check_take(good(b"a", stamp_of(1)), 1)
    assert not check_take(good(b"a", stamp_of(2)), 1)
    assert not check_take(good(b"a", stamp_of(1) + b"0"), 1)
    assert not check_take(good(b"a", stamp_of(1)[:-1]), 1)


@given(st.lists(st.tuples(st.binary(max_size=8), properties_of), max_size=4), st.integers(0, 5), st.booleans(), st.booleans())
def test_any_properties_give_what_python_gives(records: list[tuple[bytes, bytes]], more: int, trusted: bool, in_sequence: bool) -> None:
    frame = b"".join(good(body, properties) for body, properties in records)
    for count in (len(records), max(0, len(records) - more)):
        check_take(frame, count, trusted=trusted, sequenced=in_sequence)


@given(st.lists(properties_of, min_size=1, max_size=3), st.integers(1, 5), st.data())
def test_sequenced_frames_give_what_python_gives(texts: list[bytes], count: int, data: st.DataObject) -> None:
    frame = sealed([good(b"body", text) for text in texts])
    check_take(frame, len(texts))
    check_take(frame, count)
    at = data.draw(st.integers(0, len(frame)))
    check_take(frame[:at] + data.draw(st.binary(max_size=4)) + frame[at + data.draw(st.integers(0, 4)) :], len(texts))


@given(st.binary(max_size=300), st.integers(0, 3), st.booleans())
def test_random_bytes_give_what_python_gives(frame: bytes, count: int, trusted: bool) -> None:
    check_take(frame, count, trusted=trusted)
    check_take(good(b"x") + frame, count + 1, trusted=trusted)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_limits_of_a_frame_are_those_of_python(more: int) -> None:
    one = good(b"x" * 100)
    check_take(one, 1, size_max=len(one) + more)
    check_take(good(b"x", b"p" * (SENT_PROPERTIES_BYTES_MAX + more)), 1, size_max=1 << 20)
    check_take(good(b"x" * ((64 << 10) - len(good(b"")) + more)), 1, size_max=1 << 20)
    check_take(one, 1, queue_offset=(1 << 63) - 2 + more)
    check_take(one * 2, 2, position=(1 << 63) - 1 - len(one) + more)
    check_take(one, 1, stamp=bytes(24 + more))
    check_take(one, 1 + more)


@pytest.mark.parametrize("body_bytes", [0, 1, 4 << 20, (4 << 20) + 1])
def test_limits_of_a_body_are_those_of_python(body_bytes: int) -> None:
    check_take(good(b"x" * body_bytes), 1, size_max=8 << 20)


def test_frame_longer_than_a_piece_is_appended_whole() -> None:
    records = [good(b"%03d" % number * (1 + 31 * number)) for number in range(100)]
    frame = b"".join(records)
    assert len(frame) > 5 * (64 << 10)
    assert check_take(frame, len(records), size_max=1 << 20)


@pytest.mark.parametrize(
    "text", [b"TAGS\x01a\x02TAGS\x01b", b"TAGS\x01\x02TAGS\x01b", b"XTAGS\x01a\x02TAGS\x01b", b"K\x01TAGS\x01a", b"TAGS"]
)
def test_first_tag_counts(text: bytes) -> None:
    assert check_take(good(b"x", text), 1)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0\x01\x02"), min_size=1))
def test_hash_of_a_tag_is_that_of_python(tag: str) -> None:
    assert check_take(good(b"x", f"TAGS\x01{tag}".encode()), 1)


def test_tail_that_is_exported_is_unchanged_after_the_error() -> None:
    tail = bytearray(b"before")
    with memoryview(tail), pytest.raises(BufferError):
        take_frame(tail, good(b"x"), 1, ORDERS, 3, **DEFAULT)
    assert tail == b"before"


# -------------------------------------------------------------------------------------------------------------------------- reads


class FakeQueue:
    """The part of a ConsumeQueue that a Check reads."""

    topic = "orders"
    queue_id = 3
    topic_field = ORDERS


QUEUE: Any = FakeQueue()


def stored_frame() -> tuple[bytes, bytes]:
    """Return (what the log holds from position 1,000 on, its entries from offset 40 on)."""
    tail = bytearray()
    entries = take_frame(tail, good_frame(), 3, ORDERS, 3, **DEFAULT)
    return bytes(tail), bytes(entries)


def checked(data: bytes, entries: bytes, indexes: "list[int] | range", position: int = 1000) -> object:
    """Return where the check of a read stops, and why."""
    check = Check(QUEUE, 40, entries, indexes)
    try:
        check.run(data, position)
    except MismatchError as error:
        return error.offset, error.position, str(error)
    return check._ordinal


def check_read(data: bytes, entries: bytes, indexes: "list[int] | range", position: int = 1000) -> bool:
    """Check that both forms agree. Return whether the kernel found the run good."""
    native = outcome(lambda: checked(data, entries, indexes, position))
    with pure(reader):
        assert native == outcome(lambda: checked(data, entries, indexes, position))
    numbers = None if isinstance(indexes, range) else indexes
    direct = kernels.check_run(data, position, entries, numbers, len(indexes), 0, 40, 3, ORDERS.field)
    assert direct is None or direct == native
    return direct is not None


def test_every_changed_byte_of_a_read_gives_what_python_gives() -> None:
    data, entries = stored_frame()
    assert check_read(data, entries, range(3))
    for each in mutations(data):
        check_read(each, entries, range(3))


def test_every_changed_byte_of_the_entries_gives_what_python_gives() -> None:
    data, entries = stored_frame()
    for at in range(len(entries)):
        for value in (0, 1, 0x80, 0xFF, entries[at] ^ 1):
            check_read(data, entries[:at] + bytes([value]) + entries[at + 1 :], range(3))


def test_chosen_entries_are_checked_in_their_order() -> None:
    data, entries = stored_frame()
    sizes = [size for _, size, _ in ENTRY.iter_unpack(entries)]
    assert check_read(data[sizes[0] :], entries, [1, 2], 1000 + sizes[0])
    assert check_read(data[: sizes[0]], entries, [0, 2])
    assert check_read(data[: sum(sizes[:2])], entries, range(2))
    assert not check_read(data, entries, [0, 1])
    assert not check_read(data, entries, range(2))
    assert not check_read(data, entries, [0, 2, 1])


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=8), st.data())
def test_runs_are_those_of_python(gaps: list[tuple[int, int]], data: st.DataObject) -> None:
    position, entries = 0, bytearray()
    for gap, size in gaps:
        position += gap if gap > 25 else 0
        entries += ENTRY.pack(position, size, 0)
        position += size
    chosen = data.draw(st.lists(st.integers(0, max(0, len(gaps) - 1)), max_size=len(gaps), unique=True).map(sorted))
    sizes = reader._words(bytes(entries))[2::5]
    for indexes in (range(len(gaps)), chosen):
        native = reader._join(bytes(entries), sizes, indexes)
        with pure(reader):
            assert native == reader._join(bytes(entries), sizes, indexes)


@pytest.mark.parametrize("entry", [ENTRY.pack(-1, 100, 0), ENTRY.pack(0, -1, 0), ENTRY.pack(0, 100, 0)[:-9]])
def test_entries_that_name_no_place_are_declined(entry: bytes) -> None:
    assert kernels.join_entries(entry, None, 1) is None
    assert kernels.join_entries(bytes(20), None, 2) is None
    assert kernels.join_entries(bytes(20), [1], 1) is None


# -------------------------------------------------------------------------------------------------------------------- no decline


async def test_kernels_do_not_decline_what_a_broker_appends_and_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting()
    for module in (append, reader):
        monkeypatch.setattr(module, "kernels", counting)
    store = await open_store(SimFiles())
    monkeypatch.setattr(CommitLog, "from_tail", lambda self, position, size: None)  # so that every read is from the files
    bodies = [b"%d" % number * (1 + number % 900) for number in range(60)]
    for number, body in enumerate(bodies):
        other = encode_record(b"bills", 0, body, b"KEYS\x01k", born_ms=1)
        store.append_frame("bills", 0, other, 1, born_host=BORN_HOST)
        properties = b"UNIQ_KEY\x01%032X\x02TAGS\x01%b" % (number, [b"red", b"blue"][number % 2])
        store.append_frame("orders", 0, record(body, properties=properties) * 2, 2, born_host=BORN_HOST)
    await confirmed(store)
    found = store.read("orders", 0, 0, max_count=1_000, max_bytes=1 << 20)
    assert found is not None
    assert found.status is ReadStatus.FOUND
    assert found.count == 120
    await store.close()
    assert set(counting.declined.values()) == {0}, counting.declined
    assert counting.calls["take_frame"] == 120
    assert counting.calls["check_run"] >= 60
    assert counting.calls["join_entries"] >= 1
