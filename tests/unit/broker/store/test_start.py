"""Opening a directory: lock, identity, boot id, clean and unclean stops, the small files."""

import asyncio
import json
from importlib.metadata import version

import pytest

from lockstep.broker.store import FlushMode, Identity, IdentityError, Store, StoreCorruptError, StoreDiskError, StoreInUseError
from lockstep.broker.store.start.directory import SLOT_BYTES, StoreDirectory
from lockstep.protocol.errors import StateError
from lockstep.testing.simulation.disk import Fault, SimFiles
from support.store_kit import (
    ASYNC,
    IDENTITY,
    PATH,
    SYNC,
    LoopThreads,
    Recorded,
    abandon,
    all_bodies,
    append,
    config,
    confirmed,
    host_of,
    open_store,
    record,
)


async def test_second_open_of_the_directory_is_rejected() -> None:
    files = SimFiles()
    store = await open_store(files)
    with pytest.raises(StoreInUseError, match="/store is open in another broker") as error:
        await Store.open(config(), host_of(files), IDENTITY)
    assert error.value.exit_code == 6
    append(store, b"goes on")
    await confirmed(store)
    await store.close()
    await (await open_store(files)).close()


@pytest.mark.parametrize(
    ("path", "above"),
    [
        ("/data/brokers/a", ["/data/brokers", "/data", "/"]),
        ("/a", ["/"]),
        ("/a/", ["/"]),
        ("lockstep-store/broker-a", ["lockstep-store", "."]),
        ("./store", ["."]),
        ("store", ["."]),
    ],
)
def test_every_directory_that_a_first_start_may_have_created_is_synced(path: str, above: list[str]) -> None:
    """A store whose own directory a power cut takes away has lost everything it had acknowledged."""
    files = SimFiles()
    files.directories.add(".")
    synced: list[str] = []
    sync = files.sync_directory
    files.sync_directory = lambda path: (synced.append(path), sync(path))[1]  # type: ignore[method-assign]
    StoreDirectory(files, path).lock()
    assert synced[: len(above)] == above
    assert path in synced


@pytest.mark.parametrize("other", [Identity("test", "broker-b"), Identity("prod", "broker-a")])
async def test_another_name_or_cluster_is_rejected_and_the_lock_released(other: Identity) -> None:
    files = SimFiles()
    await (await open_store(files)).close()
    with pytest.raises(IdentityError, match="belongs to broker broker-a of cluster test") as error:
        await Store.open(config(), host_of(files), other)
    assert error.value.exit_code == 4
    await (await open_store(files)).close()


async def test_store_id_is_random_and_persistent() -> None:
    files = SimFiles()
    store = await open_store(files)
    store_id = store.store_id
    assert len(store_id) == 32
    await store.close()
    store = await open_store(files)
    assert store.store_id == store_id
    await store.close()


async def test_unknown_format_and_damaged_identity_are_distinguished() -> None:
    files = SimFiles()
    await (await open_store(files)).close()
    path = "/store/lockstep/identity"
    text = bytes(files.names[path].cache)
    written = json.loads(text)["version"]
    assert written == version("lockstep-mq")
    for other, by in ((text, written), (text.replace(b"version", b"verses"), "of an unknown version")):
        files.replace(path, other.replace(b'"format": 1', b'"format": 2'))
        with pytest.raises(IdentityError) as refused:
            await Store.open(config(), host_of(files), IDENTITY)
        assert f"{path} has format 2, written by lockstep {by}; lockstep {version('lockstep-mq')} reads format 1" in str(refused.value)
        assert refused.value.exit_code == 4
    for damaged in (b"{", b"[]", text.replace(b"store_id", b"stare_id"), text.replace(b'"segment_bytes": 16384', b'"segment_bytes": "x"')):
        files.replace(path, damaged)
        with pytest.raises(StoreCorruptError, match="is damaged") as error:
            await Store.open(config(), host_of(files), IDENTITY)
        assert error.value.exit_code == 5


async def test_store_keeps_its_own_file_lengths() -> None:
    files = SimFiles()
    store = await open_store(files, segment_bytes=8192, queue_file_entries=8)
    for _ in range(20):
        append(store, b"x" * 900)
    await store.close()
    store = await open_store(files, segment_bytes=65536, queue_file_entries=500)
    for _ in range(20):
        append(store, b"y" * 900)
    await confirmed(store)
    assert await all_bodies(store) == [b"x" * 900] * 20 + [b"y" * 900] * 20
    await store.close()
    assert {len(inode.cache) for path, inode in files.names.items() if "/commitlog/" in path} == {8192}
    assert {len(inode.cache) for path, inode in files.names.items() if "/consumequeue/" in path} == {160}


async def test_directory_layout_is_rocketmqs_with_our_files_in_a_subdirectory() -> None:
    files = SimFiles()
    store = await open_store(files)
    append(store, b"a", queue_id=3)
    await store.write_snapshot([])
    await store.close()
    assert files.listdir(PATH) == ["checkpoint", "commitlog", "config", "consumequeue", "index", "lock", "lockstep"]
    assert files.listdir(PATH + "/lockstep") == [
        "identity",
        "next-log-file",
        "proof",
        "snapshot-00000000000000000098",
        "start",
        "synced",
    ]
    assert files.exists("/store/consumequeue/orders/3/00000000000000000000")
    checkpoint = bytes(files.names["/store/checkpoint"].cache)
    assert len(checkpoint) == 4096
    assert [int.from_bytes(checkpoint[at : at + 8], "big") for at in (0, 8, 16, 24)] == [1_700_000_000_000] * 3 + [0]


async def test_clean_stop_and_kill_are_distinguished() -> None:
    files = SimFiles()
    store = await open_store(files)
    assert store.stopped_clean
    assert files.exists("/store/abort")
    await store.close()
    assert not files.exists("/store/abort")
    store = await open_store(files)
    assert store.stopped_clean
    abandon(store)
    files.crash(power=False)
    store = await open_store(files)
    assert not store.stopped_clean
    await store.close(clean=False)
    store = await open_store(files)
    assert not store.stopped_clean
    await store.close()


async def test_close_syncs_records_written_during_another_sync() -> None:
    files = SimFiles()
    host = host_of(files)
    assert isinstance(host.threads, LoopThreads)
    store = await open_store(files, host=host, segment_bytes=8192)
    host.threads.held = asyncio.Event()
    append(store, b"x" * 5000)
    store.writer.request_write()
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(store.sync())
    for _ in range(3):
        await asyncio.sleep(0)
    append(store, b"y" * 5000)
    closing = asyncio.ensure_future(store.close())
    for _ in range(3):
        await asyncio.sleep(0)
    host.threads.held.set()
    await asyncio.gather(waiting, closing)
    files.crash(power=True, keep=lambda path, data: False)
    store = await open_store(files)
    assert await all_bodies(store) == [b"x" * 5000, b"y" * 5000]
    await store.close()


async def test_boot_id_is_durable_after_mark_boot() -> None:
    files = SimFiles()
    store = await open_store(files)
    assert not store.may_have_forgotten("boot-1"), "a new store has nothing to forget"
    await store.mark_boot("boot-1")
    abandon(store)
    files.crash(power=True)
    store = await open_store(files)
    assert (store.may_have_forgotten("boot-1"), store.may_have_forgotten("boot-2")) == (False, True)
    await store.close()
    store = await open_store(files)
    assert not store.may_have_forgotten("boot-2"), "it was closed in order"
    await store.close()


@pytest.mark.parametrize("before", [ASYNC, SYNC])
@pytest.mark.parametrize("after", [ASYNC, SYNC])
async def test_assumed_loss_after_a_machine_crash_depends_on_the_flush_mode_before_it(before: FlushMode, after: FlushMode) -> None:
    files = SimFiles()
    store = await open_store(files, flush=before)
    await store.mark_boot("boot-1")
    abandon(store)
    files.crash(power=True)
    store = await open_store(files, flush=after)
    assert store.may_have_forgotten("boot-2") is (before is ASYNC)
    await store.close()


async def test_cut_below_the_synced_length_is_remembered_until_the_boot_is_marked() -> None:
    files = SimFiles()
    store = await open_store(files)
    await store.mark_boot("boot-1")
    append(store, b"first")
    append(store, b"second")
    await store.close()
    files.flip("/store/commitlog/00000000000000000000", len(record(b"first")) + 90)
    for clean in (True, False):
        store = await Store.open(config(cut_corrupt=True), host_of(files), IDENTITY)
        found = await store.recover(Recorded())
        assert found.clean is clean
        assert found.lost_synced is clean, "the second start finds the log cut already"
        assert found.lost_synced or store.may_have_forgotten("boot-1")
        abandon(store)
        await asyncio.sleep(0)
        files.crash(power=True)


async def test_before_recovery_appends_are_rejected_and_close_is_unclean() -> None:
    files = SimFiles()
    store = await open_store(files)
    append(store, b"a")
    abandon(store)
    files.crash(power=False)
    store = await Store.open(config(), host_of(files), IDENTITY)
    with pytest.raises(StateError):
        store.append_state(b"x")
    await store.close()
    store = await open_store(files)
    assert not store.stopped_clean
    await store.close()


async def test_recovered_messages_are_readable_only_after_a_sync() -> None:
    """Kill −9 leaves unsynced bytes in the page cache: shown before a sync, a power cut could take them back."""
    files = SimFiles()
    store = await open_store(files, flush_interval_ms=1_000_000)
    append(store, b"a")
    await confirmed(store)
    abandon(store)
    files.crash(power=False)
    host = host_of(files)
    assert isinstance(host.threads, LoopThreads)
    host.threads.held = asyncio.Event()
    store = await Store.open(config(flush_interval_ms=1_000_000), host, IDENTITY)
    await store.recover(Recorded())
    called: list[int] = []
    store.append_state(b"the new term")
    store.writer.when_confirmed(lambda: called.append(1))
    for _ in range(5):
        await asyncio.sleep(0)
    assert (called, store.bounds("orders", 0)) == ([], (0, 0))
    host.threads.held.set()
    await store.sync()
    assert called == [1]
    assert store.bounds("orders", 0) == (0, 1)
    abandon(store)
    files.crash(power=True)
    recorded = Recorded()
    store = await open_store(files, recorded=recorded)
    assert await all_bodies(store) == [b"a"]
    assert recorded.states == [b"the new term"]
    await store.close()


async def test_disk_error_at_the_start_exits_with_code_3() -> None:
    files = SimFiles()
    files.faults.append(Fault("write", "identity"))
    with pytest.raises(StoreDiskError) as error:
        await open_store(files)
    assert error.value.exit_code == 3
    files.crash(power=False)
    store = await open_store(files)
    append(store, b"a")
    await store.close()
    files.faults.append(Fault("read", "commitlog"))
    store = await Store.open(config(), host_of(files), IDENTITY)
    with pytest.raises(StoreDiskError, match="can't be read"):
        await store.recover(Recorded())
    await store.close()


@pytest.mark.parametrize("crash_after", range(14))
async def test_crashed_first_start_leaves_nothing_that_a_later_power_cut_reverts(crash_after: int) -> None:
    """The second start syncs the names that the first one created, because it can't know whether they were synced."""
    for seed in range(6):
        files = SimFiles(seed=seed)
        files.countdown = crash_after
        try:
            abandon(await open_store(files))
        except StoreDiskError:
            assert files.dead
        await asyncio.sleep(0)
        files.crash(power=False)
        store = await open_store(files)
        append(store, b"a")
        store.writer.end_turn()
        await store.writer.flusher.sync(record=True)
        store_id = store.store_id
        abandon(store)
        await asyncio.sleep(0)
        files.crash(power=True)
        store = await open_store(files)
        assert (store.store_id, store.stopped_clean) == (store_id, False)
        assert store._directory.slot_position == store._log.end
        assert await all_bodies(store) == [b"a"]
        await store.close()


def test_synced_length_survives_one_torn_slot() -> None:
    files = SimFiles()
    directory = StoreDirectory(files, PATH)
    directory.lock()
    files.makedirs(f"{PATH}/lockstep")
    assert directory.load_synced() == 0
    for position in (100, 200, 300):
        directory.save_synced(position)
    directory.unlock()
    files.flip("/store/lockstep/synced", SLOT_BYTES + 20)
    torn = StoreDirectory(files, PATH)
    torn.lock()
    assert torn.load_synced() == 200
    torn.save_synced(250)
    assert torn.slot_position == 250
    torn.unlock()


async def test_proof_is_created_once_and_again_if_it_is_removed() -> None:
    files = SimFiles()
    first = await open_store(files)
    proof = first.proof
    await first.close()
    assert len(proof) == 32
    files.replace(PATH + "/lockstep/proof", b"d" * 32)
    again = await open_store(files)
    assert again.proof == "d" * 32, "what is there is read"
    await again.close()
    files.unlink(PATH + "/lockstep/proof")
    renewed = await open_store(files)
    assert renewed.proof == proof
    await renewed.close()
    assert files.exists(PATH + "/lockstep/proof")


async def test_damaged_proof_is_reported_and_the_lock_released() -> None:
    files = SimFiles()
    await (await open_store(files)).close()
    files.overwrite(PATH + "/lockstep/proof", 0, b"####")
    for _ in range(2):
        with pytest.raises(StoreCorruptError, match="lockstep/proof is damaged"):
            await open_store(files)
