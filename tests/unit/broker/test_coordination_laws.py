"""Random interleavings against the laws O1-O3, as far as one broker can break them, and against replay.

An operation is four small numbers that are interpreted in the current state: none is filtered out, and a failing run shrinks
to a few operations.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.broker.groups.contract import contract_of, mixing_refusal
from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.groups.effects import CloseConnection
from lockstep.broker.groups.heartbeats import Heartbeat
from lockstep.broker.journal import Journal, decode_changes
from lockstep.broker.store.start.snapshot import encode
from lockstep.protocol.bodies import (
    ConsumerGroup,
    GroupEventKind,
    HeartbeatReply,
    LockItem,
    LockVerdict,
    MemberList,
    SessionLockBody,
    SyncBody,
    SyncItem,
)
from lockstep.protocol.errors import BrokerError, NoPermissionError
from lockstep.protocol.topics.queue import LayoutVersion, TopicLayout
from support.coordination_kit import GRACE, GROUP, TIMEOUT, TOPIC, Bench, ClassicClient, Client, layout, ordered, replay

QUEUES = 3
END = 1_000
STEPS_MS = (1, 499, 500, 1_000, GRACE - 1, GRACE, 7_000, TIMEOUT - 1, TIMEOUT, 61_000)

Op = tuple[int, int, int, int]


@dataclass
class Running:
    """The rights of a session: the epochs that it was granted and has not released, and the time of its last accepted request.

    A new connection has no accepted request before the response to its first LOCK.
    """

    epochs: dict[int, int] = field(default_factory=dict)
    proven_ms: int = -(10**9)
    locked_on: int = 0


class Told:
    """What the events of the group say, from here on: its members, and who holds which queue under which epoch."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.members, self.holders = self.truth()
        self.bench.c.state.events.stamp(bench.now_ms, bench.now_ms)
        self.last = self.bench.c.state.events.read(0, GROUP, 1 << 30)[1]

    def truth(self) -> tuple[set[str], dict[tuple[str, int], tuple[str | None, int]]]:
        state = self.bench.c.state
        group = state.groups.get(GROUP)
        holders = {key[1:]: (lock.client_id, lock.epoch) for key, lock in state.locks.locks_of_group(GROUP) if lock.held}
        return set() if group is None else set(group.members), holders

    def check(self) -> None:
        self.bench.c.state.events.stamp(self.bench.now_ms, self.bench.now_ms)
        events, self.last = self.bench.c.state.events.read(self.last, GROUP, 1 << 30)
        for event in events:
            queue = (event.topic or "", event.queue_id or 0)
            match event.kind:
                case GroupEventKind.JOINED:
                    self.members.add(str(event.client_id))
                case GroupEventKind.LEFT:
                    self.members.remove(str(event.client_id))
                case GroupEventKind.GRANTED | GroupEventKind.RENEWED | GroupEventKind.SUPERSEDED:
                    self.holders[queue] = event.client_id, event.epoch or 0
                case GroupEventKind.FREED | GroupEventKind.LOST | GroupEventKind.ENDED:
                    assert self.holders.pop(queue)[0] == event.client_id
        assert (self.members, self.holders) == self.truth(), events


class World:
    """The broker, its clients, and the laws checked on all responses so far."""

    def __init__(self) -> None:
        self.bench = Bench(layout(queues=QUEUES))
        self.counter = 1
        self.clients = [Client(self.bench, name) for name in "abc"]
        self.clients.append(Client(self.bench, "a", session="f" * 32))
        self.classics = [ClassicClient(self.bench, name) for name in "yz"]
        self.running = {client.session: Running() for client in self.clients}
        self.stood: dict[str, tuple[ConsumerGroup, ...]] = {}
        self.closing: list[tuple[int, Client | ClassicClient | None]] = []
        self.grantee: dict[tuple[int, int], str] = {}
        self.highest: dict[int, int] = {}
        self.offsets: dict[tuple[int, int], int] = {}
        self.generation: dict[int, int] = {}
        self.version = (0, 0)
        self.lists: dict[tuple[int, int], MemberList] = {}
        self.told = Told(self.bench)

    # ------------------------------------------------------------------------------------------------------------------- ops

    def do(self, op: Op) -> None:
        kind, who, queue_id, number = op
        client = self.clients[who % len(self.clients)]
        classic = self.classics[who % len(self.classics)]
        actions = (
            lambda: self.connect(client),
            lambda: self.connect(client),
            lambda: self.close(client),
            lambda: self.beat(client),
            lambda: self.lock(client, queue_id, number),
            lambda: self.lock(client, queue_id, number),
            lambda: self.lock(client, queue_id, number),
            lambda: self.sync(client, queue_id, number),
            lambda: self.sync(client, queue_id, number),
            lambda: self.late(queue_id, number),
            lambda: self.leave(client),
            lambda: self.change_contract(client, number),
            lambda: self.advance(number),
            lambda: self.advance(number),
            lambda: self.classic_lock(classic, queue_id),
            lambda: classic.unlock(queue_id % QUEUES),
            lambda: self.classic_member(classic, number),
            lambda: self.update(classic, queue_id, number),
            lambda: self.bench.retention_moved({(TOPIC, queue_id % QUEUES): number % 40}),
            lambda: self.restart(number),
            lambda: self.recreate(number),
            self.forget,
        )
        needs_connection = kind in (2, 3, 4, 5, 6, 7, 8, 10, 11)
        if client.connection or not needs_connection:
            actions[kind]()
        self.carry_out(number)
        self.bench.flush()

    def carry_out(self, number: int) -> None:
        """The broker closes the connection; the close event follows some operations later, and late bytes may arrive before it."""
        owners = {each.connection: each for each in (*self.clients, *self.classics)}
        for effect in self.bench.drain(CloseConnection):
            owner = owners.get(effect.connection)
            self.closing.append((effect.connection, owner))
            if owner is not None:
                owner.connection = 0
        if self.closing and number % 3 == 0:
            connection, _ = self.closing.pop(0)
            self.bench.c.membership.connection_closed(connection, self.bench.now_ms)

    def connect(self, client: Client) -> None:
        self.heartbeat(client, client.connect)

    def beat(self, client: Client) -> None:
        self.heartbeat(client, client.beat)

    def heartbeat(self, client: Client, send: Callable[[], HeartbeatReply | None]) -> None:
        """Change the client's contract: it releases everything that it held under the old one."""
        try:
            reply = send()
        except BrokerError:
            return
        if reply is not None and client.groups and self.stood.get(client.session, client.groups) != client.groups:
            self.running[client.session].epochs = {}
        if reply is not None and client.groups:
            self.stood[client.session] = client.groups

    def close(self, client: Client) -> None:
        client.close()

    def leave(self, client: Client) -> None:
        client.groups = (ordered(),) if not client.groups else ()
        if not client.groups:
            self.bench.c.membership.unregister(client.connection, client.name, GROUP, self.bench.now_ms)

    def change_contract(self, client: Client, number: int) -> None:
        topics = (TOPIC, "refunds")[: 1 + number // 12 % 2]
        client.groups = (ordered(topics=topics, expression=("*", "x", "x || y", "y")[number % 4], contract_version=number // 4 % 3),)
        self.beat(client)

    def lock(self, client: Client, wants: int, keeps: int) -> None:
        """Name some of the queues that the client believes to hold, and request some of the others."""
        mine = self.running[client.session].epochs
        items = [LockItem(GROUP, TOPIC, q, e, offset=keeps % 50) for q, e in mine.items() if keeps >> q & 1 or keeps % 3 == 0]
        named = {item.queue_id for item in items}
        items += [LockItem(GROUP, TOPIC, q) for q in range(QUEUES) if q not in named and wants >> q & 1]
        self.send_lock(client, client.connection, tuple(items))

    def late(self, wants: int, number: int) -> None:
        """Send bytes on a connection that the broker is closing."""
        if not self.closing:
            return
        connection, owner = self.closing[number % len(self.closing)]
        before = self.bench.c.snapshot()
        queue = (GROUP, TOPIC, wants % QUEUES)
        if number % 4 == 0 and isinstance(owner, Client):
            assert self.bench.c.membership.heartbeat(connection, Heartbeat.from_body(owner.body()), self.bench.now_ms) is None
        elif number % 4 == 1:
            assert self.bench.c.lock_sync.sync(connection, SyncBody((SyncItem(*queue, epoch=1, release=True),)), self.bench.now_ms) is None
        else:
            assert self.bench.c.lock_sync.lock(connection, SessionLockBody((LockItem(*queue),)), self.bench.now_ms) is None
        assert self.bench.c.snapshot() == before

    def send_lock(self, client: Client, connection: int, items: tuple[LockItem, ...]) -> None:
        before = dict(self.running[client.session].epochs)
        reply = self.bench.c.lock_sync.lock(connection, SessionLockBody(items), self.bench.now_ms)
        if reply is None:
            return
        running = self.running[client.session]
        running.proven_ms, running.locked_on = self.bench.now_ms, connection
        running.epochs = {}
        for response in reply.items:
            if response.verdict is LockVerdict.OK:
                self.granted(client.session, response.queue_id, response.epoch, before)
                running.epochs[response.queue_id] = response.epoch
            elif response.verdict is LockVerdict.REFUSED and response.queue_id in before:
                running.epochs[response.queue_id] = before[response.queue_id]

    def granted(self, session: str, queue_id: int, epoch: int, before: dict[int, int]) -> None:
        """O1: one epoch, one session; epochs never fall. O3: the previous holder has released the queue, or its lease has expired."""
        assert self.grantee.setdefault((queue_id, epoch), session) == session, "an epoch was granted to two sessions"
        if before.get(queue_id) == epoch:
            assert epoch == self.highest[queue_id], "an old epoch was renewed"
            return
        assert epoch >= self.highest.get(queue_id, 0), "an epoch fell"
        self.highest[queue_id] = epoch
        for other, running in self.running.items():
            if other != session and queue_id in running.epochs:
                assert self.bench.now_ms >= running.proven_ms + GRACE, "granted before the other's deadline"
                del running.epochs[queue_id]

    def sync(self, client: Client, queue_id: int, number: int) -> None:
        running = self.running[client.session]
        mine = running.epochs
        held = list(mine)
        items = []
        if held:
            key = held[queue_id % len(held)]
            items = [SyncItem(GROUP, TOPIC, key, mine[key], offset=number % (END + 20), attempts=number % 3, release=number % 4 == 0)]
        reply = self.bench.c.lock_sync.sync(client.connection, SyncBody(tuple(items)), self.bench.now_ms)
        if reply is None:
            return
        if running.locked_on == client.connection:
            running.proven_ms = self.bench.now_ms
        for item, response in zip(items, reply.items, strict=True):
            if response.verdict is LockVerdict.STALE or (response.verdict is LockVerdict.OK and item.release):
                del mine[item.queue_id]
            elif response.verdict is LockVerdict.OK:
                assert self.highest[item.queue_id] == item.epoch, "a superseded epoch committed"

    def classic_lock(self, classic: ClassicClient, queue_id: int) -> None:
        for granted in classic.lock(queue_id % QUEUES):
            self.highest[granted] = max(self.highest.get(granted, 0), self.bench.epoch(granted))
            for running in self.running.values():
                if granted in running.epochs:
                    assert self.bench.now_ms >= running.proven_ms + GRACE, "a classic client was granted a session's queue"
                    del running.epochs[granted]

    def classic_member(self, classic: ClassicClient, number: int) -> None:
        if number % 2:
            classic.connect()
        else:
            classic.close()

    def update(self, classic: ClassicClient, queue_id: int, number: int) -> None:
        try:
            classic.update(queue_id % QUEUES, number % END)
        except BrokerError:
            pass

    def advance(self, number: int) -> None:
        self.bench.advance(STEPS_MS[number % len(STEPS_MS)])

    def restart(self, number: int) -> None:
        self.bench.restart(assumed_loss=number % 3 == 0)
        self.told = Told(self.bench)
        for each in (*self.clients, *self.classics):
            each.connection = 0
        self.closing = []

    def recreate(self, number: int) -> None:
        """Delete the topic and create it again. Each member with a held pull is notified."""
        self.counter += 1
        again = layout(queues=QUEUES, counter=self.counter)
        live = self.bench.layouts.get(TOPIC)
        assert live is not None
        self.bench.layouts.adopt(again if live.deleted else TopicLayout(TOPIC, LayoutVersion(self.counter, 7), ()))
        self.bench.c.layout_changed(TOPIC)
        for running in self.running.values():
            running.epochs = {}

    def forget(self) -> None:
        """End the group's progress in the topic, which is refused while a client may consume it."""
        group = self.bench.c.state.groups.get(GROUP)
        in_use = (group is not None and bool(group.members)) or self.bench.c.state.locks.held_count(GROUP) > 0
        begun = bool(self.bench.c.state.progress.topics_of_group(GROUP))
        try:
            self.bench.c.admin.forget_progress(GROUP, TOPIC)
        except NoPermissionError:
            assert begun, "there was nothing to end"
            assert in_use, "nobody consumes the topic"
            return
        assert not (begun and in_use), "the progress of a queue that may be consumed was ended"
        assert not self.bench.c.state.progress.topics_of_group(GROUP)

    # ------------------------------------------------------------------------------------------------------------------ laws

    def check(self) -> None:
        self.told.check()
        status = self.bench.c.status.read(GROUP, self.bench.now_ms, str)
        if status is None:
            return
        version = (status.version.term, status.version.counter)
        assert version >= self.version or not status.members, "the version of a list fell"
        self.version = max(self.version, version)
        self.check_contracts(version)
        for row in status.queues:
            if row.committed_offset >= 0:
                key = (row.queue_id, row.generation)
                assert row.committed_offset >= self.offsets.get(key, 0), "an offset fell within its generation"
                self.offsets[key] = row.committed_offset
                assert row.generation >= self.generation.get(row.queue_id, 0), "a generation fell"
                self.generation[row.queue_id] = row.generation
            if row.epoch:
                assert row.epoch >= self.highest.get(row.queue_id, 0), "a recorded epoch fell"
        locks = self.bench.c.snapshot()["locks"]
        assert len({tuple(lock[:3]) for lock in locks}) == len(locks), "two sessions hold one queue"
        state = self.bench.c.state
        assert state.locks._topics == Counter(key[1] for key, _ in state.locks)
        assert state.progress._topics == Counter(
            topic for group in state.progress.groups() for topic in state.progress.topics_of_group(group)
        )

    def check_contracts(self, version: tuple[int, int]) -> None:
        """Members with contracts that can't be mixed never run together; one version of a list always names the same members."""
        members, group = self.bench.c.membership.member_list(GROUP), self.bench.c.state.groups.get(GROUP)
        if members is None or group is None:
            return
        assert self.lists.setdefault(version, members) == members, "a list changed without a new version"
        contracts = list(group.contracts.values())
        assert not [(one, other) for one in contracts for other in contracts if mixing_refusal(one, other)]
        for client_id, session in group.members.items():
            if self.stood.get(session):
                contract = group.contract_of(client_id)
                assert contract is not None
                assert replace(contract, contract_version=self.stood[session][0].contract_version) == contract_of(self.stood[session][0])

    def check_replay(self) -> None:
        """Check that the log, each record twice, and a snapshot with its tail replay to this state, and that a snapshot stays unchanged."""
        here = self.bench.c.snapshot()
        self.bench.journal, kept = Journal(), self.bench.journal
        assert replay(self.bench).snapshot() == here
        middle = len(self.bench.records) // 2
        doubled, tail = Coordination(*self.parts()), Coordination(*self.parts())
        for index, record in enumerate(self.bench.records):
            for _ in range(2):
                for change in decode_changes(record):
                    doubled.apply(change)
            if index == middle:
                taken = doubled.snapshot()
                as_taken = encode(0, -1, 0, 0, [], taken, None, None, 0)
                tail.restore(taken)
            if index >= middle:
                for change in decode_changes(record):
                    tail.apply(change)
        assert encode(0, -1, 0, 0, [], taken, None, None, 0) == as_taken
        assert doubled.snapshot() == here
        assert tail.snapshot() == here
        self.bench.journal = kept

    def parts(self) -> tuple[object, ...]:
        return self.bench.config, self.bench.layouts, self.bench.ends, Journal()


KINDS = [kind for kind in range(19) for _ in range(1 + 2 * (kind in (0, 4, 7, 12)))] + [19, 20, 21, 21]
"""Restarts and deletions are rare; otherwise most runs would reach little else."""
OPS = st.tuples(st.sampled_from(KINDS), st.integers(0, 3), st.integers(0, 7), st.integers(0, 1_200))


@settings(max_examples=200, suppress_health_check=[HealthCheck.data_too_large])
@given(st.lists(OPS, min_size=5, max_size=80))
def test_every_interleaving_keeps_the_laws_and_replays_to_the_same_state(ops: list[Op]) -> None:
    world = World()
    for client in world.clients[:2]:
        world.connect(client)
    for op in ops:
        world.do(op)
        world.check()
    world.check_replay()
