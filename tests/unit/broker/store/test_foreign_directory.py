"""Opening a directory that another program wrote: it is read completely, or rejected with the position and left unchanged."""

from collections.abc import Callable

import pytest

from lockstep.broker.rocketmq_store.errors import AdoptionError
from lockstep.broker.rocketmq_store.opening import open_store as open_as_broker
from lockstep.broker.store import IdentityError, Store, StoreCorruptError
from lockstep.protocol.messages.record import SYS_IPV6_MASK
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import (
    IDENTITY,
    LOG,
    PATH,
    Recorded,
    all_bodies,
    append,
    config,
    confirmed,
    host_of,
    kill,
    open_store,
    opened,
    record,
)

SIZE = len(record(b"x" * 100))


async def create_with_messages(files: SimFiles, count: int, **settings: int) -> None:
    store = await open_store(files, **settings)
    for _ in range(count):
        append(store, b"x" * 100)
    await store.write_snapshot(["tables"])
    await store.close()


def remove_our_files(files: SimFiles) -> None:
    """Leave only a log and consume queues, as another program would."""
    files.remove_tree(f"{PATH}/lockstep")
    files.makedirs(f"{PATH}/config")
    files.open(f"{PATH}/config/topics.json", create=True).pwritev([b'{"topicConfigTable":{}}'], 0)


def contents(files: SimFiles) -> dict[str, bytes]:
    return {path: bytes(inode.cache) for path, inode in files.names.items() if path != f"{PATH}/lock"}


async def check_rejected(files: SimFiles, match: str, error: type[Exception] = StoreCorruptError, **settings: object) -> None:
    """Assert that a start with --adopt fails with and without --cut-corrupt and changes nothing."""
    before = contents(files)
    for cut_corrupt in (False, True):
        with pytest.raises(error, match=match):
            await open_as_broker(config(cut_corrupt=cut_corrupt, **settings), host_of(files), IDENTITY, adopt=True)
        assert contents(files) == before


@pytest.mark.parametrize("default", [4096, 16384, 1 << 20])
async def test_foreign_log_keeps_its_own_file_length(default: int) -> None:
    """A start that took the length from the settings would stretch the first file and delete all others."""
    files = SimFiles()
    await create_with_messages(files, 50, segment_bytes=8192, queue_file_entries=16)
    remove_our_files(files)
    logs = {path: data for path, data in contents(files).items() if "/commitlog/" in path}
    found = await opened(files, segment_bytes=default, adopt=True)
    store = found.store
    await found.mark_adopted()
    assert len(await all_bodies(store)) == 50
    append(store, b"next")
    await confirmed(store)
    await kill(store, files)
    store = (await opened(files, segment_bytes=default)).store
    assert (await all_bodies(store))[-1] == b"next"
    await store.close()
    assert {len(inode.cache) for path, inode in files.names.items() if "/commitlog/" in path} == {8192}
    assert {len(inode.cache) for path, inode in files.names.items() if "/consumequeue/" in path} == {320}
    assert all(contents(files)[path] == data for path, data in list(logs.items())[:-1])


async def test_foreign_log_with_files_of_different_lengths_is_rejected() -> None:
    files = SimFiles()
    await create_with_messages(files, 60, segment_bytes=4096)
    remove_our_files(files)
    path = f"{PATH}/commitlog/{4096:020d}"
    files.open(path).truncate(8192)
    await check_rejected(files, f"log file {path} has 8192 bytes, 00000000000000000000 has 4096")


async def test_foreign_log_without_a_middle_file_is_rejected() -> None:
    files = SimFiles()
    await create_with_messages(files, 60, segment_bytes=4096)
    remove_our_files(files)
    files.remove_tree(f"{PATH}/commitlog/{4096:020d}")
    await check_rejected(files, f"log file {PATH}/commitlog/{8192:020d}: expected one that begins at 4096")


async def test_foreign_log_is_rejected_without_the_setting() -> None:
    files = SimFiles()
    await create_with_messages(files, 10)
    remove_our_files(files)
    before = contents(files)
    with pytest.raises(AdoptionError, match="start with --adopt"):
        await open_as_broker(config(), host_of(files), IDENTITY)
    assert contents(files) == before


def wrong_hosts(files: SimFiles) -> None:
    at = 3 * SIZE + 36
    files.overwrite(LOG, at, SYS_IPV6_MASK.to_bytes(4, "big"))


def other_magic(files: SimFiles) -> None:
    files.overwrite(LOG, 3 * SIZE + 4, (0xDAA320A7 + 1).to_bytes(4, "big"))


def torn(files: SimFiles) -> None:
    files.overwrite(LOG, 3 * SIZE + 40, bytes(10 * SIZE))


def hole(files: SimFiles) -> None:
    files.overwrite(LOG, 3 * SIZE, bytes(SIZE))


@pytest.mark.parametrize("harm", [wrong_hosts, other_magic, torn, hole])
async def test_foreign_log_with_an_unreadable_record_is_rejected_with_its_position(harm: Callable[[SimFiles], None]) -> None:
    """Taken for a torn tail, it would cost the 7 of 10 messages that follow."""
    files = SimFiles()
    await create_with_messages(files, 10)
    remove_our_files(files)
    harm(files)
    await check_rejected(files, rf"log position {3 * SIZE} in {LOG}: .*Another program made it")


async def test_unreadable_last_record_of_a_foreign_log_is_not_cut_as_a_torn_tail() -> None:
    files = SimFiles()
    await create_with_messages(files, 4)
    remove_our_files(files)
    wrong_hosts(files)
    await check_rejected(files, f"log position {3 * SIZE}")


async def test_directory_without_its_identity_file_is_rejected() -> None:
    files = SimFiles()
    await create_with_messages(files, 10)
    files.unlink(f"{PATH}/lockstep/identity")
    await check_rejected(files, "lockstep/identity is missing")


@pytest.mark.parametrize("segment_bytes", [4096, 32768])
async def test_log_files_of_another_length_than_the_stores_are_rejected(segment_bytes: int) -> None:
    """The identity is this store's, the log files are another store's."""
    files, other = SimFiles(), SimFiles()
    await create_with_messages(files, 200, segment_bytes=8192)
    await create_with_messages(other, 400, segment_bytes=segment_bytes)
    files.remove_tree(f"{PATH}/commitlog")
    files.makedirs(f"{PATH}/commitlog")
    for path in [path for path in other.names if "/commitlog/" in path]:
        files.names[path] = files.durable_names[path] = other.names[path]
    await check_rejected(files, "it is not this store's" if segment_bytes > 8192 else "it is not this store's|bytes, expected 8192|")


@pytest.mark.parametrize("same_sizes", [True, False])
async def test_commit_log_of_another_broker_is_rejected(same_sizes: bool) -> None:
    files, other = SimFiles(), SimFiles()
    await create_with_messages(files, 20)
    host = host_of(other)
    host.clock.now_ms += 12_345  # type: ignore[attr-defined]
    store = await open_store(other, host=host)
    for number in range(25):
        append(store, b"y" * (100 if same_sizes or number else 101))
    await store.close()
    files.names[LOG] = files.durable_names[LOG] = other.names[LOG]
    before = contents(files)
    store = await Store.open(config(), host_of(files), IDENTITY)
    with pytest.raises(StoreCorruptError, match=f"log position {19 * SIZE}: .*the log is another broker's, or an older copy"):
        await store.recover(Recorded())
    await store.close(clean=False)
    assert {path: data for path, data in contents(files).items() if path in before} == before


async def test_identity_of_another_broker_is_rejected_before_any_file_is_created() -> None:
    files = SimFiles()
    await create_with_messages(files, 10)
    path = f"{PATH}/lockstep/identity"
    files.replace(path, files.names[path].cache.replace(b"broker-a", b"broker-b"))
    await check_rejected(files, "belongs to broker broker-b", IdentityError)


async def test_rejected_new_directory_stays_without_store_files() -> None:
    files = SimFiles()
    files.makedirs(f"{PATH}/commitlog")
    files.open(f"{PATH}/commitlog/{7:020d}", create=True).pwritev([b"not ours" * 1000], 0)
    await check_rejected(files, "do not follow one another")
    assert files.listdir(PATH) == ["commitlog", "lock"]


async def test_log_with_state_records_but_without_identity_and_snapshots_is_rejected() -> None:
    """With a new identity the state, with grants and progress, would belong to another broker."""
    files = SimFiles()
    store = await open_store(files)
    append(store, b"a")
    store.append_state(b"ours")
    await store.close()
    remove_our_files(files)
    await check_rejected(files, "the state of a lockstep broker.* restore it")
