"""A search finds every visible message that has the key, in whole, and nothing else (law Q1)."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.broker.store import Store
from lockstep.broker.store.queues import search as search_module
from lockstep.broker.store.queues.search import Searched, SearchLimits, Wanted, find_places, has_key
from lockstep.protocol.messages.record import OFFSETS, RecordView, store_time_of
from lockstep.protocol.names import SCHEDULE_TOPIC, STATE_TOPIC
from lockstep.runtime.host import Host
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import LOG, SYNC, append, confirmed, host_of, open_store, record, recovered

ALL = SearchLimits(1_000, 1 << 40, 1 << 60)


async def search(store: Store, key: bytes = b"k", limits: SearchLimits = ALL, cursor: int | None = None, **wanted: Any) -> Searched:
    return await store.search(Wanted(key, **wanted), limits, cursor)


def bodies(found: Searched) -> list[bytes]:
    return [RecordView(each).body for each in found.records]


def advance(host: Host, by_ms: int) -> None:
    host.clock.now_ms += by_ms  # type: ignore[attr-defined]


@pytest.fixture(params=[64, search_module.PIECE_BYTES])
def piece_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(search_module, "PIECE_BYTES", request.param)
    return int(request.param)


# -- whole keys ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "unique", "found"),
    [
        (b"KEYS\x01order-1", False, True),
        (b"KEYS\x01order-1\x02", False, True),
        (b"KEYS\x01a order-1 b", False, True),
        (b"KEYS\x01a order-1\x02TAGS\x01x", False, True),
        (b"UNIQ_KEY\x01order-1", False, True),
        (b"UNIQ_KEY\x01order-1", True, True),
        (b"KEYS\x01order-1", True, False),
        (b"__transactionId__\x01order-1", False, True),
        (b"__transactionId__\x01order-1\x02KEYS\x01k", False, True),
        (b"__transactionId__\x01order-1", True, False),
        (b"__transactionId__\x01an order-1", False, False),
        (b"KEYS\x01order-12", False, False),
        (b"KEYS\x01order-12 order-1", False, True),
        (b"KEYS\x01xorder-1", False, False),
        (b"KEYS\x01order-1,b", False, False),
        (b"TAGS\x01order-1", False, False),
        (b"XKEYS\x01order-1", False, False),
        (b"KEYS\x01b\x02TAGS\x01a order-1 b", False, False),
        (b"UNIQ_KEY\x01a order-1", False, False),
        (b"UNIQ_KEY\x01order-12", True, False),
        (b"", False, False),
    ],
)
async def test_whole_key_of_keys_or_unique_key_is_found(properties: bytes, unique: bool, found: bool) -> None:
    store = await open_store(SimFiles())
    append(store, b"x", properties=properties)
    append(store, b"order-1 \x01order-1\x02", properties=b"TAGS\x01KEYS")
    await confirmed(store)
    assert bodies(await search(store, b"order-1", unique=unique)) == ([b"x"] if found else [])
    await store.close()


async def test_part_of_a_key_is_not_found() -> None:
    store = await open_store(SimFiles())
    append(store, b"x", properties=b"KEYS\x01order-10 my-order-1 order-1x\x02UNIQ_KEY\x01order-1-7")
    await confirmed(store)
    assert bodies(await search(store, b"order-1")) == []
    assert bodies(await search(store, b"order-10")) == [b"x"]
    await store.close()


# -- places ----------------------------------------------------------------------------------------


async def test_key_is_found_wherever_the_borders_of_pieces_are(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store(SimFiles())
    for number in range(5):
        append(store, b"%d" % number, properties=b"KEYS\x01order-1001")
    await confirmed(store)
    for piece_bytes in range(1, 180):
        monkeypatch.setattr(search_module, "PIECE_BYTES", piece_bytes)
        assert bodies(await search(store, b"order-1001")) == [b"4", b"3", b"2", b"1", b"0"]
    await store.close()


@pytest.mark.parametrize("piece_bytes", [30_000, 100_001, search_module.PIECE_BYTES])
async def test_records_are_found_in_all_log_files_the_newest_first(piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some have bodies larger than a chunk in which the beginning of a record is searched."""
    monkeypatch.setattr(search_module, "PIECE_BYTES", piece_bytes)
    files = SimFiles()
    store = await open_store(files, segment_bytes=256 << 10)
    for number in range(12):
        append(store, b"%d " % number + b"k" * (100_000 if number % 3 else 10), properties=b"KEYS\x01k")
    await confirmed(store)
    assert len(store._log.segments) > 3
    expected = [b"%d" % number for number in reversed(range(12))]
    assert [body.partition(b" ")[0] for body in bodies(await search(store))] == expected
    await store.write_snapshot([])
    await store.close()
    store = await open_store(files, segment_bytes=256 << 10)
    append(store, b"12", properties=b"KEYS\x01k")
    await confirmed(store)
    found = await search(store, limits=SearchLimits(3, 1 << 40, 1 << 60))
    assert [body.partition(b" ")[0] for body in bodies(found)] == [b"12", b"11", b"10"]
    await store.close()


def forged(position: int, body: bytes = b"forged", *, topic: str = "orders", offset: int = 0, properties: bytes = b"KEYS\x01k") -> bytes:
    """Return a good record that has its place in the log, as if the broker had stored it there."""
    data = bytearray(record(body, topic=topic, properties=properties))
    OFFSETS.pack_into(data, 20, offset, position)
    return bytes(data)


async def test_forged_record_in_a_body_is_not_taken_for_the_message(piece_bytes: int) -> None:
    """A sender that guesses where its message will be stored can put good records into its body: nested, side by side, of any offset."""
    store = await open_store(SimFiles())
    append(store, b"before", properties=b"KEYS\x01k")
    at = store._log.end + 88
    inner = forged(at + 88, b"inner", offset=1)
    outer = forged(at, inner, offset=2)
    beside = forged(at + len(outer), b"beside", offset=1)
    state = forged(at + len(outer) + len(beside), b"state", topic="LOCKSTEP_SYS_STATE")
    append(store, outer + beside + state, properties=b"KEYS\x01other")
    append(store, outer + beside, properties=b"KEYS\x01k")
    append(store, b"after", properties=b"KEYS\x01k")
    await confirmed(store)
    assert bodies(await search(store)) == [b"after", outer + beside, b"before"]
    assert bodies(await search(store, b"other")) == [outer + beside + state]
    await store.close()


async def test_forged_record_that_ends_with_its_message_hides_nothing(piece_bytes: int) -> None:
    """Its head is in the body, and its topic and properties are those of the message itself."""
    store = await open_store(SimFiles())
    at = store._log.end + 88
    whole = forged(at, b"tail")
    append(store, whole[: len(whole) - len(b"\x06orders\x00\x06KEYS\x01k")], properties=b"KEYS\x01k")
    await confirmed(store)
    (found,) = bodies(await search(store))
    assert found.endswith(b"tail")
    assert len(found) > len(b"tail")
    await store.close()


async def test_forged_head_that_claims_later_messages_hides_none(piece_bytes: int) -> None:
    store = await open_store(SimFiles())
    at = store._log.end + 88
    claiming = bytearray(forged(at, b"x" * 500))
    append(store, bytes(claiming[:91]), properties=b"KEYS\x01a")
    append(store, b"1", properties=b"KEYS\x01k")
    append(store, b"2", properties=b"KEYS\x01k")
    await confirmed(store)
    assert bodies(await search(store)) == [b"2", b"1"]
    await store.close()


async def test_records_of_the_brokers_state_are_never_found(piece_bytes: int) -> None:
    store = await open_store(SimFiles())
    append(store, b"1", properties=b"KEYS\x01k")
    store.append_state(b"\x01k\x02KEYS\x01k")
    append(store, b"delayed", topic=SCHEDULE_TOPIC, queue_id=2, properties=b"KEYS\x01k")
    store.append_state(forged(store._log.end + 88))
    await confirmed(store)
    assert bodies(await search(store)) == [b"1"]
    await store.close()


async def test_message_that_waits_for_its_delay_is_found_by_the_topic_to_which_it_goes(piece_bytes: int) -> None:
    store = await open_store(SimFiles())
    for body, queue_id, home in ((b"1", 2, b"orders"), (b"2", 2, b"%RETRY%g"), (b"3", 2, b"payments"), (b"4", 3, b"orders")):
        append(store, body, topic=SCHEDULE_TOPIC, queue_id=queue_id, properties=b"KEYS\x01k\x02REAL_TOPIC\x01" + home, trusted=True)
    append(store, b"damaged", topic=SCHEDULE_TOPIC, queue_id=2, properties=b"KEYS\x01k")
    append(
        store, b"state", topic=SCHEDULE_TOPIC, queue_id=2, properties=b"KEYS\x01k\x02REAL_TOPIC\x01" + STATE_TOPIC.encode(), trusted=True
    )
    await confirmed(store)

    def waits(data: bytes) -> bool:
        return RecordView(data).body != b"1"

    assert bodies(await search(store, waits=waits)) == [b"4", b"3", b"2"]
    assert bodies(await search(store, waits=waits, topic="orders")) == [b"4"]
    assert bodies(await search(store, waits=waits, topic=SCHEDULE_TOPIC)) == []
    assert bodies(await search(store)) == []
    await store.close()


async def test_message_is_found_only_when_it_is_confirmed() -> None:
    store = await open_store(SimFiles(), flush=SYNC, flush_interval_ms=1_000_000)
    append(store, b"1", properties=b"KEYS\x01k")
    await store.sync()
    append(store, b"2", properties=b"KEYS\x01k")
    store.writer.end_turn()
    assert bodies(await search(store)) == [b"1"]
    await store.sync()
    assert bodies(await search(store)) == [b"2", b"1"]
    await store.close()


async def test_messages_of_a_deleted_topic_are_not_found() -> None:
    store = await open_store(SimFiles())
    append(store, b"old", properties=b"KEYS\x01k")
    await confirmed(store)
    store.drop_topic("orders")
    append(store, b"new", properties=b"KEYS\x01k")
    await confirmed(store)
    assert bodies(await search(store)) == [b"new"]
    await store.close()


async def test_topic_selects() -> None:
    store = await open_store(SimFiles())
    for topic in ("orders", "payments", "%RETRY%g"):
        append(store, topic.encode(), topic=topic, properties=b"KEYS\x01k")
    await confirmed(store)
    assert bodies(await search(store)) == [b"%RETRY%g", b"payments", b"orders"]
    assert bodies(await search(store, topic="orders")) == [b"orders"]
    assert bodies(await search(store, topic="order")) == []
    await store.close()


# -- limits and the cursor -------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [SearchLimits(1, 1 << 40, 1 << 60), SearchLimits(99, 100, 1 << 60), SearchLimits(99, 1 << 40, 0)])
async def test_search_that_ends_early_continues_at_its_cursor(limits: SearchLimits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "PIECE_BYTES", 300)
    store = await open_store(SimFiles())
    for number in range(40):
        append(store, b"%d" % number, topic="orders" if number % 2 else "others", properties=b"KEYS\x01k")
    await confirmed(store)
    end = store.writer.confirmed
    found, cursor, scanned, steps = list[bytes](), None, 0, 0
    while True:
        step = await search(store, limits=limits, cursor=cursor, topic="orders")
        found += bodies(step)
        scanned += step.scanned_bytes
        steps += 1
        assert scanned + step.remaining_bytes == end
        assert (step.cursor is None) == (not step.remaining_bytes)
        cursor = step.cursor
        if cursor is None:
            break
        append(store, b"later", properties=b"KEYS\x01k")  # is not found any more
    assert found == [b"%d" % number for number in reversed(range(40)) if number % 2]
    assert steps >= 20
    await store.close()


@pytest.mark.parametrize("cursor", [-1, 0, 1, 1 << 62])
async def test_cursor_that_no_search_has_returned_is_harmless(cursor: int) -> None:
    store = await open_store(SimFiles())
    append(store, b"1", properties=b"KEYS\x01k")
    await confirmed(store)
    assert bodies(await search(store, cursor=cursor)) == ([b"1"] if cursor > 1 else [])
    await store.close()


async def test_response_ends_before_it_has_too_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "FOUND_BYTES_MAX", 500)
    store = await open_store(SimFiles())
    for _ in range(5):
        append(store, b"x" * 300, properties=b"KEYS\x01k")
    await confirmed(store)
    found = await search(store)
    assert (len(found.records), found.cursor is not None) == (2, True)
    await store.close()


def places(data: bytes, key: bytes, at: int = 0) -> list[int]:
    return find_places(data, at, len(data), key)


def test_places_of_one_short_key_are_limited_by_the_records_that_can_have_them() -> None:
    assert 0 < len(places(b"KEYS\x01a" * 100_000, b"a")) <= 600_000 // 91 + 1


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"KEYS\x01order", [5]),
        (b"KEYS\x01a b order", [9]),
        (b"KEYS\x01a b order\x02TAGS\x01x", [9]),
        (b"UNIQ_KEY\x01order", [9]),
        (b"UNIQ_KEY\x01an order", []),
        (b"__transactionId__\x01order", [18]),
        (b"__transactionId__\x01an order", []),
        (b"an order here", []),
        (b"TAGS\x01an order here", []),
        (b"KEYS\x01a\x02TAGS\x01an order", []),
        (b"KEYS\x01a\x02an order", []),
        (b"KEYS\x01a" + bytes(91) + b"an order", []),
        (b"order", []),
    ],
)
def test_words_of_bodies_are_passed_over(data: bytes, found: list[int]) -> None:
    assert places(data, b"order") == found
    assert places(data, b"order", 4) == [each for each in found if each >= 4]


async def test_last_of_many_keys_is_found_in_another_piece_than_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store(SimFiles(), segment_bytes=64 << 10)
    append(store, b"x", properties=b"KEYS\x01" + b"key " * 7_000 + b"last")
    await confirmed(store)
    monkeypatch.setattr(search_module, "PIECE_BYTES", 100)
    assert bodies(await search(store, b"last")) == [b"x"]
    await store.close()


# -- times -----------------------------------------------------------------------------------------


async def stepped_store(host: Host) -> tuple[Store, list[tuple[bytes, int]]]:
    """Return a store in which the clock was set back by an hour, and its messages with their store times."""
    store = await open_store(SimFiles(), host=host)
    clock: Any = host.clock
    stored = []
    for number in range(60):
        body = b"%d" % number
        append(store, body, topic=f"t{number % 3}", queue_id=number % 2, properties=b"KEYS\x01k")
        stored.append((body, store.now_ms()))
        advance(host, 60_000)
        if number == 30:
            clock.ahead_ms = -3_600_000
            while not store.clock_sets:
                store.follow_clock()
                advance(host, 5_000)
    await confirmed(store)
    return store, stored


async def test_times_select_whatever_the_clock_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "PIECE_BYTES", 200)
    host = host_of(SimFiles())
    store, stored = await stepped_store(host)
    times = sorted({time for _, time in stored})
    for begin in (0, *times[::7], times[-1] + 1):
        for end in (times[0] - 1, *times[::5], search_module.NO_END_MS):
            expected = [body for body, time in reversed(stored) if begin <= time <= end]
            assert bodies(await search(store, begin_ms=begin, end_ms=end)) == expected
            topic = [body for body in expected if int(body) % 3 == 1]
            assert bodies(await search(store, begin_ms=begin, end_ms=end, topic="t1")) == topic
    await store.close()


async def test_times_narrow_what_is_searched() -> None:
    host = host_of(SimFiles())
    store = await open_store(SimFiles(), host=host)
    stored = []
    for number in range(200):
        append(store, b"%d" % number, queue_id=number % 4, properties=b"KEYS\x01k")
        stored.append(store.now_ms())
        advance(host, 1_000)
    await confirmed(store)
    found = await search(store, begin_ms=stored[100], end_ms=stored[103])
    assert bodies(found) == [b"103", b"102", b"101", b"100"]
    assert found.scanned_bytes < 13 * len(found.records[0])
    nothing = await search(store, begin_ms=stored[-1] + 1)
    assert nothing.scanned_bytes < 5 * len(found.records[0])
    await store.close()


# -- damage and retention --------------------------------------------------------------------------


async def test_rotten_places_end_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever one bit is flipped, the messages that can still be read are found."""
    monkeypatch.setattr(search_module, "PIECE_BYTES", 64)
    files = SimFiles()
    store = await open_store(files)
    for number in range(3):
        append(store, b"%d" % number, properties=b"KEYS\x01k")
    await confirmed(store)
    begin = store._log.end
    append(store, b"rotten", properties=b"KEYS\x01k")
    await confirmed(store)
    end = store._log.end
    append(store, b"last", properties=b"KEYS\x01k")
    await confirmed(store)
    for at in range(begin, end):
        files.flip(LOG, at)
        store._log._begin_tail(store._log.end)
        found = [body for body in bodies(await search(store)) if body != b"rotten"]
        assert found == [b"last", b"2", b"1", b"0"], at
        files.flip(LOG, at)
    await store.close()


async def test_wrong_entries_of_the_sampled_queue_hide_no_message_of_another() -> None:
    files = SimFiles()
    host = host_of(files)
    store = await open_store(files, host=host)
    for number in range(40):
        append(store, b"%d" % number, queue_id=0 if number % 4 else 1, properties=b"KEYS\x01k")
        advance(host, 1_000)
    await confirmed(store)
    await store.write_snapshot([])
    await store.close()
    store, _ = await recovered(files, host=host)
    for index in range(30):
        files.overwrite("/store/consumequeue/orders/0/00000000000000000000", index * 20, (777 * index).to_bytes(8, "big"))
    wanted = [b"%d" % number for number in reversed(range(40)) if not number % 4]
    stored = {body: store_time_of(each) for each in (await search(store)).records for body in [RecordView(each).body]}
    assert [body for body in bodies(await search(store)) if int(body) % 4 == 0] == wanted
    for body in wanted:
        found = await search(store, begin_ms=stored[body], end_ms=stored[body])
        assert bodies(found) == [body]
    await store.close()


class UnreadableFile:
    """A log file of which the disk can't read the bytes from `begin` to `end`."""

    def __init__(self, file: Any, begin: int, end: int) -> None:
        self._file = file
        self._bad = begin, end

    def pread(self, count: int, offset: int) -> bytes:
        if offset < self._bad[1] and offset + count > self._bad[0]:
            raise OSError(5, "Input/output error")
        return bytes(self._file.pread(count, offset))

    def pread_cached(self, count: int, offset: int) -> bytes | None:
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


async def test_bytes_that_the_disk_cannot_read_are_passed_over_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "PIECE_BYTES", 256)
    monkeypatch.setattr(search_module, "CHUNK_BYTES", 64)
    monkeypatch.setattr(search_module, "BEFORE_BYTES", 64)
    store = await open_store(SimFiles())
    for number in range(60):
        append(store, b"%d" % number, properties=b"KEYS\x01k")
    await confirmed(store)
    store._log._begin_tail(store._log.end)
    file = store._log.segments[0].file
    store._log.segments[0].file = UnreadableFile(file, 2_000, 2_100)
    found = await search(store)
    assert 0 < found.unread_bytes <= 1_024
    assert 50 <= len(found.records) < 60
    assert found.cursor is None
    store._log.segments[0].file = file
    await store.close()


async def test_log_files_that_retention_removes_meanwhile_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "PIECE_BYTES", 1_000)
    host = host_of(SimFiles())
    store = await open_store(SimFiles(), host=host, retention_ms=1_000)
    for number in range(400):
        append(store, b"%d" % number, properties=b"KEYS\x01k")
    await confirmed(store)
    assert len(store._log.segments) >= 3
    for _ in range(2):
        await store.write_snapshot([])
        append(store, b"new")
        await confirmed(store)
    advance(host, 10_000)
    threads: Any = host.threads
    threads.held = asyncio.Event()
    task = asyncio.ensure_future(search(store, cursor=store._log.segments[0].end))
    await asyncio.sleep(0)
    assert store._log.segments[0].reader_count == 1
    threads.held.set()
    removal = asyncio.ensure_future(store.retention(store.now_ms()))
    found = await task
    await removal
    assert found.cursor is None
    again = await search(store)
    assert [int(body) for body in bodies(again)] == sorted(map(int, bodies(again)), reverse=True)
    await store.retention(store.now_ms())
    assert store._log.start > 0
    kept = await search(store, cursor=store._log.start)
    assert (bodies(kept), kept.cursor, kept.scanned_bytes) == ([], None, 0)
    await store.close()


# -- against a scan of all messages ----------------------------------------------------------------

WORDS = st.sampled_from([b"k", b"kk", b"k1", b"1k", b"k-k", b"a", b"KEYS", b"UNIQ_KEY"])
PROPERTIES = st.lists(st.tuples(st.sampled_from([b"KEYS", b"UNIQ_KEY", b"TAGS"]), st.lists(WORDS, min_size=1, max_size=3)), max_size=3)
BODIES = st.one_of(st.sampled_from([b"x", b" k \x01k\x02", b"KEYS\x01k", b"k" * 300]), st.binary(min_size=1, max_size=200))


@settings(max_examples=60, deadline=None)
@given(
    messages=st.lists(st.tuples(st.sampled_from(["a", "b"]), BODIES, PROPERTIES, st.integers(0, 2), st.booleans()), max_size=40),
    key=st.sampled_from([b"k", b"kk", b"a", b"k1"]),
    unique=st.booleans(),
    topic=st.sampled_from([None, "a"]),
    piece_bytes=st.integers(16, 3_000),
    count=st.integers(1, 5),
    times=st.tuples(st.integers(0, 50), st.integers(0, 50)),
)
def test_search_finds_what_a_scan_of_all_messages_finds(
    messages: Sequence[tuple[str, bytes, list[tuple[bytes, list[bytes]]], int, bool]],
    key: bytes,
    unique: bool,
    topic: str | None,
    piece_bytes: int,
    count: int,
    times: tuple[int, int],
) -> None:
    async def check() -> None:
        host = host_of(SimFiles())
        store = await open_store(SimFiles(), host=host, segment_bytes=4_096)
        began, stored = store.now_ms(), []
        for name, body, pairs, pause, state in messages:
            data = b"\x02".join(b"%s\x01%s" % (pair, b" ".join(words)) for pair, words in pairs)
            append(store, body, topic=name, properties=data)
            stored.append((name, data, store.now_ms(), store._state.last_record))
            advance(host, pause)
            if state:
                store.append_state(body)
        await confirmed(store)
        begin, end = began + times[0], began + times[1]
        wanted = Wanted(key, unique, topic, begin, end)
        expected = [
            position
            for name, data, time, position in reversed(stored)
            if topic in (None, name) and begin <= time <= end and has_key(b"\x02" + data, wanted)
        ]
        before, search_module.PIECE_BYTES = search_module.PIECE_BYTES, piece_bytes
        try:
            found, cursor = list[bytes](), None
            for _ in range(math.ceil(len(messages) / count) + 2):
                step = await store.search(wanted, SearchLimits(count, 1 << 40, 1 << 60), cursor)
                found += step.records
                cursor = step.cursor
                if cursor is None:
                    break
        finally:
            search_module.PIECE_BYTES = before
        assert cursor is None
        assert [RecordView(each).physical_offset for each in found] == expected
        await store.close()

    asyncio.run(check())
