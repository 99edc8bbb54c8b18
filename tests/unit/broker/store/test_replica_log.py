"""A store that copies the log of another one: its files, queues and state are those of its master, and nothing else gets into it."""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.store import Store, StoreCorruptError
from lockstep.broker.store.errors import StoreDiskError
from lockstep.broker.store.replica_log import ReplicaLog
from lockstep.protocol.errors import ServiceNotAvailableError, StateError
from lockstep.testing.simulation.disk import Fault, SimFiles
from support.store_kit import IDENTITY, NEVER, SYNC, Recorded, all_bodies, append, config, confirmed, host_of, kill, open_store, sequenced

SMALL = {"segment_bytes": 4096}
APPENDS = st.lists(
    st.one_of(
        st.tuples(st.just("message"), st.integers(0, 2), st.integers(1, 1500)),
        st.tuples(st.just("state"), st.integers(0, 200), st.just(0)),
        st.tuples(st.just("frame"), st.integers(0, 1), st.integers(1, 4)),
    ),
    max_size=25,
)


class Master:
    """A store with appends of several kinds, and the positions at which its turns ended."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._sent: dict[int, tuple[int, int]] = {}
        self.ends: list[int] = [0]

    async def append(self, kind: str, number: int, size: int) -> None:
        if kind == "message":
            append(self.store, b"x" * size, topic=f"topic-{number}")
        elif kind == "state":
            self.store.append_state(b"s" * number)
        else:
            first, crc = self._sent.get(number, (0, 0))
            bodies = [b"%d-%d" % (number, first + step) for step in range(size)]
            frame, sequence = sequenced(bodies, first=first, previous_crc=crc, topic="sequenced", queue_id=number)
            self.store.append_frame("sequenced", number, frame, size, born_host=bytes(8), sequenced=True)
            self._sent[number] = (first + size, sequence.crc)
        await confirmed(self.store)
        self.ends.append(self.store.log_bounds[1])


async def copy(master: Store, replica: ReplicaLog, upto: int, chunk: int) -> None:
    while replica.end < upto:
        data = await master.read_log(replica.end, min(chunk, upto - replica.end))
        replica.receive(replica.end, data)


def log_bytes(files: SimFiles) -> dict[str, bytes]:
    """Return the bytes of each file of the log up to the last that is not zero."""
    return {path: bytes(file.cache).rstrip(b"\0") for path, file in files.names.items() if "/commitlog/" in path}


def queues(store: Store) -> dict[Any, Any]:
    return {(queue.topic, queue.queue_id): (queue.min, queue.next) for queue in store._queues}


@given(appends=APPENDS, chunk=st.integers(1, 1500), applies=st.data())
def test_replica_has_the_masters_log_queues_and_state_whenever_it_applies(appends: list[Any], chunk: int, applies: st.DataObject) -> None:
    asyncio.run(_copied(appends, chunk, applies))


async def _copied(appends: list[Any], chunk: int, drawn: st.DataObject) -> None:
    files, copied = SimFiles(), SimFiles()
    master = Master(await open_store(files, **SMALL))
    taken = Recorded()
    store = await open_store(copied, recorded=taken, **SMALL)
    replica = store.follow(taken, "a replica")
    for kind, number, size in appends:
        await master.append(kind, number, size)
        behind = drawn.draw(st.integers(replica.end, master.ends[-1]))
        await copy(master.store, replica, behind, chunk)
        await replica.apply(master.ends[-1])  # it is behind: the record at its end may be there in part
        await copy(master.store, replica, master.ends[-1], chunk)
        assert replica.stored == master.ends[-1]
        await replica.apply(drawn.draw(st.sampled_from(master.ends)))
        if drawn.draw(st.integers(0, 9)) == 0:  # the process is killed: its next start applies all that it has
            await kill(store, copied)
            taken = Recorded()
            store = await open_store(copied, recorded=taken, **SMALL)
            replica = store.follow(taken, "a replica")
            assert replica.applied == replica.end == master.ends[-1]
    await replica.apply(master.ends[-1])
    assert log_bytes(copied) == log_bytes(files)
    assert queues(store) == queues(master.store)
    await master.store.close(clean=False)
    again = Recorded()
    restarted = await open_store(files, recorded=again, **SMALL)
    assert taken.states == again.states
    assert taken.frames == again.frames
    await store.close(clean=False)
    promoted = await open_store(copied, **SMALL)
    for topic, queue_id in queues(restarted):
        assert await all_bodies(promoted, topic, queue_id) == await all_bodies(restarted, topic, queue_id)
    await restarted.close(clean=False)
    await promoted.close()


@asynccontextmanager
async def following(**settings: Any) -> AsyncIterator[tuple[Master, Store, ReplicaLog]]:
    master = Master(await open_store(SimFiles(), **SMALL))
    store = await open_store(SimFiles(), **SMALL, **settings)
    yield master, store, store.follow(Recorded(), "this broker is a replica")
    await store.close(clean=False)
    await master.store.close(clean=False)


async def test_replica_takes_no_message_and_no_record_of_its_own() -> None:
    async with following() as (_, store, _):
        with pytest.raises(ServiceNotAvailableError, match="this broker is a replica"):
            append(store, b"x")
        with pytest.raises(StateError, match="takes no own records"):
            store.append_state(b"x")


async def test_bytes_that_do_not_continue_the_log_are_refused_and_change_nothing() -> None:
    async with following() as (master, _store, replica):
        await master.append("message", 0, 1000)
        await copy(master.store, replica, 300, 300)
        for position in (0, 299, 301, 5000):
            with pytest.raises(StateError, match=f"bytes of position {position} were received, and the log ends at 300"):
                replica.receive(position, b"x")
        with pytest.raises(StateError, match="its segment ends at 4096"):
            replica.receive(300, bytes(3797))
        assert replica.end == 300


async def test_failed_write_is_final_and_acknowledges_nothing() -> None:
    async with following() as (master, store, replica):
        await master.append("message", 0, 100)
        data = await master.store.read_log(0, master.ends[-1])
        failures: list[BaseException] = []
        store.writer.on_fatal = failures.append
        replica.receive(0, data[:50])
        cast(SimFiles, store._host.files).faults.append(Fault("write", error=errno.ENOSPC))
        with pytest.raises(StoreDiskError, match="the log can't be written"):
            replica.receive(50, data[50:])
        assert [type(failure) for failure in failures] == [StoreDiskError]
        assert replica.stored == 50


async def test_only_what_is_confirmed_is_applied() -> None:
    async with following() as (master, store, replica):
        for _ in range(2):
            await master.append("message", 0, 100)
        await copy(master.store, replica, master.ends[-1], 4096)
        await replica.apply(master.ends[1])
        assert (replica.applied, replica.stored) == (master.ends[1], master.ends[2])
        assert queues(store) == {("topic-0", 0): (0, 1)}


async def test_bytes_that_are_no_records_are_reported_with_their_position() -> None:
    async with following() as (master, _store, replica):
        await master.append("message", 0, 100)
        await master.append("message", 0, 100)
        data = bytearray(await master.store.read_log(0, master.ends[-1]))
        data[master.ends[1] + 100] ^= 1
        replica.receive(0, data)
        with pytest.raises(StoreCorruptError, match=f"no good record at {master.ends[1]}: the CRC of its body is wrong"):
            await replica.apply(master.ends[-1])
        assert replica.applied == master.ends[1]


async def test_bytes_are_stored_by_the_replicas_own_flush() -> None:
    async with following(flush=SYNC, **NEVER) as (master, _store, replica):
        await master.append("message", 0, 100)
        await copy(master.store, replica, master.ends[-1], 4096)
        assert replica.stored == 0
        stored = asyncio.Event()
        replica.when_stored(stored.set)
        assert not stored.is_set()
        await stored.wait()
        assert replica.stored == replica.synced == master.ends[-1]


async def test_snapshot_of_a_replica_has_what_is_applied_and_its_start_reads_on_from_there() -> None:
    async with following() as (master, store, replica):
        files = store._host.files
        assert isinstance(files, SimFiles)
        for number in range(5):
            await master.append("message", 0, 100 + number)
        await copy(master.store, replica, master.ends[-1], 4096)
        await replica.apply(master.ends[2])
        await store.write_snapshot(["as of the second message"])
        await kill(store, files)
        taken = Recorded()
        again = await open_store(files, recorded=taken, **SMALL)
        assert taken.snapshots == [["as of the second message"]]
        assert again.bounds("topic-0", 0) == (0, 5)
        assert len(await all_bodies(again, "topic-0")) == 5
        await again.close(clean=False)


# -- the master's side ---------------------------------------------------------------------------


class Copies:
    """Other copies, of which the test says what they have."""

    def __init__(self) -> None:
        self.at: int | None = 0
        self.on_disk: int | None = 0
        self.written_count = 0
        self.heard_frame: int | None = None

    def stored(self) -> int | None:
        return self.at

    def synced(self) -> int | None:
        return self.on_disk

    def written(self) -> int:
        self.written_count += 1
        return self.written_count

    def heard(self) -> int | None:
        return self.heard_frame


async def test_message_is_confirmed_and_visible_when_every_copy_has_it() -> None:
    store = await open_store(SimFiles())
    copies = store.writer.copies = Copies()
    append(store, b"one")
    answered: list[str] = []
    store.writer.when_confirmed(lambda: answered.append("confirmed"))
    store.writer.when_synced(lambda: answered.append("synced"))
    await store.sync()
    await asyncio.sleep(0)
    end = store.log_bounds[1]
    assert (answered, store.bounds("orders", 0), store.writer.confirmed, copies.written_count) == ([], (0, 0), 0, 1)
    copies.at = end - 1
    store.writer.copies_advanced()
    assert answered == []
    copies.at = end
    store.writer.copies_advanced()
    assert (answered, store.bounds("orders", 0), store.writer.confirmed) == (["confirmed"], (0, 1), end)
    copies.on_disk = end
    store.writer.copies_advanced()
    assert answered == ["confirmed", "synced"]
    copies.at = copies.on_disk = None  # the last one has left
    append(store, b"two")
    await confirmed(store)
    assert await all_bodies(store) == [b"one", b"two"]
    await store.close()


async def test_where_a_copy_may_become_master_everything_waits_until_all_have_heard_a_later_frame() -> None:
    """Also what appends nothing: a former master would go on answering it."""
    store = await open_store(SimFiles())
    writer, copies = store.writer, Copies()
    writer.copies, writer.proves_office, copies.at, copies.on_disk, copies.heard_frame = copies, True, 1 << 40, 1 << 40, 0
    answered: list[str] = []
    for name in ("first", "second"):
        writer.when_confirmed(lambda name=name: answered.append(f"{name} confirmed"))
        writer.when_in_office(lambda name=name: answered.append(f"{name} in office"))
        writer.end_turn()
    assert (answered, copies.written_count, writer.waiting_count, writer.unproven_count) == ([], 2, 4, 2)
    copies.heard_frame = 1
    writer.copies_advanced()
    assert answered == ["first confirmed", "first in office"]
    copies.at = 0  # a disk that stands still holds back what is stored, not what only needs proof
    append(store, b"one")
    writer.when_confirmed(lambda: answered.append("third confirmed"))
    writer.when_in_office(lambda: answered.append("third in office"))
    writer.end_turn()
    copies.heard_frame = 3
    writer.copies_advanced()
    assert answered[2:] == ["second confirmed", "second in office", "third in office"]
    copies.at = store.log_bounds[1]
    writer.copies_advanced()
    assert answered[5:] == ["third confirmed"]
    copies.heard_frame = None  # the last one has left
    writer.when_in_office(lambda: answered.append("alone"))
    writer.end_turn()
    assert answered[6:] == ["alone"]
    writer.when_in_office(lambda: answered.append("never"))
    writer.fail(OSError("the disk is gone"))
    copies.heard_frame = 9
    writer.copies_advanced()
    assert answered[7:] == []
    await store.close(clean=False)


async def test_snapshot_waits_for_the_copies_and_fails_with_the_store() -> None:
    store = await open_store(SimFiles())
    copies = store.writer.copies = Copies()
    append(store, b"one")
    writing = asyncio.ensure_future(store.write_snapshot(["tables"]))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not writing.done()
    assert store._directory.snapshot_positions() == []
    copies.at = store.log_bounds[1]
    store.writer.copies_advanced()
    await writing
    assert store._directory.snapshot_positions() == [store.log_bounds[1]]
    append(store, b"two")
    writing = asyncio.ensure_future(store.write_snapshot(["tables"]))
    for _ in range(50):
        await asyncio.sleep(0)
    store.writer.fail(OSError("the disk is gone"))
    with pytest.raises(StoreDiskError, match="the disk is gone"):
        await writing
    await store.close(clean=False)


async def test_files_that_the_first_sync_after_a_start_covers_are_removed_after_it() -> None:
    files = SimFiles()
    store = await open_store(files, **SMALL, **NEVER)
    for number in (1, 2):
        for _ in range(8):
            append(store, b"x" * 1000)
            await confirmed(store)
        await store.sync()
        await store.write_snapshot({"number": number})
    await kill(store, files)
    store = await Store.open(config(**SMALL, **NEVER), host_of(files), IDENTITY)
    await store.recover(Recorded())
    store.follow(Recorded(), "a replica")
    _, end = store.log_bounds
    await store.follow_retention(end)
    await store.sync()
    await store.follow_retention(end)
    assert store.log_bounds[0] > 0
    await store.close(clean=False)
