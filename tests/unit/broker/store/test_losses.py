"""Lost messages are counted alike in the event, the manifest, the metric and `store check`, also at both ends of a queue."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from lockstep.broker.store import Store, StoreCorruptError
from lockstep.broker.store.health.check import CheckReport, check_store
from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import (
    IDENTITY,
    LOG,
    PATH,
    Recorded,
    append,
    config,
    host_of,
    kill,
    no_state,
    open_store,
    read_queue_as_consumer,
    record,
    recovered,
)

SIZE = len(record(b"0" * 100))
COUNT = 90
KEYS = (("orders", 0), ("orders", 1))
SETTINGS: dict[str, Any] = {"segment_bytes": 4096}


async def create_store(files: SimFiles, **settings: Any) -> list[tuple[str, int, int]]:
    """Cleanly stop a store with COUNT messages in two queues; return topic, queue and log position of each."""
    store = await open_store(files, **SETTINGS, **settings)
    places = []
    for number in range(COUNT):
        append(store, b"%d" % (number % 10) * 100, queue_id=number % 2)
        places.append(("orders", number % 2, store._state.last_record))
    await store.write_snapshot(["tables"])
    await store.close()
    return places


def logs(files: SimFiles) -> list[str]:
    return sorted(path for path in files.names if "/commitlog/" in path)


def swap(files: SimFiles) -> None:
    first, second, *_ = logs(files)
    files.names[first], files.names[second] = files.names[second], files.names[first]
    files.durable_names.update(files.names)


def remove_all(files: SimFiles) -> None:
    for path in logs(files):
        files.remove_tree(path)


HARMS: dict[str, tuple[Callable[[SimFiles], None], Callable[[int], bool]]] = {
    "the first file is missing": (lambda files: files.remove_tree(logs(files)[0]), lambda at: at < 4096),
    "a middle file is missing": (lambda files: files.remove_tree(logs(files)[1]), lambda at: 4096 <= at < 8192),
    "the last file is missing": (lambda files: files.remove_tree(logs(files)[-1]), lambda at: at >= 16384),
    "all files are missing": (remove_all, lambda at: True),
    "two files are swapped": (swap, lambda at: at < 8192),
    "the beginning is zero": (lambda files: files.overwrite(LOG, 0, bytes(3 * SIZE)), lambda at: at < 3 * SIZE),
    "a bit of the first message": (lambda files: files.flip(LOG, 100), lambda at: at == 0),
    "a bit of the last message": (lambda files: None, lambda at: False),
}


def ranges(lost: dict[tuple[str, int], list[int]]) -> list[list[object]]:
    """Return [topic, queue, first, end] of consecutive offsets."""
    rows: list[list[Any]] = []
    for (topic, queue_id), offsets in lost.items():
        for offset in offsets:
            if rows and rows[-1][:2] == [topic, queue_id] and rows[-1][3] == offset:
                rows[-1][3] = offset + 1
            else:
                rows.append([topic, queue_id, offset, offset + 1])
    return sorted(rows)


def expected(places: list[tuple[str, int, int]], is_lost: Callable[[int], bool]) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = {key: [] for key in KEYS}
    following = dict.fromkeys(KEYS, 0)
    for topic, queue_id, position in places:
        if is_lost(position):
            found[topic, queue_id].append(following[topic, queue_id])
        following[topic, queue_id] += 1
    return found


async def run_check(files: SimFiles) -> CheckReport:
    return await check_store(files, PATH, lambda position, end: None, no_state)


def named(report: CheckReport) -> list[str]:
    return sorted(problem.where for problem in report.problems if problem.kind == "messages")


def as_named(rows: list[list[Any]]) -> list[str]:
    return sorted(f"{topic} queue {queue_id} offsets {first} to {end - 1}" for topic, queue_id, first, end in rows)


async def create_damaged(files: SimFiles, harm: str) -> dict[tuple[str, int], list[int]]:
    """Damage a cleanly stopped store; return the lost offsets."""
    places = await create_store(files)
    change, is_lost = HARMS[harm]
    if harm == "a bit of the last message":
        last = places[-1][2]
        files.flip(logs(files)[-1], last % 4096 + 100)
        return expected(places, lambda at: at == last)
    change(files)
    return expected(places, is_lost)


@pytest.mark.parametrize("harm", [harm for harm in HARMS if harm != "a bit of the first message"])
async def test_event_manifest_metric_and_check_name_the_same_lost_messages(harm: str, caplog: pytest.LogCaptureFixture) -> None:
    files = SimFiles()
    lost = await create_damaged(files, harm)
    rows = ranges(lost)
    count = sum(map(len, lost.values()))
    caplog.clear()
    store, found = await recovered(files, cut_corrupt=True, **SETTINGS)
    (said,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("store.set_aside")]
    assert (f" lost_messages={count} " in said, found.lost_messages, found.lost_synced) == (True, count, True)
    manifest = json.loads(bytes(files.names[f"{PATH}/lockstep/set-aside-1/manifest.json"].cache))
    assert (manifest["lost_messages"], sorted(manifest["lost_offsets"])) == (count, rows)
    assert sorted(map(list, store.damage.lost())) == rows
    assert store.damage.message_count == count
    assert store.scrubber.damaged_bytes >= count * SIZE
    for key in KEYS:
        assert store.bounds(*key) == (0, COUNT // 2)
        assert (await read_queue_as_consumer(store, *key)).lost == lost[key]
    for round_number in range(2):
        await store.close()
        report = await run_check(files)
        assert (report.lost_messages, named(report)) == (count, as_named(rows))
        store, found = await recovered(files, **SETTINGS)
        assert (found.lost_messages, store.damage.message_count) == (0, count)
        assert append(store, b"next") == COUNT // 2 + round_number, "no offset is given twice"
    await store.close()


@pytest.mark.parametrize("harm", HARMS)
async def test_check_reports_lost_messages_at_both_ends_of_a_queue(harm: str) -> None:
    files = SimFiles()
    lost = await create_damaged(files, harm)
    report = await run_check(files)
    assert (report.lost_messages, named(report)) == (sum(map(len, lost.values())), as_named(ranges(lost)))


@pytest.mark.parametrize("harm", ["two files are swapped", "a bit of the first message", "a bit of the last message"])
async def test_scrub_finds_lost_messages_at_both_ends_of_a_queue(harm: str) -> None:
    """The log is damaged while the broker runs."""
    files = SimFiles()
    rows = ranges(await create_damaged(files, harm))
    harm_again = {path: bytes(files.names[path].cache) for path in logs(files)}
    files = SimFiles()
    await create_store(files)
    store = await open_store(files, scrub_bytes_per_s=1 << 40, **SETTINGS)
    for path, data in harm_again.items():
        end = files.names[path].used_bytes if path == logs(files)[-1] else len(data)
        files.overwrite(path, 0, data[:end])
    for _ in range(2):
        await store.scrubber.run(asyncio.Event())
        await store._repairs.idle.wait()
        assert sorted(map(list, store.damage.lost())) == rows
    await store.close()


async def test_scrub_does_not_report_messages_appended_while_it_runs() -> None:
    files = SimFiles()
    await create_store(files)
    store = await open_store(files, scrub_bytes_per_s=1 << 40, **SETTINGS)
    read = store.scrubber._read

    async def read_and_append(*where: Any) -> bytes:
        append(store, b"new", queue_id=0)
        append(store, b"new", topic="bills")
        return await read(*where)

    store.scrubber._read = read_and_append
    await store.scrubber.run(asyncio.Event())
    await store._repairs.idle.wait()
    assert (store.damage.message_count, store._repairs.repaired_count, store.scrubber.pass_count) == (0, 0, 1)
    await store.close()


async def test_check_finds_a_last_message_after_the_snapshot_by_the_queue_entries() -> None:
    files = SimFiles()
    store = await open_store(files, **SETTINGS)
    append(store, b"0" * 100)
    await store.write_snapshot(["tables"])
    for _ in range(9):
        append(store, b"0" * 100)
    await store.close()
    files.flip(LOG, store._state.last_record + 100)
    assert named(await run_check(files)) == ["orders queue 0 offsets 9 to 9"]
    store, found = await recovered(files, cut_corrupt=True, **SETTINGS)
    assert (found.lost_messages, store.damage.lost()) == (1, [("orders", 0, 9, 10)])
    for _ in range(2):
        assert append(store, b"next") == store.bounds("orders", 0)[1] >= 10, "no offset is given twice"
        await kill(store, files)
        store = await open_store(files, **SETTINGS)
        assert store.damage.lost() == [("orders", 0, 9, 10)]
        assert (await read_queue_as_consumer(store)).lost == [9]
    await store.close()


# -------------------------------------------------------------------------------------------------------------- with deleted topics


@pytest.mark.parametrize("missing", [0, 1, 2])
@pytest.mark.parametrize("again", [False, True])
async def test_messages_of_a_deleted_topic_are_not_counted_as_lost(missing: int, again: bool) -> None:
    """With `again` the topic was created again and has new messages."""
    files = SimFiles()
    store = await open_store(files, **SETTINGS)
    for number in range(COUNT):
        append(store, b"%d" % (number % 10) * 100, topic="old" if number < 50 else "orders", queue_id=number % 2)
    store.drop_topic("old")
    for _ in range(20 if again else 0):
        append(store, b"new" * 33, topic="old")
    await store.write_snapshot(["tables"])
    await store.close()
    files.remove_tree(logs(files)[missing])
    before = await run_check(files)
    store, found = await recovered(files, cut_corrupt=True, **SETTINGS)
    assert store.bounds("old", 0) == ((25, 45) if again else (25, 25))
    reported = [(await read_queue_as_consumer(store, topic, queue_id)).lost for topic in ("old", "orders") for queue_id in (0, 1)]
    count = sum(map(len, reported))
    assert (count > 0) == (missing == 2)
    assert before.lost_messages == found.lost_messages == store.damage.message_count == count
    await store.close()
    assert (await run_check(files)).lost_messages == count


async def test_messages_of_a_topic_deleted_after_the_snapshot_are_not_counted_as_lost() -> None:
    files = SimFiles()
    store = await open_store(files, **SETTINGS)
    for number in range(30):
        append(store, b"%d" % (number % 10) * 100, queue_id=number % 2)
    store.append_state(b"drop orders")
    await store.close()
    files.flip(LOG, 4 * SIZE + 100)
    recorded = Recorded()
    store = await Store.open(config(cut_corrupt=True, **SETTINGS), host_of(files), IDENTITY)
    recorded.on_state = lambda body: store.drop_topic("orders") if body == b"drop orders" else None
    found = await store.recover(recorded)
    assert store.bounds("orders", 0) == (15, 15)
    assert (found.lost_messages, store.damage.message_count) == (0, 0)
    manifest = json.loads(bytes(files.names[f"{PATH}/lockstep/set-aside-1/manifest.json"].cache))
    assert (manifest["lost_messages"], manifest["lost_offsets"]) == (0, [])
    await store.sync()
    await store.close()


# ------------------------------------------------------------------------------------------------------------------ with retention


async def create_with_retention(files: SimFiles) -> int:
    """Return a cleanly stopped store from which retention has removed files, and the position at which its log begins."""
    store = await open_store(files, log_bytes_max=9_000, **SETTINGS)
    for number in range(COUNT):
        append(store, b"%d" % (number % 10) * 100, queue_id=number % 2)
    await store.write_snapshot([])
    await store.retention(0)
    await store.write_snapshot([])
    start = store._log.start
    assert start > 0
    await store.close()
    return start


async def test_messages_removed_by_retention_are_not_counted_as_lost() -> None:
    files = SimFiles()
    start = await create_with_retention(files)
    assert (await run_check(files)).problems == []
    store = await open_store(files, **SETTINGS)
    lows = [store.bounds(*key)[0] for key in KEYS]
    await store.close()
    files.remove_tree(f"{PATH}/commitlog/{start:020d}")
    before = await run_check(files)
    store, found = await recovered(files, cut_corrupt=True, **SETTINGS)
    assert [store.bounds(*key)[0] for key in KEYS] == lows
    lost = [(await read_queue_as_consumer(store, *key)).lost for key in KEYS]
    assert [offsets[0] for offsets in lost] == lows
    assert before.lost_messages == found.lost_messages == store.damage.message_count == sum(map(len, lost)) > 0
    await store.close()


async def test_retention_by_age_removes_the_damage_record_of_a_missing_file() -> None:
    """The missing file has no record, so the next file with a record decides."""
    files = SimFiles()
    await create_store(files)
    files.remove_tree(logs(files)[0])
    files.remove_tree(logs(files)[0])
    store, _ = await recovered(files, cut_corrupt=True, retention_ms=1_000, **SETTINGS)
    for _ in range(2):
        append(store, b"x" * 100)
        await store.write_snapshot([])
    await store.retention(1 << 60)
    assert store._log.start == 16384
    assert (store.damage.message_count, store.scrubber.damaged_bytes) == (0, 0)
    await store.close()


async def test_damaged_last_message_of_a_queue_without_files_is_lost_not_removed() -> None:
    """Retention has run since the snapshot, and the message is the snapshot's last record."""
    files = SimFiles()
    store = await open_store(files, log_bytes_max=9_000, **SETTINGS)
    for queue_id, count in ((1, 3), (0, 70), (1, 1)):
        for _ in range(count):
            append(store, b"x" * 100, queue_id=queue_id)
        await store.write_snapshot([])
    await store.retention(0)
    assert [store.bounds(*key) for key in KEYS][1] == (3, 4)
    position = store._queues.get(("orders", 1)).min_position
    await store.close()
    files.flip(f"{PATH}/commitlog/{position - position % 4096:020d}", position % 4096 + 100)
    files.remove_tree(f"{PATH}/consumequeue/orders/1")
    store, found = await recovered(files, cut_corrupt=True, **SETTINGS)
    low, high = store.bounds("orders", 1)
    assert (high, (await read_queue_as_consumer(store, "orders", 1)).lost) == (4, list(range(low, 4)))
    assert found.lost_messages == 4 - low > 0
    await store.close()


@pytest.mark.parametrize("saved", [True, False])
async def test_known_damage_stays_recorded_when_retention_removes_its_beginning(saved: bool) -> None:
    """`saved` False: the broker was killed before it could write the table of damage again."""
    files = SimFiles()
    await create_store(files)
    for _ in range(2):
        files.remove_tree(logs(files)[0])
    store, _ = await recovered(files, cut_corrupt=True, log_bytes_max=16_000, **SETTINGS)
    for _ in range(2):
        append(store, b"x" * 100)
        await store.write_snapshot([])
    before = bytes(files.names[f"{PATH}/lockstep/damage"].cache)
    await store.retention(0)
    assert (store._log.start, store.damage.ranges, store.scrubber.damaged_bytes) == (4096, {4096: 8192}, 4096)
    await store.close()
    if not saved:
        StoreDirectory(files, PATH).save_damage(before)
    report = await run_check(files)
    assert (report.damaged_bytes, report.lost_messages) == (4096, 0)
    files.remove_tree(f"{PATH}/consumequeue/orders")
    store, found = await recovered(files, **SETTINGS)
    assert (found.lost_synced, store.damage.ranges) == (False, {4096: 8192})
    # Without the queues' files it is unknown which of the lost messages retention has removed.
    assert [(await read_queue_as_consumer(store, *key)).lost for key in KEYS] == 2 * [[] if saved else list(range(20))]
    await store.close()


# --------------------------------------------------------------------------------------------- without a record of the log's beginning


async def test_start_fails_if_the_first_file_and_the_start_record_are_missing() -> None:
    """The snapshot records the beginning of the log."""
    files = SimFiles()
    await create_store(files)
    files.unlink(f"{PATH}/lockstep/start")
    files.remove_tree(LOG)
    with pytest.raises(StoreCorruptError, match=f"log file {LOG} is missing: the log begins at 4096, expected 0") as refused:
        await recovered(files, **SETTINGS)
    assert refused.value.position == 0
    files.crash(power=False)
    assert [problem.kind for problem in (await run_check(files)).problems][:1] == ["file"]
    store, found = await recovered(files, cut_corrupt=True, **SETTINGS)
    assert found.lost_messages == store.damage.message_count == 4096 // SIZE
    await store.close()


async def test_intact_log_is_served_without_the_start_record() -> None:
    files = SimFiles()
    start = await create_with_retention(files)
    files.unlink(f"{PATH}/lockstep/start")
    store, found = await recovered(files, Recorded(), **SETTINGS)
    assert (store._log.start, found.lost_messages) == (start, 0)
    await store.close()
