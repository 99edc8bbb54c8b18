"""A snapshot that is postponed for lack of a file descriptor, and a process that ends before an older snapshot is removed."""

import asyncio
import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from lockstep.broker.store import Store
from lockstep.broker.store.health.check import check_store
from lockstep.broker.store.log.append import ENTRY_BYTES
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import PATH, SYNC, all_bodies, append, confirmed, host_of, kill, no_state, open_store, read_queue_as_consumer

QUEUE = "/store/consumequeue/orders/0/00000000000000000000"


def refused(*_: object) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


async def test_postponed_snapshot_leaves_its_consume_queues_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimFiles()
    store = await open_store(files, flush=SYNC)
    for number in range(10):
        append(store, b"%d" % number)
    await confirmed(store)
    with monkeypatch.context() as patch:
        patch.setattr(SimFiles, "sync_many", refused)
        await store.write_snapshot(["put off"])
    append(store, b"elsewhere", queue_id=1)
    await confirmed(store)
    await store.write_snapshot(["written"])
    assert files.names[QUEUE].pending == []
    assert QUEUE in files.durable_names
    await store.close()


@pytest.mark.parametrize("zeros", [range(7, 9), range(7, 12), range(8, 20), range(9, 25), range(1, 24)])
async def test_zero_entry_is_not_mistaken_for_one_removed_by_retention(zeros: range) -> None:
    """The disk lost a file of entries: messages that the log still has are read, and none is skipped."""
    files = SimFiles()
    settings: dict[str, Any] = {"segment_bytes": 4096, "log_bytes_max": 1, "flush": SYNC, "queue_tail_bytes": 20}
    store = await open_store(files, **settings)
    bodies = [b"%02d" % number + b"x" * 900 for number in range(26)]
    for body in bodies[:10]:
        append(store, body)
    await confirmed(store)
    await store.write_snapshot([1])
    await store.write_snapshot([2])
    for body in bodies[10:]:
        append(store, body)
    await confirmed(store)
    store._queues.flush_all()
    for queue in store._queues:
        queue.trim(0)
    files.overwrite(QUEUE, zeros.start * ENTRY_BYTES, bytes(len(zeros) * ENTRY_BYTES))
    assert await store.retention(0)
    first = store._log.start // 4096 * 4  # four records fill a file
    assert first == 8
    reported = await read_queue_as_consumer(store)
    assert [reported.found.get(offset) for offset in range(first, 26)] == bodies[first:]
    await store.close()


async def snapshots_of(store: Store, number: int) -> None:
    """Append three log files of messages and write a snapshot."""
    for _ in range(12):
        append(store, b"x" * 900)
    await confirmed(store)
    await store.write_snapshot([number])


def snapshot_files(files: SimFiles) -> list[str]:
    return [name for name in files.names if "/snapshot-" in name]


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize(("put_off", "skip"), [(1, 0), (2, 0), (2, 1), (3, 1)])
async def test_postponed_snapshot_leaves_no_file_that_makes_a_start_fail(
    clean: bool, put_off: int, skip: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptor for the sync of the directory, of the new name (`skip` 0) or of the removal of an older one."""
    files = SimFiles()
    settings: dict[str, Any] = {"segment_bytes": 4096, "log_bytes_max": 1, "flush": SYNC}
    store = await open_store(files, **settings)
    sync, requested = SimFiles.sync_directory, 0

    def scarce(self: SimFiles, path: str) -> None:
        nonlocal requested
        if path == "/store/lockstep":
            requested += 1
            if requested > skip:
                refused()
        sync(self, path)

    for number in range(6):
        with monkeypatch.context() as patch:
            if number == put_off:
                patch.setattr(SimFiles, "sync_directory", scarce)
            await snapshots_of(store, number)
        await store.retention(0)
    assert requested == skip + 1
    assert len(snapshot_files(files)) == 2
    await (store.close() if clean else kill(store, files))
    store = await open_store(files, **settings)
    assert len(await all_bodies(store)) == 72 - store.bounds("orders", 0)[0] >= 12
    await store.close()


async def test_retention_keeps_segments_that_a_snapshot_needs_until_it_is_removed() -> None:
    """The process ends when the newest snapshot is written, and retention has run, and the oldest snapshot is still there."""
    files = SimFiles()
    settings: dict[str, Any] = {"segment_bytes": 4096, "log_bytes_max": 1, "flush": SYNC}
    host = host_of(files)
    store = await open_store(files, host=host, **settings)
    await snapshots_of(store, 0)
    await snapshots_of(store, 1)
    run = host.threads.run

    async def held(function: Callable[..., Any], *args: object) -> Any:
        if function == store._snapshots.remove:
            await asyncio.Event().wait()
        return await run(function, *args)

    host.threads.run = held  # type: ignore[method-assign]
    writing = asyncio.ensure_future(snapshots_of(store, 2))
    for _ in range(200):
        await asyncio.sleep(0)
    assert len(snapshot_files(files)) == 3
    await store.retention(0)
    writing.cancel()
    await kill(store, files)
    store = await open_store(files, **settings)
    assert len(await all_bodies(store)) == 36 - store.bounds("orders", 0)[0]
    await store.close()


@pytest.mark.parametrize("clean", [False, True])
async def test_start_removes_a_snapshot_older_than_the_log_if_a_newer_one_is_valid(clean: bool) -> None:
    """A copy of the directory that was made while the broker ran can have such files."""
    files = SimFiles()
    settings: dict[str, Any] = {"segment_bytes": 4096, "log_bytes_max": 1, "flush": SYNC}
    store = await open_store(files, **settings)
    await snapshots_of(store, 0)
    (old,) = snapshot_files(files)
    left = bytes(files.names[old].cache)
    for number in range(1, 4):
        await snapshots_of(store, number)
    assert await store.retention(0)
    await (store.close() if clean else kill(store, files))
    files.open(old, create=True).pwritev([left], 0)
    report = await check_store(files, PATH, lambda position, end: None, no_state)
    assert report.problems == []
    store = await open_store(files, **settings)
    assert old not in files.names
    assert len(await all_bodies(store)) == 48 - store.bounds("orders", 0)[0]
    await store.close()
