"""Snapshots: the one that a start uses, the replay after it, and when the next one is due."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.broker.store import StoreCorruptError
from lockstep.broker.store.start import snapshot
from lockstep.broker.store.start.snapshot import CHUNK_BYTES, HEAD, MAGIC, PART_BYTES, PARTS_PER_SLICE, Snapshot, decode, encode
from lockstep.protocol.crc import crc32
from lockstep.protocol.errors import StateError
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import LOG, NEVER, PATH, Recorded, all_bodies, append, confirmed, host_of, kill, open_store, recovered


async def test_two_snapshots_are_kept_and_the_newest_is_used() -> None:
    files = SimFiles()
    store = await open_store(files)
    for number in range(4):
        append(store, b"x")
        store.append_state(b"%d" % number)
        await store.write_snapshot({"number": number})
    store.append_state(b"behind")
    await confirmed(store)
    await kill(store, files)
    assert len([name for name in files.listdir("/store/lockstep") if name.startswith("snapshot-")]) == 2
    recorded = Recorded()
    store, _ = await recovered(files, recorded)
    assert (recorded.snapshots, recorded.states) == ([{"number": 3}], [b"behind"])
    assert store.bounds("orders", 0) == (0, 4)
    await store.close()


@pytest.mark.parametrize("at", [0, 9, 25, -1])
async def test_damaged_newest_snapshot_falls_back_to_the_older_one(at: int) -> None:
    files = SimFiles()
    store = await open_store(files)
    store.append_state(b"one")
    await store.write_snapshot(["older"])
    store.append_state(b"two")
    await store.write_snapshot(["newer"])
    store.append_state(b"three")
    await store.close()
    newest = max(path for path in files.names if "snapshot-" in path)
    files.flip(newest, at if at >= 0 else len(files.names[newest].cache) - 1)
    recorded = Recorded()
    store, _ = await recovered(files, recorded)
    assert (recorded.snapshots, recorded.states) == ([["older"]], [b"two", b"three"])
    await store.close()


async def test_snapshot_ahead_of_the_log_is_ignored_and_removed() -> None:
    """If it stayed, it would be used once the log has grown past its position."""
    files = SimFiles()
    store = await open_store(files)
    store.append_state(b"one")
    await store.write_snapshot(["older"])
    older = store._log.end
    store.append_state(b"two")
    await store.write_snapshot(["ahead"])
    ahead = store._log.end
    await store.close()
    files.overwrite(LOG, older, bytes(ahead - older))
    files.overwrite("/store/lockstep/synced", 0, bytes(1024))
    recorded = Recorded()
    store, found = await recovered(files, recorded)
    assert (recorded.snapshots, recorded.states, found.end) == ([["older"]], [], older)
    store.append_state(b"TWO")
    assert store._log.end == ahead
    await store.close()
    recorded = Recorded()
    store, _ = await recovered(files, recorded)
    assert (recorded.snapshots, recorded.states) == ([["older"]], [b"TWO"])
    await store.close()


async def test_snapshot_contains_the_changes_of_its_own_turn_once() -> None:
    files = SimFiles()
    store = await open_store(files)
    journal = [b"change"]

    def write() -> None:
        if journal:
            store.append_state(journal.pop())

    store.writer.before_write = write
    store.writer.request_write()
    await store.write_snapshot(["with the change"])
    await kill(store, files)
    recorded = Recorded()
    store, _ = await recovered(files, recorded)
    assert (recorded.snapshots, recorded.states) == ([["with the change"]], [])
    await store.close()


async def test_snapshot_is_due_by_bytes_or_by_time_since_a_change() -> None:
    files = SimFiles()
    host = host_of(files)
    store = await open_store(files, host=host, snapshot_bytes=1_000, snapshot_interval_ms=60_000)
    now = host.clock.monotonic_ms()
    assert not store.snapshot_due(now + 1_000_000)
    append(store, b"x")
    assert not store.snapshot_due(now + 59_999)
    assert store.snapshot_due(now + 60_000)
    append(store, b"x" * 900)
    assert store.snapshot_due(now)
    await store.write_snapshot([])
    assert not store.snapshot_due(now + 1_000_000)
    await store.close()


async def test_snapshot_is_written_after_the_log_is_durable_up_to_it() -> None:
    files = SimFiles()
    store = await open_store(files, **NEVER)
    append(store, b"x")
    await store.write_snapshot([])
    order = [path for path in files.syncs if "commitlog" in path or "snapshot" in path or "synced" in path]
    last = len(order) - 1 - next(i for i, path in enumerate(reversed(order)) if "snapshot" in path)
    assert LOG in order[:last]
    assert store._directory.slot_position == store._log.end
    await store.close()


async def test_truncated_log_without_a_valid_snapshot_is_corrupt() -> None:
    files = SimFiles()
    store = await open_store(files, segment_bytes=4096, log_bytes_max=4096)
    for _ in range(60):
        append(store, b"x" * 100)
    await store.write_snapshot(["a"])
    append(store, b"y")
    await store.write_snapshot(["b"])
    assert await store.retention(0)
    await store.close()
    for path in [path for path in files.names if "snapshot-" in path]:
        files.flip(path, 30)
    with pytest.raises(StoreCorruptError, match="no snapshot in /store/lockstep fits the log"):
        await recovered(files)
    files.crash(power=False)
    damaged = {path.rpartition("/")[2]: bytes(files.names[path].cache) for path in files.names if "snapshot-" in path}
    for lost_synced in (True, False):
        store, found = await recovered(files, cut_corrupt=lost_synced)
        assert (found.lost_synced, found.lost_messages) == (lost_synced, 0), "state that is given up is an assumed loss, once"
        assert (await all_bodies(store))[-1] == b"y"
        start = store._log.start
        await store.close()
    aside = f"{PATH}/lockstep/set-aside-1"
    assert {name: bytes(files.names[f"{aside}/{name}"].cache) for name in damaged} == damaged
    assert json.loads(bytes(files.names[f"{aside}/manifest.json"].cache))["state_lost_before"] == start
    assert not files.exists(f"{PATH}/lockstep/set-aside-2")


def sealed(payload: bytes) -> bytes:
    """Return a snapshot file with a valid header for the payload."""
    return HEAD.pack(MAGIC, crc32(payload), len(payload)) + payload


CLOCK: dict[str, object] = {"steps": [], "reading": None}


PLAIN = st.recursive(st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5) | st.binary(max_size=5), st.lists, max_leaves=12)


@given(st.binary(max_size=80) | st.binary(max_size=80).map(sealed) | PLAIN.map(msgpack.packb).map(sealed))
@example(HEAD.pack(MAGIC, 0, 0) + bytes(100))
@example(sealed(b""))
@example(sealed(bytes(10)))
@example(sealed(msgpack.packb([1, 2, 3, 4, [[1, 2]], None, CLOCK, None, 0])))
@example(sealed(msgpack.packb([1, 2, 3, 4, [["t", 0, "x", 1]], None, CLOCK, None, 0])))
@example(sealed(msgpack.packb(["x", 2, 3, 4, [], None, CLOCK, None, 0])))
@example(sealed(msgpack.packb([1, 2, 3, 4, [], None, [], None, 0])))
@example(sealed(msgpack.packb([1, 2, 3, 4, [], None, {}, None, 0])))
@example(sealed(msgpack.packb([1, 2, 3, 4, [], None, CLOCK, "x", 0])))
@example(sealed(msgpack.packb([1, 2, 3, 4, [], None, CLOCK, None, None])))
@example(sealed(msgpack.packb([1, 2, 3, 4, [], None, CLOCK, None])))
@example(sealed(b"\x91" * 3_000))
def test_decode_returns_none_for_an_invalid_snapshot(data: bytes) -> None:
    assert decode(data) is None


@given(st.binary(max_size=30), st.integers(0, 2**40), st.none() | st.binary(max_size=9), st.data())
def test_snapshot_round_trips_and_one_changed_byte_invalidates_it(plain: bytes, position: int, head: bytes | None, data: Any) -> None:
    written = encode(position, -1, 5, 6, [["orders", 0, 1, 2]], plain, CLOCK, head, 3)
    assert decode(written) == Snapshot(position, -1, 5, 6, [("orders", 0, 1, 2)], plain, CLOCK, head, 3)
    at = data.draw(st.integers(0, len(written) - 1))
    assert decode(written[:at] + bytes([written[at] ^ data.draw(st.integers(1, 255))]) + written[at + 1 :]) is None
    assert decode(written[:at]) is None


async def test_snapshot_rows_are_built_and_packed_in_slices_of_a_turn() -> None:
    files = SimFiles()
    store = await open_store(files, segment_bytes=4096)
    append(store, b"a")
    made = [0]

    def rows() -> Iterator[list[object]]:
        for number in range(10 * PARTS_PER_SLICE):
            made[-1] += 1
            yield [number, "x" * (number % 5) * PART_BYTES]

    plain = {"few": [1, 2], "many": SnapshotRows(10 * PARTS_PER_SLICE, rows)}
    writing = asyncio.ensure_future(store.write_snapshot(plain))
    await asyncio.sleep(0)
    with pytest.raises(StateError, match="being written"):
        await store.write_snapshot([])
    assert not store.snapshot_due(1 << 40)
    append(store, b"behind it")
    while not writing.done():
        made.append(0)
        await asyncio.sleep(0)
    await writing
    assert sum(made) == 10 * PARTS_PER_SLICE
    assert max(made) <= PARTS_PER_SLICE
    assert len([count for count in made if count]) > 20, "large rows count for more"
    await kill(store, files)
    recorded = Recorded()
    store, _ = await recovered(files, recorded)
    many = [[number, "x" * (number % 5) * PART_BYTES] for number in range(10 * PARTS_PER_SLICE)]
    assert recorded.snapshots == [{"few": [1, 2], "many": many}]
    await store.close()


async def test_each_turn_joins_and_checks_at_most_a_chunk_of_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [0]

    def counted(data: bytes, before: int = 0) -> int:
        taken[-1] += len(data)
        return crc32(data, before)

    store = await open_store(SimFiles())
    rows = SnapshotRows(40 * PARTS_PER_SLICE, lambda: ([number, "x" * PART_BYTES] for number in range(40 * PARTS_PER_SLICE)))
    append(store, b"a")
    await confirmed(store)
    monkeypatch.setattr(snapshot, "crc32", counted)
    writing = asyncio.ensure_future(store.write_snapshot({"many": rows}))
    while not writing.done():
        taken.append(0)
        await asyncio.sleep(0)
    await writing
    whole = store._directory.read(store._snapshots._path(store._log.written))
    assert whole is not None
    assert sum(taken) == len(whole) - HEAD.size > 4 * CHUNK_BYTES
    assert max(taken) < 2 * CHUNK_BYTES
    assert decode(whole) is not None
    await store.close()


@given(st.lists(st.tuples(st.text(max_size=3), st.integers(0, 9)), max_size=40))
def test_snapshot_rows_are_packed_like_a_list(rows: list[tuple[str, int]]) -> None:
    tables = {"a": rows, "b": {"c": rows, "d": 5}}
    as_rows = {"a": SnapshotRows(len(rows), lambda: rows), "b": {"c": SnapshotRows(len(rows), lambda: iter(rows)), "d": 5}}
    assert encode(1, -1, 5, 6, SnapshotRows(0, lambda: ()), as_rows, [], None, 0) == encode(1, -1, 5, 6, [], tables, [], None, 0)


def test_non_integer_number_invalidates_a_snapshot() -> None:
    written = encode(1, -1, 5, 6, [], None, CLOCK | {"steps": [[float("inf"), 0, 0, 0]]}, None, 0)
    assert decode(written) is None
