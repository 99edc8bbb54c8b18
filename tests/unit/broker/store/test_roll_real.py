"""A roll on the operating system's files in a process whose descriptors are all taken."""

import os
from pathlib import Path

import pytest

from lockstep.broker.store import FlushMode, Store, StoreConfig
from lockstep.runtime.files import RealFiles
from support.store_kit import ASYNC, IDENTITY, SYNC, Recorded, append, host_of


class Scarce(RealFiles):
    """A file system that opens no file while `short`."""

    __slots__ = ("short",)

    def __init__(self) -> None:
        self.short = False

    def sync_directory(self, path: str) -> None:
        if self.short:
            raise OSError(24, os.strerror(24), path)
        super().sync_directory(path)


@pytest.mark.parametrize("flush", [SYNC, ASYNC])
async def test_roll_is_synced_without_a_free_descriptor(flush: FlushMode, tmp_path: Path) -> None:
    files = Scarce()
    failed: list[BaseException] = []
    config = StoreConfig(path=str(tmp_path / "store"), segment_bytes=16 << 10, disk_reserve_bytes=0, flush=flush, flush_interval_ms=1)
    host = host_of(files)  # type: ignore[arg-type]
    store = await Store.open(config, host, IDENTITY)
    await store.recover(Recorded())
    await store.sync()
    store.writer.on_fatal = failed.append
    append(store, b"first" * 2_000)
    await store.sync()
    files.short = True
    append(store, b"second" * 2_000)
    await store.sync()
    files.short = False
    assert failed == []
    assert len(os.listdir(tmp_path / "store" / "commitlog")) == 2
    await store.close()
