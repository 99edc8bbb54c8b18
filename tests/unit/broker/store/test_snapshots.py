"""Snapshots: which of them a start takes, what it replays behind it, when one is due."""

import pytest

from lockstep.broker.store import StoreCorrupt
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import LOG, NEVER, Recorded, append, confirmed, everything, host_of, kill, open_store, recovered


async def test_two_snapshots_are_kept_and_the_newest_is_used() -> None:
    files = SimFiles()
    store = await open_store(files)
    for number in range(4):
        append(store, b"x")
        store.append_state(b"%d" % number)
        await store.write_snapshot({"number": number})
    store.append_state(b"behind")
    await confirmed(store)
    await kill(store, files)
    assert len([name for name in files.listdir("/store/lockstep") if name.startswith("snapshot-")]) == 2
    recorded = Recorded()
    store, _ = await recovered(files, recorded)
    assert (recorded.snapshots, recorded.states) == ([{"number": 3}], [b"behind"])
    assert store.bounds("orders", 0) == (0, 4)
    await store.close()


@pytest.mark.parametrize("at", [0, 9, 25, -1])
async def test_a_damaged_snapshot_falls_back_to_the_older_one(at: int) -> None:
    files = SimFiles()
    store = await open_store(files)
    store.append_state(b"one")
    await store.write_snapshot(["older"])
    store.append_state(b"two")
    await store.write_snapshot(["newer"])
    store.append_state(b"three")
    await store.close()
    newest = max(path for path in files.names if "snapshot-" in path)
    files.flip(newest, at if at >= 0 else len(files.names[newest].cache) - 1)
    recorded = Recorded()
    store, _ = await recovered(files, recorded)
    assert (recorded.snapshots, recorded.states) == ([["older"]], [b"two", b"three"])
    await store.close()


async def test_a_snapshot_ahead_of_the_log_is_ignored_and_goes() -> None:
    """Left there, it would be taken for true once the log has grown past its position."""
    files = SimFiles()
    store = await open_store(files)
    store.append_state(b"one")
    await store.write_snapshot(["older"])
    older = store._log.end
    store.append_state(b"two")
    await store.write_snapshot(["ahead"])
    ahead = store._log.end
    await store.close()
    files.overwrite(LOG, older, bytes(ahead - older))
    files.overwrite("/store/lockstep/synced", 0, bytes(1024))
    recorded = Recorded()
    store, found = await recovered(files, recorded)
    assert (recorded.snapshots, recorded.states, found.end) == ([["older"]], [], older)
    store.append_state(b"TWO")
    assert store._log.end == ahead
    await store.close()
    recorded = Recorded()
    store, _ = await recovered(files, recorded)
    assert (recorded.snapshots, recorded.states) == ([["older"]], [b"TWO"])
    await store.close()


async def test_a_snapshot_holds_the_changes_of_its_own_turn_once() -> None:
    files = SimFiles()
    store = await open_store(files)
    journal = [b"change"]

    def write() -> None:
        if journal:
            store.append_state(journal.pop())

    store.before_write = write
    store.dirty()
    await store.write_snapshot(["with the change"])
    await kill(store, files)
    recorded = Recorded()
    store, _ = await recovered(files, recorded)
    assert (recorded.snapshots, recorded.states) == ([["with the change"]], [])
    await store.close()


async def test_a_snapshot_is_due_by_bytes_or_by_time_and_change() -> None:
    files = SimFiles()
    host = host_of(files)
    store = await open_store(files, host=host, snapshot_bytes=1_000, snapshot_interval_ms=60_000)
    now = host.clock.monotonic_ms()
    assert not store.snapshot_due(now + 1_000_000)
    append(store, b"x")
    assert not store.snapshot_due(now + 59_999)
    assert store.snapshot_due(now + 60_000)
    append(store, b"x" * 900)
    assert store.snapshot_due(now)
    await store.write_snapshot([])
    assert not store.snapshot_due(now + 1_000_000)
    await store.close()


async def test_a_snapshot_is_written_only_after_the_log_is_durable_to_it() -> None:
    files = SimFiles()
    store = await open_store(files, **NEVER)
    append(store, b"x")
    await store.write_snapshot([])
    order = [path for path in files.syncs if "commitlog" in path or "snapshot" in path or "synced" in path]
    last = len(order) - 1 - next(i for i, path in enumerate(reversed(order)) if "snapshot" in path)
    assert LOG in order[:last]
    assert store._directory.slot_position == store._log.end
    await store.close()


async def test_without_any_snapshot_a_log_that_lost_its_beginning_is_corrupt() -> None:
    files = SimFiles()
    store = await open_store(files, segment_bytes=4096, log_bytes_max=4096)
    for _ in range(60):
        append(store, b"x" * 100)
    await store.write_snapshot(["a"])
    append(store, b"y")
    await store.write_snapshot(["b"])
    assert await store.retention(0)
    await store.close()
    for path in [path for path in files.names if "snapshot-" in path]:
        files.flip(path, 30)
    with pytest.raises(StoreCorrupt, match="no snapshot in /store/lockstep fits the log"):
        await recovered(files)
    files.crash(power=False)
    store, _ = await recovered(files, cut_corrupt=True)
    assert (await everything(store))[-1] == b"y"
    await store.close()
