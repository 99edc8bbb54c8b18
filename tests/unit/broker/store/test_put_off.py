"""A snapshot that is put off for want of a file descriptor, and a process that ends before an older snapshot is removed."""

import errno
import os
from typing import Any

import pytest

from lockstep.broker.store.frame import ENTRY_BYTES
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import SYNC, append, confirmed, open_store, read_told

QUEUE = "/store/consumequeue/orders/0/00000000000000000000"


def refused(*_: object) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


async def test_a_snapshot_that_is_put_off_leaves_its_consume_queues_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
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
async def test_an_entry_that_is_zero_is_not_taken_for_one_that_retention_has_removed(zeros: range) -> None:
    """Entries of a file that the disk lost: messages that the log still has are read, and none is passed over."""
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
    told = await read_told(store)
    assert [told.found.get(offset) for offset in range(first, 26)] == bodies[first:]
    await store.close()
