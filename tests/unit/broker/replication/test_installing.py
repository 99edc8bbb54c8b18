"""A new copy of a store is one of the same log: whoever is elected with it is the same store for nameservers and clients."""

from dataclasses import replace
from typing import Any, cast

from lockstep.broker.replication.copy_identity import CopyIdentity, Role, read_copy_identity
from lockstep.broker.replication.installing import Install
from lockstep.broker.store.start.directory import held_directory
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import IDENTITY, PATH, Recorded, all_bodies, append, config, confirmed, host_of, open_store, recovered
from support.whole_copy import WholeCopy, log_of


async def test_new_copy_has_the_log_the_tables_and_the_names_of_its_master() -> None:
    files, copied = SimFiles(), SimFiles()
    master = await open_store(files, segment_bytes=4096)
    for number in range(30):
        append(master, b"%02d" % number + b"." * 400)
        await confirmed(master)
        if number in (10, 20):
            await master.write_snapshot({"messages": number + 1})
    proof, end = master.proof, master.log_bounds[1]
    await master.close(clean=False)
    new = CopyIdentity("ab" * 8, Role.REPLICA, installing=True)
    with held_directory(files, PATH) as theirs, held_directory(copied, PATH) as directory:
        directory.make_own()
        endpoint = WholeCopy(log_of(files)[:end], theirs)
        await Install(host_of(copied), directory, config(segment_bytes=4096), IDENTITY, cast(Any, endpoint)).run(new, 0)
        assert read_copy_identity(directory) == replace(new, installing=False)
        assert directory.snapshot_positions() == theirs.snapshot_positions()[:1], "the older one, which needs more of the log"
    taken = Recorded()
    store, found = await recovered(copied, taken, segment_bytes=4096)
    assert (store.store_id, store.proof, found.end, found.lost_synced) == (master.store_id, proof, end, False)
    assert taken.snapshots == [{"messages": 11}]
    assert [body[:2] for body in await all_bodies(store)] == [b"%02d" % number for number in range(30)]
    await store.close()
