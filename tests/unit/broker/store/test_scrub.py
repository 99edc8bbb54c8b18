"""Scrub and check find the damage that a consumer would find, pass it to the repairs or print it, and change no intact data."""

import asyncio

import pytest

from lockstep.broker.store import Store, StoreInUseError
from lockstep.broker.store.health.check import CheckReport, check_store
from lockstep.broker.store.log.append import ENTRY
from lockstep.broker.store.log.commit_log import Segment
from lockstep.protocol.errors import ConfigError
from lockstep.testing.simulation.disk import Fault, SimFiles
from support.store_kit import (
    LOG,
    NEVER,
    PATH,
    abandon,
    all_bodies,
    append,
    confirmed,
    kill,
    no_state,
    open_store,
    read_queue_as_consumer,
    record,
)

SIZE = len(record(b"0" * 100))
ENTRIES = f"{PATH}/consumequeue/orders/0/{0:020d}"


async def create_store(files: SimFiles, count: int = 60, **settings: int) -> Store:
    """Return a store whose messages are only in files."""
    store = await open_store(files, **settings)
    for number in range(count):
        append(store, b"%d" % (number % 10) * 100)
    await store.write_snapshot(["tables"])
    await store.close()
    return await open_store(files, scrub_bytes_per_s=1 << 40, **settings)


async def scrub(store: Store) -> None:
    await store.scrubber.run(asyncio.Event())
    await store._repairs.idle.wait()


async def test_scrub_of_an_intact_store_finds_and_changes_nothing() -> None:
    files = SimFiles()
    store = await create_store(files)
    before = {path: bytes(inode.cache) for path, inode in files.names.items()}
    await scrub(store)
    assert (store.damage.message_count, store.scrubber.damaged_bytes, store.scrubber.pass_count) == (0, 0, 1)
    assert {path: bytes(inode.cache) for path, inode in files.names.items()} == before
    await store.close()


async def test_scrub_finds_damage_before_a_consumer_and_reports_it_once(caplog: pytest.LogCaptureFixture) -> None:
    files = SimFiles()
    store = await create_store(files)
    files.overwrite(LOG, 7 * SIZE + 30, bytes(SIZE))
    await scrub(store)
    assert (store.damage.lost(), store.scrubber.damaged_bytes) == ([("orders", 0, 7, 9)], 2 * SIZE)
    reported = await read_queue_as_consumer(store)
    assert (reported.lost, reported.busy_count) == ([7, 8], 0), "no consumer has to wait for the repair"
    with caplog.at_level("ERROR"):
        caplog.clear()
        await scrub(store)
    assert not caplog.records
    assert store.scrubber.damaged_bytes == 2 * SIZE
    await store.close()


async def test_scrub_rewrites_wrong_entries() -> None:
    files = SimFiles()
    store = await create_store(files)
    files.overwrite(ENTRIES, 20 * 5, ENTRY.pack(0, SIZE, 0) * 3)
    await scrub(store)
    reported = await read_queue_as_consumer(store)
    assert (sorted(reported.found), reported.lost, reported.busy_count) == (list(range(60)), [], 0)
    await store.close()


async def test_scrub_keeps_its_rate_and_reads_a_little_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimFiles()
    store = await open_store(files, segment_bytes=1 << 20, scrub_bytes_per_s=1 << 30, **NEVER)
    for _ in range(4_000):
        append(store, b"x" * 100)
    await store.sync()
    slept: list[float] = []

    async def counted(_stopping: asyncio.Event, pause_s: float) -> None:
        slept.append(pause_s)
        await asyncio.sleep(0)

    monkeypatch.setattr("lockstep.broker.store.health.scrubber.is_set_within", counted)
    await store.scrubber.run(asyncio.Event())
    monkeypatch.undo()
    read = sum(slept) * (1 << 30)
    assert 4_000 * SIZE <= read < 4_400 * SIZE
    assert max(slept) * (1 << 30) <= 64 << 10
    await store.close()


async def test_scrub_stops_with_the_broker_and_a_failed_read_ends_only_its_pass() -> None:
    files = SimFiles()
    store = await create_store(files)
    store.scrubber.bytes_per_s, stopping = 1, asyncio.Event()
    scrubbing = asyncio.create_task(store.scrubber.run(stopping))
    await asyncio.sleep(0)
    stopping.set()
    await scrubbing  # at once, in the middle of a pause of hours
    store.scrubber.bytes_per_s = 1 << 30
    assert store.scrubber.pass_count == 0
    files.faults.append(Fault("read", "commitlog"))
    await store.scrubber.run(asyncio.Event())
    assert (store.scrubber.pass_count, store.writer.has_failed) == (0, False)
    await store.scrubber.run(asyncio.Event())
    assert store.scrubber.pass_count == 1
    await store.close()


async def test_scrub_that_is_turned_off_ends_its_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await create_store(SimFiles())

    async def turn_off(_stopping: asyncio.Event, _pause_s: float) -> None:
        store.scrubber.bytes_per_s = 0
        await asyncio.sleep(0)

    monkeypatch.setattr("lockstep.broker.store.health.scrubber.is_set_within", turn_off)
    await store.scrubber.run(asyncio.Event())
    monkeypatch.undo()
    assert store.scrubber.pass_count == 0
    await store.close()


async def test_retention_may_remove_segments_during_a_scrub() -> None:
    files = SimFiles()
    store = await create_store(files, 200, segment_bytes=4096, log_bytes_max=4096)
    scrubbing = asyncio.create_task(store.scrubber.run(asyncio.Event()))
    for _ in range(6):
        await asyncio.sleep(0)
    append(store, b"x")
    await store.write_snapshot([])
    await store.write_snapshot([])
    while await store.retention(0):
        pass
    await scrubbing
    assert (store.damage.message_count, store.scrubber.damaged_bytes) == (0, 0)
    await store.close()


async def test_scrub_overtaken_by_retention_reports_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removed messages are not read, so the queues continue at offsets above those of the pass."""
    files = SimFiles()
    settings = {"queue_file_entries": 20, "segment_bytes": 16_384, "log_bytes_max": 100_000, "queue_tail_bytes": 100, "tail_bytes": 400}
    store = await open_store(files, scrub_bytes_per_s=1 << 40, **settings)
    for number in range(1_000):
        append(store, b"%d" % number + b"." * 100, queue_id=number % 2)
    for _ in range(2):
        await store.write_snapshot([])
        append(store, b"x")
        await confirmed(store)
    removed: list[object] = []
    read = store.scrubber._read

    async def read_and_remove(segment: Segment, count: int, at: int) -> bytes:
        data = await read(segment, count, at)
        if not removed:
            removed.append(await store.retention(0))
        return data

    monkeypatch.setattr(store.scrubber, "_read", read_and_remove)
    await scrub(store)
    assert removed[0], "retention has moved the minimum of queues"
    assert (store.damage.message_count, store.scrubber.damaged_bytes, store.scrubber.found) == (0, 0, {})
    await store.close()


async def run_check(files: SimFiles) -> CheckReport:
    before = {path: bytes(inode.cache) for path, inode in files.names.items()}
    report = await check_store(files, PATH, lambda position, end: None, no_state)
    assert {path: bytes(inode.cache) for path, inode in files.names.items()} == before, "it changes nothing"
    return report


@pytest.mark.parametrize("clean", [True, False])
async def test_check_of_an_intact_store_finds_nothing(clean: bool) -> None:
    files = SimFiles()
    store = await create_store(files)
    append(store, b"behind the snapshot")
    await store.sync()
    if clean:
        await store.close()
    else:
        await kill(store, files)
    report = await run_check(files)
    assert (report.problems, report.record_count, report.log_end) == ([], 61, store._log.written)


async def test_check_reports_each_problem_with_its_numbers() -> None:
    files = SimFiles()
    store = await create_store(files)
    await store.close()
    files.flip(LOG, 3 * SIZE + 100)
    files.overwrite(LOG, 10 * SIZE, bytes(3 * SIZE))
    files.overwrite(ENTRIES, 20 * 20, ENTRY.pack(0, SIZE, 0) * 2)
    report = await run_check(files)
    assert [(problem.kind, problem.where) for problem in report.problems] == [
        ("log", f"{3 * SIZE} to {4 * SIZE}"),
        ("messages", "orders queue 0 offsets 3 to 3"),
        ("log", f"{10 * SIZE} to {13 * SIZE}"),
        ("messages", "orders queue 0 offsets 10 to 12"),
        ("entries", "orders queue 0 offset 20"),
    ]
    assert (report.damaged_bytes, report.lost_messages, report.wrong_entries) == (4 * SIZE, 4, 2)


async def test_check_finds_missing_files_and_damaged_snapshots() -> None:
    files = SimFiles()
    store = await create_store(files, 100, segment_bytes=4096)
    await store.close()
    files.remove_tree(f"{PATH}/commitlog/{4096:020d}")
    newest = max(path for path in files.names if "/snapshot-" in path)
    files.flip(newest, 30)
    report = await run_check(files)
    kinds = [problem.kind for problem in report.problems]
    assert kinds[:2] == ["file", "snapshot"]
    assert f"{4096:020d} is missing" in report.problems[0].what
    assert report.lost_messages > 0
    files.unlink(f"{PATH}/lockstep/identity")
    assert [problem.kind for problem in (await run_check(files)).problems] == ["file"]


async def test_check_does_not_report_a_torn_tail_as_damage() -> None:
    files = SimFiles()
    store = await open_store(files, **NEVER)
    for _ in range(10):
        append(store, b"x" * 100)
    await confirmed(store)
    await kill(store, files)
    files.overwrite(LOG, 9 * SIZE + 50, bytes(SIZE))
    report = await run_check(files)
    assert (report.problems, report.record_count, report.unsynced_tail_bytes > 0) == ([], 9, True)


async def test_check_rejects_an_open_store_and_a_directory_without_a_store() -> None:
    files = SimFiles()
    store = await create_store(files)
    with pytest.raises(StoreInUseError):
        await check_store(files, PATH, lambda position, end: None, no_state)
    assert len(await all_bodies(store)) == 60
    abandon(store)
    with pytest.raises(ConfigError, match="/elsewhere is not a store"):
        await check_store(files, "/elsewhere", lambda position, end: None, no_state)
