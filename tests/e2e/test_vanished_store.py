"""The store is deleted, moved or truncated while a broker runs: it exits with 3 and acknowledges nothing that is not in the store."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import LockstepError
from support.background import background
from support.native import Stream, native
from support.processes import LIMIT_S, run_program

pytestmark = pytest.mark.e2e

HARMS: dict[str, Callable[[Path], object]] = {
    "rm -rf": shutil.rmtree,
    "mv": lambda store: store.rename(store.parent / "elsewhere"),
    "rm -rf commitlog": lambda store: shutil.rmtree(store / "commitlog"),
    "truncate": lambda store: os.truncate(store / "commitlog" / f"{0:020d}", 0),
}
TRUNCATED = "another program truncated it while the broker had it open"


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
        assert (TRUNCATED if harm == "truncate" else "the store was deleted or moved") in words
        assert "Traceback" not in broker.said.read_text()
    assert harm in ("rm -rf commitlog", "truncate") or not store.exists(), "nothing is created in its place"


async def test_idle_broker_with_a_removed_store_exits_with_3(tmp_path: Path) -> None:
    store = tmp_path / "s"
    arguments = ("-m", "lockstep.broker", "--listen", "127.0.0.1:0", "--store", str(store), "--segment-mib", "1")
    with background(tmp_path, "broker", *arguments, ready="broker.started") as broker:
        shutil.rmtree(store)
        assert broker.process.wait(LIMIT_S) == 3
        assert broker.complained.read_text().count("\n") == 1


async def test_broker_that_reads_a_truncated_old_log_file_exits_with_3_and_cut_corrupt_serves_the_rest(tmp_path: Path) -> None:
    """Only the newest file is watched. A consumer reads the older one; the scrub and retention would do as well."""
    store = tmp_path / "s"
    options = ("--listen", "127.0.0.1:0", "--store", str(store), "--segment-mib", "1")
    bodies = [b"%02d " % number * 140_000 for number in range(8)]
    with background(tmp_path, "first", "-m", "lockstep.broker", *options, ready="broker.started") as broker:
        async with native(broker.started("broker.started")["address"]) as client:
            await client.create("orders")
            stream = Stream("orders")
            for body in bodies:
                await client.done(RequestCode.SEND_RECORDS, *stream.frame(body))
        assert broker.stop() == 0
    oldest = store / "commitlog" / f"{0:020d}"
    with background(tmp_path, "second", "-m", "lockstep.broker", *options, ready="broker.started") as broker:
        async with native(broker.started("broker.started")["address"]) as client:
            os.truncate(oldest, 100_000)
            with pytest.raises(LockstepError):
                await client.everything("orders")
        assert broker.process.wait(LIMIT_S) == 3
        words = broker.complained.read_text()
        assert words.count("\n") == 1, words
        assert f"{oldest} has 100000 of its 1048576 bytes: {TRUNCATED}" in words
        assert "Traceback" not in broker.said.read_text()
    refused = run_program("lockstep.broker", *options)
    assert (refused.returncode, refused.stderr.count("\n")) == (5, 1), refused.stderr
    with background(tmp_path, "third", "-m", "lockstep.broker", *options, "--cut-corrupt", ready="broker.started") as broker:
        async with native(broker.started("broker.started")["address"]) as client:
            assert await client.reported("orders") == (bodies[2:], [0, 1])
