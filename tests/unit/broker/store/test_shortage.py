"""A store that gets no file descriptor, because connections or other programs hold all of them, has not met a failed disk."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lockstep.broker.store import Store
from lockstep.broker.store.health import retention
from lockstep.broker.store.queues.consume_queue import QueueFiles
from lockstep.broker.store.store import STATE_SHARE
from lockstep.protocol.errors import ServiceNotAvailableError
from lockstep.protocol.names import STATE_TOPIC
from lockstep.runtime.files import File
from lockstep.testing.simulation.disk import SimFiles
from support.clocks import SetClock
from support.store_kit import STARTED_MS, Recorded, all_bodies, append, confirmed, host_of, kill, open_store, record

SEGMENT = 16 << 10
BOTH = pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])


@contextmanager
def shortage(monkeypatch: pytest.MonkeyPatch, number: int) -> Iterator[list[str]]:
    """Let every open fail; yield the paths that were tried."""
    tried: list[str] = []

    def refused(self: SimFiles, path: str, *, create: bool = False) -> File:
        tried.append(path)
        raise OSError(number, os.strerror(number), path)

    def unlisted(self: SimFiles, path: str) -> list[str]:
        tried.append(path)
        raise OSError(number, os.strerror(number), path)

    with monkeypatch.context() as patch:
        patch.setattr(SimFiles, "open", refused)
        patch.setattr(SimFiles, "listdir", unlisted)
        yield tried


def send_until_rejected(store: Store) -> int:
    """Send until a send is rejected; return how many were accepted."""
    for number in range(SEGMENT):
        try:
            append(store, b"x" * 100)
        except ServiceNotAvailableError:
            return number
    raise AssertionError("nothing was refused")


async def open_and_collect_errors(files: SimFiles, **settings: int) -> tuple[Store, list[BaseException]]:
    failed: list[BaseException] = []
    store = await open_store(files, segment_bytes=SEGMENT, **settings)
    store.writer.on_fatal = failed.append
    return store, failed


@BOTH
async def test_next_log_file_is_open_before_it_is_needed(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimFiles()
    store, failed = await open_and_collect_errors(files)
    append(store, b"first" * 2_000)
    with shortage(monkeypatch, number):
        append(store, b"second" * 2_000)
        await confirmed(store)
        store.append_state(b"state")
        await store.sync()
    assert failed == []
    assert len(files.listdir("/store/commitlog")) == 2
    await kill(store, files)
    recorded = Recorded()
    again = await open_store(files, recorded=recorded, segment_bytes=SEGMENT)
    assert await all_bodies(again) == [b"first" * 2_000, b"second" * 2_000]
    assert recorded.states == [b"state"]
    await again.close()


@BOTH
async def test_without_a_descriptor_sends_are_rejected_while_state_records_have_room(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state record that can't be written ends the broker, so an eighth of a file is left for them."""
    files = SimFiles()
    store, failed = await open_and_collect_errors(files)
    append(store, b"first" * 2_000)
    state = len(record(b"x" * 100, topic=STATE_TOPIC))
    with shortage(monkeypatch, number) as tried:
        append(store, b"second" * 1_500)
        sent = send_until_rejected(store)
        with pytest.raises(ServiceNotAvailableError, match="file descriptors"):
            append(store, b"x" * 100)
        for _ in range(SEGMENT // STATE_SHARE // state - 1):
            store.append_state(b"x" * 100)
            store.upkeep()
            await confirmed(store)
        assert tried
    assert failed == []
    store.upkeep()
    append(store, b"third" * 2_000)
    await confirmed(store)
    await kill(store, files)
    again = await open_store(files, segment_bytes=SEGMENT)
    assert await all_bodies(again) == [b"first" * 2_000, b"second" * 1_500, *[b"x" * 100] * sent, b"third" * 2_000]
    await again.close()


@BOTH
async def test_without_a_descriptor_queue_entries_wait_and_a_snapshot_is_postponed(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimFiles()
    store, failed = await open_and_collect_errors(files, queue_tail_bytes=20 * 4)
    with shortage(monkeypatch, number):
        for queue_id in range(12):
            append(store, b"x", queue_id=queue_id)
            await confirmed(store)
        await store.write_snapshot(["early"])
    assert failed == []
    assert [name for name in files.names if "snapshot" in name] == []
    assert store._queues.waiting_count == 12
    await store.write_snapshot(["late"])
    assert len([name for name in files.names if "snapshot" in name]) == 1
    assert store._queues.waiting_count == 0
    await kill(store, files)
    again = await open_store(files, segment_bytes=SEGMENT)
    assert [await all_bodies(again, queue_id=queue_id) for queue_id in range(12)] == [[b"x"]] * 12
    await again.close()


@BOTH
async def test_open_file_of_another_queue_is_closed_to_free_a_descriptor(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two descriptors are free for the files of eight queues."""
    files = SimFiles()
    store, failed = await open_and_collect_errors(files, queue_tail_bytes=0)
    open_, opened_count = SimFiles.open, 0

    def counted(self: SimFiles, path: str, *, create: bool = False) -> File:
        nonlocal opened_count
        if "/consumequeue/" in path and len(store._queues.files._open) >= 2:
            raise OSError(number, os.strerror(number), path)
        opened_count += 1
        return open_(self, path, create=create)

    with monkeypatch.context() as patch:
        patch.setattr(SimFiles, "open", counted)
        for queue_id in range(8):
            append(store, b"x", queue_id=queue_id)
            await confirmed(store)
    assert (failed, store._queues.waiting_count) == ([], 0)
    assert opened_count >= 8
    await store.close()


async def store_with_old_segments(files: SimFiles) -> tuple[Store, list[BaseException]]:
    """Return a store whose retention would remove segments, and the errors that end it."""
    failed: list[BaseException] = []
    store = await open_store(files, segment_bytes=4096, log_bytes_max=1)
    store.writer.on_fatal = failed.append
    for count in range(2):
        for _ in range(12):
            append(store, b"x" * 900)
        await store.write_snapshot([count])
    return store, failed


@BOTH
async def test_retention_waits_for_descriptors_to_find_the_queue_minimums(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then no file of the log is removed, so no message is missing whose queue still begins with it."""
    store, failed = await store_with_old_segments(SimFiles())
    search, tried = QueueFiles.search, 0

    def scarce(self: QueueFiles, directory: str, low: int, high: int, log_start: int) -> tuple[int, int | None]:
        nonlocal tried
        tried += 1
        if tried < 5:
            assert store._log.start == 0
            raise OSError(number, os.strerror(number), directory)
        return search(self, directory, low, high, log_start)

    monkeypatch.setattr(QueueFiles, "search", scarce)
    assert await store.retention(0) == [("orders", 0, 8)]
    assert (failed, tried) == ([], 5)
    await store.close()


@BOTH
async def test_retention_without_a_descriptor_is_postponed(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimFiles()
    store, failed = await store_with_old_segments(files)
    before = files.listdir("/store/commitlog")

    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(QueueFiles, "search", refused)
        patch.setattr(retention, "WAIT_S", 0)
        assert await store.retention(0) == []
    assert (failed, store._log.start, files.listdir("/store/commitlog")) == ([], 0, before)
    assert await store.retention(0) == [("orders", 0, 8)]
    assert store._log.start == 8192
    await store.close()


async def test_clock_adjustment_needs_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The boot id is read from a file, at the start."""
    files = SimFiles()
    host = host_of(files)
    clock = SetClock(STARTED_MS)
    object.__setattr__(host, "clock", clock)
    store = await open_store(files, host=host)
    store.record_clock()
    object.__setattr__(host, "boot_id", lambda: pytest.fail("the boot id was read"))
    clock.ahead_ms = 3_600_000
    for _ in range(302):
        store.upkeep()
        clock.now_ms += 1_000
    assert store.now_ms() == clock.wall_ms()
    await store.close()


@BOTH
async def test_retention_keeps_consume_queue_files_that_it_cannot_list(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimFiles()
    host = host_of(files)
    store = await open_store(files, host=host, segment_bytes=4096, log_bytes_max=1, queue_file_entries=2)
    for count in range(2):
        for _ in range(12):
            append(store, b"x" * 900)
        await store.write_snapshot([count])
    with monkeypatch.context() as patch:
        names = SimFiles.listdir

        def listdir(self: SimFiles, path: str) -> list[str]:
            if "/consumequeue/" in path:
                raise OSError(number, os.strerror(number), path)
            return names(self, path)

        patch.setattr(SimFiles, "listdir", listdir)
        (moved,) = await store.retention(0)
    before = len(files.listdir("/store/consumequeue/orders/0"))
    for _ in range(12):
        append(store, b"x" * 900)
    await store.write_snapshot([2])
    assert await store.retention(0)
    assert moved[2] > 4
    assert len(files.listdir("/store/consumequeue/orders/0")) < before
    assert len(await all_bodies(store)) == 36 - store.bounds("orders", 0)[0]
    await store.close()


async def test_commit_log_on_another_file_system_rolls(monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimFiles()
    store, failed = await open_and_collect_errors(files)
    rename = SimFiles.rename

    def across(self: SimFiles, source: str, target: str) -> None:
        if "/commitlog/" in target:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), target)
        rename(self, source, target)

    monkeypatch.setattr(SimFiles, "rename", across)
    for _ in range(4):
        append(store, b"x" * 10_000)
    await confirmed(store)
    assert failed == []
    assert len(files.listdir("/store/commitlog")) == 4
    await store.close()
    again = await open_store(files, segment_bytes=SEGMENT)
    assert len(await all_bodies(again)) == 4
    await again.close()


@pytest.mark.parametrize("power", [False, True])
async def test_power_cut_between_the_renames_of_the_next_file_damages_no_segment(power: bool) -> None:
    """The rename is durable in one directory and not in the other: both names are of one file then."""
    files = SimFiles()
    store, _ = await open_and_collect_errors(files)
    files.sync_directory("/store/lockstep")
    append(store, b"first" * 2_000)
    await store.sync()
    await kill(store, files, power=power)
    store = await open_store(files, segment_bytes=SEGMENT)
    for _ in range(3):
        append(store, b"second" * 2_000)
    await store.sync()
    await kill(store, files, power=power)
    store = await open_store(files, segment_bytes=SEGMENT)
    assert await all_bodies(store) == [b"first" * 2_000, *[b"second" * 2_000] * 3]
    await store.close()
