"""A start with a damaged, torn or rebuilt directory."""

import asyncio
from typing import Any

import pytest

from lockstep.broker.store import Recovery, Store, StoreCorruptError
from lockstep.broker.store.log.commit_log import COPY
from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.testing.simulation.disk import Fault, SimFiles
from support.store_kit import (
    BORN_HOST,
    IDENTITY,
    LOG,
    NEVER,
    SYNC,
    Recorded,
    abandon,
    all_bodies,
    append,
    config,
    confirmed,
    host_of,
    kill,
    open_store,
    opened,
    record,
    recovered,
    sequenced,
)

QUEUE = "/store/consumequeue/orders/0/00000000000000000000"
SIZE = len(record(b"0" * 100))


async def create_killed(files: SimFiles, count: int, *, synced: int = 0) -> None:
    """Create a killed store with `count` messages of SIZE bytes, the first `synced` of them known to be synced."""
    store = await open_store(files, **NEVER)
    for number in range(count):
        append(store, b"%d" % (number % 10) * 100)
        if number + 1 == synced:
            await sync_recorded(store)
    await confirmed(store)
    await kill(store, files)


async def sync_recorded(store: Store) -> None:
    store.writer.end_turn()
    await store.writer.flusher.sync(record=True)


async def test_kill_loses_no_written_record() -> None:
    files = SimFiles()
    await create_killed(files, 10)
    store, found = await recovered(files)
    assert found == Recovery(0, 10 * SIZE, 0, False)
    assert len(await all_bodies(store)) == 10
    await store.close()


@pytest.mark.parametrize("kept", [4, 8, 40, 88, SIZE - 3])
async def test_torn_tail_is_cut_and_zeroed(kept: int) -> None:
    files = SimFiles()
    await create_killed(files, 10, synced=4)
    files.overwrite(LOG, 9 * SIZE + kept, bytes(SIZE))
    store, found = await recovered(files)
    assert (found.end, found.clean) == (9 * SIZE, False)
    assert 0 < found.cut_bytes <= kept
    assert not any(files.names[LOG].durable[9 * SIZE :])
    assert len(await all_bodies(store)) == 9
    assert append(store, b"next") == 9
    await confirmed(store)
    assert (await all_bodies(store))[-1] == b"next"
    await store.close()


@pytest.mark.parametrize("hole", [4, 5, 8])
async def test_unsynced_hole_before_intact_records_is_cut_and_zeroed(hole: int) -> None:
    """Pages reach the disk in any order: records after the hole were never confirmed durable, and must not become readable later."""
    files = SimFiles()
    await create_killed(files, 10, synced=4)
    files.overwrite(LOG, hole * SIZE, bytes(SIZE))
    store, found = await recovered(files)
    assert (found.end, found.cut_bytes > 0) == (hole * SIZE, True)
    assert not any(files.names[LOG].durable[hole * SIZE :])
    append(store, b"x" * 100)  # as long as the cut part, so that stale records would follow it exactly
    await confirmed(store)
    await kill(store, files)
    store, found = await recovered(files)
    assert found.end == (hole + 1) * SIZE
    assert len(await all_bodies(store)) == hole + 1
    await store.close()


async def test_cut_is_durable_before_the_next_append() -> None:
    """A power cut that keeps the first new record but not the cut must not bring back the stale records after it."""
    files = SimFiles()
    store = await open_store(files, **NEVER)
    for number in range(10):
        append(store, b"%d" % number * 100, queue_id=int(number == 4))
        await asyncio.sleep(0)
        if number == 3:
            await sync_recorded(store)
    await kill(store, files)
    files.names[LOG].pending = [write for write in files.names[LOG].pending if write[0] != 4 * SIZE]
    files.overwrite(LOG, 4 * SIZE, bytes(SIZE))
    store = await Store.open(config(**NEVER), host_of(files), IDENTITY)
    await store.recover(Recorded())
    store.append_state(b"x" * (SIZE - len(record(b"", topic="LOCKSTEP_SYS_STATE"))))
    assert store._log.end == 5 * SIZE
    store.writer.end_turn()
    abandon(store)
    files.crash(power=True, keep=lambda _, data: data is not None)
    store, found = await recovered(files)
    assert found.end == 5 * SIZE
    await store.close()


async def test_log_files_created_before_a_kill_are_durable_after_recovery() -> None:
    for seed in range(10):
        files = SimFiles(seed=seed)
        store = await open_store(files, segment_bytes=4096, **NEVER)
        for _ in range(50):
            append(store, b"x" * 100)
        await confirmed(store)
        await kill(store, files)
        store, found = await recovered(files)
        await kill(store, files, power=True)
        store, again = await recovered(files)
        assert (again.end, len(await all_bodies(store))) == (found.end, 50)
        await store.close()


async def test_unfinished_copy_of_a_log_file_is_removed_by_the_next_start() -> None:
    files = SimFiles()
    await create_killed(files, 3)
    unfinished = LOG + COPY
    files.open(unfinished, create=True).pwritev([b"half a copy"], 0)
    store, found = await recovered(files)
    assert found.end == 3 * SIZE
    assert not files.exists(unfinished)
    await store.close()


async def test_stale_next_file_is_zeroed_at_a_roll() -> None:
    files = SimFiles()
    store = await open_store(files, segment_bytes=8192)
    append(store, b"x" * 5000)
    files.open("/store/commitlog/00000000000000008192", create=True).pwritev([b"stale" * 100], 5_300)
    append(store, b"y" * 5000)
    await confirmed(store)
    cache = files.names["/store/commitlog/00000000000000008192"].cache
    assert not any(cache[len(record(b"y" * 5000)) :])
    assert len(cache) == 8192
    await store.close()


@pytest.mark.parametrize("at", [1, 5, 13, 22, 30, 87, 120, SIZE - 5, SIZE - 2])
async def test_flipped_bit_below_the_synced_length_fails_the_start_with_its_position(at: int) -> None:
    files = SimFiles()
    await create_killed(files, 10, synced=8)
    files.flip(LOG, 3 * SIZE + at)
    store = await Store.open(config(), host_of(files), IDENTITY)
    with pytest.raises(StoreCorruptError, match=f"log position {3 * SIZE}: .*{8 * SIZE} bytes had been synced") as error:
        await store.recover(Recorded())
    assert (error.value.position, error.value.exit_code) == (3 * SIZE, 5)
    await store.close()
    files.flip(LOG, 3 * SIZE + at)
    store, found = await recovered(files)
    assert found.end == 10 * SIZE, "a start that stops changes nothing"
    await store.close()


async def test_synced_length_is_recorded_within_a_second_of_its_sync() -> None:
    files = SimFiles()
    host = host_of(files)
    store = await open_store(files, host=host, flush=SYNC)
    append(store, b"a")
    await confirmed(store)
    assert store._directory.slot_position == 0
    host.clock.now_ms += 1_000  # type: ignore[attr-defined]
    append(store, b"b")
    await confirmed(store)
    assert store._directory.slot_position == store._log.end
    await store.close()


async def test_partial_idempotent_frame_is_cut_completely() -> None:
    files = SimFiles()
    store = await open_store(files, **NEVER)
    first, sequence = sequenced([b"a", b"b"], first=0, previous_crc=0)
    store.append_frame("orders", 0, first, 2, born_host=BORN_HOST, sequenced=True)
    second, _ = sequenced([b"c" * 100, b"d" * 100], first=2, previous_crc=sequence.crc)
    store.append_frame("orders", 0, second, 2, born_host=BORN_HOST, sequenced=True)
    await confirmed(store)
    await kill(store, files)
    files.overwrite(LOG, len(first) + len(second) - SIZE, bytes(SIZE))
    recorded = Recorded()
    store, found = await recovered(files, recorded)
    assert found.end == len(first)
    assert [crc for _, (_, _, _, crc, _), _ in recorded.frames] == [sequence.crc]
    assert await all_bodies(store) == [b"a", b"b"]
    await store.close()


@pytest.mark.parametrize("frame", [0, 1])
async def test_frame_crc_detects_damage_that_no_body_crc_covers(frame: int) -> None:
    """A flipped bit in the user's flag of an idempotent frame's second record."""
    files = SimFiles()
    store = await open_store(files, **NEVER)
    first, sequence = sequenced([b"a", b"b"], first=0, previous_crc=0)
    second, _ = sequenced([b"c", b"d"], first=2, previous_crc=sequence.crc)
    starts = [store.append_frame("orders", 0, data, 2, born_host=BORN_HOST, sequenced=True).physical_offset for data in (first, second)]
    await confirmed(store)
    await kill(store, files)
    files.flip(LOG, starts[frame] + len(first) - len(record(b"b")) + 19)
    store, found = await recovered(files)
    assert found.end == starts[frame]
    await store.close()


async def test_frame_that_continues_an_unknown_crc_is_accepted() -> None:
    """A frame flagged first with a sequence above 0: the CRC that it continues is unknown."""
    files = SimFiles()
    store = await open_store(files, **NEVER)
    from lockstep.protocol.messages.sequence import FrameSequence, seal_frame

    frame, sequence = seal_frame([record(b"a")], FrameSequence("cd" * 16, 0, 4, 77, 1, True, 0), 12345)
    store.append_frame("orders", 0, frame, 1, born_host=BORN_HOST, sequenced=True)
    await confirmed(store)
    await kill(store, files)
    recorded = Recorded()
    store, _ = await recovered(files, recorded)
    assert [crc for _, (_, _, _, crc, _), _ in recorded.frames] == [sequence.crc]
    await store.close()


async def test_queue_offset_out_of_sequence_ends_the_log() -> None:
    files = SimFiles()
    await create_killed(files, 5)
    files.overwrite(LOG, 3 * SIZE + 20, (7).to_bytes(8, "big"))
    store, found = await recovered(files)
    assert found.end == 3 * SIZE
    await store.close()


async def test_zeros_in_the_properties_are_a_torn_write() -> None:
    files = SimFiles()
    store = await open_store(files, **NEVER)
    append(store, b"a", properties=b"A\x01" + b"b" * 50 + b"\x02")
    await confirmed(store)
    end = store._log.end
    await kill(store, files)
    files.overwrite(LOG, end - 10, bytes(10))
    store, found = await recovered(files)
    assert found.end == 0
    await store.close()


async def test_missing_last_file_and_wrong_file_length_are_a_torn_tail() -> None:
    files = SimFiles()
    store = await open_store(files, segment_bytes=4096, **NEVER)
    for _ in range(50):
        append(store, b"x" * 100)
    await confirmed(store)
    assert len(store._log.segments) == 3
    await kill(store, files)
    second = "/store/commitlog/00000000000000004096"
    files.replace(second, files.names[second].cache[:1000])
    store, found = await recovered(files)
    assert 4096 <= found.end <= 4096 + 1000
    assert len(files.names[second].cache) == 4096
    assert not files.exists("/store/commitlog/00000000000000008192")
    append(store, b"next")
    await confirmed(store)
    assert (await all_bodies(store))[-1] == b"next"
    await store.close()


@pytest.mark.parametrize("missing", ["00000000000000000000", "00000000000000004096"])
async def test_missing_file_below_the_synced_length_is_corruption(missing: str) -> None:
    files = SimFiles()
    store = await open_store(files, segment_bytes=4096)
    for _ in range(50):
        append(store, b"x" * 100)
    await store.close()
    del files.names[f"/store/commitlog/{missing}"]
    left = files.listdir("/store/commitlog")
    with pytest.raises(StoreCorruptError, match=r"missing|no snapshot"):
        await recovered(files)
    assert files.listdir("/store/commitlog") == left, "a start that stops removes nothing"


async def test_emptied_log_directory_is_corruption() -> None:
    files = SimFiles()
    store = await open_store(files)
    append(store, b"a")
    await store.close()
    del files.names[LOG]
    with pytest.raises(StoreCorruptError, match="log position 0: nothing is there"):
        await recovered(files)


# -- a failed sync -------------------------------------------------------------------------------


async def test_tail_is_rewritten_to_a_new_file_after_a_failed_sync() -> None:
    """The kernel marks pages that it could not write as clean: only in a new file do they reach the disk."""
    files = SimFiles()
    store = await open_store(files)
    append(store, b"durable")
    await store.sync()
    store.writer.on_fatal = lambda _: None
    files.faults.append(Fault("sync", "commitlog"))
    append(store, b"in the page cache alone")
    await confirmed(store)
    for _ in range(5):
        await asyncio.sleep(0.001)
    assert store.writer.has_failed
    await kill(store, files)
    inode = files.names[LOG]
    store, _ = await recovered(files)
    assert files.names[LOG] is not inode
    assert await all_bodies(store) == [b"durable", b"in the page cache alone"]
    assert not files.exists("/store/lockstep/sync_failed")
    await kill(store, files, power=True)
    store, _ = await recovered(files)
    assert await all_bodies(store) == [b"durable", b"in the page cache alone"]
    await store.close()


async def test_crash_between_a_failed_sync_and_its_mark_loses_no_visible_message() -> None:
    files = SimFiles()
    store = await open_store(files)
    store.writer.on_fatal = lambda _: None
    files.faults += [Fault("sync", "commitlog"), Fault("create", "sync_failed")]
    append(store, b"in the page cache alone")
    await confirmed(store)
    for _ in range(5):
        await asyncio.sleep(0.001)
    assert store.writer.has_failed
    assert not files.exists("/store/lockstep/sync_failed")
    await kill(store, files)
    store, _ = await recovered(files)
    assert await all_bodies(store) == [b"in the page cache alone"]
    await kill(store, files, power=True)
    store, _ = await recovered(files)
    assert await all_bodies(store) == [b"in the page cache alone"]
    await store.close()


# -- consume queues ------------------------------------------------------------------------------


async def create_with_snapshot(files: SimFiles, count: int) -> None:
    store = await open_store(files)
    for number in range(count):
        append(store, b"%d" % number, queue_id=number % 2)
    await store.write_snapshot(["tables"])
    append(store, b"behind")
    await store.close()


async def test_missing_consume_queue_files_are_rebuilt_from_the_log() -> None:
    files = SimFiles()
    await create_with_snapshot(files, 100)
    for path in [path for path in files.names if path.startswith("/store/consumequeue/orders/0/")]:
        del files.names[path]
    store, found = await recovered(files)
    assert found.from_position > 0
    assert await all_bodies(store) == [b"%d" % number for number in range(0, 100, 2)] + [b"behind"]
    assert await all_bodies(store, queue_id=1) == [b"%d" % number for number in range(1, 100, 2)]
    await store.close()


@pytest.mark.parametrize("earlier_life", [False, True])
async def test_snapshot_makes_consume_queue_files_and_names_durable(earlier_life: bool) -> None:
    for seed in range(5):
        files = SimFiles(seed=seed)
        store = await open_store(files, **NEVER)
        for number in range(60):
            append(store, b"%d" % number, queue_id=number % 3)
        if earlier_life:
            store._queues.flush_all()
            await confirmed(store)
            await kill(store, files)
            store, _ = await recovered(files, **NEVER)
        await store.write_snapshot([])
        written = {path: bytes(inode.cache) for path, inode in files.names.items() if "/consumequeue/" in path}
        assert len(written) == 3
        await kill(store, files, power=True)
        assert {path: bytes(inode.cache) for path, inode in files.names.items() if "/consumequeue/" in path} == written


async def test_entries_after_the_snapshot_are_zeroed_after_a_kill() -> None:
    files = SimFiles()
    store = await open_store(files)
    append(store, b"a")
    await store.write_snapshot([])
    append(store, b"b", b"c")
    store._queues.flush_all()
    await kill(store, files)
    files.overwrite(LOG, len(record(b"a")), bytes(1000))  # neither was synced, neither came to the disk
    files.overwrite("/store/lockstep/synced", 0, bytes(1024))
    StoreDirectory(files, "/store")
    store, found = await recovered(files)
    assert found.end == len(record(b"a"))
    assert not any(files.names[QUEUE].cache[20:])
    await store.close()


async def test_log_of_another_program_is_adopted() -> None:
    files = SimFiles()
    store = await open_store(files, segment_bytes=4096, log_bytes_max=4096)
    for _ in range(60):
        append(store, b"x" * 100)
    await store.write_snapshot([])
    await store.retention(0)
    low, high = store.bounds("orders", 0)
    assert low > 0
    await store.close()
    for path in [path for path in files.names if path.startswith("/store/lockstep/")]:
        del files.names[path]
    files.open("/store/config/topics.json", create=True).pwritev([b"{}"], 0)
    for _ in range(2):
        store = (await opened(files, segment_bytes=4096, adopt=True)).store
        assert store.bounds("orders", 0) == (low, high)
        assert len(await all_bodies(store)) == high - low
        await kill(store, files)


async def test_recovery_yields_to_the_loop_and_reports_progress(caplog: pytest.LogCaptureFixture) -> None:
    files = SimFiles()
    store = await open_store(files, segment_bytes=16 << 20, **NEVER)
    for _ in range(50):
        append(store, b"x" * 100_000)
    await confirmed(store)
    end = store._log.end
    await kill(store, files)
    host = host_of(files)
    clock: Any = host.clock
    store = await Store.open(config(segment_bytes=16 << 20), host, IDENTITY)
    recovering = asyncio.create_task(store.recover(Recorded()))
    seen = []
    with caplog.at_level("INFO"):
        while not recovering.done():
            await asyncio.sleep(0)
            seen.append(store.reading.position)
            clock.now_ms += 3_000
    assert (await recovering).end == end
    assert len(set(seen)) >= 4, "about once a MiB"
    assert seen == sorted(seen)
    assert 0 < seen[-1] <= end
    reported = [record.getMessage() for record in caplog.records if "store.recovering" in record.getMessage()]
    assert 1 <= len(reported) < len(set(seen)), "every 5 s, not every time"
    await store.sync()
    await store.close()
