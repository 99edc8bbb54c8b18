"""A log that is cut keeps what comes before, wherever the process is killed meanwhile, and nothing of what followed comes back."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from lockstep.broker import running_replica
from lockstep.broker.config import BrokerConfig
from lockstep.broker.replication import cutting
from lockstep.broker.replication.copy_identity import CopyIdentity, Role, read_copy_identity, save_copy_identity
from lockstep.broker.replication.log_parting import PartingAction
from lockstep.broker.running_replica import RunningReplica
from lockstep.broker.store.errors import StoreCorruptError
from lockstep.broker.store.start.directory import StoreDirectory, held_directory
from lockstep.protocol.errors import TransportError
from lockstep.protocol.headers.replication import ReplicaFollowReply
from lockstep.testing.simulation.disk import SimFiles
from support.closed_copies import MASTER, closed_copy
from support.loops import until
from support.store_kit import PATH, Recorded, abandon, all_bodies, append, config, confirmed, host_of, kill, open_store, recovered
from support.whole_copy import WholeCopy, log_of

REPLICA = CopyIdentity("ab" * 8, Role.REPLICA, confirmed=100_000)


async def stored(files: SimFiles, count: int = 40) -> list[int]:
    """Store messages of half a kilobyte in files of 4 KiB, with two snapshots. Return where each message ends."""
    store = await open_store(files, segment_bytes=4096)
    ends = []
    for number in range(count):
        append(store, b"%02d" % number + b"." * 400)
        await confirmed(store)
        ends.append(store.log_bounds[1])
        if number in (count // 2, count - 5):
            await store.write_snapshot({"messages": number + 1})
    await store.sync()
    await store.writer.flusher.sync(record=True)
    await kill(store, files)
    return ends


def remove_snapshots(files: SimFiles) -> None:
    """Let a start read the log from its beginning."""
    with held_directory(files, PATH) as directory:
        for above in directory.snapshot_positions():
            files.unlink(f"{directory.own}/snapshot-{above:020d}")


def cut(files: SimFiles, position: int) -> None:
    with held_directory(files, PATH) as directory:
        cutting.cut_log(files, directory, config(), read_copy_identity(directory) or REPLICA, position)


@pytest.mark.parametrize("keep", [1, 9, 10, 21, 33, 39])
async def test_start_after_a_cut_has_what_came_before_and_goes_on_from_there(keep: int) -> None:
    files = SimFiles()
    ends = await stored(files)
    cut(files, ends[keep - 1])
    store, found = await recovered(files, segment_bytes=4096)
    assert (found.end, found.lost_synced) == (ends[keep - 1], False)
    assert [body[:2] for body in await all_bodies(store)] == [b"%02d" % number for number in range(keep)]
    assert append(store, b"goes on") == keep
    await confirmed(store)
    assert (await all_bodies(store))[-1] == b"goes on"
    await store.close()


async def test_cut_leaves_no_snapshot_and_no_synced_position_above() -> None:
    files = SimFiles()
    ends = await stored(files)
    cut(files, ends[25])
    with held_directory(files, PATH) as directory:
        assert directory.snapshot_positions() == [ends[20]]
        assert directory.load_synced() == ends[25]


@pytest.mark.parametrize("action", [PartingAction.TRUNCATE, PartingAction.INSTALL])
async def test_copy_that_is_cut_or_begun_anew_is_another_member(action: PartingAction) -> None:
    files = SimFiles()
    ends = await stored(files)
    copy = closed_copy(files, REPLICA)
    with held_directory(files, PATH) as directory:
        await copy.change_as_told(directory, ReplicaFollowReply(action, ends[25], 7, "store", "master"))
        identity = read_copy_identity(directory)
    assert identity == copy.identity
    assert identity.member != REPLICA.member
    assert identity.forgot


async def test_damage_is_replaced_by_what_is_confirmed_and_the_rest_is_cut() -> None:
    """Behind it the two logs may differ, and the file that is replaced must not have a part of another term's."""
    files = SimFiles()
    ends = await stored(files)
    good, confirmed_to = log_of(files), ends[25]
    master = WholeCopy(good[:confirmed_to] + bytes(byte ^ 1 for byte in good[confirmed_to:]))
    damaged = confirmed_to - 100
    files.flip(f"{PATH}/commitlog/{damaged - damaged % 4096:020d}", damaged % 4096)
    copy = closed_copy(files, replace(REPLICA, confirmed=confirmed_to))
    with held_directory(files, PATH) as directory:
        await copy._repair(directory, cast(Any, master), 0, frozenset({damaged}))
        identity = read_copy_identity(directory)
    assert identity == copy.identity
    assert (identity.member != REPLICA.member, identity.forgot, master.asked_until) == (True, True, confirmed_to)
    store, found = await recovered(files, segment_bytes=4096)
    assert (found.end, found.lost_synced) == (confirmed_to, False)
    assert log_of(files)[:confirmed_to] == good[:confirmed_to]
    await store.close()


async def test_damaged_copy_is_mended_by_its_master_also_with_cut_corrupt() -> None:
    files = SimFiles()
    ends = await stored(files)
    files.flip(f"{PATH}/commitlog/{0:020d}", ends[2] + 200)
    remove_snapshots(files)
    replica = object.__new__(RunningReplica)
    replica._host, replica._changing = host_of(files), asyncio.Lock()
    replica._config = BrokerConfig(cluster="test", store=PATH, replica_of=MASTER, cut_corrupt=True)
    with pytest.raises(StoreCorruptError, match=r"damaged|CRC|record"):
        await replica._follow()


async def test_store_that_a_scrub_reads_is_closed_after_it_however_often_the_replica_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    files, gate = SimFiles(), asyncio.Event()
    await stored(files)
    remove_snapshots(files)

    async def held(*_: object) -> None:
        await gate.wait()

    async def forever(*_: object) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(running_replica, "scrub", held)
    monkeypatch.setattr(running_replica.Following, "run", forever)
    replica: Any = object.__new__(RunningReplica)
    replica._host, replica._changing, replica._copy = host_of(files), asyncio.Lock(), closed_copy(files, REPLICA)
    replica._config, replica.standing = BrokerConfig(cluster="test", store=PATH, replica_of=MASTER), None
    replica._following = replica._peers = None
    following = asyncio.ensure_future(replica._follow())
    await until(lambda: replica._following is not None)

    async def cancelled() -> bool:
        """Return whether the store is closed after some more cancellations."""
        for _ in range(5):
            following.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
        return replica._store is None

    assert not await cancelled(), "the scrub reads it"
    async with replica._changing:
        gate.set()
        assert not await cancelled(), "it is being changed"
    with pytest.raises(asyncio.CancelledError):
        await following
    assert (replica._store, replica._following) == (None, None)


@pytest.mark.parametrize("installing", [False, True])
async def test_copy_that_is_not_whole_is_not_started(installing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nobody(*_: object, **__: object) -> None:
        raise TransportError("nobody listens")

    monkeypatch.setattr("lockstep.broker.replication.closed_copy.connect", nobody)
    files = SimFiles()
    await stored(files)
    with held_directory(files, PATH) as directory:
        assert await closed_copy(files, replace(REPLICA, installing=installing)).prepare(directory) is not installing


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("keep", [10, 21, 33])
async def test_cut_that_is_killed_at_any_operation_is_finished_by_the_next_start(keep: int, power: bool) -> None:
    for crash_after in range(60):
        files = SimFiles(seed=crash_after)
        ends = await stored(files)
        files.countdown = crash_after
        try:
            cut(files, ends[keep - 1])
        except Exception:
            assert files.dead
        done = not files.dead
        files.crash(power=power)
        with held_directory(files, PATH) as directory:
            identity = read_copy_identity(directory)
        if identity is not None and identity.cut_to is not None:
            cut(files, identity.cut_to)
        store, found = await recovered(files, segment_bytes=4096)
        begun = identity is not None
        assert found.end == ends[keep - 1 if begun else -1]
        assert len(await all_bodies(store)) == (keep if begun else len(ends))
        abandon(store)
        if done:
            break
    assert done, "all operations of a cut were tried"


async def test_damaged_file_says_what_to_do() -> None:
    files = SimFiles()
    await stored(files)
    with held_directory(files, PATH) as directory:
        for text in (b"", b"[]", b'{"format": 2}', b'{"format": 1, "member": "x", "role": "king"}'):
            directory.replace(f"{directory.own}/replica", text)
            with pytest.raises(StoreCorruptError, match="/store/lockstep/replica is damaged"):
                read_copy_identity(directory)
        save_copy_identity(directory, REPLICA)
        assert read_copy_identity(directory) == REPLICA


async def test_removed_store_keeps_its_lock_what_was_set_aside_and_what_it_is() -> None:
    files = SimFiles()
    await stored(files)
    with held_directory(files, PATH) as directory:
        save_copy_identity(directory, REPLICA)
        aside = directory.set_aside()
        directory.replace(f"{aside}/manifest.json", b"{}")
        directory.remove_all_but("replica")
        assert sorted(files.names) == ["/store/lock", "/store/lockstep/replica", f"{aside}/manifest.json"]
    store, found = await recovered(files, Recorded())
    assert found.end == 0
    await store.close()


def test_directory_names_the_oldest_snapshot_for_a_copy() -> None:
    files = SimFiles()
    files.makedirs("/store/lockstep")
    directory = StoreDirectory(files, PATH)
    assert directory.read_part("snapshot", 0, 10) == ("", 0, b"")
    for position in (7, 300):
        directory.replace(f"{directory.own}/snapshot-{position:020d}", b"%d tables" % position)
    assert directory.read_part("snapshot", 2, 100) == (f"snapshot-{7:020d}", 8, b"tables")
    assert directory.read_part(f"snapshot-{300:020d}", 0, 3) == (f"snapshot-{300:020d}", 10, b"300")
    assert directory.read_part("proof", 0, 3) == ("", 0, b"")
