"""Reading: RocketMQ's statuses, limits, filters, one piece for adjacent records, cold reads, damage that is never served."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.store import ReadResult, ReadStatus, Store
from lockstep.broker.store.log.append import ENTRY
from lockstep.broker.store.queues.reader import choose
from lockstep.protocol.errors import SystemBusyError
from lockstep.protocol.messages.record import BODY_AT, INT64, MAGIC, SIZE_AND_MAGIC
from lockstep.protocol.tags import tags_code
from lockstep.testing.simulation.disk import Fault, SimFile, SimFiles
from support.store_kit import LOG, all_bodies, append, bodies_of, confirmed, host_of, open_store, read_queue_as_consumer, record

A, B = tags_code("A"), tags_code("B")


def read(
    store: Store, offset: int, *, queue_id: int = 0, max_count: int = 32, max_bytes: int = 1 << 20, tags: frozenset[int] | None = None
) -> ReadResult:
    result = store.read("orders", queue_id, offset, max_count=max_count, max_bytes=max_bytes, tag_hashes=tags)
    assert result is not None
    return result


async def store_with(*bodies: bytes, files: SimFiles | None = None, **settings: int) -> Store:
    store = await open_store(files or SimFiles(), **settings)
    append(store, *bodies)
    await confirmed(store)
    return store


async def cold_store(files: SimFiles, count: int = 100, *, snapshot: bool = False, **settings: int) -> Store:
    """Return a store with `count` messages of 100 B, alternating between two queues, none of them in memory."""
    store = await open_store(files, **settings)
    for number in range(count):
        append(store, b"%d" % number + b"." * 100, queue_id=number % 2)
    if snapshot:
        await store.write_snapshot([])
    await store.close()
    return await open_store(files, **settings)


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (-1, ReadStatus.OFFSET_TOO_SMALL, 0),
        (0, ReadStatus.FOUND, 3),
        (2, ReadStatus.FOUND, 3),
        (3, ReadStatus.OFFSET_AT_END, 3),
        (4, ReadStatus.OFFSET_TOO_LARGE, 3),
    ],
)
async def test_read_status_of_each_offset_is_that_of_rocketmq(offset: int, status: ReadStatus, next_offset: int) -> None:
    store = await store_with(b"a", b"b", b"c")
    result = read(store, offset)
    assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (status, next_offset, 0, 3)
    await store.close()


async def test_unknown_queue_reads_as_no_queue_and_an_unconfirmed_one_as_empty() -> None:
    store = await open_store(SimFiles())
    assert read(store, 5).status is ReadStatus.NO_QUEUE
    append(store, b"a")
    assert (read(store, 0).status, read(store, 7).next_offset) == (ReadStatus.EMPTY, 0)
    await store.close()


async def test_adjacent_records_are_returned_as_one_part() -> None:
    store = await store_with(*[b"%d" % number for number in range(20)])
    result = read(store, 3, max_count=10)
    assert (len(result.parts), result.count, result.next_offset) == (1, 10, 13)
    assert result.body_bytes == len(result.parts[0])
    assert bodies_of(result.parts) == [b"%d" % number for number in range(3, 13)]
    await store.close()


async def test_interleaved_queues_return_parts_in_order() -> None:
    store = await open_store(SimFiles())
    for number in range(10):
        append(store, b"%d" % number, queue_id=number % 2)
    await confirmed(store)
    result = read(store, 0, queue_id=1)
    assert (len(result.parts), result.count) == (5, 5)
    assert bodies_of(result.parts) == [b"1", b"3", b"5", b"7", b"9"]
    await store.close()


async def test_byte_limit_counts_whole_records_and_the_first_always_fits() -> None:
    store = await store_with(b"x" * 100, b"y" * 100, b"z" * 100)
    size = len(record(b"x" * 100))
    assert read(store, 0, max_bytes=1).count == 1
    assert read(store, 0, max_bytes=2 * size - 1).count == 1
    assert read(store, 0, max_bytes=2 * size).count == 2
    assert read(store, 0, max_bytes=2 * size).next_offset == 2
    await store.close()


async def test_filtered_read_stops_after_a_scan_limit_and_returns_the_next_offset() -> None:
    store = await open_store(SimFiles())
    for number in range(1_000):
        append(store, b"%d" % number, properties=b"TAGS\x01A" if number in (0, 950) else b"TAGS\x01B")
    await confirmed(store)
    first = read(store, 0, tags=frozenset({A}))
    assert (bodies_of(first.parts), first.next_offset) == ([b"0"], 800)
    none = read(store, 1, tags=frozenset({A}))
    assert (none.status, none.next_offset, none.parts) == (ReadStatus.NO_MATCHED, 801, [])
    assert bodies_of(read(store, 801, tags=frozenset({A})).parts) == [b"950"]
    both = read(store, 0, tags=frozenset({A, B}), max_count=3)
    assert (both.count, both.next_offset, len(both.parts)) == (3, 3, 1)
    assert read(store, 0, tags=frozenset({tags_code("C")})).status is ReadStatus.NO_MATCHED
    await store.close()


async def test_message_without_a_tag_does_not_match_a_tag() -> None:
    store = await store_with(b"a")
    assert read(store, 0, tags=frozenset({A})).status is ReadStatus.NO_MATCHED
    await store.close()


async def test_records_outside_all_caches_are_read_in_a_thread() -> None:
    files = SimFiles(cached_reads=False)
    store = await cold_store(files, queue_tail_bytes=200)
    assert store.read("orders", 0, 0, max_count=32, max_bytes=1 << 20) is None
    result = await store.read_cold("orders", 0, 0, max_count=32, max_bytes=1 << 20)
    assert bodies_of(result.parts) == [b"%d" % number + b"." * 100 for number in range(0, 64, 2)]
    assert len(await all_bodies(store, queue_id=1)) == 50
    await store.close()


async def test_adjacent_records_of_a_file_are_fetched_with_one_read() -> None:
    files = SimFiles()
    store = await cold_store(files, segment_bytes=1 << 20)
    store._log.tail_start = store._log.end
    store._log.tail.clear()
    before = files.operation_count
    result = read(store, 0)
    assert (result.count, len(result.parts)) == (32, 32)
    assert files.operation_count - before <= 2
    await store.close()


async def test_read_crosses_segments_and_queue_files() -> None:
    store = await cold_store(SimFiles(), count=300, segment_bytes=4096, queue_tail_bytes=200)
    for queue_id in (0, 1):
        assert await all_bodies(store, queue_id=queue_id) == [b"%d" % number + b"." * 100 for number in range(queue_id, 300, 2)]
    await store.close()


@pytest.mark.parametrize("at", [0, 5, 15, 30, 90, 150])
async def test_damaged_record_of_a_file_is_never_served(at: int) -> None:
    """Bits flipped in size, magic, queue id, physical offset or body of a record that comes from a file."""
    files = SimFiles()
    store = await cold_store(files, segment_bytes=1 << 20, snapshot=True)
    store._log.tail_start = store._log.end
    store._log.tail.clear()
    position = 2 * len(record(b"0" + b"." * 100))
    files.flip(LOG, position + at)
    assert read(store, 0).count == 1, "the message before it is returned"
    with pytest.raises(SystemBusyError, match="offset 1 of queue 0 of orders is compared with the log"):
        read(store, 1)
    reported = await read_queue_as_consumer(store)
    assert (sorted(reported.found), reported.lost) == ([0, *range(2, 50)], [1])
    assert (store.damage.message_count, store.damage.lost()) == (1, [("orders", 0, 1, 2)])
    assert (await read_queue_as_consumer(store, queue_id=1)).lost == []
    await store.close()
    store = await open_store(files, segment_bytes=1 << 20)
    again = await read_queue_as_consumer(store)
    assert (again.found, again.lost, again.busy_count) == (reported.found, [1], 0), "it is on record"
    assert store.damage.message_count == 1
    await store.close()


async def test_search_by_time_finds_the_first_message_not_older() -> None:
    files = SimFiles()
    host = host_of(files)
    store = await open_store(files, host=host)
    clock = host.clock
    start = clock.wall_ms()
    for _ in range(50):
        append(store, b"x")
        clock.now_ms += 10  # type: ignore[attr-defined]
    await confirmed(store)
    for wanted, offset in ((start - 1, 0), (start, 0), (start + 1, 1), (start + 250, 25), (start + 490, 49), (start + 491, 50)):
        assert await store.offset_by_time("orders", 0, wanted) == offset
    assert await store.offset_by_time("bills", 0, start) == 0
    assert (await store.first_stored_ms("orders", 0), await store.first_stored_ms("bills", 0)) == (start, None)
    await store.close()
    files.cached_reads = False
    store = await open_store(files, host=host)
    store._log.tail_start = store._log.end
    assert await store.offset_by_time("orders", 0, start + 250) == 25
    await store.close()


async def test_record_is_found_by_position_and_state_records_are_hidden() -> None:
    files = SimFiles()
    store = await open_store(files)
    append(store, b"a")
    store.append_state(b"secret")
    append(store, b"b")
    assert await store.record_at(0) is None  # not confirmed
    await confirmed(store)
    size = len(record(b"a"))
    found = await store.record_at(0)
    assert found is not None
    assert bodies_of([found]) == [b"a"]
    for wrong in (-1, 1, size, size - 1, store._log.end, store._log.end - 4, 1 << 50):
        assert await store.record_at(wrong) is None
    await store.close()


@pytest.mark.parametrize("cached", [True, False])
async def test_missing_entries_are_rebuilt_from_the_log_when_they_are_read(cached: bool) -> None:
    """Their messages are in the log: a response that continues after them would lose them."""
    files = SimFiles(cached_reads=cached)
    store = await cold_store(files, queue_file_entries=20, snapshot=True)
    name = "/store/consumequeue/orders/0/"
    files.overwrite(f"{name}{0:020d}", 20 * 3, bytes(40))
    files.names.pop(f"{name}{400:020d}")
    reported = await read_queue_as_consumer(store)
    assert (sorted(reported.found), reported.lost) == (list(range(50)), [])
    assert store.damage.message_count == 0
    await store.close()
    store = await open_store(files, queue_file_entries=20)
    assert (await read_queue_as_consumer(store)).busy_count == 0
    await store.close()


def overwrite_entries(files: SimFiles, queue_id: int, first: int, entries: list[tuple[int, int]]) -> None:
    """Write other entries (position, size) into a queue's files of 20 entries."""
    for index, (position, size) in enumerate(entries, first):
        at = index * 20
        path = f"/store/consumequeue/orders/{queue_id}/{at - at % 400:020d}"
        files.overwrite(path, at % 400, ENTRY.pack(position, size, 0))


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda size: (0, size),
        lambda size: (size, size),
        lambda size: (size // 2, size),
        lambda size: (1 << 50, size),
        lambda size: (-5, size),
        lambda size: (0, 2 * size),
        lambda size: (0, (1 << 31) - 1),
        lambda size: (0, 1 << 20),
    ],
)
async def test_wrong_entries_are_rebuilt_from_the_log_and_no_message_is_lost(wrong: Callable[[int], tuple[int, int]], cached: bool) -> None:
    files = SimFiles(cached_reads=cached)
    size = len(record(b"0" + b"." * 100))
    for first, count in ((0, 1), (7, 1), (7, 30), (0, 50), (49, 1)):
        store = await cold_store(files, queue_file_entries=20, snapshot=True, tail_bytes=400, queue_tail_bytes=100)
        high = store.bounds("orders", 0)[1]
        overwrite_entries(files, 0, first, [wrong(size)] * count)
        reported = await read_queue_as_consumer(store)
        assert (sorted(reported.found), reported.lost) == (list(range(high)), []), (first, count)
        assert store.damage.message_count == 0
        await store.close()
        files = SimFiles(cached_reads=cached)


async def test_queue_repair_reads_only_between_correct_entries() -> None:
    files = SimFiles()
    store = await cold_store(files, count=1_000, queue_file_entries=20, snapshot=True, queue_tail_bytes=100, segment_bytes=1 << 20)
    overwrite_entries(files, 0, 200, [(0, 150)])
    requested: list[int] = []
    pread = SimFile.pread

    def counted(file: SimFile, count: int, offset: int) -> bytes:
        if "/commitlog/" in file._path:
            requested.append(count)
        return pread(file, count, offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimFile, "pread", counted)
        with pytest.raises(SystemBusyError):
            await store.read_cold("orders", 0, 200, max_count=1, max_bytes=1)
        await store._repairs.idle.wait()
    assert sum(requested) < 200_000, "of a log of 200,000 bytes"
    assert bodies_of((await store.read_cold("orders", 0, 200, max_count=1, max_bytes=1)).parts) == [b"400" + b"." * 100]
    await store.close()


async def test_failed_read_during_a_queue_repair_is_not_fatal_and_is_retried() -> None:
    files = SimFiles()
    store = await cold_store(files, queue_file_entries=20, snapshot=True, queue_tail_bytes=100, tail_bytes=400)
    overwrite_entries(files, 0, 10, [(0, 150)])
    with pytest.raises(SystemBusyError):
        store.read("orders", 0, 10, max_count=1, max_bytes=1)
    files.faults.append(Fault("read", "commitlog"))
    await store._repairs.idle.wait()
    assert not store.writer.has_failed
    reported = await read_queue_as_consumer(store)
    assert (sorted(reported.found), reported.lost) == (list(range(50)), [])
    await store.close()


async def test_position_inside_a_body_reads_no_more_than_the_largest_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender controls these bytes: they may claim a gigabyte, or look like a record."""
    requested: list[int] = []
    pread = SimFile.pread
    monkeypatch.setattr(SimFile, "pread", lambda file, count, offset: (requested.append(count), pread(file, count, offset))[1])
    store = await open_store(SimFiles(), record_bytes_max=2_000, tail_bytes=0)
    places = []
    for size, magic in ((9_000, 0), (9_000, MAGIC), (2_001, MAGIC)):
        places.append(store._log.end + BODY_AT)
        append(store, SIZE_AND_MAGIC.pack(size, magic) + bytes(20) + INT64.pack(places[-1]))
    for _ in range(6):
        append(store, b"y" * 1_800)
    await confirmed(store)
    append(store, b"z")
    await confirmed(store)  # memory holds the last turn only
    requested.clear()
    for place in places:
        assert await store.record_at(place) is None
    assert requested
    assert max(requested) <= 2_000
    await store.close()


@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=30),
    gaps=st.lists(st.sampled_from([0, 0, 0, 50]), min_size=30, max_size=30),
    tags=st.lists(st.sampled_from([0, A, B, -7]), min_size=30, max_size=30),
    max_count=st.integers(1, 40),
    max_bytes=st.integers(1, 4000),
    wanted=st.none() | st.frozensets(st.sampled_from([A, B, -7])),
)
def test_choose_equals_a_plain_loop(
    sizes: list[int], gaps: list[int], tags: list[int], max_count: int, max_bytes: int, wanted: frozenset[int] | None
) -> None:
    position, rows = 1 << 33, []
    for size, gap, tag in zip(sizes, gaps, tags, strict=False):
        position += gap
        rows.append((position, size, tag))
        position += size
    runs, taken, scanned = choose(b"".join(ENTRY.pack(*row) for row in rows), max_count, max_bytes, wanted)
    expected: list[tuple[int, int]] = []
    total = looked = 0
    for at, size, tag in rows:
        if wanted is None and len(expected) == max_count:
            break
        if wanted is None or tag in wanted:
            if expected and (total + size > max_bytes or len(expected) == max_count):
                break
            expected.append((at, size))
            total += size
        looked += 1
    assert (taken, scanned) == (len(expected), looked)
    assert sum(size for _, size in runs) == total
    assert [at for at, _ in runs] == [at for at, _ in expected if all(at != other + size for other, size in expected)]
