"""Repairs of a running store: behaviour when the disk is full, and the amount that is read."""

import errno

import pytest

from lockstep.broker.store.health.damage import LOST_SIZE
from lockstep.broker.store.log.append import ENTRY
from lockstep.testing.simulation.disk import Fault, SimFile, SimFiles
from support.store_kit import LOG, append, confirmed, kill, open_store, read_queue_as_consumer, record

DAMAGE = "/store/lockstep/damage"
HEAD = len(record(b"a"))


@pytest.mark.parametrize("how", ["retention", "close", "another repair"])
async def test_damage_table_not_written_to_a_full_disk_is_written_later(how: str, caplog: pytest.LogCaptureFixture) -> None:
    files = SimFiles()
    store = await open_store(files)
    append(store, *[b"%d" % number for number in range(9)])
    await store.write_snapshot([])
    await store.close()
    files.overwrite(LOG, 2 * HEAD, bytes(HEAD))
    files.overwrite(LOG, 6 * HEAD, bytes(HEAD)) if how == "another repair" else None
    store = await open_store(files)
    files.faults.append(Fault("write", DAMAGE, errno.ENOSPC))
    first = await read_queue_as_consumer(store)
    assert 2 in first.lost
    if how == "another repair":
        assert first.lost == [2, 6]
    else:
        assert DAMAGE not in files.names
    await store._repairs.idle.wait()
    assert [line for line in caplog.messages if "damage.unsaved" in line]
    assert not [line for line in caplog.messages if "queue.repair_failed" in line], "the entries are right"
    if how == "close":
        await store.close()
    else:
        if how == "retention":
            await store.retention(0)
        await kill(store, files)
    assert DAMAGE in files.names
    store = await open_store(files)
    assert store.damage.message_count == len(first.lost)
    await store.close()


async def test_change_during_the_write_of_the_damage_table_is_written_next() -> None:
    files = SimFiles()
    store = await open_store(files)
    store.damage.add_lost("orders", 0, 3, 4)

    def meanwhile(operation: str, path: str) -> None:
        if operation == "write" and DAMAGE in path:
            files.watch = None
            store.damage.add_lost("orders", 0, 7, 8)

    files.watch = meanwhile
    await store._repairs.save()
    assert store.damage.changed
    await store._repairs.save()
    assert not store.damage.changed
    assert b"7" in bytes(files.names[DAMAGE].cache)
    await store.close()


async def test_repair_is_verified_with_one_read_of_the_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimFiles()
    store = await open_store(files)
    append(store, b"a", b"b")
    await confirmed(store)
    await store.write_snapshot([])
    await store.close()
    store = await open_store(files)
    queue = store._queues.get(("orders", 0))
    assert queue is not None
    assert queue.memory_entry(0) is None
    reads: list[str] = []
    pread = SimFile.pread
    monkeypatch.setattr(SimFile, "pread", lambda self, count, at: reads.append(self._path) or pread(self, count, at))
    assert await store._repairs._is_settled(queue, 0)
    assert [path for path in reads if "/consumequeue/" in path] == ["/store/consumequeue/orders/0/00000000000000000000"]
    reads.clear()
    store._queues.files.write(queue, 0, ENTRY.pack(0, LOST_SIZE, 0))
    assert await store._repairs._is_settled(queue, 0)
    assert len(reads) == 1
    await store.close()
