"""A log file that another program truncates while the store has it open ends the broker, whoever notices it first."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from lockstep.broker.store import FlushMode, Store, StoreDiskError
from lockstep.broker.store.queues.reader import MismatchError
from lockstep.broker.store.queues.search import SearchLimits, Wanted
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import ASYNC, LOG, SYNC, append, confirmed, open_store

SEGMENT_BYTES = 4096
BODY = b"x" * 900
"""Four records fill a segment."""
SMALL_MEMORY = {"segment_bytes": SEGMENT_BYTES, "tail_bytes": 400, "queue_tail_bytes": 100}
EVERYTHING = SearchLimits(100, 1 << 40, 1 << 60)
WANTED = Wanted(b"k1", topic="orders")


async def create_store(files: SimFiles, **settings: object) -> tuple[Store, list[BaseException]]:
    """Return a store of five segments, and the list that receives its fatal errors."""
    store = await open_store(files, **{**SMALL_MEMORY, **settings})
    for number in range(18):
        append(store, BODY, properties=b"KEYS\x01k%d" % number)
    await confirmed(store)
    await store.sync()
    for table in ("one", "two"):
        await store.write_snapshot([table])
        append(store, b"more")
        await confirmed(store)
    fatal: list[BaseException] = []
    store.writer.on_fatal = fatal.append
    return store, fatal


def check_fatal(fatal: list[BaseException], path: str, length: int) -> None:
    (error,) = fatal
    assert isinstance(error, StoreDiskError)
    assert error.exit_code == 3
    whole = f"{path} has {length} of its {SEGMENT_BYTES} bytes: another program truncated it while the broker had it open. "
    assert str(error).startswith(whole)
    assert "--cut-corrupt" in str(error)


async def scrub(store: Store) -> None:
    store.scrubber.bytes_per_s = 1 << 40
    await store.scrubber.run(asyncio.Event())


async def read_head(store: Store) -> None:
    store._head(0)


READERS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "retention by age": lambda store: store.retention(1 << 50),
    "consumer": lambda store: store.read_cold("orders", 0, 0, max_count=4, max_bytes=1 << 20),
    "offset by time": lambda store: store.offset_by_time("orders", 0, 1),
    "message id": lambda store: store.record_at(0),
    "search by key": lambda store: store.search(WANTED, EVERYTHING),
    "scrub": scrub,
    "snapshot": read_head,
}


@pytest.mark.parametrize("length", [0, 20, 40])
@pytest.mark.parametrize("name", READERS)
async def test_reader_of_a_truncated_log_file_ends_the_broker(name: str, length: int) -> None:
    """20 bytes are less than any reader needs. A record has more than 40: its head, which some readers need alone, is 91 long."""
    files = SimFiles()
    store, fatal = await create_store(files)
    files.replace(LOG, files.names[LOG].cache[:length])
    with pytest.raises(StoreDiskError):
        await READERS[name](store)
    check_fatal(fatal, LOG, length)
    await store.close(clean=False)


async def test_repair_that_reads_a_truncated_log_file_ends_the_broker() -> None:
    files = SimFiles()
    store, fatal = await create_store(files)
    files.replace(LOG, b"")
    queue = store._queues.get(("orders", 0))
    assert queue is not None
    store._repairs.start_repair(MismatchError(queue, 1, -1, "a wrong entry"))
    await store._repairs.idle.wait()
    check_fatal(fatal, LOG, 0)
    await store.close(clean=False)


@pytest.mark.parametrize("flush", [ASYNC, SYNC])
async def test_idle_store_notices_that_its_newest_log_file_is_truncated(flush: FlushMode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.broker.store.log.flusher.CHECK_MS", 1)
    files = SimFiles()
    store, fatal = await create_store(files, flush=flush)
    newest = store._log.segments[-1].path
    files.replace(newest, files.names[newest].cache[: SEGMENT_BYTES - 1])
    for _ in range(200):
        if fatal:
            break
        await asyncio.sleep(0.001)
    check_fatal(fatal, newest, SEGMENT_BYTES - 1)
    await store.close(clean=False)


async def test_sync_flush_confirms_nothing_in_a_truncated_log_file() -> None:
    """The next write lengthens the file again, but not to its full length, and leaves a hole in front of it."""
    files = SimFiles()
    store, fatal = await create_store(files, flush=SYNC)
    newest = store._log.segments[-1].path
    files.replace(newest, b"")
    called: list[int] = []
    append(store, b"b")
    store.writer.when_confirmed(lambda: called.append(1))
    with pytest.raises(StoreDiskError):
        await store.sync()
    assert called == []
    assert [type(error) for error in fatal] == [StoreDiskError]
    assert "another program truncated it while the broker had it open" in str(fatal[0])
    await store.close(clean=False)


async def test_whole_log_files_satisfy_every_reader() -> None:
    files = SimFiles()
    store, fatal = await create_store(files)
    for reader in READERS.values():
        if reader is not READERS["retention by age"]:
            await reader(store)
    found = await store.search(WANTED, EVERYTHING)
    assert len(found.records) == 1
    assert await store.retention(1 << 50) != []
    assert fatal == []
    await store.close()
