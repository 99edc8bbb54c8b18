"""A store whose files are removed or replaced while it runs confirms nothing more and ends."""

import asyncio
from collections.abc import Callable

import pytest

from lockstep.broker.store import FlushMode, Store, StoreDiskError
from lockstep.broker.store.queues.queue_table import FLUSH_ENTRY_COUNT
from lockstep.protocol.errors import ServiceNotAvailableError
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import ASYNC, LOG, PATH, SYNC, abandon, append, confirmed, open_store


def move(files: SimFiles, path: str) -> None:
    """Move the file to another name."""
    files.names[path + ".moved"] = files.names.pop(path)


def replace(files: SimFiles, path: str) -> None:
    """Replace the file by another one of the same name."""
    data = bytes(files.names[path].cache)
    del files.names[path]
    files.open(path, create=True).pwritev([data], 0)


HARMS: list[Callable[[SimFiles], None]] = [
    lambda files: files.remove_tree(PATH),
    lambda files: files.remove_tree(f"{PATH}/commitlog"),
    lambda files: files.remove_tree(f"{PATH}/lockstep"),
    lambda files: files.unlink(f"{PATH}/lock"),
    lambda files: move(files, LOG),
    lambda files: replace(files, LOG),
    lambda files: replace(files, f"{PATH}/lock"),
]


def collect_fatal(store: Store) -> list[BaseException]:
    """Return the list that receives the fatal errors."""
    fatal: list[BaseException] = []
    store.writer.on_fatal = fatal.append
    return fatal


@pytest.mark.parametrize("harm", HARMS)
async def test_sync_flush_confirms_nothing_after_the_files_are_removed(harm: Callable[[SimFiles], None]) -> None:
    files = SimFiles()
    store = await open_store(files, flush=SYNC)
    append(store, b"a")
    await confirmed(store)
    fatal = collect_fatal(store)
    harm(files)
    called: list[int] = []
    append(store, b"b")
    store.writer.when_confirmed(lambda: called.append(1))
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert called == []
    (error,) = fatal
    assert isinstance(error, StoreDiskError)
    assert (error.exit_code, "the store was deleted or moved" in str(error)) == (3, True)
    await store.close(clean=False)


@pytest.mark.parametrize("flush", [ASYNC, SYNC])
@pytest.mark.parametrize("harm", HARMS)
async def test_idle_store_detects_removed_files(
    harm: Callable[[SimFiles], None], flush: FlushMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.broker.store.log.flusher.CHECK_MS", 1)
    files = SimFiles()
    store = await open_store(files, flush=flush)
    append(store, b"a")
    await store.sync()
    fatal = collect_fatal(store)
    harm(files)
    for _ in range(200):
        if fatal:
            break
        await asyncio.sleep(0.001)
    assert [type(error) for error in fatal] == [StoreDiskError]
    await store.close(clean=False)


async def test_new_log_file_is_watched_instead_of_the_previous_one() -> None:
    files = SimFiles()
    store = await open_store(files, segment_bytes=4096, flush=SYNC)
    for _ in range(50):
        append(store, b"x" * 100)
    await confirmed(store)
    watched = [path for path in store._directory.presence._watched if "/commitlog/" in path]
    assert watched == [store._log.segments[-1].path]
    assert len(store._log.segments) > 1
    abandon(store)


async def test_failed_consume_queue_write_reports_the_removed_directory() -> None:
    files = SimFiles()
    store = await open_store(files, segment_bytes=1 << 20, flush=ASYNC)
    append(store, b"a")
    await confirmed(store)
    fatal = collect_fatal(store)
    files.remove_tree(PATH)
    for _ in range(FLUSH_ENTRY_COUNT):
        append(store, b"b")
    store.writer.end_turn()
    (error,) = fatal
    assert isinstance(error, StoreDiskError)
    assert "the store was deleted or moved" in str(error)
    await store.close(clean=False)


async def test_failed_log_file_creation_reports_the_removed_directory() -> None:
    files = SimFiles()
    store = await open_store(files, segment_bytes=4096, flush=ASYNC)
    fatal = collect_fatal(store)
    files.remove_tree(PATH)

    def fill() -> None:
        for _ in range(100):
            append(store, b"x" * 100)

    with pytest.raises(ServiceNotAvailableError):
        fill()
    (error,) = fatal
    assert "the store was deleted or moved" in str(error)
    await store.close(clean=False)


async def test_consume_queues_are_not_written_into_a_removed_directory() -> None:
    files = SimFiles()
    store = await open_store(files)
    append(store, b"a")
    files.remove_tree(f"{PATH}/consumequeue")
    with pytest.raises(OSError, match="the directory of the consume queues is gone"):
        store._queues.flush_all()
    abandon(store)
