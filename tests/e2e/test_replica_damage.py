"""Replicas as real processes whose installation is killed, whose files are damaged, whose disk is full and whose machines lose power.

Nothing is cleaned up by hand, and in the end the log of each copy is byte for byte that of its master.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import pytest

from lockstep.client import Message, Producer
from support.cluster import QUICK, WAIT_S, Cluster, Report
from support.copies_of_logs import BODY, SEGMENTS, fill, identity_of, until_equal, until_in_set, until_mended
from support.http import fetch
from support.ports import free_ports
from support.replica_pair import ReplicaPair
from support.small_disk import RESERVE_BYTES, fill_disk

pytestmark = pytest.mark.e2e

NO_COPY = "not a whole copy now"


async def pair_of(cluster: Cluster, *options: str, mib: int) -> ReplicaPair:
    """Start a nameserver and a master with so many MiB of log, in files of 1 MiB. No replica is started."""
    await cluster.nameserver()
    first, second = free_ports(2)
    pair = ReplicaPair(cluster, {"first": f"127.0.0.1:{first}", "second": f"127.0.0.1:{second}"}, (*QUICK, *SEGMENTS, *options))
    await pair.start("first")
    await cluster.command("topic", "create", "orders", "--queues", "4")
    await cluster.command("topic", "create", "filler", "--queues", "1")
    await fill(pair, mib)
    return pair


@pytest.mark.parametrize("kills", [4, pytest.param(100, marks=pytest.mark.slow)])
async def test_installation_killed_at_any_time_is_begun_anew_by_the_next_start(cluster: Cluster, report: Report, kills: int) -> None:
    seed = SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    random = Random(seed)
    pair = await pair_of(cluster, "--catch-up-mib-s", "16", mib=6)
    for name in ("consumer-1", "consumer-2"):
        await cluster.consumer(name)
    await cluster.producer("producer", "--keys", "20", "--pause-ms", "20")
    await pair.copy("second")
    began = time.monotonic()
    await until_equal(pair, "second", "first")
    install_s, half = time.monotonic() - began, 0
    for number in range(kills):
        if not identity_of(pair, "second").get("installing"):
            await cluster.kill("second")
            shutil.rmtree(pair.store("second"))  # a whole copy: the next installation is to be killed
        await pair.copy("second")
        await asyncio.sleep(random.uniform(0, 1.3 * install_s))
        await cluster.kill("second")
        half += bool(identity_of(pair, "second").get("installing"))
        if number % 10 == 9 or number == kills - 1:
            await pair.copy("second")
            await until_equal(pair, "second", "first")
            if number < kills - 1:
                await cluster.kill("second")
    await cluster.finish_producer()
    await until_equal(pair, "second", "first")
    await cluster.kill("first")
    assert await pair.promote("second") == ""
    verdict = await cluster.prove("consumer-1", "consumer-2")
    report(f"{kills} replicas killed within {1.3 * install_s:.2f} s (seed {seed}), {half} were half copies: {verdict.events} events")


async def test_half_copy_starts_as_no_master_is_not_promoted_and_survives_its_killed_master(cluster: Cluster) -> None:
    pair = await pair_of(cluster, "--catch-up-mib-s", "1", mib=6)
    await pair.copy("second")
    half = pair.store("second") / "commitlog" / f"{2 << 20:020d}"
    await cluster.until("the third file is copied", half.exists)
    await cluster.kill("first")
    assert NO_COPY in await pair.promote("second")
    assert NO_COPY in await pair.promote("second", force=True)
    await cluster.kill("second")
    for options in ((), ("--alone",), ("--cut-corrupt",)):
        master = await cluster.start("second", pair.command("second", *options))
        assert await master.wait() == 4
        assert "half a copy, which nobody can promote" in cluster.output_tails()
    await pair.copy("second")
    assert identity_of(pair, "second")["installing"]
    await pair.start("first")
    await until_equal(pair, "second", "first")
    assert await cluster.command("replica", "ls")


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1
    path.write_bytes(data)


def cut(path: Path, size: int) -> None:
    os.truncate(path, size)


def segment(number: int) -> str:
    return f"commitlog/{number << 20:020d}"


SNAPSHOTS = "lockstep/snapshot-*"
QUEUE = "consumequeue/filler/0/*"
IN_A_BODY = 100_000


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def each(change: Callable[..., None], pattern: str, *arguments: Any) -> Callable[[Path], None]:
    """Return what changes each file of a store that has such a name."""

    def changed(store: Path) -> None:
        found = list(store.glob(pattern))
        assert found, pattern
        for path in found:
            change(path, *arguments)

    return changed


SMALL_FILES = ("identity", "start", "synced", "proof", "boot")
DAMAGE: dict[str, Callable[[Path], None]] = {
    "a flipped byte in two files of the log": each(flip, "commitlog/*[34]1[49]*", IN_A_BODY),
    "a cut file of the log": each(cut, segment(2), 300_000),
    "a removed file of the log": each(Path.unlink, segment(2)),
    "the first file of the log removed": each(Path.unlink, segment(0)),
    "all files of the log removed": each(Path.unlink, "commitlog/*"),
    "flipped bytes of all snapshots": each(flip, SNAPSHOTS, 30),
    "lockstep/identity removed": each(Path.unlink, "lockstep/identity"),  # everything is copied again, also the snapshot
    "cut snapshots": each(cut, SNAPSHOTS, 10),
    "lockstep/proof removed": each(Path.unlink, "lockstep/proof"),
    "all snapshots removed": each(Path.unlink, SNAPSHOTS),
    "a flipped byte of a consume queue": each(flip, QUEUE, 25),
    "a cut consume queue": each(cut, QUEUE, 30),
    "a removed consume queue": each(Path.unlink, QUEUE),
    **{f"lockstep/{name} removed": each(Path.unlink, f"lockstep/{name}") for name in ("start", "synced", "boot", "replica")},
    **{f"lockstep/{name} overwritten": each(write, f"lockstep/{name}", b"\xff" * 40) for name in SMALL_FILES},
    "a wrong lockstep/damage": lambda store: write(store / "lockstep" / "damage", b"\xff"),
}


async def damaged_pair(cluster: Cluster, scrub_kib_per_s: int) -> tuple[ReplicaPair, Path]:
    """Return a pair, of which `second` is a whole copy, and its store. The master has a snapshot: a start does not read what is below."""
    pair = await pair_of(cluster, "--scrub-kib-per-s", str(scrub_kib_per_s), mib=5)
    await cluster.stop("first")
    await pair.start("first")
    await pair.copy("second")
    await until_equal(pair, "second", "first")
    return pair, pair.store("second")


@pytest.mark.slow
async def test_damage_of_a_stopped_replica_is_mended_from_its_master(cluster: Cluster) -> None:
    pair, second = await damaged_pair(cluster, 65_536)
    for what, damage in DAMAGE.items():
        print(what)
        await cluster.kill("second")
        damage(second)
        await pair.copy("second")
        await until_mended(pair, "second", "first")
    await cluster.kill("first")
    assert await pair.promote("second") == ""
    await cluster.stop("second")
    assert ": 0 problems, 0 bytes damaged" in await cluster.command("store", "check", str(second))


@pytest.mark.slow
async def test_damage_of_a_running_replica_is_found_by_its_scrub_and_mended_from_its_master(cluster: Cluster) -> None:
    """The first pass begins a minute after the copy was started, and gets to what is damaged here some seconds later."""
    pair, second = await damaged_pair(cluster, 1024)
    for what in ("a flipped byte in two files of the log", "a flipped byte of a consume queue"):
        DAMAGE[what](second)
    await cluster.until_heard("second", "replica.refetched")
    await until_mended(pair, "second", "first")
    max(second.glob("commitlog/*")).unlink()
    await cluster.processes["second"].wait(WAIT_S)  # as a master whose file was removed: nothing can be acknowledged
    await pair.copy("second")
    await until_mended(pair, "second", "first")


async def test_damaged_replica_whose_master_is_away_is_left_as_it_is_and_not_promoted(cluster: Cluster) -> None:
    pair, second = await damaged_pair(cluster, 0)
    for what in ("a cut file of the log", "lockstep/start overwritten"):
        await cluster.kill("first", "second")
        DAMAGE[what](second)
        before = {path: path.read_bytes() for path in second.rglob("*") if path.is_file()}
        for options in ((), ("--cut-corrupt",)):
            await pair.start("second", "--replica-of", pair.addresses["first"], *options)
            await cluster.until_heard("second", "replica.damaged")
            await cluster.until_heard("second", "replica.not_ready")
            for force in (False, True):
                assert "it is damaged, and is mended when its master answers" in await pair.promote("second", force=force)
            await cluster.kill("second")
        assert {path: path.read_bytes() for path in second.rglob("*") if path.is_file()} == before
        await pair.copy("second")
        await pair.start("first")
        await until_mended(pair, "second", "first")
    await cluster.kill("first", "second")
    DAMAGE["a cut file of the log"](second)
    (second / "lockstep" / "replica").unlink()  # the last resort, if the master is lost for good
    await pair.start("second", "--cut-corrupt")
    (recovered,) = cluster.reported_events("second", "log.recovered")
    assert recovered["assumed_loss"]


async def test_replica_with_a_full_disk_leaves_the_set_is_named_and_comes_back_when_there_is_room(
    cluster: Cluster, disk: Path, report: Report
) -> None:
    admin, *_ = free_ports(1)
    pair = await pair_of(cluster, mib=1)
    await cluster.kill("first")
    await pair.start("first", "--admin-listen", f"127.0.0.1:{admin}")
    (disk / "store").mkdir()
    pair.store("second").symlink_to(disk / "store")
    copying = "--replica-of", pair.addresses["first"], "--admin-listen", "127.0.0.1:0"
    await pair.start("second", *copying)
    ready = (await cluster.until_heard("second", "broker.started"))["admin"]
    await until_in_set(pair, "second", "first")
    slowest_s = 0.0
    async with Producer("test", nameserver=cluster.nameservers, compress_over_bytes=None, send_timeout_ms=30_000) as producer:
        while not cluster.reported_events("first", "replica.left"):
            began = time.monotonic()
            await producer.send(Message("filler", BODY))
            slowest_s = max(slowest_s, time.monotonic() - began)
    (copy,) = await pair.replicas()
    full = f"less than half of the reserve of {RESERVE_BYTES} bytes would be left"
    assert (copy.in_set, copy.connected, full in copy.trouble) == (False, True, True)
    assert full in await cluster.command("replica", "ls")
    assert full in await cluster.run_command("doctor", code=1)
    assert "lockstep_replicas_in_sync{" in (await fetch(f"127.0.0.1:{admin}", "/metrics"))[1]
    status, page = await fetch(ready, "/readyz")
    assert (status, full in page) == (503, True)
    (disk / "ballast").unlink()
    await until_equal(pair, "second", "first")
    report(f"the slowest send while a replica's disk ran full: {slowest_s:.2f} s")

    fill_disk(disk)  # by another program, to the last byte
    sending = asyncio.ensure_future(fill(pair, 2))
    assert await cluster.processes["second"].wait(WAIT_S) == 3
    await sending
    (disk / "filler").unlink()
    await pair.start("second", *copying)
    await until_equal(pair, "second", "first")
