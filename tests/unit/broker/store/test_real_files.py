"""The store on real files: a run, a kill and a recovery."""

import asyncio
from pathlib import Path

from lockstep.broker.store import FlushMode, Store, StoreConfig
from lockstep.runtime.host import Host
from support.store_kit import IDENTITY, Recorded, all_bodies, append, confirmed


async def test_store_on_real_files_recovers_after_a_kill(tmp_path: Path) -> None:
    host = Host.real()
    config = StoreConfig(f"{tmp_path}/store", flush=FlushMode.SYNC, segment_bytes=64 * 1024, tail_bytes=4096, queue_tail_bytes=2000)
    store = await Store.open(config, host, IDENTITY)
    found = await store.recover(Recorded())
    assert (found.end, store.stopped_clean, store.may_have_forgotten(host.boot_id())) == (0, True, False)
    await store.sync()
    await store.mark_boot(host.boot_id())
    bodies = [b"%d" % number * 50 for number in range(1000)]
    for number, body in enumerate(bodies):
        append(store, body, queue_id=number % 3)
        if number % 100 == 0:
            await confirmed(store)
        if number == 500:
            store.append_state(b"five hundred")
            await store.write_snapshot(["tables"])
    store.append_state(b"last")
    await confirmed(store)
    await store.close(clean=False)

    store = await Store.open(config, host, IDENTITY)
    recorded = Recorded()
    found = await store.recover(recorded)
    await store.sync()
    assert (recorded.snapshots, recorded.states) == ([["tables"]], [b"last"])
    assert (store.may_have_forgotten(host.boot_id()), store.stopped_clean, found.cut_bytes) == (False, False, 0)
    for queue_id in range(3):
        assert await all_bodies(store, queue_id=queue_id) == bodies[queue_id::3]
    assert await store.offset_by_time("orders", 0, 0) == 0
    await store.close()
    host.threads.close()
    await asyncio.sleep(0)
