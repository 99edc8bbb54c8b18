"""A store under random operations and crashes, and the laws that are checked after each."""

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Any

from lockstep.broker.store import FlushMode, Store
from lockstep.protocol.errors import ServiceNotAvailableError, StoreError
from lockstep.protocol.messages.record import RecordView, split_records
from lockstep.protocol.messages.sequence import FrameSequence
from lockstep.testing.simulation.disk import Fault, SimFiles
from support.store_kit import BORN_HOST, IDENTITY, Recorded, abandon, config, host_of, record, sequenced

QUEUES = (("orders", 0), ("orders", 1), ("bills", 0))
Key = tuple[str, int]
TERM = b"a start's own state record"
"""A record appended between recovery and the first sync, as a broker does. It may survive an interrupted start."""


@dataclass
class Sent:
    """A message or state record, in log order."""

    key: Key | None
    offset: int
    body: bytes
    end: int
    """The log position after it, or after its frame if that is idempotent."""
    acknowledged: bool = False


@dataclass
class World:
    """A store directory across several process lives."""

    seed: int
    flush: FlushMode
    files: SimFiles = field(init=False)
    log: list[Sent] = field(default_factory=list)
    """The records that the log has or may have."""
    snapshot_states: list[bytes] = field(default_factory=list)
    scopes: dict[Key, FrameSequence] = field(default_factory=dict)
    store: Store = field(init=False)
    number: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    restarts: int = 0
    lost: int = 0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.files = SimFiles(self.seed, short_writes=self.random.random() < 0.3, cached_reads=self.random.random() < 0.7)
        self.durable = 0
        """The synced log position when the process died."""

    # -- work ------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the store, check its contents, sync."""
        recorded = Recorded()
        self.store = store = await Store.open(config(flush=self.flush, **self.settings), host_of(self.files), IDENTITY)
        found = await store.recover(recorded)
        self.found_end = found.end
        store.append_state(TERM)
        await store.sync()
        await self.check(recorded)
        self.restarts += 1

    def body(self, size: int) -> bytes:
        self.number += 1
        return b"%d:" % self.number + b"." * size

    async def step(self) -> None:
        """Do a random operation."""
        kind = self.random.choices(("frame", "sequenced", "state", "turn", "sync", "snapshot", "close"), (8, 3, 3, 6, 1, 1, 0.2))[0]
        if kind == "frame":
            key = self.random.choice(QUEUES)
            bodies = [self.body(self.random.choice((0, 10, 100, 900))) for _ in range(self.random.randint(1, 5))]
            records = [record(body, topic=key[0], queue_id=key[1]) for body in bodies]
            self._append(key, bodies, b"".join(records), [len(one) for one in records])
        elif kind == "sequenced":
            key = self.random.choice(QUEUES)
            last = self.scopes.get(key)
            bodies = [self.body(self.random.choice((0, 300))) for _ in range(self.random.randint(1, 4))]
            crc, first = (last.crc, last.next) if last else (0, 0)
            frame, sequence = sequenced(bodies, first=first, previous_crc=crc, topic=key[0], queue_id=key[1])
            self._append(key, bodies, frame, [len(frame)] + [0] * (len(bodies) - 1), sequenced=True)
            self.scopes[key] = sequence
        elif kind == "state":
            body = self.body(self.random.choice((5, 200)))
            self.store.append_state(body)
            self._sent([Sent(None, 0, body, self.store._log.end)])
        elif kind == "turn":
            await asyncio.sleep(0)
        elif kind == "sync":
            await self.store.sync()
        elif kind == "snapshot":
            states = [sent.body for sent in self.log if sent.key is None]
            scopes = {f"{topic}|{queue}": [s.epoch, s.first, s.count, s.crc] for (topic, queue), s in self.scopes.items()}
            await self.store.write_snapshot([states, scopes])
            await self.store.retention(1 << 60)
        else:
            await self.store.close()
            await self.open()

    def _append(self, key: Key, bodies: list[bytes], frame: bytes, sizes: list[int], *, sequenced: bool = False) -> None:
        """`sizes` are the parts of the frame that can survive alone."""
        appended = self.store.append_frame(*key, frame, len(bodies), born_host=BORN_HOST, sequenced=sequenced)
        ends = [appended.physical_offset + end for end in accumulate(sizes)]
        sent = [Sent(key, appended.queue_offset + i, body, end) for i, (body, end) in enumerate(zip(bodies, ends, strict=True))]
        self._sent(sent)

    def _sent(self, sent: list[Sent]) -> None:
        self.log += sent

        def acknowledge() -> None:
            for one in sent:
                one.acknowledged = True

        self.store.writer.when_confirmed(acknowledge)

    async def live(self, steps: int, crash_after: int, *, power: bool) -> None:
        """Run until the steps are done or the process dies at the n-th modifying operation, then crash."""
        fatal: list[BaseException] = []
        self.store.writer.on_fatal = fatal.append
        self.files.countdown = crash_after
        if self.random.random() < 0.3:
            operation, path = self.random.choice(
                (("write", "commitlog"), ("sync", "commitlog"), ("sync", ""), ("write", ""), ("create", ""))
            )
            error = self.random.choice((errno.EIO, errno.ENOSPC))
            self.files.faults = [Fault(operation, path, error, skip=self.random.randrange(30))]
        try:
            for _ in range(steps):
                if fatal:
                    break
                await self.step()
        except (StoreError, ServiceNotAvailableError, OSError):
            assert self.files.dead or fatal or not self.files.faults[0].count
        self.durable = self.store._log.synced
        abandon(self.store)
        await asyncio.sleep(0)
        self.power = power
        self.files.crash(power=power)

    async def crash_in_recovery(self, crash_after: int, *, power: bool) -> None:
        """Start the store and crash during recovery."""
        self.files.countdown = crash_after
        try:
            store = await Store.open(config(flush=self.flush, **self.settings), host_of(self.files), IDENTITY)
        except (StoreError, OSError):
            assert self.files.dead
        else:
            try:
                found = await store.recover(Recorded())
                self.discard_after(found.end)
                store.append_state(TERM)
                await store.sync()
            except (StoreError, OSError):
                assert self.files.dead
            abandon(store)
            await asyncio.sleep(0)
        # Durable data remains durable, even if the power was cut in between.
        self.power = self.power or power
        self.files.crash(power=power)

    # -- laws ------------------------------------------------------------------------------------

    async def check(self, recorded: Recorded) -> None:
        """Check that the surviving records are a prefix of the appended ones and include those that had to survive."""
        self.discard_after(self.found_end)
        for sent in self.log:
            sent.acknowledged = True  # recovered, synced: confirmed
        self._check_states(recorded)
        self._check_scopes(recorded)
        for key in QUEUES:
            await self._check_queue(key)

    def discard_after(self, end: int) -> None:
        """Discard the records after the end of the log that a start found, and check that none of them had to survive."""
        survived = [sent for sent in self.log if sent.end <= end]
        lost = self.log[len(survived) :]
        self.lost += len(lost)
        for sent in lost:
            must = sent.acknowledged and (not self.power or self.flush is FlushMode.SYNC or sent.end <= self.durable)
            assert not must, f"lost {sent}, log ends at {end}, was durable to {self.durable}"
        self.log = survived

    power: bool = False

    def _check_states(self, recorded: Recorded) -> None:
        expected = [sent.body for sent in self.log if sent.key is None]
        base: list[bytes] = []
        if recorded.snapshots:
            snapshot: Any = recorded.snapshots[0]
            base = snapshot[0]
        found = base + [body for body in recorded.states if body != TERM]
        assert found == expected, "state records are not those that were appended"

    def _check_scopes(self, recorded: Recorded) -> None:
        found: dict[Key, list[int]] = {}
        if recorded.snapshots:
            snapshot: Any = recorded.snapshots[0]
            for name, values in snapshot[1].items():
                topic, _, queue = name.partition("|")
                found[topic, int(queue)] = values
        for (_, _, topic, queue_id), (epoch, first, following, crc, _), _ in recorded.frames:
            found[topic, queue_id] = [epoch, first, following - first, crc]
        scopes = {}
        for key, (epoch, first, count, crc) in found.items():
            scopes[key] = FrameSequence("ab" * 16, 0, epoch, first, count, False, crc)
        for key, scope in scopes.items():
            assert scope.next <= self.scopes[key].next, "a frame was invented"
        self.scopes = scopes

    async def _check_queue(self, key: Key) -> None:
        expected = {sent.offset: sent.body for sent in self.log if sent.key == key}
        low, high = self.store.bounds(*key)
        assert self.store.end_offset(*key) == high
        assert high == max(expected, default=-1) + 1, f"{key}: ends at {high}"
        found = await read_all(self.store, key)
        assert sorted(found) == list(range(low, high)), f"{key}: offsets are not dense"
        for offset, body in found.items():
            assert expected[offset] == body, f"{key} {offset}"


async def read_all(store: Store, key: Key) -> dict[int, bytes]:
    """Return queue offset → body of every readable message. Check that each record has its own offset."""
    offset, high = store.bounds(*key)
    found: dict[int, bytes] = {}
    while offset < high:
        result = await store.read_cold(*key, offset, max_count=5, max_bytes=3000)
        data = b"".join(result.parts)
        for number, (start, _) in enumerate(split_records(data)):
            view = RecordView(data, start)
            assert view.queue_offset == offset + number
            assert view.crc_matches()
            found[view.queue_offset] = view.body
        assert result.next_offset > offset
        offset = result.next_offset
    return found


async def universe(
    seed: int, flush: FlushMode, *, lives: int = 3, steps: int = 40, settings: Callable[[Random], dict[str, Any]] | None = None
) -> World:
    """Run several lives of a store from a seed. Each life ends with a crash, each start is checked, and a second start finds the same."""
    random = Random(seed)
    world = World(seed, flush, settings=settings(random) if settings else {})
    await world.open()
    for _ in range(lives):
        await world.live(random.randrange(steps), random.randrange(random.choice((10, 60, 400))), power=random.random() < 0.6)
        if random.random() < 0.3:
            await world.crash_in_recovery(random.randrange(1, 40), power=random.random() < 0.6)
        await world.open()
    before = list(world.log)
    abandon(world.store)
    await asyncio.sleep(0)
    world.files.crash(power=False)
    world.power = False
    await world.open()
    assert before == world.log, "opening again changed something"
    abandon(world.store)
    return world
