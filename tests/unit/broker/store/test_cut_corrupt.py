"""--cut-corrupt continues with the intact data: a damaged range becomes a gap; later messages and valid state remain."""

import json

import pytest

from lockstep.broker.store import Store, StoreCorruptError
from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import (
    BORN_HOST,
    LOG,
    NEVER,
    PATH,
    Recorded,
    all_bodies,
    append,
    confirmed,
    kill,
    open_store,
    read_queue_as_consumer,
    record,
    recovered,
    sequenced,
)

SIZE = len(record(b"0" * 100))


async def sync_and_record(store: Store) -> None:
    store.writer.end_turn()
    await store.writer.flusher.sync(record=True)


async def create_killed(files: SimFiles, count: int, **settings: int) -> None:
    """Create a killed store with `count` synced messages of SIZE bytes; a state record follows every fifth."""
    store = await open_store(files, **NEVER, **settings)
    for number in range(count):
        append(store, b"%d" % (number % 10) * 100)
        if number % 5 == 4:
            store.append_state(b"state %d" % number)
    await sync_and_record(store)
    await kill(store, files)


async def check_rejected(files: SimFiles, match: str) -> None:
    """Assert that a start without the flag fails and changes no file of the log."""
    before = {path: bytes(inode.cache) for path, inode in files.names.items() if "/commitlog/" in path}
    with pytest.raises(StoreCorruptError, match=match):
        await recovered(files)
    files.crash(power=False)
    assert {path: bytes(inode.cache) for path, inode in files.names.items() if "/commitlog/" in path} == before


def manifest(files: SimFiles, number: int = 1) -> dict[str, object]:
    found: dict[str, object] = json.loads(bytes(files.names[f"{PATH}/lockstep/set-aside-{number}/manifest.json"].cache))
    return found


@pytest.mark.parametrize(("at", "count"), [(100, 1), (1, 1), (5, 1), (30, 1), (30, 300), (0, SIZE), (0, 2 * SIZE), (190, 20)])
async def test_cut_corrupt_skips_a_damaged_range_and_keeps_all_later_records(at: int, count: int) -> None:
    files = SimFiles()
    await create_killed(files, 40)
    position = 2 * SIZE
    files.overwrite(LOG, position + at, bytes([byte ^ 0x55 for byte in files.names[LOG].cache[position + at : position + at + count]]))
    await check_rejected(files, f"log position {position}: ")
    recorded = Recorded()
    store, found = await recovered(files, recorded, cut_corrupt=True)
    lost = list(range(2, 2 + (at + count + SIZE - 1) // SIZE))
    reported = await read_queue_as_consumer(store)
    assert (reported.lost, sorted(reported.found)) == (lost, [number for number in range(40) if number not in lost])
    assert [int(state.split()[1]) for state in recorded.states] == list(range(4, 40, 5)), "state behind the damage is still true"
    assert (found.lost_synced, found.lost_messages, found.cut_bytes) == (True, len(lost), 0)
    report = manifest(files)
    assert report["lost_offsets"] == [["orders", 0, lost[0], lost[-1] + 1]]
    assert report["lost_messages"] == len(lost)
    assert append(store, b"next") == 40, "no offset is given twice"
    await confirmed(store)
    await kill(store, files)
    for _ in range(2):
        store, found = await recovered(files)
        again = await read_queue_as_consumer(store)
        assert (again.lost, len(again.found), found.lost_synced) == (lost, 41 - len(lost), False)
        await store.close()


@pytest.mark.parametrize("bit", range(32))
async def test_damaged_size_field_loses_no_intact_record(bit: int) -> None:
    """The wrong size may end at another record, or after the end of the log."""
    files = SimFiles()
    size, count = 128, 10
    store = await open_store(files, **NEVER)
    for number in range(count):
        append(store, b"%d" % number * (size - len(record(b""))))
    await sync_and_record(store)
    await kill(store, files)
    files.flip(LOG, 2 * size + 3 - bit // 8, bit % 8)
    store, found = await recovered(files, cut_corrupt=True)
    reported = await read_queue_as_consumer(store)
    assert (reported.lost, sorted(reported.found), found.lost_messages) == ([2], [0, 1, *range(3, count)], 1)
    await store.close()


async def test_cut_corrupt_keeps_damaged_bytes_and_a_restored_copy_is_read() -> None:
    files = SimFiles()
    await create_killed(files, 10)
    files.flip(LOG, 3 * SIZE + 100)
    before = bytes(files.names[LOG].cache)
    store, _ = await recovered(files, cut_corrupt=True)
    await store.close()
    assert bytes(files.names[LOG].cache) == before
    files.flip(LOG, 3 * SIZE + 100)
    files.remove_tree(f"{PATH}/consumequeue")
    files.unlink(f"{PATH}/lockstep/damage")
    store, _ = await recovered(files)
    reported = await read_queue_as_consumer(store)
    assert (len(reported.found), reported.lost) == (10, [])
    await store.close()


async def test_damaged_record_loses_no_other_record_of_its_idempotent_frame() -> None:
    files = SimFiles()
    store = await open_store(files, **NEVER)
    crc, first, starts = 0, 0, []
    for _ in range(3):
        frame, sequence = sequenced([b"%d" % number * 100 for number in range(5)], first=first, previous_crc=crc)
        starts.append(store.append_frame("orders", 0, frame, 5, born_host=BORN_HOST, sequenced=True).physical_offset)
        crc, first = sequence.crc, sequence.next
    await sync_and_record(store)
    await kill(store, files)
    files.flip(LOG, starts[1] + (starts[2] - starts[1]) - SIZE // 2)
    recorded = Recorded()
    store, _ = await recovered(files, recorded, cut_corrupt=True)
    reported = await read_queue_as_consumer(store)
    assert (reported.lost, len(reported.found)) == ([9], 14)
    assert [first for _, (_, first, *_), _ in recorded.frames] == [0, 5, 10], "its producer's repeat is still known as one"
    await store.close()


async def test_unreadable_tail_is_cut_and_kept_in_a_set_aside_directory() -> None:
    files = SimFiles()
    await create_killed(files, 10)
    end = files.names[LOG].used_bytes
    files.overwrite(LOG, 6 * SIZE, b"\xff" * (end - 6 * SIZE))
    before = bytes(files.names[LOG].cache)
    store, found = await recovered(files, cut_corrupt=True)
    report = manifest(files)
    start = report["cut_from"]
    assert isinstance(start, int)
    cut = before[start:end]
    assert (found.lost_synced, found.cut_bytes, len(await all_bodies(store))) == (True, len(cut), 5)
    assert report["cut_bytes"] == len(cut)
    assert bytes(files.names[f"{PATH}/lockstep/set-aside-1/{start:020d}"].cache) == cut
    assert append(store, b"next") == 5
    await store.close()
    store, found = await recovered(files)
    assert (await all_bodies(store))[-1] == b"next"
    await store.close()


@pytest.mark.parametrize("seed", range(8))
async def test_set_aside_files_survive_a_power_cut(seed: int) -> None:
    """Whole files of the log and damaged snapshots are moved."""
    files = SimFiles(seed)
    await create_killed(files, 60, segment_bytes=4096)
    end = 2 * 4096 + 100
    moved = {}
    for path in sorted(path for path in files.names if "/commitlog/" in path)[2:]:
        at = end % 4096 if path.endswith(f"{8192:020d}") else 0
        files.overwrite(path, at, b"\xff" * (files.names[path].used_bytes - at))
        if not at:
            moved[path.rpartition("/")[2]] = bytes(files.names[path].cache)
    snapshot = f"snapshot-{5000:020d}"
    StoreDirectory(files, PATH).replace(f"{PATH}/lockstep/{snapshot}", b"damaged")
    moved[snapshot] = b"damaged"
    store, found = await recovered(files, cut_corrupt=True)
    assert found.lost_synced
    assert found.end < end
    await kill(store, files, power=True)
    aside = f"{PATH}/lockstep/set-aside-1"
    assert {name: bytes(files.names[f"{aside}/{name}"].cache) for name in moved if files.exists(f"{aside}/{name}")} == moved
    store, found = await recovered(files)
    assert not found.lost_synced
    await store.close()


@pytest.mark.parametrize("missing", [0, 1, 2])
async def test_missing_log_file_loses_no_record_of_other_files_and_no_state(missing: int) -> None:
    files = SimFiles()
    store = await open_store(files, segment_bytes=4096)
    for number in range(60):
        append(store, b"%d" % (number % 10) * 100)
    store.append_state(b"state")
    await store.write_snapshot(["tables"])
    await store.close()
    names = sorted(path for path in files.names if "/commitlog/" in path)
    assert len(names) == 3
    files.remove_tree(names[missing])
    left = {path: bytes(files.names[path].cache) for path in names if path in files.names}
    await check_rejected(files, rf"{names[missing]} is missing|log position {4096 * missing}: nothing is there")
    assert {path: bytes(files.names[path].cache) for path in names if path in files.names} == left
    recorded = Recorded()
    store, found = await recovered(files, recorded, cut_corrupt=True)
    assert recorded.snapshots == [["tables"]], "what a snapshot holds of groups and topics is still true"
    assert store.bounds("orders", 0) == (0, 60), "offsets go on behind those that were given"
    lost = list(range(*[(0, 20), (20, 40), (40, 60)][missing]))
    named = [["orders", 0, lost[0], lost[-1] + 1]]
    assert (found.lost_messages, found.lost_synced) == (20, True)
    assert (manifest(files)["lost_messages"], manifest(files)["lost_offsets"]) == (20, named)
    assert [list(row) for row in store.damage.lost()] == named
    assert store.scrubber.damaged_bytes >= 20 * SIZE
    reported = await read_queue_as_consumer(store)
    assert (reported.lost, sorted(reported.found)) == (lost, [offset for offset in range(60) if offset not in lost])
    assert all(reported.found[offset] == b"%d" % (offset % 10) * 100 for offset in reported.found)
    assert append(store, b"next") == 60
    await store.close()
    store, found = await recovered(files)
    assert (await all_bodies(store))[-1] == b"next"
    await store.close()


async def test_lost_offset_is_forgotten_when_retention_passes_it() -> None:
    files = SimFiles()
    await create_killed(files, 60, segment_bytes=4096)
    files.flip(f"{PATH}/commitlog/{0:020d}", 3 * SIZE + 100)
    store, _ = await recovered(files, cut_corrupt=True, log_bytes_max=4096)
    assert (store.damage.message_count, store.damage.byte_count) == (1, SIZE)
    await store.write_snapshot(["tables"])
    append(store, b"x")
    await store.write_snapshot(["tables"])
    await store.retention(0)
    assert (store.damage.message_count, store.damage.byte_count) == (0, 0)
    await store.close()


async def test_damaged_range_of_a_deleted_topic_is_forgotten_when_retention_removes_it() -> None:
    """Its file held messages of a deleted topic alone."""
    files = SimFiles()
    await create_killed(files, 60, segment_bytes=4096)
    files.flip(LOG, 3 * SIZE + 100)
    store, _ = await recovered(files, cut_corrupt=True, log_bytes_max=4096)
    store.drop_topic("orders")
    for _ in range(2):
        await store.write_snapshot(["tables"])
        append(store, b"x", topic="bills")
    assert await store.retention(0) == []
    assert store._log.start > 0
    assert (store.damage.message_count, store.damage.byte_count) == (0, 0)
    await store.close()


async def test_first_file_removed_by_retention_is_distinguished_from_a_missing_one() -> None:
    files = SimFiles()
    store = await open_store(files, segment_bytes=4096, log_bytes_max=9000)
    for _ in range(80):
        append(store, b"x" * 100)
    await store.write_snapshot([])
    await store.retention(0)
    start = store._log.start
    assert start > 0
    await store.close()
    store, _ = await recovered(files)
    assert store._log.start == start
    await store.close()
    files.remove_tree(f"{PATH}/commitlog/{start:020d}")
    await check_rejected(files, f"{start:020d} is missing")
