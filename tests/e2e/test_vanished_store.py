"""The store is deleted or moved while a broker runs: it exits with 3 and acknowledges nothing that is not in the store."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import LockstepError
from support.background import LIMIT_S, background
from support.native import Stream, native

pytestmark = pytest.mark.e2e

HARMS: dict[str, Callable[[Path], object]] = {
    "rm -rf": shutil.rmtree,
    "mv": lambda store: store.rename(store.parent / "elsewhere"),
    "rm -rf commitlog": lambda store: shutil.rmtree(store / "commitlog"),
}


@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize("harm", HARMS)
async def test_broker_with_a_removed_store_exits_with_3_and_one_line(tmp_path: Path, harm: str, flush: str) -> None:
    store = tmp_path / "s"
    arguments = ("-m", "lockstep.broker", "--listen", "127.0.0.1:0", "--store", str(store), "--segment-mib", "1", "--flush", flush)
    with background(tmp_path, "broker", *arguments, ready="broker.started") as broker:
        async with native(broker.started("broker.started")["address"]) as client:
            await client.create("orders")
            stream = Stream("orders")
            await client.done(RequestCode.SEND_RECORDS, *stream.frame(b"kept"))
            HARMS[harm](store)
            acknowledged = 0
            try:
                while acknowledged < 1_000_000:
                    await client.done(RequestCode.SEND_RECORDS, *stream.frame(b"lost" * 10))
                    acknowledged += 1
            except (LockstepError, OSError):
                pass
            if flush == "sync":
                assert acknowledged == 0
        assert broker.process.wait(LIMIT_S) == 3
        words = broker.complained.read_text()
        assert words.count("\n") == 1, words
        assert "the store was deleted or moved" in words
        assert "Traceback" not in broker.said.read_text()
    assert harm == "rm -rf commitlog" or not store.exists(), "nothing is created in its place"


async def test_idle_broker_with_a_removed_store_exits_with_3(tmp_path: Path) -> None:
    store = tmp_path / "s"
    arguments = ("-m", "lockstep.broker", "--listen", "127.0.0.1:0", "--store", str(store), "--segment-mib", "1")
    with background(tmp_path, "broker", *arguments, ready="broker.started") as broker:
        shutil.rmtree(store)
        assert broker.process.wait(LIMIT_S) == 3
        assert broker.complained.read_text().count("\n") == 1
