"""Foreign names in a store's directory: ignored if they don't matter, otherwise rejected with exit 5 and the path.

Exit 3 means that the disk has failed.
"""

from pathlib import Path

import pytest

from lockstep.broker.store import StoreCorruptError, StoreDiskError
from lockstep.broker.store.errors import misplaced
from lockstep.broker.store.health.check import CheckReport, check_store
from lockstep.runtime.files import ReadOnlyFiles
from lockstep.testing.simulation.disk import Fault, SimFiles
from support.store_kit import LOG, PATH, all_bodies, append, confirmed, kill, no_state, open_store, recovered

QUEUE = f"{PATH}/consumequeue/orders/0"


async def create_store(files: SimFiles, *, clean: bool) -> None:
    store = await open_store(files)
    for _ in range(5):
        append(store, b"x" * 100)
    await confirmed(store)
    await store.write_snapshot([])
    if clean:
        await store.close()
    else:
        await kill(store, files)


def put(files: SimFiles, path: str, data: bytes = b"not ours") -> None:
    files.makedirs(path.rpartition("/")[0])
    file = files.open(path, create=True)
    file.pwritev([data], 0)
    file.sync()
    files.durable_names.update(files.names)


async def run_check(files: SimFiles) -> CheckReport:
    return await check_store(files, PATH, lambda position, end: None, no_state)


FOREIGN = (
    "consumequeue/README",
    "consumequeue/orders/notes",
    f"consumequeue/not a topic/0/{0:020d}",
    f"consumequeue/{'t' * 200}/0/{0:020d}",
    f"consumequeue/orders/00/{0:020d}",
    f"consumequeue/orders/{'9' * 30}/{0:020d}",
    f"consumequeue/orders/\u0661/{0:020d}",
    "consumequeue/orders/0/notes",
    "consumequeue/orders/0/sub/notes",
    "commitlog/notes.txt",
    "lockstep/snapshot-5",
    "lockstep/notes",
    "README",
)


@pytest.mark.parametrize("cut_corrupt", [False, True])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("name", FOREIGN)
async def test_foreign_names_in_the_directory_are_ignored_and_left_unchanged(name: str, clean: bool, cut_corrupt: bool) -> None:
    files = SimFiles()
    await create_store(files, clean=clean)
    put(files, f"{PATH}/{name}")
    assert (await run_check(files)).problems == []
    store, found = await recovered(files, cut_corrupt=cut_corrupt)
    assert (len(await all_bodies(store)), found.lost_synced) == (5, False)
    await store.close()
    assert bytes(files.names[f"{PATH}/{name}"].cache) == b"not ours"


@pytest.mark.parametrize("name", FOREIGN[:5])
async def test_directory_without_identity_and_log_is_initialized_despite_foreign_names(name: str) -> None:
    files = SimFiles()
    await create_store(files, clean=True)
    put(files, f"{PATH}/{name}")
    for path in [path for path in files.names if "/lockstep/" in path or "/commitlog/" in path]:
        files.unlink(path)
    store, _ = await recovered(files)
    assert append(store, b"first") == 0
    await store.close()


@pytest.mark.parametrize("cut_corrupt", [False, True])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize(
    "path",
    [
        f"{PATH}/commitlog/{1 << 30:020d}",
        f"{PATH}/lockstep/synced",
        f"{PATH}/lockstep/start",
        f"{PATH}/lockstep/damage",
        f"{PATH}/lockstep/snapshot-{7:020d}",
    ],
)
async def test_directory_in_place_of_a_file_is_rejected_with_exit_5_and_its_path(path: str, clean: bool, cut_corrupt: bool) -> None:
    files = SimFiles()
    await create_store(files, clean=clean)
    if path in files.names:
        files.unlink(path)
    files.makedirs(path)
    with pytest.raises(StoreCorruptError, match=f"^{path} is a directory, .*: remove it from the store, or restore") as refused:
        await recovered(files, cut_corrupt=cut_corrupt)
    assert refused.value.exit_code == 5
    files.crash(power=False)
    assert [path in problem.what for problem in (await run_check(files)).problems] == [True]
    files.directories.discard(path)
    store, _ = await recovered(files, cut_corrupt=True)
    assert len(await all_bodies(store)) == 5
    await store.close()


async def test_file_in_place_of_a_queue_directory_is_rejected_with_exit_5_and_its_path() -> None:
    files = SimFiles()
    await create_store(files, clean=False)
    files.remove_tree(QUEUE)
    files.directories.discard(QUEUE)
    put(files, QUEUE)
    with pytest.raises(StoreCorruptError, match=f"^{QUEUE} is not a directory"):
        await recovered(files)


async def test_disk_error_exits_with_code_3() -> None:
    files = SimFiles()
    await create_store(files, clean=False)
    files.faults.append(Fault("read", LOG))
    with pytest.raises(StoreDiskError):
        await recovered(files)


def test_misplaced_covers_only_paths_within_the_store() -> None:
    assert misplaced(NotADirectoryError(20, "Not a directory", "/store/a"), "/store") is not None
    for error in (OSError(5, "Input/output error", "/store/a"), NotADirectoryError(20, "Not a directory", "/elsewhere/a"), OSError("none")):
        assert misplaced(error, "/store") is None


def test_read_only_open_of_a_directory_raises(tmp_path: Path) -> None:
    """A read-only open would succeed otherwise."""
    with pytest.raises(IsADirectoryError):
        ReadOnlyFiles().open(str(tmp_path))
