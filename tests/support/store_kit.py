"""A store on files in memory, with a stopped clock and threads that run in the loop."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from lockstep.broker.rocketmq_store.opening import OpenedStore
from lockstep.broker.rocketmq_store.opening import open_store as open_as_broker
from lockstep.broker.store import FlushMode, Identity, ReadStatus, Recovery, Store, StoreConfig
from lockstep.broker.store.health.check import Removals
from lockstep.broker.store.log.commit_log import AbsentFile
from lockstep.broker.store.log.stored_record import CopyPlace, Ended, FirstPlace, FrameEnd, FrameRow, ScopeKey
from lockstep.broker.store.start.directory import StoreIdentity
from lockstep.protocol.errors import SystemBusyError
from lockstep.protocol.messages.record import encode_record
from lockstep.protocol.messages.sequence import FrameSequence, seal_frame
from lockstep.runtime.host import Host
from lockstep.testing.simulation.disk import SimFiles
from support.clocks import SetClock

BORN_HOST = bytes([127, 0, 0, 1, 0, 0, 0x1F, 0x90])
IDENTITY = Identity("test", "broker-a")
PATH = "/store"
LOG = "/store/commitlog/00000000000000000000"
NEVER = {"flush_interval_ms": 1_000_000}
"""An interval that never ends: only the test syncs."""


STARTED_MS = 1_700_000_000_000


class LongFile(AbsentFile):
    """A file of `data` and zeros up to `size`."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data = data
        self._size = size

    def pread(self, count: int, offset: int) -> bytes:
        count = max(0, min(count, self._size - offset))
        return self._data[offset : offset + count].ljust(count, b"\0")


class SeededRandom:
    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def token(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def below(self, limit: int) -> int:
        return self._random.randrange(limit)


class LoopThreads:
    """Threads whose `run` yields one loop turn and then calls the function. If `held` is set, it waits for it first."""

    def __init__(self) -> None:
        self.held: asyncio.Event | None = None
        self.run_count = 0

    async def run(self, function: Callable[..., Any], *args: object) -> Any:
        self.run_count += 1
        await asyncio.sleep(0)
        if self.held is not None:
            await self.held.wait()
        return function(*args)

    def start_daemon(self, function: Callable[[], None], name: str) -> None:
        raise NotImplementedError

    def ident(self) -> int:
        raise NotImplementedError

    def close(self) -> None:
        pass


@dataclass
class Recorded:
    """A Replay that records its calls."""

    snapshots: list[object] = field(default_factory=list)
    states: list[bytes] = field(default_factory=list)
    frames: list[FrameRow] = field(default_factory=list)
    ends: list[Ended] = field(default_factory=list)
    waiting: list[tuple[str, int, int, int]] = field(default_factory=list)
    """(Topic, queue offset, due code, era) of the messages in waiting rooms."""
    on_state: Callable[[bytes], None] | None = None

    def replay_snapshot(self, plain: object) -> None:
        self.snapshots.append(plain)

    def replay_state(self, body: bytes) -> None:
        self.states.append(body)
        if self.on_state is not None:
            self.on_state(body)

    def crc_before(self, scope: ScopeKey, epoch: int, first: int, store_ms: int) -> int | None:
        return None

    def ended(self, ended: Ended, place: CopyPlace) -> None:
        self.ends.append(ended)

    def waits(self, topic: str, offset: int, dues: list[int], era: int, first: int | None = None) -> None:
        self.waiting += [(topic, at, due, era) for at, due in enumerate(dues, offset)]

    def scopes_fit(self, count: int) -> bool:
        return False  # so that it gets every frame

    def frame(self, scope: ScopeKey, end: FrameEnd, place: FirstPlace) -> None:
        self.frames.append((scope, end, place))


def no_state(_identity: StoreIdentity, _removals: Removals) -> Recorded:
    """Return the tables of a store from which no operator has removed anything, for `check_store`."""
    return Recorded()


def config(**settings: Any) -> StoreConfig:
    """Return a config with small files: 16 KiB of log, 32 entries."""
    values: dict[str, Any] = {
        "path": PATH,
        "segment_bytes": 16 * 1024,
        "queue_file_entries": 32,
        "disk_reserve_bytes": 0,
        "disk_used_percent_max": 100,
        "flush_interval_ms": 1,
    }
    return StoreConfig(**{**values, **settings})


def host_of(files: SimFiles) -> Host:
    clock: Any = SetClock(STARTED_MS)
    return Host(clock, SeededRandom(7), files, LoopThreads(), lambda: "boot-1")


async def recovered(
    files: SimFiles, recorded: Recorded | None = None, *, host: Host | None = None, **settings: Any
) -> tuple[Store, Recovery]:
    """Open, recover and sync a store. Return it and the result of the recovery."""
    store = await Store.open(config(**settings), host or host_of(files), IDENTITY)
    found = await store.recover(recorded or Recorded())
    await store.sync()
    return store, found


async def opened(files: SimFiles, *, adopt: bool = False, **settings: Any) -> OpenedStore:
    """Open a store as a broker does, after a look at whether another broker has written to it. Recover and sync it."""
    found = await open_as_broker(config(**settings), host_of(files), IDENTITY, adopt=adopt)
    await found.store.recover(Recorded())
    await found.store.sync()
    return found


async def open_store(files: SimFiles, *, host: Host | None = None, recorded: Recorded | None = None, **settings: Any) -> Store:
    return (await recovered(files, recorded, host=host, **settings))[0]


def record(body: bytes, *, topic: str = "orders", queue_id: int = 0, properties: bytes = b"", **fields: int) -> bytes:
    return encode_record(topic.encode(), queue_id, body, properties, born_ms=1_700_000_000_000, **fields)


def append(store: Store, *bodies: bytes, topic: str = "orders", queue_id: int = 0, properties: bytes = b"", trusted: bool = False) -> int:
    """Append a frame, of the broker itself if `trusted`. Return its first queue offset."""
    frame = b"".join(record(body, topic=topic, queue_id=queue_id, properties=properties) for body in bodies)
    return store.append_frame(topic, queue_id, frame, len(bodies), born_host=BORN_HOST, trusted=trusted).queue_offset


def sequenced(bodies: list[bytes], *, first: int, previous_crc: int, epoch: int = 1, **place: Any) -> tuple[bytes, FrameSequence]:
    """Return an idempotent frame and its sequence."""
    sequence = FrameSequence("ab" * 16, 0, epoch, first, len(bodies), False, 0)
    return seal_frame([record(body, **place) for body in bodies], sequence, previous_crc)


async def confirmed(store: Store) -> None:
    """Wait until all appended frames are confirmed."""
    done = asyncio.Event()
    store.writer.when_confirmed(done.set)
    await done.wait()


def abandon(store: Store) -> None:
    """Abandon the store as if its process was killed: its tasks never run again."""
    store.writer.flusher.abandon()
    for task in list(store._tasks._tasks):
        task.cancel()


async def kill(store: Store, files: SimFiles, *, power: bool = False) -> None:
    abandon(store)
    await asyncio.sleep(0)
    files.crash(power=power)


def bodies_of(parts: list[bytes]) -> list[bytes]:
    from lockstep.protocol.messages.record import RecordView, split_records

    data = b"".join(parts)
    return [RecordView(data, start).body for start, _ in split_records(data)]


async def all_bodies(store: Store, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
    """Return the bodies of all readable messages, from the minimum offset on."""
    offset, _ = store.bounds(topic, queue_id)
    found: list[bytes] = []
    while True:
        result = await store.read_cold(topic, queue_id, offset, max_count=7, max_bytes=4096)
        if not result.parts and result.next_offset <= offset:
            return found
        bodies = bodies_of(result.parts)
        assert len(bodies) == result.count
        found += bodies
        offset = result.next_offset


@dataclass
class QueueContent:
    """The messages that a reader of one queue received, and the offsets that were reported as lost."""

    found: dict[int, bytes] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    """Offsets."""
    busy_count: int = 0


async def read_queue_as_consumer(store: Store, topic: str = "orders", queue_id: int = 0) -> QueueContent:
    """Read a queue as a consumer does: retry after SYSTEM_BUSY, skip a LOST gap. Each step must advance."""
    from lockstep.protocol.messages.record import RecordView, split_records

    reported = QueueContent()
    offset, high = store.bounds(topic, queue_id)
    while offset < high:
        try:
            result = await store.read_or_wait(topic, queue_id, offset, 7, 4096)
        except SystemBusyError:
            reported.busy_count += 1
            assert reported.busy_count < 200, f"{topic} {queue_id} at {offset} stays busy"
            await store._repairs.idle.wait()
            continue
        assert result.next_offset > offset, f"{topic} {queue_id} at {offset}: {result.status}"
        if result.status is ReadStatus.LOST:
            reported.lost += range(offset, result.next_offset)
        data = b"".join(result.parts)
        for number, (start, _) in enumerate(split_records(data)):
            view = RecordView(data, start)
            assert (view.topic.decode(), view.queue_id, view.queue_offset) == (topic, queue_id, offset + number)
            reported.found[view.queue_offset] = view.body
        offset = result.next_offset
    return reported


SYNC = FlushMode.SYNC
ASYNC = FlushMode.ASYNC
