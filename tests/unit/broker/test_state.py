"""A broker's state is a function of its log: live, replayed from the whole log, or from any snapshot and the rest of the log."""

import asyncio
from random import Random
from typing import Any

import pytest

from lockstep.broker.groups.heartbeats import Heartbeat
from lockstep.broker.maintenance import StoreMaintenance
from lockstep.broker.state import BrokerState
from lockstep.broker.store import Store
from lockstep.broker.store.start import recovery, snapshot
from lockstep.broker.tables.sequence_table import Scope, StoredFrame
from lockstep.protocol.bodies import HeartbeatBody, LockItem, LockVerdict, SessionLockBody, SyncBody, SyncItem
from lockstep.protocol.messages.record import encode_record
from lockstep.protocol.messages.sequence import FrameSequence, seal_frame
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.runtime.host import SystemRandom
from lockstep.testing.simulation.disk import SimFiles
from support.coordination_kit import BROKER, CONFIG, GROUP, TOPIC, ordered
from support.store_kit import BORN_HOST, IDENTITY, NEVER, abandon, all_bodies, config, host_of

PRODUCERS = ("ab" * 16, "cd" * 16)


class BrokerRun:
    """One run of the tables on a store, driven without a network."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.state = BrokerState(CONFIG, store, SystemRandom())
        self.counter = 0
        self.connection = 0
        self.scopes: dict[tuple[str, int], FrameSequence] = {}
        self.held: dict[int, int] = {}

    def begin(self) -> None:
        coordination = self.state.coordination
        coordination.enter_term(coordination.state.term + 1, assumed_loss=False, now_ms=0)
        coordination.port_opened(0)
        self.lay_out(2)

    def lay_out(self, queues: int) -> None:
        """Create, widen or (0) delete the topic."""
        self.counter += 1
        entries = (LayoutEntry(BROKER, queues, queues, self.counter),) if queues else ()
        self.state.topics.adopt([TopicLayout(TOPIC, LayoutVersion(self.counter, 7), entries)])

    def send(self, producer: str, queue_id: int, count: int, body: bytes = b"x") -> int:
        """Append an idempotent frame and return its position in the log."""
        last = self.scopes.get((producer, queue_id))
        first, crc = (last.next, last.crc) if last else (0, 0)
        records = [encode_record(TOPIC.encode(), queue_id, body, b"TAGS\x01a", born_ms=1) for _ in range(count)]
        frame, sealed = seal_frame(records, FrameSequence(producer, 0, 1, first, count, first == 0, 0), crc)
        appended = self.store.append_frame(TOPIC, queue_id, frame, count, born_host=BORN_HOST, sequenced=True)
        stored = StoredFrame(appended.queue_offset, appended.physical_offset, appended.store_timestamp)
        self.state.sequences.record_frame(Scope(producer, 0, TOPIC, queue_id), sealed, stored)
        self.scopes[producer, queue_id] = sealed
        return appended.physical_offset

    def join(self) -> None:
        self.connection += 1
        body = HeartbeatBody("a@1#0", (ordered(),), session="0" * 32, connection=self.connection)
        self.state.coordination.membership.heartbeat(self.connection, Heartbeat.from_body(body), 0)

    def lock(self, queue_id: int) -> None:
        reply = self.state.coordination.lock_sync.lock(self.connection, SessionLockBody((LockItem(GROUP, TOPIC, queue_id),)), 0)
        assert reply is not None
        self.held = {response.queue_id: response.epoch or 0 for response in reply.items if response.verdict is LockVerdict.OK}

    def commit(self, queue_id: int, offset: int, *, release: bool) -> None:
        item = SyncItem(GROUP, TOPIC, queue_id, epoch=self.held.get(queue_id, 0), offset=offset, release=release)
        self.state.coordination.lock_sync.sync(self.connection, SyncBody((item,)), 0)

    def purge(self, queue_id: int, minimum: int) -> None:
        """Purge a queue, and move the groups that had not consumed what was removed."""
        self.state.purge(TOPIC, {queue_id: minimum})
        for _ in self.state.coordination.skip_removed({(TOPIC, queue_id): minimum}):
            pass

    async def step(self, random: Random) -> None:
        queue_id = random.randrange(2)
        match random.choice(("send", "send", "send", "join", "lock", "lock", "commit", "commit", "purge", "layout", "turn", "turn")):
            case "send" if self.state.topics.find_layout(TOPIC) is not None:
                self.send(random.choice(PRODUCERS), queue_id, random.randint(1, 4))
            case "join":
                self.join()
            case "lock" if self.connection:
                self.lock(queue_id)
            case "commit" if self.connection:
                self.commit(queue_id, random.randrange(20), release=random.random() < 0.3)
            case "purge":
                self.purge(queue_id, random.randint(0, self.store.bounds(TOPIC, queue_id)[1]))
            case "layout" if random.random() < 0.3:
                self.lay_out(random.choice((0, 2, 3)))
            case _:
                await asyncio.sleep(0)


async def start_run(files: SimFiles) -> BrokerRun:
    life = BrokerRun(await Store.open(config(**NEVER), host_of(files), IDENTITY))
    await life.store.recover(life.state)
    await life.store.sync()
    return life


async def kill_run(life: BrokerRun, files: SimFiles) -> dict[str, Any]:
    """Kill the broker; return its tables and queues at that time."""
    await life.store.sync()
    seen = tables(life)
    abandon(life.store)
    await asyncio.sleep(0)
    files.crash(power=False)
    return seen


def tables(life: BrokerRun) -> dict[str, Any]:
    return {**life.state.take_snapshot(), "bounds": [life.store.bounds(TOPIC, queue_id) for queue_id in range(3)]}


async def test_frame_repeated_into_a_recreated_topic_is_not_a_repeat() -> None:
    """For a producer with the same id, the response named an offset that can't be read."""
    files = SimFiles()
    life = await start_run(files)
    life.begin()
    life.send(PRODUCERS[0], 0, 2)
    life.lay_out(0)
    life.lay_out(2)
    assert len(life.state.sequences) == 0
    life.scopes.clear()
    life.send(PRODUCERS[0], 0, 2)
    seen = await kill_run(life, files)
    again = await start_run(files)
    assert len(again.state.sequences) == 1
    assert tables(again) == seen
    await again.store.close()


@pytest.mark.parametrize("seed", range(30))
async def test_log_and_snapshot_with_tail_replay_to_the_live_state(seed: int) -> None:
    random, files = Random(seed), SimFiles(seed)
    life = await start_run(files)
    life.begin()
    for _ in range(60):
        await life.step(random)
        if random.random() < 0.05:
            await life.store.write_snapshot(life.state.take_snapshot())
    expected = await kill_run(life, files)
    life = await start_run(files)
    assert tables(life) == expected
    await kill_run(life, files)
    for path in [path for path in files.names if "snapshot-" in path]:
        del files.names[path]
    life = await start_run(files)
    assert tables(life) == expected
    await kill_run(life, files)


@pytest.mark.parametrize("snapshot", [True, False])
async def test_frame_with_changed_bytes_ends_the_log_even_as_the_first_after_a_snapshot(snapshot: bool) -> None:
    """The body's CRC covers no properties, the frame's does: from the end of the frame before it, which the snapshot holds."""
    files = SimFiles()
    life = await start_run(files)
    life.begin()
    life.send(PRODUCERS[0], 0, 2)
    if snapshot:
        await life.store.write_snapshot(life.state.take_snapshot())
    at = life.send(PRODUCERS[0], 0, 2)
    life.store.writer.end_turn()
    end = life.store._log.end
    abandon(life.store)
    await asyncio.sleep(0)
    files.crash(power=False)
    files.flip("/store/commitlog/00000000000000000000", end - 1)
    life = BrokerRun(await Store.open(config(**NEVER), host_of(files), IDENTITY))
    found = await life.store.recover(life.state)
    assert (found.end, life.store.end_offset(TOPIC, 0)) == (at, 2)
    await kill_run(life, files)


@pytest.mark.parametrize("turns", range(6))
async def test_topic_recreated_during_a_snapshot_is_empty_after_a_start(turns: int) -> None:
    """A snapshot of later tables would have the new topic at a position before the deletion, which a start then skips."""
    files = SimFiles()
    life = await start_run(files)
    life.begin()
    life.send(PRODUCERS[0], 0, 2)
    await life.store.sync()
    writing = asyncio.ensure_future(StoreMaintenance(host_of(files), life.store, life.state).snapshot())
    for _ in range(turns):
        await asyncio.sleep(0)
    life.lay_out(0)
    life.lay_out(2)
    assert life.store.bounds(TOPIC, 0) == (2, 2)
    await writing
    seen = await kill_run(life, files)
    again = await start_run(files)
    assert tables(again) == seen
    await again.store.close()


@pytest.mark.parametrize("again", [False, True])
async def test_topic_deleted_during_a_snapshot_needs_no_second_scan_at_the_next_start(again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entries are not written again, although the snapshot records them as written."""
    scans: list[int] = []

    class Scan(recovery.LogScan):
        async def run(self, *args: Any, **named: Any) -> None:
            scans.append(1)
            await super().run(*args, **named)

    monkeypatch.setattr(recovery, "LogScan", Scan)
    monkeypatch.setattr(snapshot, "PARTS_PER_SLICE", 1)
    files = SimFiles(1)
    life = await start_run(files)
    life.begin()
    life.send(PRODUCERS[0], 0, 4)
    await life.store.sync()
    writing = asyncio.ensure_future(life.store.write_snapshot(life.state.take_snapshot()))
    await asyncio.sleep(0)
    life.lay_out(0)
    if again:
        life.scopes.clear()
        life.lay_out(2)
        life.send(PRODUCERS[0], 0, 3)
    await writing
    seen = await kill_run(life, files)
    scans.clear()
    life = await start_run(files)
    assert len(scans) == 1
    assert tables(life) == seen
    assert life.store.bounds(TOPIC, 0) == (4, 7 if again else 4)
    assert len(await all_bodies(life.store, TOPIC, 0)) == (3 if again else 0)
    await life.store.close()
