"""Consume-queue entries of a stopped store that name a place below the log: their messages are read, or retention has removed them."""

from typing import Any

import pytest

from lockstep.broker.store.log.append import ENTRY, ENTRY_BYTES
from lockstep.broker.store.queues import rebuild
from lockstep.broker.store.queues.rebuild import EntryRebuild
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import SYNC, append, confirmed, kill, open_store, read_queue_as_consumer

QUEUE = "/store/consumequeue/orders/0/00000000000000000000"
SMALL: dict[str, Any] = {"segment_bytes": 4096, "flush": SYNC}


def write_wrong_entries(files: SimFiles, first: int, count: int, position: int) -> None:
    files.overwrite(QUEUE, first * ENTRY_BYTES, ENTRY.pack(position, 300, 0) * count)


@pytest.mark.parametrize("position", [-1, -5, -4_863_123_275_888_359_608])
@pytest.mark.parametrize(("first", "count"), [(0, 1), (0, 2), (4, 1), (9, 1), (0, 10)])
async def test_entry_with_a_negative_position_hides_no_message(first: int, count: int, position: int) -> None:
    files = SimFiles()
    store = await open_store(files, **SMALL)
    bodies = [b"m%d" % number for number in range(10)]
    for body in bodies:
        append(store, body)
    await confirmed(store)
    await store.write_snapshot([])
    await kill(store, files)
    write_wrong_entries(files, first, count, position)
    store = await open_store(files, **SMALL)
    assert list((await read_queue_as_consumer(store)).found.values()) == bodies
    await store.close()


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("clean", [False, True])
async def test_entry_below_the_log_start_at_the_snapshot_hides_no_message(clean: bool, count: int) -> None:
    files = SimFiles()
    store = await open_store(files, **SMALL, log_bytes_max=1)
    for number in range(2):
        for _ in range(12):
            append(store, b"x" * 900)
        await confirmed(store)
        await store.write_snapshot([number])
    assert await store.retention(0)
    low, high = store.bounds("orders", 0)
    await store.write_snapshot([2])
    await (store.close() if clean else kill(store, files))
    write_wrong_entries(files, low, count, 0)
    store = await open_store(files, **SMALL)
    assert store.bounds("orders", 0) == (low, high)
    assert list((await read_queue_as_consumer(store)).found) == list(range(low, high))
    await store.close()


async def test_entry_with_a_too_low_position_in_the_middle_hides_no_message_from_retention() -> None:
    """The search reads it first."""
    files = SimFiles()
    store = await open_store(files, **SMALL, log_bytes_max=1, queue_tail_bytes=20)
    for number in range(2):
        for _ in range(12):
            append(store, b"x" * 900)
        await confirmed(store)
        await store.write_snapshot([number])
    for queue in store._queues:
        queue.trim(0)
    write_wrong_entries(files, 12, 1, 100)
    assert await store.retention(0)
    first = store._log.start // 4096 * 4
    reported = await read_queue_as_consumer(store)
    assert [offset for offset in range(first, 24) if offset not in reported.found] == []
    await store.close()


async def test_entries_waiting_to_be_written_are_limited_over_all_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "WAITING_BYTES_MAX", 50 * ENTRY_BYTES)
    files = SimFiles()
    store = await open_store(files, **SMALL)
    queue_count, count = 20, 30
    for number in range(count):
        for queue_id in range(queue_count):
            append(store, b"m%d" % number, queue_id=queue_id)
    await confirmed(store)
    await store.write_snapshot([])
    await kill(store, files)
    files.remove_tree("/store/consumequeue/orders")
    waiting, written = [], 0
    fill = EntryRebuild._fill

    def counted(sink: EntryRebuild, topic: str, queue_id: int, first: int, entries: bytes) -> None:
        nonlocal written
        fill(sink, topic, queue_id, first, entries)
        written += len(entries) // ENTRY_BYTES
        waiting.append(sum(len(wanted.waiting) for wanted in sink._ranges.values()))

    monkeypatch.setattr(EntryRebuild, "_fill", counted)
    store = await open_store(files, **SMALL)
    assert written >= queue_count * count
    assert max(waiting) <= 50 * ENTRY_BYTES
    for queue_id in range(queue_count):
        assert list((await read_queue_as_consumer(store, "orders", queue_id)).found.values()) == [
            b"m%d" % number for number in range(count)
        ]
    await store.close()
