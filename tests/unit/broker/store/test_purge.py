"""Messages that were deleted or purged with their topic are hidden from every read, for good, while their bytes are still in the log."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lockstep.broker.store import ReadStatus, Store
from lockstep.broker.store.health.check import check_store
from lockstep.broker.store.queues.search import SearchLimits, Wanted
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import (
    IDENTITY,
    PATH,
    LoopThreads,
    Recorded,
    all_bodies,
    append,
    config,
    confirmed,
    host_of,
    kill,
    no_state,
    open_store,
    read_queue_as_consumer,
)

COUNT = 20
SETTINGS = {"segment_bytes": 4096, "queue_file_entries": 4, "tail_bytes": 512, "scrub_bytes_per_s": 1 << 40, "flush_interval_ms": 1_000_000}
KEY = b"KEYS\x01k"
LIMITS = SearchLimits(64, 1 << 30, 1 << 60)


async def create_store(files: SimFiles, count: int = COUNT, **settings: int) -> Store:
    """Return a store with a queue of single messages."""
    store = await open_store(files, **{**SETTINGS, **settings})
    for number in range(count):
        append(store, b"%d" % number, properties=KEY)
    await confirmed(store)
    return store


def texts(first: int, end: int = COUNT) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def purge(store: Store, minimum: int) -> None:
    """Purge the queue as the broker's state does."""
    store.append_state(b"%d" % minimum)
    store.hide_below("orders", 0, minimum)


async def start(files: SimFiles) -> Store:
    """Start a store whose log has the records of `purge`."""
    recorded, store = Recorded(), await Store.open(config(**SETTINGS), host_of(files), IDENTITY)
    recorded.on_state = lambda body: store.hide_below("orders", 0, int(body))
    await store.recover(recorded)
    await store.sync()
    return store


HIDES: dict[str, tuple[Callable[[Store], None], int]] = {
    "purge": (lambda store: store.hide_below("orders", 0, 15), 15),
    "purge of all": (lambda store: store.hide_below("orders", 0, COUNT), COUNT),
    "deletion": (lambda store: store.drop_topic("orders"), COUNT),
}


@pytest.mark.parametrize(("hide", "first"), HIDES.values(), ids=HIDES)
async def test_hidden_messages_are_found_by_no_read(hide: Callable[[Store], None], first: int) -> None:
    store = await create_store(SimFiles())
    entries = [await store.queue_entry("orders", 0, offset) for offset in range(COUNT)]
    places = [entry[0] for entry in entries if entry is not None]
    assert [await store.record_at(place) is not None for place in places] == [True] * COUNT
    hide(store)
    assert store.bounds("orders", 0) == (first, COUNT)
    result = await store.read_or_wait("orders", 0, first - 1, 1, 1)
    assert (result.status, result.next_offset, result.min_offset) == (ReadStatus.OFFSET_TOO_SMALL, first, first)
    assert await all_bodies(store) == texts(first)
    found = await store.search(Wanted(b"k"), LIMITS)
    assert len(found.records) == COUNT - first
    assert [await store.record_at(place) is not None for place in places] == [False] * first + [True] * (COUNT - first)
    assert await store.offset_by_time("orders", 0, 0) == first
    assert (await store.first_stored_ms("orders", 0) is None) == (first == COUNT)
    assert [await store.queue_entry("orders", 0, offset) is not None for offset in (first - 1, first)] == [False, first < COUNT]
    assert [row[:3] for row in store.queue_totals()] == [("orders", COUNT, COUNT - first)]
    assert store.stored_queue_ids("orders") == ([] if first == COUNT else [0])
    assert not store.young_queue("orders", 0, 0)
    assert append(store, b"new") == COUNT, "offsets are not used again"
    await confirmed(store)
    assert await all_bodies(store) == [*texts(first), b"new"]
    await store.close()


async def test_purge_never_lowers_the_first_offset_and_never_goes_beyond_what_is_there() -> None:
    store = await create_store(SimFiles())
    store.hide_below("orders", 0, 5)
    store.hide_below("orders", 0, 3)
    store.hide_below("unknown", 0, 3)
    assert store.bounds("orders", 0) == (5, COUNT)
    store.hide_below("orders", 0, COUNT + 5)
    assert store.bounds("orders", 0) == (COUNT, COUNT)
    await store.close()


@pytest.mark.parametrize("minimum", [1, 4, 15, COUNT])
@pytest.mark.parametrize("snapshots", ["none", "before", "after", "before and after"])
@pytest.mark.parametrize("power", [False, True])
async def test_purge_is_kept_over_crashes(minimum: int, snapshots: str, power: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Found by a start from a snapshot and the log after it, and from the log alone. Queues are not written again for it."""
    files = SimFiles()
    store = await create_store(files)
    if "before" in snapshots:
        await store.write_snapshot([])
    purge(store, minimum)
    append(store, b"new", properties=KEY)
    if "after" in snapshots:
        await store.write_snapshot([])
    await store.sync()
    for _ in range(2):
        await kill(store, files, power=power)
        store = await start(files)
        assert await all_bodies(store) == [*texts(minimum), b"new"]
        assert store.bounds("orders", 0) == (minimum, COUNT + 1)
        assert len((await store.search(Wanted(b"k"), LIMITS)).records) == COUNT + 1 - minimum
    assert "queues.rebuilding" not in caplog.text
    await store.scrubber.run(asyncio.Event())
    assert (store.damage.message_count, store.scrubber.damaged_bytes, store.scrubber.pass_count) == (0, 0, 1)
    await store.write_snapshot([])
    await store.close()
    assert (await check_store(files, PATH, lambda position, end: None, no_state)).problems == []


@pytest.mark.parametrize("minimum", [15, COUNT])
@pytest.mark.parametrize("snapshot", [False, True])
async def test_purge_of_which_the_log_has_no_record_has_removed_nothing(minimum: int, snapshot: bool) -> None:
    """A power cut came before the record was durable, and after the files of a queue without messages were removed."""
    files = SimFiles()
    store = await create_store(files)
    if snapshot:
        await store.write_snapshot([])
    await store.sync()
    purge(store, minimum)
    await kill(store, files, power=True)
    store = await start(files)
    assert await all_bodies(store) == texts(0)
    assert store.damage.message_count == 0
    await store.close()


class HeldThreads(LoopThreads):
    """Holds the first call of a method from `hold` on, until `release`."""

    def hold(self, name: str) -> None:
        self._name, self._reached, self._go_on = name, asyncio.Event(), asyncio.Event()

    async def run(self, function: Callable[..., Any], *args: object) -> Any:
        if function.__name__ == getattr(self, "_name", None):
            self._reached.set()
            await self._go_on.wait()
        return await super().run(function, *args)

    async def reached(self) -> None:
        await self._reached.wait()

    def release(self) -> None:
        self._go_on.set()


@pytest.mark.parametrize("name", ["read", "pread"], ids=["the entries", "the log"])
async def test_read_that_waits_for_the_disk_returns_nothing_that_was_purged_meanwhile(name: str) -> None:
    files, threads = SimFiles(), HeldThreads()
    store = await create_store(files)
    await store.write_snapshot([])
    await store.close()
    store = await open_store(files, host=replace(host_of(files), threads=threads), **SETTINGS)
    files.cached_reads = False
    threads.hold(name)
    reading = asyncio.ensure_future(store.read_cold("orders", 0, 2, max_count=2, max_bytes=1 << 20))
    await threads.reached()
    store.hide_below("orders", 0, 3)
    threads.release()
    result = await reading
    assert (result.status, result.next_offset, result.count) == (ReadStatus.OFFSET_TOO_SMALL, 3, 0)
    await store.close()


@pytest.mark.parametrize("minimum", [2, 8, 12, COUNT])
async def test_retention_goes_on_after_a_purge(minimum: int) -> None:
    """It moves the first offset only above the purge, and removes the files of a queue when its records are gone."""
    files = SimFiles()
    store = await open_store(files, log_bytes_max=9_000, **SETTINGS)
    for number in range(COUNT):
        append(store, b"%d" % number + b"x" * 900)
    await confirmed(store)
    store.hide_below("orders", 0, minimum)
    await store.write_snapshot([])
    await store.write_snapshot([])
    moved = await store.retention(0)
    first = max(12, minimum)
    assert moved == ([("orders", 0, 12)] if minimum < 12 else [])
    assert store.bounds("orders", 0) == (first, COUNT)
    append(store, b"new")
    await confirmed(store)
    content = await read_queue_as_consumer(store)
    assert (list(content.found), content.lost) == ([*range(first, COUNT + 1)], [])
    await store.close()
    store = await open_store(files, **SETTINGS)
    assert store.bounds("orders", 0) == (first, COUNT + 1)
    await store.close()


async def test_purge_while_retention_searches_for_the_new_first_offset_wins() -> None:
    files, threads = SimFiles(), HeldThreads()
    store = await open_store(files, host=replace(host_of(files), threads=threads), log_bytes_max=9_000, **SETTINGS)
    for number in range(COUNT):
        append(store, b"%d" % number + b"x" * 900)
    await confirmed(store)
    await store.write_snapshot([])
    await store.write_snapshot([])
    threads.hold("search")
    removing = asyncio.ensure_future(store.retention(0))
    await threads.reached()
    store.hide_below("orders", 0, 17)
    threads.release()
    assert await removing == []
    assert store.bounds("orders", 0) == (17, COUNT)
    queue = store._queues.get(("orders", 0))
    assert queue is not None
    assert queue.min_position == store.log_bounds[0], "a lower bound that is in the log"
    content = await read_queue_as_consumer(store)
    assert (list(content.found), content.lost) == ([17, 18, 19], [])
    await store.close()
