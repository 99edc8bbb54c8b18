"""Retention: which segments are removed, and the bounds of the queues afterwards."""

import asyncio
from dataclasses import replace

import pytest

from lockstep.broker.store import ReadStatus, Store, StoreDiskError
from lockstep.broker.store.queues.consume_queue import ConsumeQueue, QueueFiles
from lockstep.broker.store.queues.queue_table import FLUSH_QUEUES_PER_SLICE
from lockstep.protocol.errors import ServiceNotAvailableError
from lockstep.runtime.files import DiskSpace
from lockstep.runtime.host import Host
from lockstep.testing.simulation.disk import Fault, SimFile, SimFiles
from support.store_kit import abandon, all_bodies, append, confirmed, host_of, kill, open_store

HOUR_MS = 3_600_000
BODY = b"x" * 900
"""Four records fill a segment of 4 KiB."""


async def create_aged_store(files: SimFiles, host: Host, segments: int = 5, **settings: int) -> Store:
    """Return a store whose segments are an hour apart, with a snapshot at the end."""
    store = await open_store(files, host=host, segment_bytes=4096, **settings)
    for _ in range(segments):
        for _ in range(4):
            append(store, BODY)
        host.clock.now_ms += HOUR_MS  # type: ignore[attr-defined]
    append(store, b"last")
    await store.write_snapshot(["one"])
    append(store, b"more")
    await store.write_snapshot(["two"])
    return store


def log_files(files: SimFiles) -> list[str]:
    return files.listdir("/store/commitlog")


async def test_segment_is_removed_when_the_record_after_it_is_too_old() -> None:
    files = SimFiles()
    host = host_of(files)
    store = await create_aged_store(files, host, retention_ms=2 * HOUR_MS)
    assert await store.retention(host.clock.wall_ms()) == [("orders", 0, 8)]
    assert log_files(files) == [f"{start:020d}" for start in (8192, 12288, 16384, 20480)]
    assert store.bounds("orders", 0) == (8, 22)
    assert [(topic, ever, stored) for topic, ever, stored, _ in store.queue_totals()] == [("orders", 22, 14)]
    result = store.read("orders", 0, 3, max_count=1, max_bytes=1)
    assert result is not None
    assert (result.status, result.next_offset, result.min_offset) == (ReadStatus.OFFSET_TOO_SMALL, 8, 8)
    assert await all_bodies(store) == [BODY] * 12 + [b"last", b"more"]
    assert await store.retention(host.clock.wall_ms()) == []
    await store.close()


async def test_retention_age_is_exact_to_the_millisecond() -> None:
    files = SimFiles()
    host = host_of(files)
    store = await create_aged_store(files, host, retention_ms=2 * HOUR_MS)
    start = host.clock.wall_ms() - 5 * HOUR_MS
    assert await store.retention(start + 3 * HOUR_MS) == []
    assert await store.retention(start + 3 * HOUR_MS + 1) == [("orders", 0, 4)]
    await store.close()


@pytest.mark.parametrize(("log_bytes_max", "kept"), [(None, 4096), (16384, 8192)])
async def test_files_that_a_replica_still_copies_are_kept_while_there_is_room(log_bytes_max: int | None, kept: int) -> None:
    files = SimFiles()
    host = host_of(files)
    store = await create_aged_store(files, host, retention_ms=2 * HOUR_MS)
    store.apply(replace(store._retention.config, log_bytes_max=log_bytes_max))
    store.pin_log(lambda: 4096)
    await store.retention(host.clock.wall_ms() + 24 * HOUR_MS)
    assert store.log_bounds[0] == kept
    await store.close()


async def test_log_size_is_kept_below_its_limit_by_whole_segments() -> None:
    files = SimFiles()
    store = await create_aged_store(files, host_of(files), log_bytes_max=10_000)
    assert await store.retention(0) == [("orders", 0, 12)]
    assert store._log.end - store._log.start <= 10_000
    await store.close()


async def test_full_file_system_removes_the_oldest_segments_of_any_age() -> None:
    files = SimFiles()
    host = host_of(files)
    store = await create_aged_store(files, host, disk_used_percent_max=80)
    used = files.used_bytes()
    files.capacity_bytes = used * 100 // 75
    assert await store.retention(0) == []
    files.capacity_bytes = (used - 4096) * 100 // 80
    assert await store.retention(0) == [("orders", 0, 8)]
    await store.close()


@pytest.mark.parametrize(
    ("settings", "level", "reason"),
    [
        ({"retention_ms": 2 * HOUR_MS}, "INFO", "older than 2 h"),
        ({"log_bytes_max": 13_500}, "WARNING", "the log has 20682 bytes, at most 13500 are kept"),
        ({"log_bytes_max": 13_500, "disk_used_percent_max": 93}, "WARNING", "the log has 20682 bytes, at most 13500 are kept"),
        ({"disk_used_percent_max": 80}, "WARNING", "30000 of the disk's 32000 bytes are used, at most 80% may be"),
    ],
)
async def test_removal_is_logged_with_its_reason(
    settings: dict[str, int], level: str, reason: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    files = SimFiles()
    host = host_of(files)
    store = await create_aged_store(files, host, **settings)
    monkeypatch.setattr(files, "disk_space", lambda path: DiskSpace(32_000, 2_000))
    assert await store.retention(host.clock.wall_ms()) == [("orders", 0, 8)]
    lines = [(record.levelname, record.getMessage()) for record in caplog.records if "retention" in record.getMessage()]
    assert lines == [(level, f"retention.removed files=2 bytes=8192 queues=1 reason={reason}")]
    await store.close()


async def test_newest_segment_and_segments_that_the_older_snapshot_needs_are_kept() -> None:
    files = SimFiles()
    host = host_of(files)
    store = await open_store(files, host=host, segment_bytes=4096, log_bytes_max=1)
    for _ in range(12):
        append(store, BODY)
    assert await store.retention(1 << 60) == [], "no snapshot: everything is needed"
    await store.write_snapshot(["older"])
    older = store._snapshots.needs_from
    for _ in range(12):
        append(store, BODY)
    await store.write_snapshot(["newer"])
    await store.retention(1 << 60)
    assert older is not None
    assert store._log.start <= older < store._log.start + 4096
    for path in [path for path in files.names if "snapshot-" in path][1:]:
        files.flip(path, 25)
    abandon(store)
    await asyncio.sleep(0)
    files.crash(power=False)
    store = await open_store(files, host=host)
    assert store.bounds("orders", 0)[1] == 24
    await store.close()


async def test_segment_with_a_reader_is_kept_until_the_read_ends() -> None:
    files = SimFiles()
    host = host_of(files)
    store = await create_aged_store(files, host, retention_ms=-1)
    oldest = store._log.segments[0]
    oldest.reader_count += 1
    assert await store.retention(host.clock.wall_ms()) == []
    assert files.exists(oldest.path)
    oldest.reader_count -= 1
    assert await store.retention(host.clock.wall_ms()) == [("orders", 0, 20)]
    await store.close()


async def test_failed_removal_is_fatal_with_exit_3() -> None:
    files = SimFiles()
    host = host_of(files)
    store = await create_aged_store(files, host, retention_ms=-1)
    fatal: list[BaseException] = []
    store.writer.on_fatal = fatal.append
    files.faults = [Fault("unlink", "commitlog")]
    with pytest.raises(StoreDiskError, match="could not be removed") as error:
        await store.retention(host.clock.wall_ms())
    assert (error.value.exit_code, [type(one) for one in fatal]) == (3, [StoreDiskError])
    with pytest.raises(ServiceNotAvailableError):
        append(store, b"x")
    await store.close(clean=False)


async def test_consume_queue_files_below_the_minimum_are_removed_except_the_last_of_them() -> None:
    files = SimFiles()
    host = host_of(files)
    store = await create_aged_store(files, host, segments=5, retention_ms=-1, queue_file_entries=5)
    await store.retention(host.clock.wall_ms())
    assert store.bounds("orders", 0) == (20, 22)
    assert files.listdir("/store/consumequeue/orders/0") == [f"{at:020d}" for at in (300, 400)]
    await store.close()
    store = await open_store(files, host=host)
    assert store.bounds("orders", 0) == (20, 22)
    await store.close()


@pytest.mark.parametrize("power", [False, True])
async def test_crash_after_retention_leaves_a_log_without_gaps(power: bool) -> None:
    for seed in range(20):
        files = SimFiles(seed=seed)
        host = host_of(files)
        store = await create_aged_store(files, host, retention_ms=-1)
        files.countdown = seed % 10
        try:
            await store.retention(host.clock.wall_ms())
        except StoreDiskError:
            assert files.dead
        abandon(store)
        await asyncio.sleep(0)
        files.crash(power=power)
        store = await open_store(files, host=host)
        low, high = store.bounds("orders", 0)
        assert (low % 4, high) == (0, 22)
        assert len(await all_bodies(store)) == high - low
        append(store, b"next")
        await confirmed(store)
        await store.close()


async def test_empty_queue_keeps_its_end_offset() -> None:
    files = SimFiles()
    host = host_of(files)
    store = await open_store(files, host=host, segment_bytes=4096, log_bytes_max=1)
    append(store, b"only one", queue_id=7)
    for _ in range(12):
        append(store, BODY)
    await store.write_snapshot([])
    moved = await store.retention(0)
    assert ("orders", 7, 1) in moved
    assert store.bounds("orders", 7) == (1, 1)
    result = store.read("orders", 7, 1, max_count=1, max_bytes=1)
    assert result is not None
    assert result.status is ReadStatus.OFFSET_AT_END
    assert append(store, b"again", queue_id=7) == 1
    await confirmed(store)
    assert await all_bodies(store, queue_id=7) == [b"again"]
    await store.close()


@pytest.mark.parametrize("queue_file_entries", [3, 5, 7])
async def test_start_after_retention_and_a_kill_reads_no_more_of_the_log(queue_file_entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot names entries that retention has removed: their queues looked damaged, and the log was read twice from its beginning."""
    read_bytes = 0
    pread = SimFile.pread

    def counted(self: SimFile, count: int, offset: int) -> bytes:
        nonlocal read_bytes
        data = pread(self, count, offset)
        read_bytes += len(data) if "/commitlog/" in self._path else 0
        return data

    monkeypatch.setattr(SimFile, "pread", counted)
    files = SimFiles()
    host = host_of(files)
    store = await create_aged_store(files, host, segments=20, retention_ms=12 * HOUR_MS, queue_file_entries=queue_file_entries)
    await kill(store, files)
    read_bytes = 0
    store = await open_store(files, host=host, retention_ms=12 * HOUR_MS)
    before = read_bytes
    ((_, _, moved_to),) = await store.retention(host.clock.wall_ms())
    assert moved_to >= 2 * queue_file_entries
    await kill(store, files)
    read_bytes = 0
    store = await open_store(files, host=host)
    assert read_bytes <= before + 1_000, "of single records, at the edges of files"
    assert store.bounds("orders", 0) == (moved_to, 82)
    assert len(await all_bodies(store)) == 82 - moved_to
    await store.close()


@pytest.mark.parametrize("queue_file_entries", [3, 5, 7])
async def test_entries_lost_after_retention_are_rebuilt(queue_file_entries: int) -> None:
    """A file that retention has not removed is missing."""
    files = SimFiles()
    host = host_of(files)
    store = await create_aged_store(files, host, segments=20, retention_ms=12 * HOUR_MS, queue_file_entries=queue_file_entries)
    ((_, _, moved_to),) = await store.retention(host.clock.wall_ms())
    await kill(store, files)
    directory = "/store/consumequeue/orders/0"
    for name in files.listdir(directory)[:3]:
        del files.names[f"{directory}/{name}"]
    store = await open_store(files, host=host)
    assert store.bounds("orders", 0) == (moved_to, 82)
    assert len(await all_bodies(store)) == 82 - moved_to
    await store.close()


async def test_consume_queue_files_are_removed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimFiles()
    store = await open_store(files, segment_bytes=16384, log_bytes_max=16384)
    count = 40
    for _ in range(4):
        for queue_id in range(count):
            append(store, b"x" * 100, queue_id=queue_id)
    await store.write_snapshot([])
    append(store, b"x")
    await store.write_snapshot([])
    turn, turns = 0, list[int]()
    remove_below = QueueFiles.remove_below

    def counted(queue_files: QueueFiles, queue: ConsumeQueue, at: int) -> None:
        turns.append(turn)
        remove_below(queue_files, queue, at)

    monkeypatch.setattr(QueueFiles, "remove_below", counted)
    done = asyncio.ensure_future(store.retention(0))
    while not done.done():
        turn += 1
        await asyncio.sleep(0)
    assert len(await done) == len(turns) == count
    assert max(map(turns.count, turns)) <= FLUSH_QUEUES_PER_SLICE
    await store.close()
