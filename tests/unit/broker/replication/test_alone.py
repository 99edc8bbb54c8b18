"""A broker without replicas has nothing of them in its log, its snapshots and its directory."""

from pathlib import Path

from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.broker.store.start.snapshot import Snapshots
from lockstep.runtime.host import Host
from support.whole_broker import dialled, running, settings


async def test_store_of_a_broker_without_replicas_knows_nothing_of_them(tmp_path: Path) -> None:
    for _ in range(2):
        async with running(settings(tmp_path)) as broker, dialled(broker) as client:
            await client.create()
    root = tmp_path / "store"
    assert not (root / "lockstep" / "replica").exists()
    assert b"log.term" not in (root / "commitlog" / f"{0:020d}").read_bytes()
    directory = StoreDirectory(Host.real().files, str(root))
    snapshot = Snapshots(Host.real().files, directory).load(directory.snapshot_positions()[-1])
    plain = None if snapshot is None else snapshot.plain
    assert isinstance(plain, dict)
    assert plain.keys() == {"format", "layouts", "sequences", "delays", "coordination"}
