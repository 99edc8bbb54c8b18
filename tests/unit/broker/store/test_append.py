"""Appending and confirming: one write per turn, the order of notifications, the disk reserve, failures."""

import asyncio
import errno
import tracemalloc

import pytest

from lockstep.broker.store import FlushMode, ReadStatus, Store, StoreDiskError
from lockstep.protocol.errors import ConfigError, MessageIllegalError, ServiceNotAvailableError
from lockstep.protocol.messages.properties import COPY_GROWTH_BYTES_MAX
from lockstep.protocol.messages.record import RecordView
from lockstep.testing.simulation.disk import Fault, SimFiles
from support.store_kit import (
    ASYNC,
    BORN_HOST,
    IDENTITY,
    LOG,
    SYNC,
    LoopThreads,
    Recorded,
    abandon,
    all_bodies,
    append,
    config,
    confirmed,
    host_of,
    open_store,
    record,
    sequenced,
)


async def test_offsets_are_dense_per_queue_and_log_positions_contiguous() -> None:
    store = await open_store(SimFiles())
    first = store.append_frame("orders", 0, record(b"a") + record(b"b"), 2, born_host=BORN_HOST)
    other = store.append_frame("bills", 0, record(b"c", topic="bills"), 1, born_host=BORN_HOST)
    second = store.append_frame("orders", 0, bytearray(record(b"d")), 1, born_host=BORN_HOST)
    assert [first.queue_offset, other.queue_offset, second.queue_offset] == [0, 0, 2]
    assert [first.physical_offset, other.physical_offset] == [0, 2 * len(record(b"a"))]
    assert store.end_offset("orders", 0) == 3
    await store.close()


async def test_appends_of_one_turn_are_one_write_and_readable_only_after_it() -> None:
    files = SimFiles()
    store = await open_store(files)
    writes: list[str] = []
    tick = files.tick
    files.tick = lambda operation, path, process: (writes.append(path) if operation == "write" else None, tick(operation, path, process))[1]  # type: ignore[method-assign]
    for number in range(10):
        append(store, b"%d" % number, queue_id=number % 3)
    store.append_state(b"state")
    assert store.bounds("orders", 0) == (0, 0)
    await asyncio.sleep(0)
    assert writes == [LOG]
    assert store.bounds("orders", 0) == (0, 4)
    await store.close()


@pytest.mark.parametrize("flush", [ASYNC, SYNC])
async def test_waiters_are_called_in_log_order_after_records_are_readable(flush: FlushMode) -> None:
    store = await open_store(SimFiles(), flush=flush)
    seen: list[object] = []
    store.writer.on_arrival = lambda topic, queue_id: seen.append((topic, queue_id, store.bounds(topic, queue_id)))
    append(store, b"a")
    store.writer.when_confirmed(lambda: seen.append(store.bounds("orders", 0)))
    append(store, b"b")
    append(store, b"c", queue_id=1)
    store.writer.when_confirmed(lambda: seen.append("second"))
    await confirmed(store)
    assert seen == [(0, 2), "second", ("orders", 0, (0, 2)), ("orders", 1, (0, 1))]
    await store.close()


async def test_waiter_is_called_at_once_if_nothing_is_pending() -> None:
    store = await open_store(SimFiles())
    called: list[int] = []
    store.writer.when_confirmed(lambda: called.append(1))
    assert called == [1]
    await store.close()


async def test_response_waits_for_the_state_changes_of_its_turn() -> None:
    """A response that appends nothing waits until the change that it depends on is stored."""
    store = await open_store(SimFiles())
    order: list[str] = []

    def journal() -> None:
        order.append("journal")
        store.append_state(b"change")

    store.writer.before_write = journal
    store.writer.request_write()
    store.writer.when_confirmed(lambda: order.append("response"))
    assert order == []
    await asyncio.sleep(0)
    assert order == ["journal", "response"]
    await store.close()


async def test_sync_flush_confirms_a_turn_after_one_fdatasync() -> None:
    files = SimFiles()
    host = host_of(files)
    store = await open_store(files, host=host, flush=SYNC)
    threads = host.threads
    assert isinstance(threads, LoopThreads)
    threads.held = asyncio.Event()
    called: list[str] = []
    append(store, b"a")
    store.writer.when_confirmed(lambda: called.append("a"))
    for _ in range(3):
        await asyncio.sleep(0)
    append(store, b"b")
    store.writer.when_confirmed(lambda: called.append("b"))
    append(store, b"c")
    store.writer.when_confirmed(lambda: called.append("c"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert called == []
    assert store.writer.waiting_count == 3
    assert store.bounds("orders", 0) == (0, 0)
    before = files.syncs.count(LOG)
    threads.held.set()
    await confirmed(store)
    assert called == ["a", "b", "c"]
    assert store.writer.waiting_count == 0
    assert files.syncs.count(LOG) - before == 2
    assert store.bounds("orders", 0) == (0, 3)
    await store.close()


@pytest.mark.parametrize("flush", [ASYNC, SYNC])
async def test_when_synced_starts_a_sync_at_once_and_is_called_after_it(flush: FlushMode) -> None:
    """The flush interval is an hour; waiters that do not need the disk are called long before."""
    files = SimFiles()
    host = host_of(files)
    store = await open_store(files, host=host, flush=flush, flush_interval_ms=3_600_000)
    assert isinstance(host.threads, LoopThreads)
    host.threads.held = asyncio.Event()
    called: list[str] = []
    append(store, b"a")
    store.writer.when_synced(lambda: called.append("durable"))
    append(store, b"b")
    store.writer.when_synced(lambda: called.append("durable too"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert called == []
    assert store.bounds("orders", 0) == ((0, 2) if flush is ASYNC else (0, 0))
    assert store.writer.waiting_count == 2
    before = files.syncs.count(LOG)
    host.threads.held.set()
    while not called:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert called == ["durable", "durable too"]
    assert (store.writer.waiting_count, files.syncs.count(LOG) - before) == (0, 1)
    store.writer.when_synced(lambda: called.append("at once"))
    assert called[-1] == "at once"
    await store.close()


@pytest.mark.parametrize("flush", [ASYNC, SYNC])
async def test_when_synced_waits_for_the_journal_of_its_turn(flush: FlushMode) -> None:
    files = SimFiles()
    store = await open_store(files, host=host_of(files), flush=flush, flush_interval_ms=3_600_000)
    store.writer.before_write = lambda: store.append_state(b"journal")
    on_disk: list[bool] = []
    store.writer.request_write()
    store.writer.when_synced(lambda: on_disk.append(b"journal" in files.names[LOG].durable))
    while not on_disk:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert on_disk == [True]
    store.writer.before_write = None
    await store.close()


@pytest.mark.parametrize("flush", [ASYNC, SYNC])
async def test_when_written_is_called_at_the_end_of_the_turn_before_any_sync(flush: FlushMode) -> None:
    files = SimFiles()
    host = host_of(files)
    store = await open_store(files, host=host, flush=flush, flush_interval_ms=3_600_000)
    assert isinstance(host.threads, LoopThreads)
    host.threads.held = asyncio.Event()
    called: list[int] = []
    append(store, b"a")
    store.writer.when_written(lambda: called.append(files.names[LOG].cache.count(b"a")))
    assert (called, store.writer.waiting_count) == ([], 1)
    await asyncio.sleep(0)
    assert len(called) == 1
    assert called[0] > 0, "the operating system has it"
    assert store.bounds("orders", 0) == ((0, 1) if flush is ASYNC else (0, 0))
    assert store.writer.waiting_count == 0
    store.writer.when_written(lambda: called.append(-1))
    assert called[-1] == -1
    append(store, b"b")
    store.writer.when_written(lambda: called.append(-2))
    store.writer.fail(OSError("the disk is gone"))
    host.threads.held.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert called[-1] == -1
    store.writer.flusher.abandon()


async def test_failed_sync_calls_no_when_synced_waiter() -> None:
    files = SimFiles()
    host = host_of(files)
    store = await open_store(files, host=host, flush=ASYNC, flush_interval_ms=3_600_000)
    assert isinstance(host.threads, LoopThreads)
    host.threads.held = asyncio.Event()
    called: list[str] = []
    append(store, b"a")
    store.writer.when_synced(lambda: called.append("durable"))
    await asyncio.sleep(0)
    store.writer.fail(OSError("the disk is gone"))
    store.writer.when_synced(lambda: called.append("later"))
    host.threads.held.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert called == []
    assert store.writer.waiting_count == 0
    store.writer.flusher.abandon()


async def test_repeated_send_waits_for_the_pending_sync() -> None:
    files = SimFiles()
    host = host_of(files)
    store = await open_store(files, host=host, flush=SYNC)
    assert isinstance(host.threads, LoopThreads)
    host.threads.held = asyncio.Event()
    append(store, b"a")
    await asyncio.sleep(0)
    called: list[int] = []
    store.writer.when_confirmed(lambda: called.append(1))
    await asyncio.sleep(0)
    assert called == []
    host.threads.held.set()
    await confirmed(store)
    assert called == [1]
    await store.close()


async def test_response_waits_for_the_sync_of_a_change_of_an_earlier_turn() -> None:
    """The end of a session or a lease is not a request, so no response waits for its record. The next response may reveal it."""
    files = SimFiles()
    host = host_of(files)
    store = await open_store(files, host=host, flush=SYNC)
    assert isinstance(host.threads, LoopThreads)
    host.threads.held = asyncio.Event()
    store.append_state(b"a session ended")
    for _ in range(3):
        await asyncio.sleep(0)
    called: list[int] = []
    store.writer.when_confirmed(lambda: called.append(1))
    assert called == []
    host.threads.held.set()
    await store.sync()
    assert called == [1]
    await store.close()


async def test_frame_that_claims_too_many_records_is_rejected_without_allocation() -> None:
    store = await open_store(SimFiles(), segment_bytes=1 << 20)
    frame = bytes(1 << 19)
    tracemalloc.start()
    try:
        with pytest.raises(MessageIllegalError, match="does not hold the 524288 records that it claims"):
            store.append_frame("orders", 0, frame, len(frame), born_host=BORN_HOST)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(frame)
    await store.close()


async def test_store_timestamp_does_not_fall_with_the_wall_clock() -> None:
    """A clock that stays behind for a long time is tested in test_store_clock.py."""
    files = SimFiles()
    host = host_of(files)
    store = await open_store(files, host=host)
    first = store.append_frame("orders", 0, record(b"a"), 1, born_host=BORN_HOST).store_timestamp
    host.clock.ahead_ms = -5_000  # type: ignore[attr-defined]
    assert store.append_frame("orders", 0, record(b"b"), 1, born_host=BORN_HOST).store_timestamp == first
    await store.close()
    host.clock.ahead_ms = -10_000  # type: ignore[attr-defined]
    store = await open_store(files, host=host)
    assert store.append_frame("orders", 0, record(b"c"), 1, born_host=BORN_HOST).store_timestamp == first
    await store.close()


async def test_records_carry_born_and_store_host() -> None:
    store = await open_store(SimFiles())
    store.store_host = bytes([10, 0, 0, 1, 0, 0, 0x2A, 0x9F])
    append(store, b"a")
    await confirmed(store)
    result = store.read("orders", 0, 0, max_count=1, max_bytes=1000)
    assert result is not None
    view = RecordView(result.parts[0])
    assert (view.born_host, view.store_host) == (BORN_HOST, store.store_host)
    await store.close()


async def test_frame_never_spans_two_segments_and_a_blank_record_fills_the_rest() -> None:
    files = SimFiles()
    store = await open_store(files, segment_bytes=4096)
    for _ in range(3):
        append(store, b"x" * 1000)
    append(store, b"y" * 600, b"z" * 600)
    await confirmed(store)
    used = 3 * len(record(b"x" * 1000))
    first = files.names[LOG].cache
    assert first[used : used + 8] == (4096 - used).to_bytes(4, "big") + b"\xcb\xd4\x31\x94"
    assert not any(first[used + 8 :])
    second = files.names["/store/commitlog/00000000000000004096"].cache
    assert RecordView(second).physical_offset == 4096
    assert await all_bodies(store) == [b"x" * 1000] * 3 + [b"y" * 600, b"z" * 600]
    await store.close()


@pytest.mark.parametrize(("spare", "segment_count"), [(8, 1), (7, 2)])
async def test_eight_bytes_stay_free_at_the_end_of_a_segment(spare: int, segment_count: int) -> None:
    """RocketMQ: a record goes into the next file where fewer than 8 bytes would be left for the blank one."""
    store = await open_store(SimFiles(), segment_bytes=8192)
    append(store, b"x" * 3000)
    append(store, b"first")
    last = b"x" * (8192 - 3097 - spare - len(record(b"first")) - len(record(b"")))
    append(store, last)
    assert len(store._log.segments) == segment_count
    await confirmed(store)
    assert await all_bodies(store) == [b"x" * 3000, b"first", last]
    await store.close()


async def test_sent_record_leaves_room_for_the_properties_of_its_copies() -> None:
    store = await open_store(SimFiles(), segment_bytes=8192)
    longest = store.sent_record_bytes_max - len(record(b""))
    with pytest.raises(MessageIllegalError, match=f"record 0: size {store.sent_record_bytes_max + 1}, expected"):
        append(store, b"x" * (longest + 1))
    append(store, b"x" * longest)
    copy = record(b"x" * longest, topic="t" * 127, properties=b"a\x01" + b"p" * (COPY_GROWTH_BYTES_MAX - 123))
    assert len(copy) == store.sent_record_bytes_max + COPY_GROWTH_BYTES_MAX
    store.append_frame("t" * 127, 0, copy, 1, born_host=bytes(8), trusted=True)
    await store.close()


async def test_frame_larger_than_a_segment_is_rejected() -> None:
    store = await open_store(SimFiles(), segment_bytes=4096)
    with pytest.raises(MessageIllegalError, match="frame of 5097 bytes, a log file takes 4088"):
        append(store, b"x" * 5000)
    await store.close()


async def test_send_to_the_state_topic_or_a_negative_queue_is_rejected() -> None:
    store = await open_store(SimFiles())
    with pytest.raises(MessageIllegalError, match="queue 0 of LOCKSTEP_SYS_STATE takes no sends"):
        append(store, b"x", topic="LOCKSTEP_SYS_STATE")
    with pytest.raises(MessageIllegalError, match="queue -1"):
        append(store, b"x", queue_id=-1)
    await store.close()


async def test_rejected_frame_creates_no_queue_and_no_gap() -> None:
    store = await open_store(SimFiles())
    append(store, b"a")
    with pytest.raises(MessageIllegalError):
        store.append_frame("orders", 0, record(b"b") + record(b"c", topic="bills"), 2, born_host=BORN_HOST)
    with pytest.raises(MessageIllegalError):
        store.append_frame("new", 0, record(b"b"), 1, born_host=BORN_HOST)
    assert append(store, b"d") == 1
    await confirmed(store)
    assert await all_bodies(store) == [b"a", b"d"]
    result = store.read("new", 0, 0, max_count=1, max_bytes=1)
    assert result is not None
    assert result.status is ReadStatus.NO_QUEUE
    await store.close()


# -- the disk ------------------------------------------------------------------------------------


async def test_below_the_disk_reserve_sends_are_rejected_and_state_records_written() -> None:
    files = SimFiles()
    host = host_of(files)
    store = await open_store(files, host=host, disk_reserve_bytes=20_000)
    append(store, b"before")
    await confirmed(store)
    files.capacity_bytes = files.used_bytes() + 20_050
    host.clock.now_ms += 2_000  # type: ignore[attr-defined]
    store.append_state(b"looks again")
    await asyncio.sleep(0)
    with pytest.raises(ServiceNotAvailableError, match="bytes free; sends are refused where less than 20000 bytes would be left"):
        append(store, b"x" * 200)
    store.append_state(b"goes on")
    await confirmed(store)
    assert await all_bodies(store) == [b"before"]
    files.capacity_bytes = files.used_bytes() + 19_999
    assert store.disk_status().refusal is not None
    files.capacity_bytes += 100_000
    host.clock.now_ms += 100  # type: ignore[attr-defined]
    append(store, b"after")
    await confirmed(store)
    assert await all_bodies(store) == [b"before", b"after"]
    await store.close()


async def test_refused_send_is_shown_at_once_until_there_is_room_for_its_size(caplog: pytest.LogCaptureFixture) -> None:
    """More than the reserve is free, and less than the reserve and the frame."""
    caplog.set_level("INFO", "lockstep")
    files = SimFiles()
    host = host_of(files)
    store = await open_store(files, host=host, disk_reserve_bytes=20_000)
    append(store, b"before")
    await confirmed(store)
    files.capacity_bytes = files.used_bytes() + 25_000
    host.clock.now_ms += 2_000  # type: ignore[attr-defined]
    assert store.disk_status().refusal is None
    for _ in range(3):
        with pytest.raises(ServiceNotAvailableError):
            append(store, b"x" * 8_000)
    assert [record.levelname for record in caplog.records if "disk.filled" in record.getMessage()] == ["ERROR"]
    refusal = store.disk_status().refusal
    assert refusal is not None
    assert "bytes free; a frame of 8" in refusal
    assert "the reserve of 20000 bytes would be left" in refusal
    append(store, b"a small one")
    await confirmed(store)
    assert store.disk_status().refusal is not None, "large ones are refused still"
    files.capacity_bytes += 20_000
    assert store.disk_status().refusal is None
    assert sum("disk.recovered" in record.getMessage() for record in caplog.records) == 1
    await store.close()


async def test_below_half_the_disk_reserve_new_state_is_rejected_and_changes_are_written() -> None:
    files = SimFiles()
    host = host_of(files)
    store = await open_store(files, host=host, disk_reserve_bytes=20_000)
    store.check_new_state("group g")
    for free, refused in ((10_000, False), (9_999, True), (0, True), (30_000, False)):
        files.capacity_bytes = files.used_bytes() + free
        host.clock.now_ms += 2_000  # type: ignore[attr-defined]
        if refused:
            with pytest.raises(
                ServiceNotAvailableError, match=f"has {free} bytes free, less than half of the reserve of 20000: group g is new and"
            ):
                store.check_new_state("group g")
        else:
            store.check_new_state("group g")
        if free:
            store.append_state(b"goes on")
            await confirmed(store)
    await store.close()


async def test_copy_of_a_log_leaves_half_the_disk_reserve_however_fast_it_comes() -> None:
    files, size = SimFiles(), 1_000
    host = host_of(files)
    store = await open_store(files, host=host, disk_reserve_bytes=20_000)
    files.capacity_bytes = files.used_bytes() + 100_000
    host.clock.now_ms += 2_000  # type: ignore[attr-defined]
    for _ in range(90):  # within one reading of the clock
        store.check_copy(size)
        files.capacity_bytes -= size  # as if they were written
    with pytest.raises(ServiceNotAvailableError, match="has 10000 bytes free; nothing is copied where less than half"):
        store.check_copy(size)
    files.capacity_bytes += size
    store.check_copy(size)
    await store.close()


async def test_default_disk_reserve_is_the_lesser_of_256_mib_and_5_percent() -> None:
    files = SimFiles(capacity_bytes=1 << 30)
    store = await open_store(files, disk_reserve_bytes=None)
    assert store.disk_status().reserve_bytes == (1 << 30) * 5 // 100
    await store.close()
    files.capacity_bytes = 1 << 40
    store = await open_store(files, disk_reserve_bytes=None)
    assert store.disk_status().reserve_bytes == 256 << 20
    await store.close()


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_failed_write_or_sync_is_fatal_and_confirms_nothing(operation: str) -> None:
    files = SimFiles()
    store = await open_store(files, flush=SYNC)
    fatal: list[BaseException] = []
    responded: list[int] = []
    store.writer.on_fatal = fatal.append
    files.faults.append(Fault(operation, "commitlog", errno.EIO))
    append(store, b"a")
    store.writer.when_confirmed(lambda: responded.append(1))
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(fatal) == 1
    assert isinstance(fatal[0], StoreDiskError)
    assert fatal[0].exit_code == 3
    with pytest.raises(ServiceNotAvailableError):
        append(store, b"b")
    with pytest.raises(StoreDiskError):
        store.append_state(b"c")
    with pytest.raises(StoreDiskError):
        await store.sync()
    store.writer.when_confirmed(lambda: responded.append(2))
    assert responded == []
    await store.close()
    assert files.exists("/store/abort")


async def test_full_disk_during_a_write_is_fatal_and_recovery_cuts_the_partial_frame() -> None:
    files = SimFiles()
    store = await open_store(files)
    append(store, b"a" * 50)
    await confirmed(store)
    fatal: list[BaseException] = []
    store.writer.on_fatal = fatal.append
    files.capacity_bytes = files.used_bytes() + 300
    append(store, b"b" * 500)
    await asyncio.sleep(0)
    assert len(fatal) == 1
    abandon(store)
    await asyncio.sleep(0)
    files.crash(power=False)
    files.capacity_bytes = 1 << 40
    store = await open_store(files)
    assert await all_bodies(store) == [b"a" * 50]
    await store.close()


async def test_short_writes_are_continued() -> None:
    files = SimFiles(seed=3, short_writes=True)
    store = await open_store(files)
    bodies = [b"%d" % number * 100 for number in range(100)]
    for body in bodies:
        append(store, body)
        await asyncio.sleep(0)
    await confirmed(store)
    store._log.tail_start = store._log.end
    store._log.tail.clear()
    assert await all_bodies(store) == bodies
    await store.close()


async def test_failing_journal_is_fatal(caplog: pytest.LogCaptureFixture) -> None:
    store = await open_store(SimFiles())
    fatal: list[BaseException] = []
    store.writer.on_fatal = fatal.append

    def journal() -> None:
        raise RuntimeError("a bug")

    store.writer.before_write = journal
    store.writer.request_write()
    await asyncio.sleep(0)
    assert len(fatal) == 1
    assert [record.getMessage().split()[0] for record in caplog.records if record.exc_info] == ["turn.failed"]
    await store.close()


# -- upkeep --------------------------------------------------------------------------------------


async def test_memory_holds_only_the_recent_log_and_entries() -> None:
    store = await open_store(SimFiles(), segment_bytes=1 << 20, tail_bytes=2_000, queue_tail_bytes=2_000)
    for number in range(500):
        append(store, b"%d" % number)
        await asyncio.sleep(0)
    await confirmed(store)
    log = store._log
    assert 1_000 <= log.end - log.memory_start <= 2_000 + 200
    for position in range(log.memory_start, log.end):
        for count in {1, 100, log.end - position}:
            within = position + count <= log.end
            assert log.from_tail(position, count) == (log.segments[0].file.pread(count, position) if within else None)
    assert log.from_tail(log.memory_start - 1, 1) is None
    queue = store._queues.get(("orders", 0))
    assert queue is not None
    assert len(queue._entries) <= 20 * 200
    assert await all_bodies(store) == [b"%d" % number for number in range(500)]
    await store.close()


async def test_idempotent_frames_are_replayed_after_a_restart() -> None:
    files = SimFiles()
    store = await open_store(files)
    frame, sequence = sequenced([b"a", b"b"], first=0, previous_crc=0)
    appended = store.append_frame("orders", 0, frame, 2, born_host=BORN_HOST, sequenced=True)
    await confirmed(store)
    await store.close()
    recorded = Recorded()
    store = await open_store(files, recorded=recorded)
    ((scope, end, place),) = recorded.frames
    assert scope == (sequence.producer_id, 0, "orders", 0)
    assert end == (1, 0, 2, sequence.crc, False)
    assert place == (0, appended.physical_offset, appended.store_timestamp)
    await store.close()


async def test_dropped_topic_is_hidden_and_its_offsets_are_not_reused() -> None:
    files = SimFiles()
    store = await open_store(files)
    append(store, b"old", b"old")
    await confirmed(store)
    store.append_state(b"drop")
    store.drop_topic("orders")
    assert store.bounds("orders", 0) == (2, 2)
    assert append(store, b"new") == 2
    await confirmed(store)
    assert await all_bodies(store) == [b"new"]
    abandon(store)
    await asyncio.sleep(0)
    files.crash(power=False)
    store = await Store.open(config(), host_of(files), IDENTITY)
    await store.recover(Recorded(on_state=lambda body: store.drop_topic("orders")))
    await store.sync()
    assert await all_bodies(store) == [b"new"]
    assert store.bounds("orders", 0) == (2, 3)
    await store.close()


async def test_queue_is_young_while_its_first_message_is_near_the_log_end() -> None:
    files = SimFiles()
    store = await open_store(files)
    assert store.young_queue("orders", 0, 0)
    append(store, b"a")
    assert store.young_queue("orders", 0, 0)
    files.memory_bytes = lambda: 100  # type: ignore[method-assign]
    assert not store.young_queue("orders", 0, 0)
    await store.close()


async def test_queue_of_a_topic_that_was_created_again_is_young_from_where_it_ended_before() -> None:
    store = await open_store(SimFiles())
    append(store, b"a")
    store.drop_topic("orders")
    assert [store.young_queue("orders", 0, first) for first in (0, 1)] == [False, True]
    append(store, b"b")
    assert [store.young_queue("orders", 0, first) for first in (0, 1)] == [False, True]
    await store.close()


def test_config_out_of_range_is_rejected() -> None:
    with pytest.raises(ConfigError, match="segment_bytes is 10"):
        config(segment_bytes=10)
    with pytest.raises(ConfigError, match="store_host"):
        config(store_host=b"x")
    with pytest.raises(ConfigError, match="queue_file_entries"):
        config(queue_file_entries=0)
    with pytest.raises(ConfigError, match="flush_interval_ms"):
        config(flush_interval_ms=0)
    with pytest.raises(ConfigError, match="disk_used_percent_max"):
        config(disk_used_percent_max=0)
