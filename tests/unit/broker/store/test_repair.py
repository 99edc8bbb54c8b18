"""Repairs of consume queues: an entry whose record is in the log is written again, however often it is found wrong."""

import asyncio
from dataclasses import replace
from typing import Any

from lockstep.broker.store import ReadStatus, Store
from lockstep.broker.store.health.repair import REPAIRS_MAX
from lockstep.broker.store.log.append import ENTRY
from lockstep.broker.store.queues.reader import MismatchError
from lockstep.protocol.errors import SystemBusyError
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import PATH, append, open_store

SETTINGS = {"queue_file_entries": 20, "tail_bytes": 400, "queue_tail_bytes": 100}


async def create_store(files: SimFiles) -> Store:
    """Return a store with two queues of 50 messages that are only in files."""
    store = await open_store(files, **SETTINGS)
    for number in range(100):
        append(store, b"%d" % number + b"." * 100, queue_id=number % 2)
    await store.write_snapshot([])
    await store.close()
    return await open_store(files, **SETTINGS)


def damage_entry(files: SimFiles, queue_id: int, offset: int) -> None:
    """Make the entry name another record."""
    at = offset * 20
    files.overwrite(f"{PATH}/consumequeue/orders/{queue_id}/{at - at % 400:020d}", at % 400, ENTRY.pack(0, 150, 0))


async def read_status(store: Store, offset: int, queue_id: int = 0) -> ReadStatus | None:
    """Return the status of a read from files, or None while the entry is being repaired."""
    try:
        return (await store.read_cold("orders", queue_id, offset, max_count=1, max_bytes=1)).status
    except SystemBusyError:
        return None


async def test_entry_damaged_again_is_repaired_again() -> None:
    files = SimFiles(cached_reads=False)
    store = await create_store(files)
    for _ in range(3):
        damage_entry(files, 0, 7)
        assert await read_status(store, 7) is None
        await store._repairs.idle.wait()
        assert await read_status(store, 7) is ReadStatus.FOUND
    assert store.damage.lost() == []
    await store.close()


async def test_reader_that_finds_a_wrong_entry_after_its_repair_loses_nothing() -> None:
    """Both have read the entry before the repair; the second one's read of the log is slower."""
    files = SimFiles(cached_reads=False)
    store = await create_store(files)
    damage_entry(files, 0, 7)
    run = store._host.threads.run
    repaired = asyncio.Event()

    class Threads:
        async def run(self, function: Any, *arguments: Any) -> Any:
            result = await run(function, *arguments)
            if (task := asyncio.current_task()) is not None and task.get_name() == "slow" and function.__name__ == "pread":
                await repaired.wait()
            return result

    store._host = store._reader._host = replace(store._host, threads=Threads())  # type: ignore[arg-type]
    slow = asyncio.create_task(read_status(store, 7), name="slow")
    assert await read_status(store, 7) is None
    await store._repairs.idle.wait()
    repaired.set()
    assert await slow is None
    await store._repairs.idle.wait()
    assert await read_status(store, 7) is ReadStatus.FOUND
    assert store.damage.lost() == []
    await store.close()


async def test_pending_repairs_are_limited_and_the_rest_is_repaired_at_the_next_read() -> None:
    files = SimFiles(cached_reads=False)
    store = await open_store(files, **SETTINGS)
    count = 2 * REPAIRS_MAX
    for queue_id in range(count):
        append(store, b"a", queue_id=queue_id)
    await store.write_snapshot([])
    await store.close()
    store = await open_store(files, **SETTINGS)
    for queue_id in range(count):
        damage_entry(files, queue_id, 0)
    tasks = len(store._tasks)
    for queue in store._queues:
        assert isinstance(store._repairs.start_repair(MismatchError(queue, 0, 0, "found by a read")), SystemBusyError)
    assert len(store._tasks) - tasks == REPAIRS_MAX
    await store._repairs.idle.wait()
    found = [await read_status(store, 0, queue_id) for queue_id in range(count)]
    assert found[:REPAIRS_MAX] == [ReadStatus.FOUND] * REPAIRS_MAX
    assert found[REPAIRS_MAX:] == [None] * (count - REPAIRS_MAX)
    await store._repairs.idle.wait()
    assert [await read_status(store, 0, queue_id) for queue_id in range(count)] == [ReadStatus.FOUND] * count
    await store.close()


async def test_mismatch_found_before_the_repair_changes_nothing() -> None:
    """A scrub reports a finding some time after the damage was seen."""
    files = SimFiles(cached_reads=False)
    store = await create_store(files)
    damage_entry(files, 1, 7)
    assert await read_status(store, 7, 1) is None
    await store._repairs.idle.wait()
    queue = store._queues.get_or_create("orders", 1)
    for _ in range(2):
        store._repairs.start_repair(MismatchError(queue, 7, 0, "found by an earlier scrub"))
        await store._repairs.idle.wait()
    assert await read_status(store, 7, 1) is ReadStatus.FOUND
    assert store.damage.lost() == []
    await store.close()
